"""001, the slides' own runs: accuracy against epsilon on two data sets, and epsilon over epochs."""

import math
from collections.abc import Sequence
from itertools import product

from discreet import Poisson, Shuffled
from discreet.accounting import cost, epsilon_by_accountant
from discreet.accounting.events import Event
from discreet.accounting.guarantee import round_up
from discreet.models import build
from discreet.papers.dp_sgd.noise_levels import DELTA, EXAMPLES, HELD_OUT
from discreet.papers.experiment import (
    ACCURACY,
    EPOCHS,
    ONE_SEED,
    Case,
    Experiment,
    Measured,
    Place,
    Results,
    Size,
    Stated,
    headline,
)
from discreet.papers.train_case import pairs, private, seeded
from discreet.papers.verdicts import QUEUED, Extent, Verdict
from discreet.report import Axis, Chart
from discreet.stages import presets as methods
from discreet.training import evaluate

BATCH = 256
DATA = {  # the slides' epochs, and clipping norm: they give that of Fashion-MNIST only
    "mnist": ("MNIST", 15, 1.0),
    "fashion-mnist": ("Fashion-MNIST", 10, 5.0),
}
RATES = (0.25, 1.0)


BUDGETS, NORMS = (0.5, 1.0, 2.0, 4.0, 8.0), (1.0, 2.5, 10.0)


def _full_budgets() -> list[Case]:
    """Two epochs with held-out rows choose the rate; the slides' epochs on all rows; Fashion-MNIST's other norms."""
    cases: list[Case] = []
    for data, (_, epochs, norm) in DATA.items():
        common = {"data": data, "norm": norm}
        for epsilon, rate in product(BUDGETS, RATES):
            cases.append({**common, "epsilon": epsilon, "rate": rate, "epochs": 2, "held_out": True})
            cases.append({**common, "epsilon": epsilon, "rate": rate, "epochs": epochs, "held_out": False})
    name, (_, epochs, _) = "fashion-mnist", DATA["fashion-mnist"]
    for norm, rate in product(NORMS, RATES):
        case = {"data": name, "norm": norm, "epsilon": 2.0, "rate": rate}
        cases += [{**case, "epochs": 2, "held_out": True}, {**case, "epochs": epochs, "held_out": False}]
    return cases


def _budgets_cases(size: Size) -> list[Case]:
    if size == "full":
        return _full_budgets()
    epsilons = {"quick": (0.1, 8.0), "usual": (0.1, 1.0, 8.0)}[size]
    return [
        {"data": data, "epsilon": epsilon, "rate": rate, "epochs": {"quick": 1, "usual": 2}[size]}
        for data, epsilon, rate in product(DATA, epsilons, RATES)
    ]


def _budgets_run(case: Case, place: Place) -> Measured:
    (x, y), test = pairs(case["data"])
    norm, choose = case.get("norm", DATA[case["data"]][2]), case.get("held_out", True)
    rows = len(x) - HELD_OUT if choose else len(x)
    train, held_out = (x[:rows], y[:rows]), (x[rows:], y[rows:])
    plan = methods.dp_sgd(
        examples=len(train[0]), batch_size=BATCH, epochs=case["epochs"], epsilon=case["epsilon"], norm=norm, delta=DELTA
    )
    model = seeded(lambda: build("cnn", (1, 28, 28), 10), place)
    measured = private(model, train, test, plan, place, learning_rate=case["rate"])
    noise = plan.event().multiplier
    measured |= {"noise": noise}
    return measured | ({"validation": evaluate(model, held_out, rows=2000)["accuracy"]} if choose else {})


def chosen(results: Results, *settings: str) -> Results:
    """For each combination of settings, the cases of the learning rate that is best on the held-out part."""
    best_of_each = Results()
    for values in product(*(results.settings(s) for s in settings)):
        some = results.where(**dict(zip(settings, values, strict=True)))
        rates = some.settings("rate")
        if rates:
            best = max(rates, key=lambda rate: some.where(rate=rate).held_out())
            best_of_each = Results((*best_of_each, *some.where(rate=best)))
    return best_of_each


def _budgets_charts(results: Results) -> Sequence[Chart]:
    best = _settled_rates(results)
    lines = tuple(
        best.where(data=data).line(f"{name}, clipping norm {norm:g}", "epsilon", colour=i)
        for i, (data, (name, _, norm)) in enumerate(DATA.items())
    )
    note = "Learning rates by accuracy on the last 10,000 training examples, which are not trained on."
    return [Chart("accuracy", "Accuracy against ε", Axis("ε", "epsilon", log=True), ACCURACY, lines, note)]


