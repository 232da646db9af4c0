"""002, Jung et al. 2021: differentially private neural networks with a bounded activation function (BELU)."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from torch import nn

from discreet import methods
from discreet.accounting.guarantee import round_up
from discreet.bounds import BoundedNetwork
from discreet.mechanism import Mechanism
from discreet.models import build
from discreet.nn import BELU
from discreet.noise import Gaussian
from discreet.papers.course import Pair, ordinary, pairs, private, seeded
from discreet.papers.experiment import Case, Experiment, Measured, Paper, Place, Results, Size, Stated
from discreet.plan import Plan
from discreet.report.charts import Axis, Chart, Series

BATCH, NOISE, EPSILON = 64, 1.0, 1.10
INPUT_NORM, WEIGHT_NORM = 28.0, 1.96  # what the paper's form is proven for: an image's largest, a He start's
HELD_OUT = 10_000  # the last training examples, on which learning rates are compared
RATE = 0.1  # of all rows: the best on average over forms, by the experiment learning-rate

# Table 1: average accuracy of 10 epochs, and accuracy in the last
TANH = (0.8181, 0.8807)
RELU = {  # by clipping norm
    2: (0.8773, 0.9031),
    3: (0.8546, 0.8568),
    6: (0.8047, 0.8104),
    11: (0.6905, 0.6623),
    16: (0.5847, 0.5615),
    21: (0.4267, 0.3389),
}
BETAS = {
    1: (0.8734, 0.9030),
    2: (0.8924, 0.9054),
    5: (0.8973, 0.9074),
    10: (0.8910, 0.8955),
    15: (0.8767, 0.8727),
    20: (0.8603, 0.8580),
}


def network(activation: str, beta: float = 1.0) -> nn.Module:
    """One hidden layer of 32 with He's uniform start. The paper pads images to 32 x 32, whose new pixels stay zero."""
    model = build("belu", (1, 28, 28), 10)
    assert isinstance(model, nn.Sequential)
    model[2] = {"relu": nn.ReLU, "tanh": nn.Tanh, "belu": lambda: BELU(1.0, beta)}[activation]()
    return model


def plan_of(case: Case, model: nn.Module, examples: int = 60_000) -> Plan:
    """The paper's plan, whose noise is that of an activation's bound; or a sound one of the same multiplier."""
    settings: dict[str, Any] = {"examples": examples, "batch_size": BATCH, "epochs": case["epochs"], "noise": NOISE}
    if case["form"] == "clipped":
        return methods.belu(**settings, norm=float(case["norm"]))
    if case["form"] == "certified":
        return methods.belu(**settings, certified=True).fit_to(model)
    plan = methods.belu(**settings, form="paper", beta=float(case.get("beta", 1)))
    if case["activation"] == "tanh":  # bounded by 1
        bound = BoundedNetwork(INPUT_NORM, WEIGHT_NORM)
        plan = replace(plan, mechanism=Mechanism(bound, Gaussian(std=NOISE)))
    return plan.fit_to(model)


def trained(case: Case, train: Pair, test: Pair, place: Place) -> Measured:
    """A case on these data; `average` is over epochs, as in the paper."""
    rate = case.get("rate", RATE)
    model = seeded(lambda: network(case["activation"], case.get("beta", 1)), place)
    if case["form"] == "ordinary":
        found = ordinary(model, train, test, place, epochs=case["epochs"], batch_size=BATCH, learning_rate=rate)
    else:
        plan = plan_of(case, model, len(train[0]))
        found = private(model, train, test, plan, place, learning_rate=rate)
    return found | {"average": statistics.fmean(row[1] for row in found["curve"])}


# --- the learning rate, which the paper does not give ----------------------------------------------------------------

TRIED: tuple[Case, ...] = (
    {"form": "ordinary", "activation": "relu"},
    {"form": "paper", "activation": "tanh"},
    {"form": "paper", "activation": "belu", "beta": 5},
    {"form": "clipped", "activation": "relu", "norm": 2},
    {"form": "certified", "activation": "belu", "beta": 1},
)


