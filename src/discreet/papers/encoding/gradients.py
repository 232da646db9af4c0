"""004, figure 1: the distribution of gradients."""

from collections.abc import Sequence

import torch
from scipy.stats import kurtosis, norm

from discreet.papers.encoding.methods import RATE, case_of, plan_of
from discreet.papers.encoding.verdicts import gaussian_gradients
from discreet.papers.experiment import Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.papers.held_out import COPY, SHOWN, Data, gradients, size_of
from discreet.papers.train_case import private
from discreet.papers.verdicts import Extent
from discreet.report import Axis, Chart, Series


def _gradient_cases(size: Size) -> list[Case]:
    epochs = {"quick": 1, "usual": 1, "full": 5}[size]
    return [case_of(data, size, "DP-SGD", epochs=epochs, rate=RATE) for data in ("mnist", "cifar10")]


def _gradient_run(case: Case, place: Place) -> Measured:
    data = Data(case["data"], case["network"], choose=False)
    model = data.model(place)
    plan = plan_of(case, data.sampled, size_of(model))
    measured = private(model, data.train, data.test, plan, place, learning_rate=case["learning_rate"])
    values = torch.cat([g.flatten() for g in gradients(model, data.train, 500)]).double()
    values = (values - values.mean()) / values.std()
    counts = torch.histc(values, 81, -4.05, 4.05) / len(values) / 0.1
    return measured | {
        "kurtosis": float(kurtosis(values.numpy())),
        "distance": distance_from_normal(values),
        "histogram": [[-4.0 + 0.1 * i, float(c)] for i, c in enumerate(counts)],
    }


def distance_from_normal(values: torch.Tensor) -> float:
    """The largest difference between the distribution function of these values and the standard normal one."""
    ordered = values.sort().values
    steps = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return float((torch.special.ndtr(ordered) - steps).abs().max())


def _gradient_charts(results: Results) -> Sequence[Chart]:
    def density(data: str, colour: int) -> Series:
        rows = [r.measured["histogram"] for r in results.where(data=data)]
        places = zip(*rows, strict=True)
        return Series(
            SHOWN.get(data, data), tuple((p[0][0], sum(y for _, y in p) / len(p)) for p in places), colour=colour
        )

    grid = [-4.0 + 0.1 * i for i in range(81)]
    fitted = Series("fitted Gaussian", tuple((x, float(norm.pdf(x))) for x in grid), colour=None)
    lines = (density(data, i) for i, data in enumerate(results.settings("data")))
    x, y = Axis("gradient value, in standard deviations", "number"), Axis("density", "number")
    return [Chart("figure-1", "Values of gradients", x, y, (*lines, fitted))]


EXPERIMENT = Experiment(
    "gradients",
    "The distribution of gradients (figure 1)",
    f"{COPY}Values of 500 examples' gradients after a private epoch (five at size full), beside a Gaussian of "
    "the same mean and variance.",
    _gradient_cases,
    _gradient_run,
    _gradient_charts,
    (
        Stated(
            "gradients (figure 1)",
            "can be fitted to a Gaussian",
            verdict=gaussian_gradients,
            size=Extent(5, 50_000, 26_010),
        ),
    ),
    needs=("mnist", "cifar10"),
)
