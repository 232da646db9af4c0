"""004, figures 2 and 3: accuracy for a budget."""

from collections.abc import Sequence

from discreet.papers.encoding.denoising import TUTORIAL
from discreet.papers.encoding.methods import LOOK, RATE, USED, case_of, train
from discreet.papers.encoding.verdicts import SIZES, at_budget, dearer_points
from discreet.papers.experiment import ACCURACY, Case, Experiment, Results, Size, Stated
from discreet.papers.held_out import SHOWN
from discreet.report import Axis, Chart, Series

_SWEPT = ("DP-SGD", "Gaussian, KS", "Student-t, encoded, KS")


def _full_budgets() -> list[Case]:
    """Figures 2 and 3 at the paper's lengths: each printed pair of epsilons, on both data sets; and larger batches."""
    cases: list[Case] = []
    for data, epochs, budgets in (("mnist", 60, (2.5, 3.2, 5.0, 6.0)), ("cifar10", 100, (3.0, 3.6, 4.2, 5.0))):
        for method in _SWEPT:
            encoded = "encoded" in method
            length = epochs // 2 if encoded else epochs
            cases += [
                case_of(data, "full", method, epochs=length, rate=rate, budget=budget)
                | {"held_out": False, "planned": epochs}
                for budget in (budgets[:2] if encoded else budgets)
                for rate in (TUTORIAL, 0.5, 1.0, 2.0)
            ]
        cases += [
            case_of(data, "full", "DP-SGD", epochs=epochs, rate=rate, budget=budgets[0])
            | {"held_out": False, "batch_size": 1024}
            for rate in (0.5, 2.0)
        ]
    return cases


def _budget_cases(size: Size) -> list[Case]:
    if size == "full":
        return _full_budgets()
    budgets = {"quick": (1.0,), "usual": (0.5, 1.0, 2.0)}[size]
    lengths = {"quick": (0.25, 0.5), "usual": (0.5, 1.5)}[size]
    rates = {"quick": (RATE,), "usual": (0.25, 1.0, 4.0)}[size]
    cases = [
        case_of("mnist", size, method, budget=budget, epochs=epochs, rate=rate)
        for method in _SWEPT[:2]
        for budget in budgets
        for epochs in lengths
        for rate in rates
    ]
    return cases + [
        case_of("mnist", size, _SWEPT[2], budget=budget, epochs=lengths[0], rate=rate)
        for budget in budgets
        for rate in rates
    ]


def _budgets(results: Results) -> list[Results]:
    return [results.where(budget=budget) for budget in results.settings("budget")]


_PRINTED = {  # figures 2 and 3: (epsilon, accuracy) of the method and of DP-SGD, as far as the text has numbers
    "mnist": ((((2.5, 0.96), (3.2, 0.961)), _SWEPT[2]), (((5.0, 0.96), (6.0, 0.961)), _SWEPT[0])),
    "cifar10": ((((3.6, 0.555), (3.0, 0.55)), _SWEPT[2]), (((5.0, 0.555), (4.2, 0.55)), _SWEPT[0])),
}


def _budget_charts(results: Results) -> Sequence[Chart]:
    """Accuracy for a budget on each data set, at the common rate and at the best that was tried."""
    x = Axis("proven epsilon at delta 1e-5", "epsilon")
    charts = []
    for data in results.settings("data"):
        here = results.where(data=data)
        lines = []
        for method in _SWEPT:
            some = here.where(method=method)
            for look, words in (("dashed", "one rate"), ("line", "best rate tried")):
                groups = [_picked(group, one=look == "dashed") for group in _budgets(some)]
                dots = sorted((g.mean("epsilon"), g.mean()) for g in groups if g)
                if dots:
                    lines.append(Series(f"{method}, {words}", tuple(dots), look, LOOK[method]))
        for dots, method in _PRINTED.get(data, ()):
            colour = 0 if LOOK[method] is None else LOOK[method]
            lines.append(Series(f"{method}, the paper's", tuple(sorted(dots)), "hollow", colour))
        title = f"Figures 2 and 3: accuracy for a budget, {SHOWN.get(data, data)}"
        charts.append(Chart(f"budgets-{data}", title, x, ACCURACY, tuple(lines)))
    return charts


def _picked(results: Results, *, one: bool) -> Results:
    rates = results.settings("learning_rate")
    if one:
        return results.where(learning_rate=TUTORIAL if TUTORIAL in rates else min(rates, default=0.0))
    return max((results.where(learning_rate=r) for r in rates), key=lambda g: g.mean(), default=Results())


EXPERIMENT = Experiment(
    "budgets",
    "Accuracy for a budget (figures 2 and 3)",
    f"{USED}MNIST alone below size full; there encoded Student-t noise has half the epochs, at the noise for "
    "all of them.",
    _budget_cases,
    train,
    _budget_charts,
    (
        *(
            Stated(
                f"{shown}, {figure}",
                f"{accuracy:.1%} at {e:g}, DPSGD at {later:g}",
                e,
                verdict=at_budget(data, e, later, accuracy),
                size=SIZES[data],
                headline=True,
            )
            for data, shown, figure, e, later, accuracy in (
                ("mnist", "MNIST", "constant epochs (figure 2)", 2.5, 5.0, 0.96),
                ("mnist", "MNIST", "best of all settings (figure 3)", 3.2, 6.0, 0.961),
                ("cifar10", "CIFAR-10", "constant epochs (figure 2)", 3.6, 5.0, 0.555),
                ("cifar10", "CIFAR-10", "best of all settings (figure 3)", 3.0, 4.2, 0.55),
            )
        ),
        Stated("a further point of accuracy", "costs more and more ε", verdict=dearer_points, size=SIZES["mnist"]),
    ),
    needs=("mnist",),
)
