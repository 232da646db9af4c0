"""003, alpha of the adaptive clipping on several data sets: the paper says that 1.0 is near the optimum for all.

Its own sweep (MNIST, CIFAR-10 and CIFAR-100) is in the thesis it cites, with networks and lengths that the paper does
not name. Here the tutorials' CNN is trained on MNIST, Fashion-MNIST and CIFAR-10 by the paper's rule, one norm for each
tensor. A larger alpha makes longer steps, so each has the learning rate that did best on held-out rows.
"""

import math
from collections.abc import Sequence

from torch import nn

from discreet import Plan
from discreet.papers.experiment import ACCURACY, ONE_SEED, Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.papers.held_out import SHOWN, Data, chosen
from discreet.papers.train_case import private
from discreet.papers.verdicts import QUEUED, Extent, Verdict
from discreet.report import Axis, Chart, Series
from discreet.stages import presets as methods

ALPHAS, RATES = (0.25, 0.5, 1.0, 1.1, 2.0, 4.0), (0.1, 0.4, 1.6)
NAMES = SHOWN | {"fashion-mnist": "Fashion-MNIST"}
SIZE = Extent(60, 50_000, 26_010, "of its other experiments; the sweep's own are in its thesis")


def cases(size: Size) -> list[Case]:
    """Every alpha at every rate."""
    data, alphas, rates, epochs = {
        "quick": (("mnist",), ALPHAS[::2], RATES[1:2], 0.25),
        "usual": (("mnist", "fashion-mnist"), ALPHAS[::2], RATES[1:2], 1),
        "full": (tuple(NAMES), ALPHAS, RATES, 3),
    }[size]
    return [
        {"data": name, "alpha": alpha, "learning_rate": rate, "epochs": epochs}
        for name in data
        for alpha in alphas
        for rate in rates
    ]


def plan_of(case: Case, sampled: dict[str, int], model: nn.Module) -> Plan:
    """As published: noise 0.725 on each tensor, 2.5 on each mean norm."""
    tensors = len(list(model.parameters()))
    return methods.adaptive_clipping(
        examples=sampled["examples"],
        batch_size=sampled["batch_size"],
        epochs=case["epochs"],
        noise=0.725,
        alpha=case["alpha"],
        tensors=tensors,
        delta=1e-5,
        form="paper",
    )


def run(case: Case, place: Place) -> Measured:
    """A training with held-out rows."""
    data = Data(case["data"], "cnn", choose=True)
    model = data.model(place)
    sampled = {"examples": data.sampled["examples"], "batch_size": 256}
    plan = plan_of(case, sampled, model)
    measured = private(model, data.train, data.test, plan, place, learning_rate=case["learning_rate"])
    return measured | data.validated(model)


def best_rates(results: Results, data: str) -> dict[float, Results]:
    """Each alpha at the rate that did best on held-out rows."""
    some = results.where(data=data)
    return {float(a): chosen(some.where(alpha=a), "learning_rate") for a in sorted(some.settings("alpha"))}


def near_optimum(results: Results) -> Verdict:
    """Whether alpha = 1 is within a point of the best, on every data set."""
    told, arms, off = [], [], []
    for data in results.settings("data"):
        by_alpha = best_rates(results, data)
        if 1.0 not in by_alpha or len(by_alpha) < 3:
            continue
        best = max(by_alpha, key=lambda alpha: by_alpha[alpha].mean())
        off.append(by_alpha[best].mean() - by_alpha[1.0].mean())
        told.append(
            f"{NAMES.get(data, data)} {by_alpha[1.0].mean():.1%}, best {by_alpha[best].mean():.1%} at {best:g}, "
            f"worst {min(g.mean() for g in by_alpha.values()):.1%}"
        )
        arms += [by_alpha[1.0], by_alpha[best]]
    if not told:
        return QUEUED
    word = "reproduces" if max(off) <= 0.01 else "refuted"
    return Verdict(word, f"at alpha = 1: {'; '.join(told)}", tuple(arms))


def charts(results: Results) -> Sequence[Chart]:
    """Accuracy by alpha."""
    lines = []
    for i, data in enumerate(results.settings("data")):
        rows = [(alpha, group.mean()) for alpha, group in best_rates(results, data).items()]
        lines.append(Series(NAMES.get(data, data), tuple(r for r in rows if math.isfinite(r[1])), colour=i))
    x = Axis("alpha", "number", log=True)
    return [Chart("alpha", "alpha of the adaptive clipping, each at its own learning rate", x, ACCURACY, tuple(lines))]


EXPERIMENT = Experiment(
    "alpha",
    "alpha of the adaptive clipping on three data sets",
    "The tutorials' CNN by the paper's rule and noise, one norm a tensor, batches of 256, three epochs (fewer "
    "below size full) without the last 10,000 training rows, which choose the learning rate of each alpha. "
    "CIFAR-100 is not here; Fashion-MNIST stands in for it.",
    cases,
    run,
    charts,
    (Stated("alpha = 1.0", "near the optimum for all data sets", verdict=near_optimum, size=SIZE),),
    seeds=ONE_SEED,
    needs=("mnist",),
)
