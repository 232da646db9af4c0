"""What a check trains: a model, a plan, an optimizer; and plain training to compare with."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from discreet.accounting.calibrate import calibrate
from discreet.errors import ConfigError
from discreet.stages.plan import Plan
from discreet.stages.sampling import Allocation, Poisson
from discreet.training.evaluation import evaluate, loss_for
from discreet.training.loop import fit

Pair = tuple[Tensor, Tensor]
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]
Tell = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


def quiet(what: str, done: int, total: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Setting:
    """A model and a plan for examples of a shape, as they are to be used on private data.

    `make()` returns a new model, `optimizer(model)` a torch optimizer for it; `plain_optimizer` is that of training
    without privacy, if it is to be another.
    """

    make: Callable[[], nn.Module]
    plan: Plan
    shape: tuple[int, ...]
    classes: int
    optimizer: Optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=0.5)
    plain_optimizer: Optimizer | None = None

    def resized(self, examples: int, epochs: float) -> "Setting":
        """The same for fewer examples and epochs, at the plan's batch size and epsilon: its noise is solved anew.

        Args:
            examples: how many there are.
            epochs: how often each takes part, on average.
        """
        sampling = self.plan.sampling
        batch = min(sampling.batch_size, examples)
        steps = max(1, resampled(sampling, examples, batch).steps_for(epochs))
        return replace(self, plan=resized(self.plan.fit_to(self.make()), examples, batch, steps))

    def with_noise(self, scale: float) -> "Setting":
        """The same at another noise, in units of the sensitivity.

        Args:
            scale: the amount of noise.
        """
        return replace(self, plan=replace(self.plan, mechanism=self.plan.mechanism.with_scale(scale), epsilon=None))

    def train(self, data: Pair, tell: Callable[[int, int], None], measured: Pair | None = None) -> "Trained":
        """Train a new model privately on made-up or public data.

        Args:
            data: inputs and labels.
            tell: is told the step and how many there are.
            measured: what accuracy is measured on; `data` unless it is given.
        """
        model, plan = self.make(), self.plan
        sampling: Any = plan.sampling
        if isinstance(sampling, Poisson) and sampling.examples != len(data[0]):
            # examples are there by coins of their own: the same rate, the same cost, their number not fixed (T1)
            rate = float(sampling.exact_rate)
            adjacency = "replace" if sampling.adjacency == "replace" else None
            plan = replace(plan, sampling=Poisson(rate=rate, batch_size=sampling.batch_size, adjacency=adjacency))
        fitted = fit(
            model,
            data,
            plan,
            test=measured or data,
            optimizer=self.optimizer(model),
            evaluate_every=max(1.0, plan.sampling.epochs_in(plan.steps) / 12),
            on_step=lambda step: tell(step, plan.steps),
        )
        course = tuple((float(r["epoch"]), float(r["accuracy"])) for r in fitted.records)
        return Trained(model, course, fitted.guarantee.epsilon)

    def train_plainly(self, data: Pair, tell: Callable[[int, int], None], measured: Pair | None = None) -> "Trained":
        """Train a new model without privacy: as many steps on batches as large, shuffled, no bound, no noise.

        Args:
            data: inputs and labels.
            tell: is told the step and how many there are.
            measured: what accuracy is measured on; `data` unless it is given.
        """
        model, plan = self.make(), self.plan
        optimizer, loss = (self.plain_optimizer or self.optimizer)(model), loss_for(data)
        count, size = len(data[0]), math.ceil(plan.sampling.batch_size)
        between, course = max(1, plan.steps // 12), []
        order = torch.randperm(count)
        for step in range(1, plan.steps + 1):
            if len(order) < min(size, count):
                order = torch.randperm(count)
            rows, order = order[:size], order[size:]
            optimizer.zero_grad()
            loss(model(data[0][rows]), data[1][rows]).mean().backward()
            optimizer.step()
            if step % between == 0 or step == plan.steps:
                course.append((step * size / count, evaluate(model, measured or data)["accuracy"]))
            tell(step, plan.steps)
        return Trained(model, tuple(course), float("inf"))


@dataclass(frozen=True)
class Trained:
    """A model, its accuracy over epochs on what it was measured on, and the epsilon of its training."""

    model: nn.Module
    course: tuple[tuple[float, float], ...]
    epsilon: float

    @property
    def accuracy(self) -> float:
        """At the end."""
        return self.course[-1][1]


def resized(plan: Plan, units: int, batch_size: float, steps: int) -> Plan:
    """A plan for another number of units and steps that proves the same epsilon, with the noise that takes.

    Where no noise does, for want of any in the plan, the noise stays.
    """
    smaller = replace(plan, sampling=resampled(plan.sampling, units, batch_size), steps=steps, epsilon=None)
    try:
        return replace(calibrate(smaller, plan.guarantee().epsilon), epsilon=None)
    except ConfigError:
        return smaller


def known(sampling: Any) -> int:
    """How many units there are, where a sampler says it."""
    if getattr(sampling, "examples", None) is None:
        raise ConfigError("a check makes up its data, and must know how many there are; give the sampler examples=.")
    return sampling.examples


def resampled(sampling: Any, units: int, batch_size: float) -> Any:
    """The sampler for another number of units; a cap on the batch is for a machine's memory, and falls away."""
    known(sampling)
    if isinstance(sampling, Allocation):
        return replace(sampling, examples=units, batches=1).with_batch_size(batch_size)
    more = {"cap": None} if isinstance(sampling, Poisson) else {}
    return replace(sampling, examples=units, batch_size=batch_size, **more)
