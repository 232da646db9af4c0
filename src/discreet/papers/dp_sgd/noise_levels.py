"""001, figures 3 and 4: MNIST at three noise levels, with and without private principal directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from discreet import Plan
from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.features import PrivatePCA, Projection
from discreet.models import build
from discreet.papers.experiment import ACCURACY, EPOCHS, Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.papers.train_case import Pair, ordinary, pairs, private, seeded
from discreet.papers.verdicts import Extent
from discreet.report import Axis, Chart, Series
from discreet.stages import presets as methods

EXAMPLES, LOT, NORM, DELTA, DIRECTIONS = 60_000, 600, 4.0, 1e-5, 60
DELTAS = (1e-5, 1e-4, 1e-3, 1e-2)  # of figure 4
PARAMETERS = 71_010  # behind 60 directions
HELD_OUT = 10_000  # the last training examples, on which learning rates are compared


@dataclass(frozen=True)
class Level:
    """Noise of a step and of the covariance, and when which epsilon and accuracy are said to be reached."""

    noise: float
    pca_noise: float
    epochs: int  # at which moments, with the article's conversion, come to that epsilon
    epsilon: float
    accuracy: float


LEVELS = {
    "small": Level(2.0, 4.0, 728, 8.0, 0.97),
    "medium": Level(4.0, 7.0, 246, 2.0, 0.95),
    "large": Level(8.0, 16.0, 67, 0.5, 0.90),
}


def directions(train: Pair, noise: float, place: Place) -> Projection:
    """Private principal directions of the training images, which are a release in the case's ledger."""
    file = place.folder / "directions.pt"  # a case that goes on after a crash asks for them only once
    if file.is_file():
        return Projection(torch.load(file, weights_only=True))
    (place.folder / "ledger.jsonl").unlink(missing_ok=True)  # of a case that was killed before it had them
    projection = PrivatePCA(DIRECTIONS, noise).fit(train[0], place.folder / "ledger.jsonl")
    torch.save(projection.directions, file)
    return projection


def without_noise(train: Pair) -> Projection:
    """The same directions, not private: for the baseline."""
    rows = F.normalize(train[0].flatten(1))
    return Projection(torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -DIRECTIONS:])


def seen(projection: Projection, *parts: Pair) -> list[Pair]:
    """The images of each part along the directions: computed once, as nothing of it is trained."""
    return [(projection(x), y) for x, y in parts]


