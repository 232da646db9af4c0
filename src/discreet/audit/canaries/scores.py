"""How canaries are scored: by what an attacker sees of a run."""

import copy
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.audit.canaries.units import Directions, Examples
from discreet.audit.guessing import Counts, Reals, counts_for, log_likelihood, rehearsed
from discreet.errors import ConfigError
from discreet.release.attachment import attach
from discreet.release.guards import trainable
from discreet.stages.noise import Gaussian
from discreet.stages.plan import Plan
from discreet.stages.sampling import Poisson
from discreet.training.options import Loss, Rows

Score = Literal["likelihood", "sum", "parameters", "loss"]


@dataclass(frozen=True, eq=False)
class Filter:
    """How a canary shows best in a release with Gaussian noise: its share of each block, by that block's noise.

    Canary i moves block l by C_l u_il, which has noise s_l. With mu_i^2 = sum of C_l^2 / s_l^2 over its blocks,
    sum over l of C_l <release, u_il> / (s_l^2 mu_i) is N(mu_i, 1) with the canary and N(0, 1) without it.
    """

    places: Tensor
    factors: Tensor
    mu: Reals
    rate: float

    @classmethod
    def of(cls, plan: Plan, canaries: Directions) -> "Filter | None":
        """None where a release is something else than the bounded sum of a Poisson sample and Gaussian noise."""
        mechanism, layout = plan.mechanism, canaries.layout
        plain = mechanism.bound.needs == "norms" and not hasattr(mechanism.bound, "ask") and mechanism.microbatch == 1
        plain &= not getattr(mechanism.noise, "correlated", False)  # noise of other steps would tell more, or less
        contract = mechanism.contract_for(layout)
        if not plain or not mechanism.noise.law.gaussian or mechanism.denoise or not isinstance(plan.sampling, Poisson):
            return None
        assert contract is not None
        scales = mechanism.scales(contract)
        if not all(scales):
            return None
        block_of = {name: i for i, block in enumerate(contract.blocks) for name in block.members}
        sizes = torch.tensor(layout.sizes)
        blocks = torch.tensor([block_of[name] for name in layout.names]).repeat_interleave(sizes)[canaries.places]
        shares = F.one_hot(blocks, len(scales)).sum(1).double()  # places of each canary in each block
        ratios = torch.tensor(
            [block.norm / scale for block, scale in zip(contract.blocks, scales, strict=True)]
        ).double()
        mu = ((shares > 0) * ratios.square()).sum(1).sqrt()
        weights = ratios / torch.tensor(scales).double()
        factors = canaries.signs.double() * weights[blocks] / shares.gather(1, blocks).sqrt() / mu[:, None]
        return cls(canaries.places, factors, mu.numpy(), float(plan.sampling.exact_rate))

    def score(self, total: Tensor, noise: float) -> Reals:
        """The log-likelihood ratio of each canary in one release, at `noise` times the plan's."""
        seen = (total[self.places] * self.factors).sum(1).numpy()
        return log_likelihood(seen / noise, self.rate, self.mu / noise)


def checked_score(score: Score | None, canaries: Examples | Directions, filter_: "Filter | None") -> Score:
    """The score, or the first that these canaries and the plan allow; a ConfigError if it is none of them."""
    fitting: tuple[Score, ...] = ("loss",)
    if isinstance(canaries, Directions):
        fitting = ("sum", "parameters") if filter_ is None else ("likelihood", "sum", "parameters")
    if score is None:
        return fitting[0]
    if score not in fitting:
        said = "unknown" if score not in get_args(Score) else f"not for {type(canaries).__name__} with this plan"
        raise ConfigError(f"score {score!r} is {said}; use one of {', '.join(fitting)}.")
    return score