SLIDES = Extent(15, EXAMPLES, 26_010, "10 epochs on Fashion-MNIST; the network is the tutorials'")


def _settled_rates(results: Results) -> Results:
    """At each epsilon the trainings on all examples at the rate that short ones chose on held-out rows.

    Below the full size every training has held-out rows, and they choose among themselves.
    """
    whole = Results(r for r in results if r.case.get("held_out") is False)
    if not whole:
        return chosen(results, "data", "epsilon")
    settled = []
    for r in whole:
        if r.case["norm"] != DATA[r.case["data"]][2]:
            continue
        some = results.where(data=r.case["data"], epsilon=r.case["epsilon"], norm=r.case["norm"], held_out=True)
        rates = some.settings("rate")
        if rates and r.case["rate"] == max(rates, key=lambda rate: some.where(rate=rate).held_out()):
            settled.append(r)
    return Results(settled)


def _fashion_is_lower(results: Results) -> Verdict:
    best = _settled_rates(results)
    pairs_ = [[best.where(data=data, epsilon=e) for data in DATA] for e in best.settings("epsilon")]
    pairs_ = [pair for pair in pairs_ if all(pair)]
    if not pairs_:
        return QUEUED
    gaps = [one.mean() - other.mean() for one, other in pairs_]
    words = f"{100 * min(gaps):.1f} to {100 * max(gaps):.1f} points lower at {len(gaps)} budgets"
    arms = tuple(best.where(data=data) for data in DATA)
    return Verdict("reproduces" if min(gaps) > 0.02 else "undecided" if max(gaps) > 0 else "refuted", words, arms)


def _alike(results: Results) -> Verdict:
    """Whether accuracy rises with epsilon on both."""
    best, rises = _settled_rates(results), []
    for data, (name, _, _) in DATA.items():
        points = best.where(data=data).line(name, "epsilon").points
        if len(points) < 2:
            return QUEUED
        gain = points[-1][1] - points[0][1]
        rises.append((gain, f"{name} {100 * gain:+.1f} points from ε {points[0][0]:g} to {points[-1][0]:g}"))
    words = "; ".join(w for _, w in rises)
    arms = tuple(best.where(data=data) for data in DATA)
    return Verdict("reproduces" if all(gain > 0.01 for gain, _ in rises) else "refuted", words, arms)


def _rates_fall(results: Results) -> Verdict:
    """Whether the learning rate that is best on held-out data is smaller where the noise is larger."""
    best = _settled_rates(results).where(data="fashion-mnist")
    epsilons = best.settings("epsilon")
    if len(epsilons) < 2:
        return QUEUED
    most, least = (best.where(epsilon=pick(epsilons)) for pick in (min, max))
    (small,), (large,) = most.settings("rate"), least.settings("rate")
    words = f"best {large:g} at noise {least.mean('noise'):.2f}, {small:g} at {most.mean('noise'):.2f}"
    if small == large:
        return Verdict("undecided", f"{words}; among {', '.join(f'{r:g}' for r in RATES)}", (most, least))
    return Verdict("reproduces" if small < large else "refuted", words, (most, least))


def _time_an_epoch(results: Results) -> str:
    """Core-seconds an epoch of 60,000 examples took, by data set; the slides say that Fashion-MNIST takes longer."""
    told = []
    for data, (name, _, _) in DATA.items():
        each = [
            r.seconds / float(r.measured["epochs"]) * EXAMPLES / float(r.measured["examples"])
            for r in results.where(data=data)
            if r.measured.get("epochs") and r.measured.get("examples")
        ]
        if each:
            told.append(f"{name} {min(each):.0f} to {max(each):.0f}")
    words = f"Core-seconds an epoch of 60,000 examples, evaluation included: {'; '.join(told)}." if told else ""
    return words and f"{words} Both have the same network and images of one size, so that nothing makes one slower."