def their_rates(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The article's schedule, 0.1 falling to 0.052 over ten epochs of 100 lots, for any first rate."""
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.52, total_iters=10 * EXAMPLES // LOT)


def _levels_cases(size: Size) -> list[Case]:
    full = {name: level.epochs for name, level in LEVELS.items()}
    ordinary, most = {
        "quick": (8, {"pca": dict.fromkeys(LEVELS, 8), "pixels": dict.fromkeys(LEVELS, 2)}),
        "usual": (100, {"pca": full | {"small": 100}, "pixels": dict.fromkeys(LEVELS, 4)}),
        "full": (100, {"pca": full, "pixels": dict.fromkeys(LEVELS, 67)}),
    }[size]
    private = (
        {"level": name, "input": inputs, "epochs": epochs}
        for inputs, levels in most.items()
        for name, epochs in levels.items()
    )
    return [{"level": "none", "input": "pca", "epochs": ordinary}, *private]


def _levels_run(case: Case, place: Place) -> Measured:
    epochs = case["epochs"]
    if case["level"] == "none":
        train, test = pairs("mnist")
        train, test = seen(without_noise(train), train, test)
        model = seeded(lambda: build("abadi", (DIRECTIONS,), 10), place)
        return ordinary(model, train, test, place, epochs=epochs, batch_size=LOT, learning_rate=0.1)
    level = LEVELS[case["level"]]
    pca = case["input"] == "pca"
    train, test = pairs("mnist")
    if pca:
        train, test = seen(directions(train, level.pca_noise, place), train, test)
    plan = methods.dp_sgd(
        examples=len(train[0]), batch_size=LOT, epochs=epochs, noise=level.noise, norm=NORM, delta=DELTA
    )
    model = seeded(lambda: build("abadi", train[0].shape[1:], 10), place)
    every = max(1, epochs // 10)
    beside = [PrivatePCA(DIRECTIONS, level.pca_noise).cost()] if pca else []
    training: dict[str, Any] = {"learning_rate": 0.1, "schedule": their_rates, "evaluate_every": every}
    measured = private(model, train, test, plan, place, beside=beside, **training)
    return measured | {"curve": [row[:2] + _costs(plan, row[0], beside) for row in measured["curve"]]}


def _costs(plan: Plan, epochs: float, beside: Sequence[Event]) -> list[float]:
    """Epsilon after so many epochs, at each delta of figure 4."""
    event = plan.event(steps=plan.sampling.steps_for(epochs))
    return [cost([event, *beside], delta).epsilon for delta in DELTAS]


def _levels_charts(results: Results) -> Sequence[Chart]:
    def lines(inputs: str) -> tuple[Series, ...]:
        chosen = results.where(input=inputs)
        return tuple(chosen.where(level=n).course(f"{n} noise", colour=i) for i, n in enumerate(LEVELS))

    ends = tuple((float(level.epochs), level.accuracy) for level in LEVELS.values())
    printed = Series("the paper's, at the epochs of its ε", ends, "hollow", len(LEVELS))
    at = tuple(_frontier(results.where(input="pca"), i, colour=i) for i in range(len(DELTAS)))
    epsilon = Axis("ε, training and projection together", "epsilon", log=True)
    return [
        Chart("pca", "Figure 3: 60 private principal directions", EPOCHS, ACCURACY, (*lines("pca"), printed)),
        Chart("pixels", "The same on all 784 pixels", EPOCHS, ACCURACY, lines("pixels")),
        Chart("figure-4", "Figure 4: accuracy within ε, for four δ", epsilon, ACCURACY, at, "Best of three levels."),
    ]


def _frontier(results: Results, column: int, colour: int) -> Series:
    """The best accuracy of any noise level and length that stays within an epsilon."""
    points, best = [], 0.0
    levels = (results.where(level=name).course(name, x=2 + column).points for name in LEVELS)
    for epsilon, accuracy in sorted(point for points in levels for point in points):
        if accuracy > best:
            best = accuracy
            points.append((epsilon, accuracy))
    return Series(f"δ = {DELTAS[column]:g}", tuple(points), colour=colour)


def _pca_helps(results: Results) -> str:
    """Accuracy with and without the projection, at the last epoch that both have."""
    words = []
    for name in LEVELS:
        pca, pixels = (results.where(level=name, input=i).course(name).points for i in ("pca", "pixels"))
        both = sorted({e for e, _ in pca} & {e for e, _ in pixels})
        if both:
            a, b = dict(pca)[both[-1]], dict(pixels)[both[-1]]
            words.append(f"{name} noise {a:.1%} with, {b:.1%} without, after {both[-1]:.3g} epochs")
    return "Projection: " + "; ".join(words) + "." if words else ""


EXPERIMENT = Experiment(
    "noise-levels",
    "MNIST at three noise levels, with and without PCA (figures 3 and 4)",
    "1,000 ReLU units behind 60 private principal directions, or on the pixels. Poisson lots of 600, clipping "
    "norm 4 over all layers together, δ = 1e-5. The slides pair noise and ε backwards and give no learning "
    "rate; noise and ε are paired as in the article, whose rate falls from 0.1 to 0.052 over ten epochs. By "
    "moments its ε are reached after 67, 246 and 728 epochs; less is run unless the size is full: 100 "
    "epochs at small noise with PCA, and 4 at all without it. ε proven is of what was run, the projection "
    "included.",
    _levels_cases,
    _levels_run,
    _levels_charts,
    (
        Stated(
            "baseline, without privacy",
            0.983,
            published={"level": "none"},
            size=Extent(100, EXAMPLES, PARAMETERS),
        ),
        *(
            Stated(
                f"{name} noise (σ = {level.noise:g}, PCA {level.pca_noise:g})",
                level.accuracy,
                level.epsilon,
                published={"level": name, "input": "pca"},
                size=Extent(level.epochs, EXAMPLES, PARAMETERS, "epochs at which moments come to that ε"),
                headline=True,
            )
            for name, level in LEVELS.items()
        ),
    ),
    _pca_helps,
    needs=("mnist",),
)
