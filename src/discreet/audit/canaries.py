"""Canaries: made-up units that are in a run or not by secret coins, and what a run gives away of the coins.

A canary is a row like any other: it is drawn by the plan's sampler, its gradient is bounded, summed and hidden by the
same code as everybody's. What an excluded canary is, the plan's own relation between data sets says. Where the number
of rows is secret (`Poisson(rate=...)`), it is not there. Where it is public, its row stays, and its loss is NaN: that
is masked before anything is computed of it, the questions of bounds that learn included, and contributes exactly
nothing, which is what "zero-out" means.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from discreet._check import check_int
from discreet.accounting.guarantee import Guarantee
from discreet.audit import curves
from discreet.audit.guessing import Coins, Counts, Reals, count_correct, counts_for, guess, log_likelihood, rehearsed
from discreet.audit.one_run import OneRun
from discreet.errors import ConfigError
from discreet.release.batching import length_of
from discreet.release.guards import trainable
from discreet.release.session import attach
from discreet.stages.noise import Gaussian
from discreet.stages.noise.random import KeyTree
from discreet.stages.plan import Plan
from discreet.stages.sampling import Poisson
from discreet.stages.sensitivity import Layout, norm_of
from discreet.training.loop import Loss, Rows, loss_for

Score = Literal["likelihood", "sum", "parameters", "loss"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Canaries that are examples: inputs and targets of one's choice, with the usual loss."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise ConfigError(f"{len(self.inputs)} inputs and {len(self.targets)} targets; a canary is one of each.")

    @property
    def count(self) -> int:
        return len(self.inputs)

    def rows(self, like: Rows) -> tuple[Tensor, Tensor]:
        return self.inputs, self.targets


def mislabelled(inputs: Tensor, labels: Tensor, classes: int, *, seed: int = 0) -> Examples:
    """Real inputs, each with a wrong label drawn uniformly from the others: a model learns it only by heart."""
    check_int("classes", classes, least=2)
    shift = torch.randint(1, classes, labels.shape, generator=torch.Generator().manual_seed(seed))
    return Examples(inputs, (labels + shift) % classes)


def noise_images(shape: tuple[int, ...], count: int, classes: int, *, seed: int = 0) -> Examples:
    """Inputs of uniform noise in [0, 1) with random labels: unlike all data, and unlike each other."""
    check_int("count", count, least=1)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand((count, *shape), generator=generator)
    return Examples(inputs, torch.randint(classes, (count,), generator=generator))


@dataclass(frozen=True, eq=False)
class Directions:
    """Canaries whose gradients are chosen: orthonormal directions in the space of a model's parameters.

    The loss of canary i is `length` * <parameters, direction i>, linear in the parameters, so its gradient is `length`
    times the direction, exactly and at every step. Each direction has `places` of its own, [canaries, width], with
    `signs` there and zero elsewhere, so that they are orthogonal without rounding.
    """

    places: Tensor
    signs: Tensor
    layout: Layout
    length: float
    _sizes: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", list(self.layout.sizes))

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def width(self) -> int:
        return self.places.shape[1]

    def rows(self, like: Rows) -> tuple[Tensor, Tensor]:
        """Constants in the data's shape: the model runs on them as on all rows, and nothing of that is used."""
        first = (like[0][0], like[1][0]) if isinstance(like, tuple) else like[0]
        inputs, targets = (torch.zeros_like(torch.as_tensor(value)) for value in first)
        return inputs.expand(self.count, *inputs.shape), targets.expand(self.count, *targets.shape)

    def matrix(self, numbers: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """These canaries' directions as rows of length 1; rows of zeros where the number is negative."""
        places, signs = (t.to(numbers.device)[numbers.clamp(min=0)] for t in (self.places, self.signs))
        values = signs.to(dtype) * (numbers >= 0)[:, None] / self.width**0.5
        return values.new_zeros(len(numbers), sum(self._sizes)).scatter_(1, places, values)

    def losses(self, model: nn.Module, numbers: Tensor) -> Tensor:
        """`length` * <parameters, direction> for each of these canaries, 0 where the number is negative."""
        parameters = list(trainable(model).values())
        pieces = self.matrix(numbers, parameters[0].dtype).split(self._sizes, 1)
        terms = [F.linear(d, p.reshape(1, -1).to(d.dtype)).squeeze(1) for d, p in zip(pieces, parameters, strict=True)]
        return self.length * torch.stack(terms).sum(0)

    def along(self, vector: Tensor) -> Tensor:
        """The product of each direction with a vector of all parameters side by side."""
        return (vector[self.places] * self.signs).sum(1) / self.width**0.5


def directions(model: nn.Module, plan: Plan, count: int, *, width: int | None = None, seed: int = 0) -> Directions:
    """So many orthonormal directions for a model, `width` random places each, and long enough to be cut by the bound.

    By default as wide as the parameters allow: what real examples add is then spread thin over each direction.
    """
    check_int("count", count, least=1)
    parameters = trainable(model)
    layout = Layout(tuple(parameters), tuple(tuple(p.shape) for p in parameters.values()))
    total = sum(layout.sizes)
    widest = total // count
    if widest < 1 or (width is not None and not 1 <= width <= widest):
        raise ConfigError(
            f"{count} directions with {width or 1} places each do not fit into {total} parameters; ask for fewer, or "
            "take a larger model."
        )
    generator = torch.Generator().manual_seed(seed)
    width = widest if width is None else width
    places = torch.randperm(total, generator=generator)[: count * width].view(count, width)
    signs = torch.randint(2, (count, width), generator=generator) * 2.0 - 1
    contract = plan.mechanism.contract_for(layout)
    norm = 1.0 if contract is None else norm_of(contract)
    return Directions(places, signs, layout, 1000 * norm)


def for_canaries(plan: Plan) -> Plan:
    """The same plan for data of any number of rows: same rate, noise and steps, and so the same epsilon (T1).

    A plan of N examples refuses data with canaries beside them; this takes them, and excluded ones are not there.
    """
    sampling = plan.sampling
    if not isinstance(sampling, Poisson) or sampling.cap is not None or sampling.adjacency == "replace":
        raise ConfigError(f"{sampling!r} needs its number of rows; make the plan for the data and canaries together.")
    secret = replace(sampling, examples=None, rate=float(sampling.exact_rate), adjacency=None)
    return replace(plan, sampling=secret)


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A run with canaries: the test's result, what is proven of the run, and what was scored.

    `scores` are higher for those that were likelier in; `coins` say who was. `counts` are the numbers of guesses.
    """

    result: OneRun
    guarantee: Guarantee
    scores: Reals
    coins: Coins
    counts: Counts

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for a run folder's audit.json; nothing of who was in."""
        guessed = guess(self.scores, *self.counts)
        said = [float((guessed[coins] == 1).mean()) if coins.any() else 0.0 for coins in (~self.coins, self.coins)]
        point = {"false_positives": said[0], "true_positives": said[1], "label": "canaries guessed to be in"}
        return self.result.to_dict() | {"mu_lower_bound": self.mu_lower_bound(), "points": [point]}

    def refutes_curve(self) -> bool:
        """Whether the guarantee's whole trade-off curve is rejected (curves.rejects): a sharper test than epsilon's."""
        run = self.result
        return curves.rejects(self.guarantee.tradeoff(), run.canaries, run.guesses, run.correct, run.level)

    def mu_lower_bound(self) -> float:
        """The run is not mu-GDP for any smaller mu: it says something of epsilon only if its curve is Gaussian."""
        run = self.result
        return curves.mu_lower_bound(run.canaries, run.guesses, run.correct, run.level)


def audit_run(
    model: nn.Module,
    data: Rows,
    plan: Plan,
    canaries: Examples | Directions,
    *,
    score: Score | None = None,
    guesses: Counts | None = None,
    level: float = 0.05,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    chunk: int | None = None,
    preflight: bool = True,
    on_step: Callable[[int], None] = lambda step: None,
    seed: int | None = None,
) -> AuditedRun:
    """Train a model by a plan on data and canaries, each canary in or out by a fair secret coin; guess the coins.

    - `plan` must be for the data and all canaries together, or for any number of rows (`for_canaries`);
    - `score` is how a canary is judged. "likelihood": by every released gradient along the canary's direction, by
      one who knows the plan and all data but the coins, as the definition of privacy has it. "sum": by the same
      gradients, summed up. "parameters": by how far the model moved against the direction. "loss": by how much the loss
      of an example canary fell. By default the first that applies;
    - `guesses` are how many are guessed in and out, fixed in advance. By default they follow from the plan, by a
      rehearsal, or are a twentieth of the canaries each where there is none;
    - `loss`, `optimizer` as in `fit`. `seed` makes it all reproducible, for tests, and the guarantee says that it is
      broken.

    The model ends up trained on canaries too: audit a copy of the one that is to be used.
    """
    filter_ = Filter.of(plan, canaries) if isinstance(canaries, Directions) else None
    score = checked_score(score, canaries, filter_)
    counts = rehearsed_counts(plan, canaries, filter_, level) if guesses is None else guesses
    guess(np.zeros(canaries.count), *counts)  # say what is wrong with them before anything is trained
    root = KeyTree(seed)
    coins = root.stream("canaries", 0).bernoulli(canaries.count, Fraction(1, 2))
    rows = with_canaries(data, canaries, coins, kept=getattr(plan.sampling, "examples", None) is not None)
    chosen = loss or loss_for(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if optimizer is None else optimizer
    watch = _Watch(model, data, plan, canaries, score, chosen, filter_, chunk)
    private = attach(model, plan, preflight=preflight, seed=seed)
    device = next(model.parameters()).device
    try:
        for inputs, targets, numbers in private.batches(rows, at_most=chunk):
            who = numbers.to(device)
            losses = chosen(model(inputs.to(device)), targets.to(device))
            if isinstance(canaries, Directions):
                losses = torch.where(who >= 0, canaries.losses(model, who).to(losses.dtype), losses)
            if private.backward(torch.where(who == EXCLUDED, torch.nan, losses)):
                watch.released(private.released - 1)
                optimizer.step()
                on_step(private.released)
    finally:
        private.detach()
    guarantee = private.guarantee()
    scores = watch.scores()
    right = count_correct(guess(scores, *counts), coins)
    result = OneRun(canaries.count, sum(counts), right, guarantee.epsilon, guarantee.delta, level)
    return AuditedRun(result, guarantee, scores, coins, counts)


DATA, EXCLUDED = -1, -2  # what stands in place of a canary's number


def with_canaries(data: Rows, canaries: Examples | Directions, coins: Coins, *, kept: bool) -> Any:
    """The data and the canaries, each row with its canary's number; excluded ones `kept` as empty rows, or left out."""
    numbers = torch.arange(canaries.count)
    included = torch.from_numpy(coins)
    if kept:
        numbers = torch.where(included, numbers, EXCLUDED)
        chosen = torch.arange(canaries.count)
    else:
        numbers = chosen = numbers[included]
    inputs, targets = (t[chosen] for t in canaries.rows(data))
    own = torch.full((length_of(data),), DATA)
    if isinstance(data, tuple):
        return (
            torch.cat((data[0], inputs.to(data[0]))),
            torch.cat((data[1], targets.to(data[1]))),
            torch.cat((own, numbers)),
        )
    return _Joined(data, inputs, targets, numbers)


class _Joined(Dataset[Any]):
    """A data set with canaries behind it."""

    def __init__(self, data: Dataset[Any], inputs: Tensor, targets: Tensor, numbers: Tensor) -> None:
        self._data, self._rows, self._length = data, (inputs, targets, numbers), length_of(data)

    def __len__(self) -> int:
        return self._length + len(self._rows[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        if index < self._length:
            inputs, targets = self._data[index]
            return torch.as_tensor(inputs), torch.as_tensor(targets), torch.tensor(DATA)
        inputs, targets, number = (t[index - self._length] for t in self._rows)
        return inputs, targets, number


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


class _Known:
    """What the data are expected to add to a release, for an attacker who knows them: a bounded sum without noise."""

    def __init__(self, model: nn.Module, data: Rows, plan: Plan, loss: Loss, chunk: int | None) -> None:
        self._model, self._twin, self._loss, self._rate = (
            model,
            copy.deepcopy(model),
            loss,
            plan.sampling.contract().rate,
        )
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

    def expected(self) -> Tensor:
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


class _Watch:
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
        self._known = _Known(model, data, plan, loss, chunk) if score == "likelihood" else None
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
        found = [self._loss(self._model(x.to(device)), y.to(device)).double().cpu() for x, y in pairs]
        self._model.train(training)
        return torch.cat(found)

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
            assert self._known is not None
            self._scores += self._filter.score(total - self._known.expected(), self._plan.noise_factor(step))

    def scores(self) -> Reals:
        if self._score in ("likelihood", "sum"):
            return self._scores
        moved = self._before - self._now()
        if self._score == "parameters":
            assert isinstance(self._canaries, Directions)
            moved = self._canaries.along(moved)
        return moved.nan_to_num(-1e300, 1e300, -1e300).numpy()
