"""001, Abadi et al. 2016: deep learning with differential privacy."""

from collections.abc import Sequence

from discreet import methods
from discreet.models import build
from discreet.papers.course import pairs, private, seeded
from discreet.papers.experiment import Case, Experiment, Measured, Paper, Place, Results, Size, Stated
from discreet.report.charts import Axis, Chart

_LEVELS = {"small": (2.0, 8.0), "medium": (4.0, 2.0), "large": (8.0, 0.5)}  # noise of a step, epsilon


def _levels_cases(size: Size) -> list[Case]:
    epochs = {"quick": 2, "usual": 30, "full": 100}[size]
    return [{"level": level, "epochs": epochs} for level in _LEVELS]


def _levels_run(case: Case, place: Place) -> Measured:
    (train, test), (noise, _) = pairs("mnist"), _LEVELS[case["level"]]
    plan = methods.dp_sgd(examples=60_000, batch_size=600, epochs=case["epochs"], noise=noise, norm=4.0)
    model = seeded(lambda: build("mlp", (1, 28, 28), 10, hidden=(1000,), activation="relu"), place)
    return private(model, train, test, plan, place, learning_rate=0.05)


def _levels_charts(results: Results) -> Sequence[Chart]:
    lines = (results.where(level=level).course(f"{level} noise", colour=i) for i, level in enumerate(_LEVELS))
    return [Chart("levels", "MNIST at three noise levels", _EPOCHS, _ACCURACY, tuple(lines))]


_EPOCHS, _ACCURACY = Axis("epochs", "number", low=0.0), Axis("accuracy on the test set", "share")

PAPER = Paper(
    "001",
    "Deep learning with differential privacy (Abadi et al. 2016)",
    (
        Experiment(
            "noise-levels",
            "MNIST at three noise levels (figure 3)",
            "A network of 1,000 hidden ReLU units, batches of 600, clipping norm 4.",
            _levels_cases,
            _levels_run,
            _levels_charts,
            tuple(
                Stated(f"{level} noise", theirs, claimed, published={"level": level})
                for (level, (_, claimed)), theirs in zip(_LEVELS.items(), (0.97, 0.95, 0.90), strict=True)
            ),
            needs=("mnist",),
        ),
    ),
)
