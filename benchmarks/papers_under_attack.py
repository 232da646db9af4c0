"""Each paper's own form at the epsilon it claims, attacked; and beside it a sound form at the same epsilon.

python benchmarks/papers_under_attack.py
"""

import math
import platform
import sys
import time
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from discreet import Clip, Gaussian, Mechanism, PerLayerClip, Plan, Poisson, Shuffled, attach, methods
from discreet.accounting.events import Event
from discreet.accounting.guarantee import guarantee
from discreet.audit import many_run
from discreet.audit.game import play
from discreet.models.networks import build

LEVEL, DELTA, GAMES = 0.05, 1e-5, 2000


@dataclass(frozen=True)
class Row:
    """A form, what is claimed of what was run, and what an attack measured."""

    form: str
    attack: str
    claimed: float
    least: float
    curve: bool
    seconds: float

    @property
    def refuted(self):
        return self.least > self.claimed

    def __str__(self):
        verdict = "**yes**" if self.refuted else "no"
        curve = "**yes**" if self.curve else "no"
        least = math.floor(self.least * 100) / 100
        figures = f"{self.claimed:.2f} | {least:.2f} | {verdict} | {curve} | {self.seconds:.0f}"
        return f"| {self.form} | {self.attack} | {figures} |"


def games(form, mechanism, model, loss, unit, others, claimed):
    """One release with everybody in it, again and again, with the unit and without it; `claimed` is a guarantee."""
    start = time.monotonic()
    played = play(model, mechanism, others, unit, loss, games=GAMES, delta=DELTA)
    sample = played.samples["projection"]
    least = many_run.epsilon_lower_bound(*sample, DELTA, LEVEL)
    curve = many_run.refutes(claimed.tradeoff(), *sample, LEVEL)
    return Row(form, f"{GAMES:,} games", claimed.epsilon, least, curve, time.monotonic() - start)


def whole_runs(form, plan, model, touched, claimed, score, count):
    """Runs of `claimed.steps` steps each, one after the other, in which the first of eight rows has a loss or none.

    Its gradient is long, and the same in each of the coordinates that `touched(model)` lists; nobody else's is
    anything. `score` makes one figure of the sums of those coordinates in a run's releases.
    """
    start = time.monotonic()
    length, size = plan.steps, plan.sampling.batch_size
    worlds = []
    for inside in (False, True):
        private, found = attach(model, replace(plan, steps=count * length), preflight=False), []
        for number, (_, who) in enumerate(private.batches((torch.zeros(8, 1), torch.arange(8)))):
            value = 1000.0 * sum(t.sum() for t in touched(model)) * torch.ones(len(who))
            private.backward(torch.where(who == 0, value if inside else torch.nan, 0.0 * value))
            if number % length == 0:
                found.append([])
            found[-1].append(size * float(sum(p.grad.flatten()[0] for p in model.parameters())))
        private.detach()
        worlds.append([score(run) for run in found])
    least = many_run.epsilon_lower_bound(*worlds, DELTA, LEVEL)
    curve = many_run.refutes(claimed.tradeoff(), *worlds, LEVEL)
    return Row(form, f"{count:,} runs of {length} steps", claimed.epsilon, least, curve, time.monotonic() - start)


def one_release(noise, rate=1.0, steps=1, queries=1):
    """What is claimed of so many releases of sensitivity 1, each of `queries` with a coin of its own."""
    return guarantee([Event(rate, noise, steps)] * queries, DELTA)


def cross_entropy(model, rows, step):
    return F.cross_entropy(model(rows[0]), rows[1], reduction="none")


# --- 000: every coordinate through a tanh, and no norm ---------------------------------------------------------------


def tanh():
    torch.manual_seed(0)
    model = build("mlp", (1, 8, 8), 10, hidden=(64,))
    others = torch.rand(4, 1, 8, 8), torch.arange(4)
    unit = 50 * torch.rand(1, 1, 8, 8), torch.tensor([9])  # no input is bounded
    size = sum(p.numel() for p in model.parameters())
    whole = {"examples": 4, "batch_size": 4, "steps": 1, "epsilon": 3.0, "delta": DELTA}
    paper = methods.tanh_filter(**whole, parameters=size, form="paper").mechanism
    claimed = replace(one_release(paper.noise.std), epsilon=3.0)  # as the paper's accounting says; the curve is exact
    yield games("000, tanh of each coordinate", paper, model, cross_entropy, unit, others, claimed)
    sound = methods.tanh_filter(**whole).mechanism
    yield games(
        "sound: tanh of the length", sound, model, cross_entropy, unit, others, one_release(sound.noise.multiplier)
    )


