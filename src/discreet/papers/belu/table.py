"""002, Table 1 and figures 2 to 4; and the learning rate, which the paper does not give."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from torch import nn

from discreet import BoundedNetwork, Gaussian, Mechanism, Plan
from discreet.accounting.guarantee import round_up
from discreet.models import build
from discreet.nn import BELU
from discreet.papers.belu.verdicts import (
    SIZE,
    at_rate,
    beats_clipping,
    belu_is_best,
    budget,
    gap_closes,
    peak_inside,
    printed,
)
from discreet.papers.experiment import Case, Experiment, Measured, Place, Results, Size, Stated, headline
from discreet.papers.train_case import Pair, ordinary, pairs, private, seeded
from discreet.report import Axis, Chart, Series
from discreet.stages import presets as methods

BATCH, NOISE, EPSILON = 64, 1.0, 1.10
INPUT_NORM, WEIGHT_NORM = 28.0, 1.96  # what the paper's form is proven for: an image's largest, a He start's
HELD_OUT = 10_000  # the last training examples, on which learning rates are compared
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the full size: every row at each
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
        measured = ordinary(model, train, test, place, epochs=case["epochs"], batch_size=BATCH, learning_rate=rate)
    else:
        plan = plan_of(case, model, len(train[0]))
        measured = private(model, train, test, plan, place, learning_rate=rate)
    return measured | {"average": statistics.fmean(row[1] for row in measured["curve"])}


# --- the learning rate, which the paper does not give ----------------------------------------------------------------

TRIED: tuple[Case, ...] = (
    {"form": "ordinary", "activation": "relu"},
    {"form": "paper", "activation": "tanh"},
    {"form": "paper", "activation": "belu", "beta": 5},
    {"form": "clipped", "activation": "relu", "norm": 2},
    {"form": "certified", "activation": "belu", "beta": 1},
)


def _rates_cases(size: Size) -> list[Case]:
    rates = (0.03, 0.1, 0.3) if size == "quick" else RATES
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
    if size == "full":  # every row on all examples, and with held-out ones, by which its rate is chosen
        whole: list[Case] = [{**case, "epochs": 10, "rate": rate} for rate in RATES for case in _every_row()]
        lower: list[Case] = [{**case, "epochs": 10, "rate": 0.003} for case in _every_row()]
        return [*whole, *({**case, "held_out": True} for case in (*whole, *lower))]
    betas = {"quick": (1, 5, 20), "usual": (1, 2, 5, 20)}[size]
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
    cases.append({"form": "certified", "activation": "belu", "beta": betas[0]})
    return [{**case, "epochs": 2 if size == "quick" else 10} for case in cases]


def _every_row() -> list[Case]:
    """The 14 rows of table 1 as published, then sound forms: clipped to the noise that the paper adds, certified."""
    rows: list[Case] = [{"form": "ordinary", "activation": "relu"}, {"form": "paper", "activation": "tanh"}]
    rows += [{"form": "clipped", "activation": "relu", "norm": norm} for norm in RELU]
    rows += [{"form": "paper", "activation": "belu", "beta": beta} for beta in BETAS]
    rows.append({"form": "clipped", "activation": "tanh", "norm": 2})
    rows += [{"form": "clipped", "activation": "belu", "beta": beta, "norm": 1 + beta} for beta in BETAS]
    return [*rows, {"form": "certified", "activation": "belu", "beta": 1}]


def _table_run(case: Case, place: Place) -> Measured:
    """With held-out rows, these are what is measured on: nothing of the test set is looked at to choose a rate."""
    if case.get("held_out"):
        measured = _rates_run(case, place)
        return measured | {"validation": measured["average"]}
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


def _bar(
    name: str, rows: Sequence[Results], told: Sequence[float], measure: str, shift: float, colour: int
) -> tuple[Series, Series]:
    """Rows as bars, with whiskers of the seeds; the paper's numbers as rings."""
    measured = [(at + shift, row) for at, row in enumerate(rows) if row]
    points = tuple((at, row.mean(measure)) for at, row in measured)
    spread = tuple((at, min(row.values(measure)), max(row.values(measure))) for at, row in measured)
    theirs = tuple((at + shift, value) for at, value in enumerate(told))
    ours = Series(f"{name}, ours", points, "bars", colour, spread=spread)
    return ours, Series(f"{name}, the paper's", theirs, "hollow", colour)


def _two_bars(rows: Sequence[Results], told: Sequence[tuple[float, float]]) -> tuple[Series, ...]:
    """Average of 10 epochs and last epoch, side by side."""
    return (
        *_bar("average of 10 epochs", rows, [t[0] for t in told], "average", -0.2, 0),
        *_bar("last epoch", rows, [t[1] for t in told], "accuracy", 0.2, 1),
    )


