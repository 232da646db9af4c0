"""How canaries are scored: by what an attacker sees of a run."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.audit.canaries.joint import joint
from discreet.audit.canaries.others import Others, gradient_of
from discreet.audit.canaries.units import Directions, Examples
from discreet.audit.guessing import Counts, Reals, counts_for, log_likelihood, rehearsed
from discreet.errors import ConfigError
from discreet.release.guards import trainable
from discreet.stages.plan import Plan
from discreet.stages.sampling import Allocation, Poisson
from discreet.training.options import Loss

Score = Literal["likelihood", "sum", "parameters", "loss"]


@dataclass(frozen=True, eq=False)
class Filter:
    """How a canary shows best in a release with Gaussian noise: its share of each block, by that block's noise.

    Canary i moves block l by C_l u_il, which has noise s_l. With mu_i^2 = sum of C_l^2 / s_l^2 over its blocks,
    sum over l of C_l <release, u_il> / (s_l^2 mu_i) is N(mu_i, 1) with the canary and N(0, 1) without it. A whole
    run is as `releases` at the `rate`, in each of which a canary moves `times` as far.
    """

    places: Tensor
    factors: Tensor
    mu: Reals
    rate: float
    releases: int = 0
    times: float = 1.0

    @classmethod
    def of(cls, plan: Plan, canaries: Directions) -> "Filter | None":
        """None where a release is no bounded sum with Gaussian noise, or the sampler is none that is known here."""
        mechanism, layout = plan.mechanism, canaries.layout
        plain = mechanism.bound.needs == "norms" and not hasattr(mechanism.bound, "ask") and mechanism.microbatch == 1
        contract = mechanism.contract_for(layout)
        if not plain or not mechanism.noise.law.gaussian or mechanism.denoise:
            return None
        if not isinstance(plan.sampling, Poisson) and joint(plan, np.ones(canaries.count)) is None:
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
        sampling, releases = plan.sampling, plan.charges(plan.steps)
        rate = sampling.contract().rate
        if isinstance(sampling, Allocation):
            rate, releases = 1 / sampling.batches, plan.steps
        times = mechanism.query(layout).multiplier / plan.event(layout).multiplier
        return cls(canaries.places, factors, mu.numpy(), rate, releases, times)

    def seen(self, total: Tensor) -> Reals:
        """What a release says of each canary."""
        return (total[self.places] * self.factors).sum(1).numpy()


class Likelihood:
    """The log-likelihood ratio of each canary, release by release, for one who knows what others add to them.

    Where a run was taken up again, its noise's memory was empty, and so is this one's: scores of before are added.
    """

    def __init__(self, filter_: Filter, plan: Plan, others: Others) -> None:
        self.others = others
        self._filter, self._plan = filter_, plan
        self._scores = np.zeros(len(filter_.mu))
        self._joint = joint(plan, filter_.mu)

    def released(self, total: Tensor, step: int) -> None:
        """A sum was released: take note of it."""
        seen = self._filter.seen(total - self.others.sum())
        if self._joint is not None:
            self._joint.note(step, seen)
            return
        noise = self._plan.noise_factor(step)
        self._scores += log_likelihood(seen / noise, self._filter.rate, self._filter.mu / noise)

    def scores(self) -> Reals:
        """So far."""
        return self._scores if self._joint is None else self._joint.scores()


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
    scores, coins = rehearsed(filter_.rate, float(filter_.mu.mean()) * filter_.times, filter_.releases)
    return counts_for(canaries.count, scores, coins, plan.delta, level)


def parameters_of(model: nn.Module) -> Tensor:
    """All that is trained, side by side."""
    return torch.cat([p.detach().double().flatten().cpu() for p in trainable(model).values()])


def add_released(total: Tensor, step: int, canaries: Directions, likelihood: Likelihood | None, sums: Reals) -> None:
    """Have a released sum scored: along each canary's direction, added to `sums`, or by the likelihood.

    Args:
        total: the gradient that was released, times the batch size.
        step: which release it is.
        canaries: the directions that were added.
        likelihood: the score, if it is not a sum.
        sums: what was added up before, one value a canary; changed in place.
    """
    if likelihood is None:
        sums += canaries.along(total).numpy()
    else:
        likelihood.released(total, step)


class Attacker:
    """What an attacker keeps of a run, to score the canaries by."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        canaries: Examples | Directions,
        score: Score,
        loss: Loss,
        filter_: "Filter | None",
    ) -> None:
        self._model, self._plan, self._canaries, self._score, self._loss = model, plan, canaries, score, loss
        self._likelihood: Likelihood | None = None
        if score == "likelihood":
            assert filter_ is not None
            self._likelihood = Likelihood(filter_, plan, Others(model, plan, loss))
        self._sums = np.zeros(canaries.count)
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

    def note(self, inputs: Tensor, targets: Tensor, who: Tensor) -> None:
        """Rows that are about to be used."""
        if self._likelihood is not None:
            self._likelihood.others.note(inputs, targets, who)

    def released(self, step: int) -> None:
        """A gradient was released: take note of it."""
        if self._score not in ("likelihood", "sum"):
            return
        assert isinstance(self._canaries, Directions)
        total = gradient_of(self._model) * self._plan.sampling.batch_size
        add_released(total, step, self._canaries, self._likelihood, self._sums)

    def scores(self) -> Reals:
        if self._score in ("likelihood", "sum"):
            return self._sums if self._likelihood is None else self._likelihood.scores()
        moved = self._before - self._now()
        if self._score == "parameters":
            assert isinstance(self._canaries, Directions)
            moved = self._canaries.along(moved)
        return moved.nan_to_num(-1e300, 1e300, -1e300).numpy()