# --- 002: noise for a sensitivity of alpha + beta --------------------------------------------------------------------


def belu():
    torch.manual_seed(0)
    model = build("belu", (1, 28, 28), 10)
    others = torch.rand(4, 1, 28, 28), torch.arange(4)
    unit = torch.ones(1, 1, 28, 28), torch.tensor([9])  # a white image: every pixel is in range
    whole = {"examples": 4, "batch_size": 4, "steps": 1, "epsilon": 3.0, "delta": DELTA}
    paper = methods.belu(**whole, form="paper").fit_to(model).mechanism
    claimed = replace(one_release(paper.noise.std / 6.0), epsilon=3.0)  # alpha + beta = 1 + 5
    yield games("002, sensitivity alpha + beta", paper, model, cross_entropy, unit, others, claimed)
    sound = methods.belu(**whole).mechanism
    yield games("sound: clipped", sound, model, cross_entropy, unit, others, one_release(sound.noise.multiplier))


# --- 003: ten tensors clipped one by one, accounted as if each had a sample of its own -------------------------------


class Tensors(nn.Module):
    """So many tensors of two numbers each."""

    def __init__(self, count):
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(2)) for _ in range(count))


def first_of_each(model):
    return [part[:1] for part in model.parts]


def tensors():
    """The paper's noise at which its accounting says 20, for tensors and questions; the questions are left out."""
    rate, steps, count = 0.125, 32, 240
    sampling = {"examples": 8, "batch_size": 1}
    paper = methods.adaptive_clipping(**sampling, steps=steps, epsilon=20.0, delta=DELTA, form="paper").mechanism
    each = paper.noise.multiplier / math.sqrt((1 - paper.bound.share) / 10)
    for form, mechanism, mu, claimed in (
        (
            "003, ten tensors",
            Mechanism(PerLayerClip(1.0), Gaussian(each / math.sqrt(10)), "each"),
            math.sqrt(10) / each,
            replace(one_release(each, rate, steps, 10), epsilon=20.0),
        ),
        ("sound: one norm", Mechanism(Clip(1.0), Gaussian(each)), 1 / each, one_release(each, rate, steps)),
    ):
        plan = Plan(sampling=Poisson(**sampling), mechanism=mechanism, steps=steps, delta=DELTA)

        def likelihood(run, mu=mu):
            seen = [total / (each * math.sqrt(10)) for total in run]
            return sum(math.log(1 - rate + rate * math.exp(mu * x - mu**2 / 2)) for x in seen)

        yield whole_runs(form, plan, Tensors(10), first_of_each, claimed, likelihood, count)


# --- shuffled batches, accounted as Poisson samples ------------------------------------------------------------------


def shuffled():
    """One pass of four steps: a shuffled row is in one of them for sure, and a Poisson row in none with chance 0.32."""
    poisson = Poisson(examples=8, batch_size=2)
    for form, sampling in (
        ("shuffled, accounted as Poisson", Shuffled(examples=8, batch_size=2)),
        ("sound: Poisson", poisson),
    ):
        plan = Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(0.2)), steps=4, delta=DELTA)
        claimed = replace(plan, sampling=poisson).guarantee()
        yield whole_runs(form, plan, Tensors(1), first_of_each, claimed, max, 600)


def main():
    torch.set_num_threads(1)
    print(
        f"`python benchmarks/papers_under_attack.py`, {time.strftime('%Y-%m-%d')}, {platform.machine()}, one thread, "
        f"torch {torch.__version__}; δ = {DELTA:g}, confidence {1 - LEVEL:g}.\n"
    )
    print("| form | attack | claimed ε | ε at least | claimed ε refuted | claimed curve refuted | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in (tanh, belu, tensors, shuffled):
        if len(sys.argv) < 2 or case.__name__ in sys.argv[1:]:
            for row in case():
                print(row, flush=True)


if __name__ == "__main__":
    main()