def _rates_cases(size: Size) -> list[Case]:
    rates = (0.03, 0.1, 0.3) if size == "quick" else (0.01, 0.03, 0.1, 0.3, 1.0)
    return [{**case, "rate": rate, "epochs": 1} for case, rate in product(TRIED, rates)]


def _rates_run(case: Case, place: Place) -> Measured:
    (x, y), _ = pairs("mnist")
    return trained(case, (x[:-HELD_OUT], y[:-HELD_OUT]), (x[-HELD_OUT:], y[-HELD_OUT:]), place)


def _rates_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(results.where(**case).line(_words(case), "rate", colour=i) for i, case in enumerate(TRIED))
    held_out = Axis("accuracy on held-out examples", "share")
    return [Chart("rates", "Learning rates", Axis("learning rate", "number", log=True), held_out, lines)]


def _rates_found(results: Results) -> str:
    """The best rate of each form, and the one that is best on average over those that have been run."""
    tried = [some for some in (results.where(**case) for case in TRIED) if some]
    if not tried:
        return ""
    best = (max(some.settings("rate"), key=lambda r: some.where(rate=r).mean()) for some in tried)
    words = "; ".join(f"{_words(some[0].case)}: {rate:g}" for some, rate in zip(tried, best, strict=True))
    common = max(results.settings("rate"), key=lambda r: sum(some.where(rate=r).mean() for some in tried))
    return f"Best on held-out examples, {words}; on average over forms {common:g}. Table 1 is run with {RATE:g}."


# --- table 1 and figures 2 to 4 --------------------------------------------------------------------------------------


def _table_cases(size: Size) -> list[Case]:
    betas = {"quick": (1, 5, 20), "usual": (1, 2, 5, 20), "full": tuple(BETAS)}[size]
    cases: list[Case] = [
        {"form": "ordinary", "activation": "relu"},
        {"form": "paper", "activation": "tanh"},
        {"form": "clipped", "activation": "tanh", "norm": 2},
    ]
    for beta in betas:
        cases += [
            {"form": "paper", "activation": "belu", "beta": beta},
            {"form": "clipped", "activation": "belu", "beta": beta, "norm": 1 + beta},
            {"form": "clipped", "activation": "relu", "norm": 1 + beta},
        ]
    cases += [
        {"form": "certified", "activation": "belu", "beta": beta} for beta in betas[: None if size == "full" else 1]
    ]
    return [{**case, "epochs": 2 if size == "quick" else 10} for case in cases]


def _table_run(case: Case, place: Place) -> Measured:
    return trained(case, *pairs("mnist"), place)


def _words(case: Case) -> str:
    """A case in a few words."""
    name = {"relu": "ReLU", "tanh": "tanh", "belu": f"BELU β = {case.get('beta')}"}[case["activation"]]
    norm = f"clipped to {case.get('norm')}"
    return (
        name
        + ", "
        + {"ordinary": "not private", "paper": "as published", "clipped": norm}.get(case["form"], case["form"])
    )


_BELU, _CLIPPED = {"form": "paper", "activation": "belu"}, {"form": "clipped", "activation": "belu"}
_RELU = {"form": "clipped", "activation": "relu"}


