"""Faults that are planted in the pipeline, and the tools that try to find them: what benchmarks/faults.py prints.

A fault is planted by pytest's MonkeyPatch and taken out again. The seeds are fixed. A tool that measures raises a false
alarm on an unbroken pipeline with a chance of at most LEVEL.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import discreet.stages.mechanism
from discreet import Clip, Gaussian, Mechanism, PerLayerClip, Plan, Poisson, PrivacyError, attach
from discreet.audit.canaries import audit_run, directions
from discreet.audit.game import play
from discreet.ledger import RunLedger
from discreet.release.private_sum import PrivateSum
from discreet.release.sums import FloatSums
from discreet.stages.noise.random import KeyTree, Scratch

LEVEL = 0.01


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def rows(n):
    """Inputs, labels, and how much a row's loss counts."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (n,), generator=generator), torch.full((n,), 100.0, dtype=torch.float64)


class DetachedMean(nn.Module):
    """A batch statistic that no gradient shows."""

    def forward(self, h):
        return h - h.detach().mean(0)


def with_batch_statistic():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), DetachedMean(), nn.Tanh(), nn.Linear(8, 3)).double()


ONES, LABEL = torch.ones(1, 4, dtype=torch.float64), torch.tensor([1])
LONG = ONES, LABEL, torch.tensor([1e4]).double()  # long in every tensor
ENDLESS = math.inf * ONES, LABEL, torch.tensor([1.0]).double()
AGAINST = ONES, LABEL, torch.tensor([-1e6]).double()  # against all who are like LONG


@dataclass(frozen=True)
class Fault:
    """A fault by its name, how it is planted, which tools must find it, and where it shows."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    found_by: tuple[str, ...]
    mechanism: Mechanism = Mechanism(Clip(0.5), Gaussian())  # noqa: RUF009 - a frozen value
    unit: tuple[torch.Tensor, ...] = LONG
    network: Callable[[], nn.Module] = network
    alike: bool = False  # whether the other rows are all the same


# --- the tools -------------------------------------------------------------------------------------------------------


def losses(model, batch, step=0):
    """Long gradients, and at every second step their opposite: an attacker may choose the loss."""
    return (-1) ** step * batch[2] * F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def others(fault, n=2):
    return tuple(t.expand(n, *t.shape[1:]) for t in LONG) if fault.alike else rows(n)


def train(fault, *, preflight):
    """A few steps of ordinary training, in which the library may refuse."""
    data = tuple(torch.cat(pair) for pair in zip(others(fault, 15), fault.unit, strict=True))
    model = fault.network()
    sampling = Poisson(examples=16, batch_size=8)
    plan = Plan(sampling=sampling, mechanism=fault.mechanism.with_scale(1.0), steps=3, delta=1e-5)
    private = attach(model, plan, preflight=preflight, seed=1)
    try:
        for batch in private.batches(data):
            private.backward(losses(model, batch))
    finally:
        private.detach()


def refused(fault, *, preflight):
    try:
        train(fault, preflight=preflight)
    except PrivacyError:
        return True
    return False


def checks(fault):
    return refused(fault, preflight=False)


def preflight(fault):
    return refused(fault, preflight=True) and not checks(fault)


def games(fault, *, noise, **settings):
    mechanism = fault.mechanism.with_scale(noise)
    try:
        played = play(fault.network(), mechanism, others(fault), fault.unit, losses, seed=1, **settings)
    except PrivacyError:
        return False  # refused, which is another tool's merit
    return bool(played.refuted(LEVEL))


def one_run(fault):
    """Twenty steps with 0.4 of the rows each, 3000 canaries: a claim about a whole run, its sampling included."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3))
    x, y, _ = others(fault, 20)
    mechanism = fault.mechanism.with_scale(2.5)
    plan = Plan(sampling=Poisson(rate=0.4, batch_size=600), mechanism=mechanism, steps=20, delta=1e-5)
    canaries = directions(model, plan, 3000, width=1)
    try:
        run = audit_run(model, (x.float(), y), plan, canaries, level=LEVEL, preflight=False, seed=1)
    except PrivacyError:
        return False
    return run.refutes_curve()


TOOLS: dict[str, Callable[[Fault], bool]] = {
    "checks while it runs": checks,
    "preflight": preflight,
    "games of one release": lambda fault: games(fault, noise=0.5, games=160),
    "games of two releases": lambda fault: games(fault, noise=0.7, games=100, steps=2),
    "games of whole runs": lambda fault: games(fault, noise=1.0, games=50, games_each=1),
    "one-run audit": one_run,
}


# --- the faults ------------------------------------------------------------------------------------------------------


def noise_halved(patch):
    patch.setattr(Gaussian, "sample", lambda self, out, scale, source: source.fill_normal(out, scale / 2))


def clip_skipped(patch):
    patch.setattr(Clip, "apply", lambda self, norms, state: {n: torch.ones_like(v) for n, v in norms.items()})


def clip_each_tensor(patch):
    patch.setattr(Clip, "apply", lambda self, norms, state: {n: self.norm / v.sqrt() for n, v in norms.items()})