def rehearsed_counts(plan: Plan, canaries: Examples | Directions, filter_: "Filter | None", level: float) -> Counts:
    """Numbers of guesses from the plan alone."""
    if filter_ is None or plan.steps == 0:
        return max(1, canaries.count // 20), max(1, canaries.count // 20)
    scores, coins = rehearsed(filter_.rate, float(filter_.mu.mean()), plan.steps)
    return counts_for(canaries.count, scores, coins, plan.delta, level)


def gradient_of(model: nn.Module) -> Tensor:
    """What was released, all parameters side by side."""
    gradients = [p.grad for p in trainable(model).values() if p.grad is not None]
    return torch.cat([g.detach().double().flatten().cpu() for g in gradients])


def parameters_of(model: nn.Module) -> Tensor:
    """All that is trained, side by side."""
    return torch.cat([p.detach().double().flatten().cpu() for p in trainable(model).values()])


class _ExpectedSum:
    """What the data are expected to add to a release, for an attacker who knows them: a bounded sum without noise."""

    def __init__(self, model: nn.Module, data: Rows, plan: Plan, loss: Loss, chunk: int | None) -> None:
        self._model, self._twin, self._loss = model, copy.deepcopy(model), loss
        self._rate = plan.sampling.contract().rate
        mechanism = replace(plan.mechanism, noise=Gaussian(0.0), allocation="joint", hardening="idealised")
        everybody = replace(
            plan,
            sampling=Poisson(rate=1.0, batch_size=1),
            mechanism=mechanism,
            steps=plan.steps,
            epsilon=None,
            noise_schedule=(),
        )
        self._private = attach(self._twin, everybody, preflight=False)
        self._batches = self._private.batches(data, at_most=chunk)

    def now(self) -> Tensor:
        """At the model's parameters now: the rate times everybody's bounded gradient."""
        with torch.no_grad():
            for own, other in zip(self._twin.parameters(), self._model.parameters(), strict=True):
                own.copy_(other)
        device = next(self._twin.parameters()).device
        complete = False
        while not complete:
            inputs, targets = next(self._batches)
            complete = self._private.backward(self._loss(self._twin(inputs.to(device)), targets.to(device)))
        return self._rate * gradient_of(self._twin)


class Attacker:
    """What an attacker keeps of a run, to score the canaries by."""

    def __init__(
        self,
        model: nn.Module,
        data: Rows,
        plan: Plan,
        canaries: Examples | Directions,
        score: Score,
        loss: Loss,
        filter_: "Filter | None",
        chunk: int | None,
    ) -> None:
        self._model, self._plan, self._canaries, self._score, self._loss = model, plan, canaries, score, loss
        self._filter = filter_
        self._expected = _ExpectedSum(model, data, plan, loss, chunk) if score == "likelihood" else None
        self._scores = np.zeros(canaries.count)
        self._before = self._now()

    def _now(self) -> Tensor:
        """What the black-box scores compare: parameters, or losses."""
        if self._score == "parameters":
            return parameters_of(self._model)
        return self._losses() if self._score == "loss" else torch.zeros(())

    @torch.no_grad()
    def _losses(self) -> Tensor:
        assert isinstance(self._canaries, Examples)
        device = next(self._model.parameters()).device
        training = self._model.training
        self._model.eval()
        pairs = zip(self._canaries.inputs.split(1000), self._canaries.targets.split(1000), strict=True)
        losses = [self._loss(self._model(x.to(device)), y.to(device)).double().cpu() for x, y in pairs]
        self._model.train(training)
        return torch.cat(losses)

    def released(self, step: int) -> None:
        """A gradient was released: take note of it."""
        if self._score not in ("likelihood", "sum"):
            return
        assert isinstance(self._canaries, Directions)
        total = gradient_of(self._model) * self._plan.sampling.batch_size
        if self._score == "sum":
            self._scores += self._canaries.along(total).numpy()
        else:
            assert self._filter is not None
            assert self._expected is not None
            self._scores += self._filter.score(total - self._expected.now(), self._plan.noise_factor(step))

    def scores(self) -> Reals:
        if self._score in ("likelihood", "sum"):
            return self._scores
        moved = self._before - self._now()
        if self._score == "parameters":
            assert isinstance(self._canaries, Directions)
            moved = self._canaries.along(moved)
        return moved.nan_to_num(-1e300, 1e300, -1e300).numpy()