def _table_charts(results: Results) -> Sequence[Chart]:
    epochs, accuracy = Axis("epochs", "number", low=0.0), Axis("accuracy on the test set", "share")
    average = Axis("average accuracy over epochs", "share")
    shown: tuple[Case, ...] = (
        {"form": "ordinary"},
        {"form": "paper", "activation": "tanh"},
        {**_RELU, "norm": 2},
        {**_BELU, "beta": 5},
        {**_CLIPPED, "beta": 1},
        {"form": "certified", "beta": 1},
    )
    courses = []
    for i, case in enumerate(shown):
        some = results.where(**case)
        if some:
            courses.append(some.course(_words(some[0].case), colour=i))
    belu, clipped, relu = (results.where(**which) for which in (_BELU, _CLIPPED, _RELU))
    figure_3 = (
        belu.line("average, as published", "beta", "average", colour=0),
        belu.line("last epoch, as published", "beta", colour=0, look="dashed"),
        clipped.line("average, clipped to 1 + β", "beta", "average", colour=1),
        clipped.line("last epoch, clipped to 1 + β", "beta", colour=1, look="dashed"),
    )
    figure_4 = (
        Series("BELU, as published", _by_size(belu), colour=0),
        clipped.line("BELU, clipped", "norm", "average", colour=1),
        relu.line("ReLU, clipped", "norm", "average", colour=2),
    )
    noise = Axis("clipping norm, or α + β: the noise's standard deviation", "number")
    return [
        Chart("figure-2", "Figure 2: activations", epochs, accuracy, tuple(courses)),
        Chart("figure-3", "Figure 3: β of BELU", Axis("β", "number"), accuracy, figure_3),
        Chart("figure-4", "Figure 4: BELU and ReLU at equal noise", noise, average, figure_4),
    ]


def _by_size(results: Results) -> tuple[tuple[float, float], ...]:
    return tuple((1 + b, a) for b, a in results.line("", "beta", "average").points)


def _belu_is_best(results: Results) -> str:
    belu, tanh = results.where(**_BELU), results.where(form="paper", activation="tanh")
    relu = results.where(**_RELU)
    if not (belu and tanh and relu):
        return "not run"
    best = {
        "BELU": max(v for _, v in belu.line("", "beta", "average").points),
        "tanh": tanh.mean("average"),
        "ReLU": max(v for _, v in relu.line("", "norm", "average").points),
    }
    words = ", ".join(f"{name} {value:.1%}" for name, value in best.items())
    return f"reproduces: {words}" if best["BELU"] == max(best.values()) else f"does not: {words}"


def _peak(results: Results) -> str:
    points = results.where(**_BELU).line("", "beta", "average").points
    if len(points) < 3:
        return "not run"
    beta, top = max(points, key=lambda p: p[1])
    words = f"best at β = {beta:g} ({top:.1%}), {points[-1][1]:.1%} at {points[-1][0]:g}"
    inside = points[0][0] < beta < points[-1][0]
    return f"reproduces: {words}" if inside else f"does not: {words}"


def _gap_closes(results: Results) -> str:
    belu = results.where(**_BELU)
    betas = sorted(belu.settings("beta"))
    if len(betas) < 2:
        return "not run"
    seeds = [
        [float(r.measured["accuracy"]) - float(r.measured["average"]) for r in belu.where(beta=b)]
        for b in (betas[0], betas[-1])
    ]
    gaps = [statistics.fmean(of) for of in seeds]
    errors = [statistics.stdev(of) / math.sqrt(len(of)) if len(of) > 1 else 0.0 for of in seeds]
    words = f"{100 * gaps[0]:.1f} points at β = {betas[0]}, {100 * gaps[1]:.1f} at {betas[-1]}"
    if abs(abs(gaps[0]) - abs(gaps[1])) <= 2 * math.hypot(*errors):
        return f"within the seeds' spread: {words}, ± {100 * errors[1]:.1f}"
    return f"reproduces: {words}" if abs(gaps[1]) < abs(gaps[0]) else f"does not: {words}"


def _beats_clipping(results: Results) -> str:
    ours, theirs = (
        dict(_by_size(results.where(**_BELU))),
        dict(results.where(**_RELU).line("", "norm", "average").points),
    )
    sizes = sorted(ours.keys() & theirs.keys())
    if len(sizes) < 2:
        return "not run"
    leads = [ours[s] - theirs[s] for s in sizes]
    words = ", ".join(f"{100 * lead:+.1f} points at {size:g}" for size, lead in zip(sizes, leads, strict=True))
    return f"reproduces: {words}" if leads[-1] > max(0.0, leads[0]) else f"does not: {words}"