def noise_repeated(patch):
    stream = KeyTree.stream
    patch.setattr(KeyTree, "stream", lambda self, what, number: stream(self, what, 0 if what == "noise" else number))


def release_not_counted(patch):
    patch.setattr(RunLedger, "spend", lambda self, *values, **notes: None)


def seed_fixed(patch):
    def fixed(self, seed=None):
        self.seeded, self._process, self._room = False, 0, Scratch()
        self._key = hashlib.sha256(b"the same in every run").digest()

    patch.setattr(KeyTree, "__init__", fixed)
    patch.setattr("os.getpid", lambda: 0)


def blocks_not_counted(patch):
    patch.setattr(Mechanism, "_allocated", lambda self, blocks, multiplier: tuple(multiplier * b.norm for b in blocks))


def noise_on_one_tensor(patch):
    def scale_runs(self, names, scales):
        start = 0
        for i, name in enumerate(names):
            end = start + self._sizes[name]
            yield start, end, scales[name] if i == 0 else 0.0
            start = end

    patch.setattr(FloatSums, "_scale_runs", scale_runs)


def mean_of_the_batch(patch):
    add = PrivateSum.add

    def realised(self, gradients, sound=None, shares=None):
        self._count = gradients.units
        add(self, gradients, sound, shares)

    patch.setattr(PrivateSum, "add", realised)


def drawn_twice(patch):
    draw = Poisson.draw
    patch.setattr(Poisson, "draw", lambda self, *arguments: np.repeat(draw(self, *arguments), 2))


def added_twice(patch):
    add = PrivateSum.add

    def twice(self, gradients, sound=None, shares=None):
        add(self, gradients, sound, shares)
        add(self, gradients, sound, shares)

    patch.setattr(PrivateSum, "add", twice)


def microbatch_not_doubled(patch):
    patch.setattr(discreet.stages.mechanism, "doubled", lambda contract: contract)


def nan_by_a_product(patch):
    def add(self, gradients, sound=None, shares=None):
        weights = self.bound.apply(gradients.norms(), self.state)
        sound = torch.ones(gradients.units, dtype=torch.bool) if sound is None else sound
        self._sums.add_weighted(gradients, {n: w.nan_to_num(0, 0, 0) * sound for n, w in weights.items()})

    patch.setattr(PrivateSum, "add", torch.no_grad()(add))


def everybody_in_every_step(patch):
    patch.setattr(Poisson, "draw", lambda self, length, step, origin_step, streams: np.arange(length))


def batch_statistic(patch):
    """Nothing is planted: the model has it."""


def noise_for_the_mean(patch):
    """As if the sum were a mean already: the noise is divided by the batch size once too often."""
    noised = FloatSums.noised

    def too_little(self, drawing):
        return noised(self, replace(drawing, scales={name: scale / 4 for name, scale in drawing.scales.items()}))

    patch.setattr(FloatSums, "noised", too_little)


FAULTS = (
    Fault("half the noise", noise_halved, ("games of one release",)),
    Fault("noise of a mean on a sum", noise_for_the_mean, ("games of one release", "one-run audit")),
    Fault("noise on the first tensor alone", noise_on_one_tensor, ("games of one release",)),
    Fault("the same noise in every step", noise_repeated, ("games of two releases",)),
    Fault("a release that is not counted", release_not_counted, ("games of two releases",)),
    Fault("the same key in every run", seed_fixed, ("games of whole runs",)),
    Fault("gradients not clipped", clip_skipped, ("preflight", "games of one release")),
    Fault("each tensor clipped to the whole norm", clip_each_tensor, ("preflight", "games of one release")),
    Fault(
        "per-layer clipping with the noise of one layer",
        blocks_not_counted,
        ("games of one release",),
        Mechanism(PerLayerClip(0.5), Gaussian(), "each"),
    ),
    Fault("the mean over those who took part", mean_of_the_batch, ("games of one release",)),
    Fault("an example drawn twice", drawn_twice, ("checks while it runs",)),
    Fault("an example added twice", added_twice, ("games of one release",)),
    Fault(
        "microbatches with the sensitivity of one example",
        microbatch_not_doubled,
        ("games of one release",),
        Mechanism(Clip(0.5), Gaussian(), microbatch=2),
        unit=AGAINST,
        alike=True,
    ),
    Fault("infinite gradients masked by a product", nan_by_a_product, ("games of one release",), unit=ENDLESS),
    Fault("everybody in every step, accounted as 0.4 of them", everybody_in_every_step, ("one-run audit",)),
    Fault("a batch statistic that no gradient shows", batch_statistic, ("preflight",), network=with_batch_statistic),
)

UNBROKEN = (
    Fault("nothing", batch_statistic, ()),
    Fault(
        "nothing, microbatches",
        batch_statistic,
        (),
        Mechanism(Clip(0.5), Gaussian(), microbatch=2),
        unit=AGAINST,
        alike=True,
    ),
    Fault("nothing, an infinite example", batch_statistic, (), unit=ENDLESS),
)


def found(fault, tool):
    """Whether a tool finds a fault that is planted for it, and taken out afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        return TOOLS[tool](fault)