def _norm_five(results: Results) -> Verdict:
    """Whether clipping norm 5 is the best on Fashion-MNIST, of those tried at epsilon 2."""
    some = Results(r for r in results.where(data="fashion-mnist", epsilon=2.0) if r.case.get("held_out") is False)
    norms = sorted(some.settings("norm"))
    if len(norms) < 2:
        return QUEUED
    means = {}
    for norm in norms:
        short = results.where(data="fashion-mnist", epsilon=2.0, norm=norm, held_out=True)
        rate = max(short.settings("rate"), key=lambda r, short=short: short.where(rate=r).held_out(), default=None)
        means[norm] = some.where(norm=norm, rate=rate).mean()
    words = ", ".join(f"{mean:.1%} at {norm:g}" for norm, mean in means.items() if math.isfinite(mean))
    arms = tuple(some.where(norm=norm) for norm in norms)
    return Verdict("undecided", f"{words}, each at its own rate; one seed", arms)


# --- epsilon over epochs, at noise multiplier 1 ----------------------------------------------------------------------


def _growth_cases(size: Size) -> list[Case]:
    return [{"sampling": sampling, "epochs": 15} for sampling in ("Poisson", "shuffled")]


def _growth_run(case: Case, place: Place) -> Measured:
    """Nothing is trained: rows of epoch, epsilon by privacy-loss distributions, and by the article's conversion."""
    sampling = (Poisson if case["sampling"] == "Poisson" else Shuffled)(examples=EXAMPLES, batch_size=BATCH)
    query, curve = methods.dp_sgd(noise=1.0).mechanism.query(None), []
    for epoch in range(1, case["epochs"] + 1):
        steps = sampling.steps_for(epoch)
        event = Event.of(sampling.contract(), query, sampling.participations(steps))
        curve.append(
            [epoch, cost([event], DELTA).epsilon, epsilon_by_accountant([event], DELTA)["Rényi, Mironov's conversion"]]
        )
        place.tell(epoch, case["epochs"])
    return {"epsilon": curve[-1][1], "claimed": curve[-1][2], "delta": DELTA, "curve": curve}


def _growth_charts(results: Results) -> Sequence[Chart]:
    poisson, shuffled = results.where(sampling="Poisson"), results.where(sampling="shuffled")
    epsilon = Axis("ε at δ = 1e-5", "epsilon", low=0.0)
    lines = (poisson.course("privacy-loss distributions", colour=0), poisson.course("moments", y=2, colour=1))
    other = (shuffled.course("proven, if the loader shuffles", colour=2),)
    return [
        Chart("poisson", "ε over epochs at noise multiplier 1", EPOCHS, epsilon, lines, "Poisson batches of 256."),
        Chart("shuffled", "The same where batches are shuffled", EPOCHS, epsilon, other),
    ]


def _growth_found(results: Results) -> str:
    poisson, shuffled = results.where(sampling="Poisson"), results.where(sampling="shuffled")
    if not poisson or not shuffled:
        return ""
    return (
        f"After {poisson[0]['epochs']} epochs: {round_up(poisson.mean('epsilon'))} by privacy-loss distributions and "
        f"{round_up(poisson.mean('claimed'))} by moments for Poisson batches, {round_up(shuffled.mean('epsilon'))} for "
        "shuffled ones."
    )


EXPERIMENTS = (
    Experiment(
        "accuracy-epsilon",
        "Accuracy against ε on MNIST and Fashion-MNIST",
        "The tutorials' CNN, Poisson batches of 256, δ = 1e-5; clipping norm 1 on MNIST, and 5 on Fashion-MNIST as "
        "the slides have it. They run 15 and 10 epochs and print no numbers; here 2 epochs unless the size is "
        "full, on the first 50,000 examples, and the last 10,000 choose between learning rates 0.25 and 1. That "
        "choice is not in ε: it takes the last 10,000 for public.",
        _budgets_cases,
        _budgets_run,
        _budgets_charts,
        (
            headline("Fashion-MNIST against MNIST", "lower accuracy", _fashion_is_lower, SLIDES),
            Stated("how accuracy depends on ε", "similarly on both", verdict=_alike, size=SLIDES),
            Stated("the learning rate, where the noise is bigger", "decreased", verdict=_rates_fall, size=SLIDES),
            Stated("clipping norm on Fashion-MNIST", "5", verdict=_norm_five, size=SLIDES),
        ),
        found=_time_an_epoch,
        needs=("mnist", "fashion-mnist"),
    ),
    Experiment(
        "epsilon-epochs",
        "ε over epochs at noise multiplier 1",
        "Accounting alone: MNIST, batches of 256, δ = 1e-5. The slides draw the curve and do not say how they sampled.",
        _growth_cases,
        _growth_run,
        _growth_charts,
        found=_growth_found,
        seeds=ONE_SEED,
    ),
)