def _budget(results: Results) -> str:
    clipped, belu = results.where(form="clipped"), results.where(**_BELU)
    if not (clipped and belu):
        return "not run"
    worst = {form: max(some.all("epsilon")) for form, some in (("clipped", clipped), ("BELU", belu))}
    return (
        f"holds where gradients are clipped ({round_up(worst['clipped'])}); false for BELU: α + β bounds no gradient, "
        f"up to {worst['BELU']:,.0f} is what is proven"
    )


def _table_found(results: Results) -> str:
    """At equal proven epsilon: BELU against ReLU and tanh, clipped alike, and certified."""
    parts = []
    for norm in sorted(results.where(form="clipped").settings("norm")):
        some = results.where(form="clipped", norm=norm)
        names = {"belu": "BELU", "relu": "ReLU", "tanh": "tanh"}
        words = [f"{names[a]} {some.where(activation=a).mean('average'):.1%}" for a in some.settings("activation")]
        parts.append(f"clipped to {norm:g}: {', '.join(words)}")
    certified = results.where(form="certified")
    parts += [
        f"BELU β = {r:g}, certified: {certified.where(beta=r).mean('average'):.1%}" for r in certified.settings("beta")
    ]
    proven = results.where(form="clipped").all("epsilon")
    return f"At one proven ε of {round_up(max(proven))}, average accuracy: {'; '.join(parts)}." if proven else ""


def _rows() -> tuple[Stated, ...]:
    """Each row of table 1, its two columns."""
    rows: list[tuple[str, tuple[float, float], Case, Case | None]] = [
        ("tanh", TANH, {"form": "paper", "activation": "tanh"}, {"form": "clipped", "activation": "tanh"}),
        *((f"ReLU (c = {c})", told, {**_RELU, "norm": c}, None) for c, told in RELU.items()),
        *(
            (f"BELU (β = {b})", told, {**_BELU, "beta": b}, {**_CLIPPED, "beta": b, "norm": 1 + b})
            for b, told in BETAS.items()
        ),
    ]
    found = []
    for i, (column, measure) in enumerate((("average", "average"), ("last epoch", "accuracy"))):
        found.append(Stated(f"not private, {column}", (0.9345, 0.9512)[i], None, {"form": "ordinary"}, None, measure))
        found += [
            Stated(f"{name}, {column}", told[i], EPSILON, form, sound, measure) for name, told, form, sound in rows
        ]
    return tuple(found)


PAPER = Paper(
    "002",
    "Differentially private neural networks with bounded activation function (Jung et al. 2021)",
    (
        Experiment(
            "learning-rate",
            "The learning rate, which the paper does not give",
            "One epoch on the first 50,000 images, accuracy on the last 10,000 of the training set: the rate that is "
            "best on average over forms is taken for all rows of table 1. The choice is not in ε.",
            _rates_cases,
            _rates_run,
            _rates_charts,
            found=_rates_found,
            seeds={"quick": 1, "usual": 1, "full": 3},
            needs=("mnist",),
        ),
        Experiment(
            "table-1",
            "Table 1 and figures 2 to 4, as published and in sound forms",
            "MNIST, one hidden layer of 32, batches of 64 (Poisson), noise multiplier 1, δ = 1e-5, 10 epochs; β = 10 "
            "and 15 only at size full. As published the noise is an activation's bound, α + β, or 1 for tanh. In the "
            "sound form gradients are clipped to α + β, with the very same noise (tanh: clipped to 2); certified, the "
            "noise is the proven bound of the network's gradient. ReLU with clipping is sound as published. All sound "
            "forms have one ε.",
            _table_cases,
            _table_run,
            _table_charts,
            (
                *_rows(),
                Stated("figure 2: BELU is better than tanh and clipping", "", verdict=_belu_is_best),
                Stated("figure 3: accuracy rises up to β = 5 and falls after", "", verdict=_peak),
                Stated("figure 3: last epoch and average are closer as β grows", "", verdict=_gap_closes),
                Stated("figure 4: BELU is the better, the larger the clipping norm", "", verdict=_beats_clipping),
                Stated("ε of all private models, δ = 1e-5", "", EPSILON, verdict=_budget),
            ),
            _table_found,
            needs=("mnist",),
        ),
    ),
)
