"""The distinguishing game on the real pipeline: one release, or a few, with a unit and without it, again and again.

The parameters stay where they are, every row takes part in every step, and what is looked at is `p.grad`, all of which
is released. So a game shows what one unit can be seen by, and at rate 1 the claim about it is exact.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet._check import check_int
from discreet.accounting.guarantee import Guarantee
from discreet.audit import many_run
from discreet.errors import ConfigError
from discreet.release.attachment import attach
from discreet.release.batching import length_of
from discreet.release.guards import trainable
from discreet.stages.mechanism import Mechanism
from discreet.stages.noise import Gaussian
from discreet.stages.plan import Plan
from discreet.stages.sampling import Poisson
from discreet.stages.sensitivity import Layout

Rows = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Rows, int], Tensor]
Gradients = dict[str, Tensor]
Sample = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Played:
    """What was seen in many games: each statistic's values without the unit and with it, and what is claimed.

    The statistics are declared, not found: "projection", on what the unit moves the sums by; "size", the releases'
    squared length; and each tensor's own projection. The first has half of the level, the others share the rest.
    """

    samples: Mapping[str, Sample]
    guarantee: Guarantee

    def refuted(self, level: float = 0.05) -> tuple[str, ...]:
        """The statistics that disprove the guarantee's trade-off curve.

        None where all is as claimed, but for a chance of `level`.
        """
        curve = self.guarantee.tradeoff()
        return tuple(n for n, s in self.samples.items() if many_run.refutes(curve, *s, self._share(n, level)))

    def epsilon_lower_bound(self, level: float = 0.05) -> float:
        """What epsilon is at least, at the guarantee's delta, with confidence 1 - level."""
        delta = self.guarantee.delta
        return max(many_run.epsilon_lower_bound(*s, delta, self._share(n, level)) for n, s in self.samples.items())

    def mu_lower_bound(self, level: float = 0.05) -> float:
        """The games are not mu-GDP for any smaller mu: it says something of epsilon only if the curve is Gaussian."""
        return max(many_run.mu_lower_bound(*s, self._share(n, level)) for n, s in self.samples.items())

    def _share(self, name: str, level: float) -> float:
        return level / 2 if name == "projection" else level / 2 / (len(self.samples) - 1)


def play(
    model: nn.Module,
    mechanism: Mechanism,
    others: Rows,
    unit: Rows,
    loss: Loss,
    *,
    games: int = 400,
    steps: int = 1,
    games_each: int | None = None,
    delta: float = 1e-5,
    preflight: bool = False,
    seed: int | None = None,
) -> Played:
    """Play `games` games in each of two worlds: the data are `others`, or `others` and the `unit`.

    Args:
        model: is trained on.
        mechanism: bound and noise of a release.
        others: rows that are in the data of both worlds.
        unit: rows of the unit that is in the data of one world only.
        loss: `loss(model, rows, step)` has one value a row; it may be another for each step, as an attacker may choose
            it.
        games: how many in each world.
        steps: releases of a game.
        games_each: how many games are played on one attachment (None: all of them). With 1 every game is a run of its
            own, with its own keys, as it must be for bounds that learn.
        delta: of the guarantee.
        preflight: off by default, so that what it would refuse can be measured.
        seed: makes the noise reproducible, for tests.

    Returns:
        What was measured in both worlds, beside what is proven.
    """
    check_int("games", games, least=8)
    check_int("steps", steps, least=1)
    if length_of(unit) != 1:
        raise ConfigError(f"the unit has {length_of(unit)} rows; it must have one.")
    each = games if games_each is None else check_int("games_each", games_each, least=1)
    if hasattr(mechanism.bound, "ask") and each > 1:
        raise ConfigError(f"{mechanism.bound!r} learns from release to release; play each game anew: games_each=1.")
    worlds = others, tuple(torch.cat(pair) for pair in zip(others, unit, strict=True))
    plan = Plan(sampling=Poisson(rate=1.0, batch_size=length_of(others)), mechanism=mechanism, steps=steps, delta=delta)
    plan = plan if mechanism.fitted else plan.fit_to(model)
    game = _Game(model, plan, loss, preflight, seed)
    moved = game.moves(*worlds)
    measured = []
    for world in worlds:
        values: list[dict[str, float]] = []
        for start in range(0, games, each):
            values += game.values(world, min(each, games - start), moved)
        measured.append({name: np.array([v[name] for v in values]) for name in values[0]})
    return Played({name: (measured[0][name], measured[1][name]) for name in measured[0]}, game.claim())


class _Game:
    """One plan on one model, whose parameters never move."""

    def __init__(self, model: nn.Module, plan: Plan, loss: Loss, preflight: bool, seed: int | None) -> None:
        self._model, self._plan, self._loss, self._preflight, self._seed = model, plan, loss, preflight, seed
        parameters = trainable(model)
        self._layout = Layout(tuple(parameters), tuple(tuple(p.shape) for p in parameters.values()))
        self._weights = self._inverse_variances()

    def _inverse_variances(self) -> dict[str, float]:
        """Of each tensor's noise: weighted so, the projection is a likelihood ratio where noise is Gaussian."""
        mechanism = self._plan.mechanism
        contract = mechanism.contract_for(self._layout)
        assert contract is not None
        scales = zip(contract.blocks, mechanism.scales(contract), strict=True)
        scale_of = {name: scale for block, scale in scales for name in block.members}
        return {name: 1 / scale_of[name] ** 2 if scale_of[name] else 1.0 for name in self._layout.names}

    def claim(self) -> Guarantee:
        """What is proven of one game."""
        private = attach(self._model, self._plan, preflight=False)
        private.detach()
        return private.guarantee()

    def moves(self, without: Rows, within: Rows) -> list[Gradients]:
        """What the unit moves each release of a game by, without noise; nothing where that is no number."""
        mechanism = replace(
            self._plan.mechanism, noise=Gaussian(0.0), allocation="joint", hardening="idealised", denoise=None
        )
        plan = replace(self._plan, mechanism=mechanism)
        pairs = zip(list(self._releases(plan, without)), list(self._releases(plan, within)), strict=True)
        return [{name: (b[name] - a[name]).nan_to_num(0, 0, 0) for name in self._layout.names} for a, b in pairs]

    def values(self, data: Rows, games: int, moved: list[Gradients]) -> list[dict[str, float]]:
        """The statistics of so many games on one attachment."""
        steps = self._plan.steps
        played: list[dict[str, float]] = []
        for number, released in enumerate(self._releases(replace(self._plan, steps=games * steps), data)):
            if number % steps == 0:
                played.append(dict.fromkeys(("projection", "size", *self._layout.names), 0.0))
            for name, move in moved[number % steps].items():
                along = float((released[name] * move).sum())
                played[-1][name] += along
                played[-1]["projection"] += self._weights[name] * along
                played[-1]["size"] += float(released[name].square().sum())
        return played

    def _releases(self, plan: Plan, data: Rows) -> Iterator[Gradients]:
        private = attach(self._model, plan, preflight=self._preflight, seed=self._seed)
        self._seed = None if self._seed is None else self._seed + 1  # no two runs have the same noise
        parameters = trainable(self._model)
        try:
            for number, rows in enumerate(private.batches(data)):
                private.backward(self._loss(self._model, rows, number % self._plan.steps))
                yield {name: p.grad.detach().double() for name, p in parameters.items() if p.grad is not None}
        finally:
            private.detach()
            for parameter in parameters.values():
                parameter.grad = None