def _table_charts(results: Results) -> Sequence[Chart]:
    """The paper's bars at the common learning rate; and each row's average by rate, on held-out rows."""
    held = Results(r for r in results if r.case.get("held_out"))
    some = at_rate(results, RATE)
    accuracy = Axis("accuracy on the test set", "share", low=0.0)
    average = Axis("average accuracy over epochs", "share", low=0.0)
    note = f"Learning rate {RATE:g} for all; the paper names none."
    chosen: dict[str, tuple[Case, tuple[float, float]]] = {
        "not private": ({"form": "ordinary"}, (0.9345, 0.9512)),
        "tanh": ({"form": "paper", "activation": "tanh"}, TANH),
        "ReLU, c = 2": ({**_RELU, "norm": 2}, RELU[2]),
        "BELU, β = 5": ({**_BELU, "beta": 5}, BETAS[5]),
    }
    rows = [some.where(**case) for case, _ in chosen.values()]
    betas = [some.where(**_BELU, beta=b) for b in BETAS]
    relu = [some.where(**_RELU, norm=c) for c in RELU]
    equal = (
        *_bar("BELU", betas, [told for told, _ in BETAS.values()], "average", -0.2, 0),
        *_bar("ReLU", relu, [told for told, _ in RELU.values()], "average", 0.2, 1),
    )
    charts = [
        Chart(
            "figure-2",
            "Figure 2: activation functions, average and last epoch",
            Axis("activation function", "number", names=tuple(chosen)),
            accuracy,
            _two_bars(rows, [told for _, told in chosen.values()]),
            note,
        ),
        Chart(
            "figure-3",
            "Figure 3: the threshold β of BELU, average and last epoch",
            Axis("β", "number", names=tuple(map(str, BETAS))),
            accuracy,
            _two_bars(betas, tuple(BETAS.values())),
            note,
        ),
        Chart(
            "figure-4",
            "Figure 4: BELU and clipped ReLU at equal α + β and c",
            Axis("clipping norm, or α + β", "number", names=tuple(map(str, RELU))),
            average,
            equal,
            note,
        ),
    ]
    if held:
        shown = (
            *(case for case, _ in chosen.values()),
            {**_RELU, "norm": 21},
            {**_BELU, "beta": 1},
            {**_BELU, "beta": 20},
        )
        lines = tuple(
            held.where(**case).line(_words(held.where(**case)[0].case), "rate", "average", colour=i)
            for i, case in enumerate(shown)
            if held.where(**case)
        )
        rate = Axis("learning rate", "number", log=True)
        title = "Every row by its learning rate, on held-out rows"
        charts.append(Chart("rates", title, rate, Axis("average accuracy on held-out rows", "share"), lines))
    return charts


def _table_found(results: Results) -> str:
    """At equal proven epsilon: BELU against ReLU and tanh, clipped alike, and certified; at the common rate."""
    results, parts = at_rate(results, RATE), []
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
    stated = []
    for i, (column, measure) in enumerate((("average", "average"), ("last epoch", "accuracy"))):
        stated.append(Stated(f"not private, {column}", (0.9345, 0.9512)[i], None, {"form": "ordinary"}, None, measure,
            printed((0.9345, 0.9512)[i], {"form": "ordinary"}, measure), SIZE))  # fmt: skip
        stated += [
            Stated(f"{name}, {column}", told[i], EPSILON, form, sound, measure, printed(told[i], form, measure), SIZE)
            for name, told, form, sound in rows
        ]
    return tuple(stated)


EXPERIMENTS = (
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
            headline(
                "figure 2: BELU has a higher accuracy than tanh and than clipping",
                "89.7%, 81.8%, 87.7%",
                belu_is_best,
                SIZE,
            ),
            headline(
                "figure 3: the average rises up to β = 5 and falls after",
                "87.3%, 89.7%, 86.0% at 1, 5, 20",
                peak_inside,
                SIZE,
            ),
            Stated("figure 3: last epoch and average are closer as β grows", "", verdict=gap_closes, size=SIZE),
            headline(
                "figure 4: BELU outperforms clipping as the clipping size increases",
                "-0.4 points at 2, +43.4 at 21",
                beats_clipping,
                SIZE,
            ),
            Stated("ε of all private models, δ = 1e-5", "1.10", EPSILON, verdict=budget, headline=True),
        ),
        _table_found,
        lambda results: at_rate(results, RATE),
        needs=("mnist",),
    ),
)
