"""001, what the slides leave to the future: the clipping norm, and other optimizers."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from discreet.features import PrivatePCA
from discreet.models import build
from discreet.papers.dp_sgd.budgets import chosen
from discreet.papers.dp_sgd.noise_levels import (
    DELTA,
    DIRECTIONS,
    HELD_OUT,
    LEVELS,
    LOT,
    NORM,
    directions,
    seen,
    their_rates,
)
from discreet.papers.experiment import ACCURACY, Case, Experiment, Measured, Place, Results, Size
from discreet.papers.train_case import pairs, private, seeded
from discreet.report import Axis, Chart
from discreet.stages import presets as methods
from discreet.training import evaluate


def _clipping_cases(size: Size) -> list[Case]:
    norms = {"quick": (0.5, 4.0, 16.0), "usual": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)}
    epochs = {"quick": 2, "usual": 4, "full": 246}[size]
    wanted = norms.get(size, (0.25, *norms["usual"]))
    return [{"norm": n, "rate": r, "epochs": epochs} for n, r in product(wanted, ("fixed", "with the norm"))]


def _clipping_run(case: Case, place: Place) -> Measured:
    norm = case["norm"]
    rate = 0.1 if case["rate"] == "fixed" else 0.1 * NORM / norm
    return _medium(case["epochs"], norm, place, learning_rate=rate, schedule=their_rates)


def _medium(epochs: int, norm: float, place: Place, *, held_out: bool = False, **training: Any) -> Measured:
    """The article's network at the medium noise level, on all examples or without the held-out ones."""
    level = LEVELS["medium"]
    (x, y), test = pairs("mnist")
    rows = len(x) - HELD_OUT if held_out else len(x)
    train, rest = (x[:rows], y[:rows]), (x[rows:], y[rows:])
    train, rest, test = seen(directions(train, level.pca_noise, place), train, rest, test)
    plan = methods.dp_sgd(examples=rows, batch_size=LOT, epochs=epochs, noise=level.noise, norm=norm, delta=DELTA)
    model = seeded(lambda: build("abadi", (DIRECTIONS,), 10), place)
    beside = [PrivatePCA(DIRECTIONS, level.pca_noise).cost()]
    measured = private(model, train, test, plan, place, evaluate_every=epochs, beside=beside, **training)
    return measured | ({"validation": evaluate(model, rest, rows=2000)["accuracy"]} if held_out else {})


def _clipping_charts(results: Results) -> Sequence[Chart]:
    names = {"fixed": "learning rate 0.1", "with the norm": "learning rate 0.4 / norm"}
    lines = tuple(results.where(rate=r).line(name, "norm", colour=i) for i, (r, name) in enumerate(names.items()))
    return [
        Chart("norms", "Influence of the clipping norm", Axis("clipping norm", "number", log=True), ACCURACY, lines)
    ]


def _clipping_found(results: Results) -> str:
    words = []
    for rate, name in (
        ("fixed", "With a fixed learning rate"),
        ("with the norm", "with one in proportion to 1 / norm"),
    ):
        points = results.where(rate=rate).line(name, "norm").points
        if points:
            (low, a), (high, b) = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
            words.append(f"{name} accuracy is from {a:.1%} (norm {low:g}) to {b:.1%} (norm {high:g})")
    return "; ".join(words) + "." if words else ""


OPTIMIZERS = {
    "SGD": ("sgd", {}, (0.05, 0.2, 0.8)),
    "SGD, momentum 0.9": ("sgd", {"momentum": 0.9}, (0.005, 0.02, 0.08)),
    "RMSprop": ("rmsprop", {}, (0.001, 0.003, 0.01)),
    "Adam": ("adam", {}, (0.001, 0.003, 0.01)),
}


def _optimizers_cases(size: Size) -> list[Case]:
    epochs = {"quick": 2, "usual": 4, "full": 246}[size]
    return [
        {"optimizer": name, "rate": r, "epochs": epochs} for name, (_, _, rates) in OPTIMIZERS.items() for r in rates
    ]


def _optimizers_run(case: Case, place: Place) -> Measured:
    optimizer, options, _ = OPTIMIZERS[case["optimizer"]]
    return _medium(
        case["epochs"], NORM, place, held_out=True, optimizer=optimizer, learning_rate=case["rate"], **options
    )


def _optimizers_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(results.where(optimizer=name).line(name, "rate", colour=i) for i, name in enumerate(OPTIMIZERS))
    return [Chart("rates", "Optimizers", Axis("learning rate", "number", log=True), ACCURACY, lines)]


def _optimizers_found(results: Results) -> str:
    best = chosen(results, "optimizer")
    if not best:
        return ""
    words = (
        f"{name} {best.where(optimizer=name).mean():.1%} (rate {best.where(optimizer=name)[0]['rate']:g})"
        for name in best.settings("optimizer")
    )
    return f"On the test set, with the rate that is best on held-out examples: {', '.join(words)}."


EXPERIMENTS = (
    Experiment(
        "clipping-norm",
        "Influence of the clipping norm",
        "Left to the future by the slides. The article's network behind PCA at the medium noise, 4 epochs (full: "
        "246); every case has the same ε, the projection included.",
        _clipping_cases,
        _clipping_run,
        _clipping_charts,
        found=_clipping_found,
        needs=("mnist",),
    ),
    Experiment(
        "optimizers",
        "Other optimizers",
        "Left to the future by the slides. The article's network behind PCA at the medium noise, clipping norm 4, "
        "constant learning rates, 4 epochs (full: 246) on the first 50,000 examples; the last 10,000 choose the "
        "rate and are taken for public in that.",
        _optimizers_cases,
        _optimizers_run,
        _optimizers_charts,
        found=_optimizers_found,
        needs=("mnist",),
    ),
)
