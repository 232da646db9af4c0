"""003, plans at the paper's epsilon 20: constant and adaptive clipping of ten tensors, as published and sound."""

import math
from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional as F

from discreet import AdaptiveClip, Gaussian, Mechanism, PerLayerClip, Plan, Poisson, calibrate
from discreet.accounting import rdp
from discreet.accounting.events import Event
from discreet.papers.experiment import Case
from discreet.papers.three_tools.alexnet import random_noise
from discreet.stages import presets as methods

SAID = 20.0  # the paper's epsilon
TENSORS = 10
NORM = 2.0
CHUNK = 128  # rows at a time: what a cache holds
PLANNED = 60  # epochs after which the paper says epsilon 20


def constant(
    examples: int, batch_size: int, epochs: float, form: str, *, norm: float = NORM, planned: float | None = None
) -> Plan:
    """Each tensor clipped to 2, with noise each, so that epsilon is said, or proven, to be 20; delta is N^-1.1.

    That is after `planned` epochs, where the training is a part of those.
    """
    sampling, delta = Poisson(examples=examples, batch_size=batch_size), examples**-1.1
    rate, steps = batch_size / examples, sampling.steps_for(planned or epochs)
    each = noise_as_said(rate, steps, delta)
    mechanism = Mechanism(PerLayerClip(norm), Gaussian(each / math.sqrt(TENSORS)), "each")
    plan = Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=delta)
    return _part(plan if form == "paper" else calibrate(plan, SAID), epochs)


def _part(plan: Plan, epochs: float) -> Plan:
    """The first epochs of a plan, with its noise."""
    return replace(plan, steps=plan.sampling.steps_for(epochs))


def noise_as_said(rate: float, steps: int, delta: float, epsilon: float = SAID) -> float:
    """The noise of each tensor at which the paper's accounting says epsilon."""
    from scipy.optimize import brentq

    orders = tuple(float(a) for a in range(2, 34))  # those of the moments accountant

    def excess(log_noise: float) -> float:
        events = [Event(rate, math.exp(log_noise), steps)] * TENSORS
        return rdp.classic(rdp.divergences(events, orders), orders, delta) - epsilon

    return math.exp(float(brentq(excess, math.log(0.2), math.log(100.0), xtol=1e-6)))


def adaptive(model: nn.Module, case: Case) -> Plan:
    """Norms that follow the gradients' noisy means, started on random noise, at the same budget."""
    plan = methods.adaptive_clipping(
        examples=case["examples"],
        batch_size=128,
        epochs=case.get("planned", case["epochs"]),
        epsilon=SAID,
        question_noise=5.0 if case["doubled"] == "noise on norms" else 2.5,
        form="paper",
    )
    bound = plan.mechanism.bound
    assert isinstance(bound, AdaptiveClip)
    bound = replace(bound, reach=4.0 if case["doubled"] == "beta" else 2.0, factor=case.get("alpha", bound.factor))

    def on_noise(model: nn.Module) -> Tensor:
        x, y = random_noise(64, seed=0)
        return F.cross_entropy(model(x), y, reduction="none")

    plan = replace(plan, mechanism=replace(plan.mechanism, bound=bound.from_noise(model, on_noise)))
    return _part(plan if case["form"] == "paper" else calibrate(plan, SAID), case["epochs"])
