"""003, alpha of the adaptive clipping on several data sets: the paper says that 1.0 is near the optimum for all.

Its own sweep (MNIST, CIFAR-10 and CIFAR-100) is in the thesis it cites, with networks and lengths that the paper does
not name. Here the tutorials' CNN is trained on MNIST, Fashion-MNIST and CIFAR-10 by the paper's rule, one norm for each
tensor. A larger alpha makes longer steps, so each has the learning rate that did best on held-out rows.
"""

import math
from collections.abc import Sequence

from torch import nn

from discreet.papers.course import private
from discreet.papers.experiment import Case, Measured, Place, Results, Size
from discreet.papers.small import SHOWN, Data, chosen
from discreet.papers.verdicts import QUEUED, Extent, Verdict
from discreet.report.charts import Axis, Chart, Series
from discreet.stages import presets as methods
from discreet.stages.plan import Plan

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
    found = private(model, data.train, data.test, plan, place, learning_rate=case["learning_rate"])
    return found | data.validated(model)


def best_rates(results: Results, data: str) -> dict[float, Results]:
    """Each alpha at the rate that did best on held-out rows."""
    some = results.where(data=data)
    return {float(a): chosen(some.where(alpha=a), "learning_rate") for a in sorted(some.settings("alpha"))}


def near_optimum(results: Results) -> Verdict:
    """Whether alpha = 1 is within a point of the best, on every data set."""
    told, arms, off = [], [], []
    for data in results.settings("data"):
        found = best_rates(results, data)
        if 1.0 not in found or len(found) < 3:
            continue
        best = max(found, key=lambda alpha: found[alpha].mean())
        off.append(found[best].mean() - found[1.0].mean())
        told.append(
            f"{NAMES.get(data, data)} {found[1.0].mean():.1%}, best {found[best].mean():.1%} at {best:g}, "
            f"worst {min(g.mean() for g in found.values()):.1%}"
        )
        arms += [found[1.0], found[best]]
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
    x, y = Axis("alpha", "number", log=True), Axis("accuracy on the test set", "share")
    return [Chart("alpha", "alpha of the adaptive clipping, each at its own learning rate", x, y, tuple(lines))]
