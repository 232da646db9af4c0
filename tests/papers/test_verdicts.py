"""Four words, and what a verdict must rest on: the paper's own size, and more than the seeds' spread."""

import importlib.util
import json
import math
import re
import sys
from pathlib import Path

import pytest

from discreet import papers
from discreet.papers import running
from discreet.papers.belu import verdicts as belu_verdicts
from discreet.papers.dp_sgd import budgets
from discreet.papers.encoding import verdicts as encoding_verdicts
from discreet.papers.experiment import Result, Results, Stated
from discreet.papers.tanh_filter import recurrent
from discreet.papers.tanh_filter import verdicts as tanh_verdicts
from discreet.papers.three_tools import alpha, clipping, memorisation
from discreet.papers.verdicts import (
    QUEUED,
    Extent,
    Verdict,
    above,
    apart,
    our_size,
    reached,
    settled,
    spread_of,
    too_small,
    two_ways,
)
from discreet.report.charts import svg

MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured"
THEIRS = Extent(60, 50_000, 1_000)
WORDS = {"reproduces", "holds only untuned", "refuted", "undecided"}


def trained(accuracy, seed=0, *, epochs=60.0, examples=50_000, parameters=1_000, case=None, **more):
    curve = more.pop("curve", [[epochs / 2, accuracy - 0.05], [epochs, accuracy]])
    size = {"epochs": epochs, "examples": examples, "parameters": parameters}
    return Result(dict(case or {}), seed, {"accuracy": accuracy, "curve": curve, **size, **more}, 1.0)


def seeds(mean, spread=0.002, **more):
    return Results(trained(mean + spread * off, i, **more) for i, off in enumerate((-1.0, 0.0, 1.0)))


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "lacks"),
    [
        ({}, ""),
        ({"epochs": 30}, ""),
        ({"epochs": 29}, "29 of 60 epochs"),
        ({"examples": 49_999}, "49,999 of 50,000 examples"),
        ({"parameters": 999}, "999 of 1,000 parameters"),
    ],
)
def test_what_is_too_small_decides_nothing(size, lacks):
    arm = Results([trained(0.9, **size)])
    assert too_small(arm, THEIRS) == lacks
    for word in WORDS - {"undecided"}:
        found = settled(Verdict(word, "why", (arm,)), THEIRS)
        assert found.word == ("undecided" if lacks else word)
        assert found.why.startswith(lacks)


def test_one_training_of_full_length_counts_beside_shorter_ones():
    arm = Results([trained(0.9), *(trained(0.8, i, epochs=6) for i in range(3))])
    assert too_small(arm, THEIRS) == ""
    other = Results([trained(0.9, epochs=6)])
    assert settled(Verdict("refuted", "", (arm, other)), THEIRS).word == "undecided"  # every arm needs one


def test_a_verdict_that_rests_on_nothing_or_on_unknown_sizes_is_undecided():
    assert settled(Verdict("refuted", "so"), THEIRS).word == "undecided"
    old = Results([Result({}, 0, {"accuracy": 0.9}, 1.0)])
    assert settled(Verdict("refuted", "so", (old,)), THEIRS).word == "undecided"
    assert settled(Verdict("refuted", "so", (old,)), None).word == "refuted"  # nothing is trained


def test_sizes_are_said():
    assert str(THEIRS) == "60 epochs, 50,000 examples, 1,000 parameters"
    arms = (seeds(0.9), Results([trained(0.8, epochs=30)]))
    assert our_size(arms) == "30 to 60 epochs, 50,000 examples, 1,000 parameters, 1 to 3 seeds"
    assert our_size(()) == ""


# --- spread ----------------------------------------------------------------------------------------------------------


def test_a_difference_within_the_spread_is_none():
    base = seeds(0.90)
    assert above(seeds(0.92), base) is True
    assert above(seeds(0.88), base) is False
    assert above(seeds(0.901), base) is None
    assert apart(seeds(0.901), base) is False


def test_one_seed_has_no_spread_but_that_of_three_shorter_ones():
    one, other = Results([trained(0.92)]), Results([trained(0.90)])
    assert apart(one, other) is None
    assert math.isnan(spread_of(one, Results([trained(0.9), trained(0.8, 1)])))  # two are too few
    short = seeds(0.5, epochs=6)
    assert above(one, other, short) is True
    assert above(one, other, seeds(0.5, 0.05, epochs=6)) is None


@pytest.mark.parametrize(
    ("ours", "word"),
    [((0.9,), "reproduces"), ((0.909,), "reproduces"), ((0.95,), "undecided"), ((0.95, 0.951, 0.949), "refuted"),
     ((0.93, 0.96, 0.90), "reproduces")],
)  # fmt: skip
def test_figures_are_compared_by_a_point_or_two_deviations(ours, word):
    arm = Results(trained(a, i) for i, a in enumerate(ours))
    assert reached(arm, 0.9).word == word
    assert Stated("it", 0.9, published={}, size=THEIRS).judged(arm).word == word


@pytest.mark.parametrize(
    ("untuned", "tuned", "word"),
    [(0.95, 0.95, "reproduces"), (0.95, 0.9, "holds only untuned"), (0.95, 0.8, "holds only untuned"),
     (0.8, 0.8, "refuted"), (0.9, 0.95, "reproduces"), (0.9, 0.9, "undecided"), (None, 0.8, "undecided"),
     (0.8, None, "undecided")],
)  # fmt: skip
def test_two_ways_of_comparing(untuned, tuned, word):
    ways = [(Results() if a is None else seeds(a), seeds(0.9), ()) for a in (untuned, tuned)]
    found = two_ways("it", ways[0], ways[1], ("new", "old"), ("one rate", "tuned"))
    assert found.word == word


# --- the papers' own -------------------------------------------------------------------------------------------------


def filtered(method, accuracy, *, rate=0.15, held_out=False, seed=0, epochs=60, **more):
    fields = {"method": method, "c": 1.0, "k": 1.0, "learning_rate": rate} | more
    fields |= {"held_out": True} if held_out else {}
    size = {"epochs": 5.0 if held_out else float(epochs), "examples": 60_000, "parameters": 26_010}
    curve = [[e, accuracy, 1.0] for e in range(1, (5 if held_out else epochs) + 1)]
    extra = {"validation": accuracy} if held_out else {"largest": 12.0, "swing": 0.0}
    return trained(accuracy, seed, case=fields, curve=curve, **size, **extra)


def test_000_is_judged_at_one_rate_and_at_each_ones_own():
    long = [filtered("paper", 0.95), filtered("dp-sgd", 0.93), filtered("dp-sgd", 0.96, rate=0.6, epochs=30)]
    short = [
        filtered(m, a + 0.001 * seed, rate=rate, held_out=True, seed=seed)
        for m, a, rate in (("paper", 0.94, 0.15), ("paper", 0.90, 0.6), ("dp-sgd", 0.90, 0.15), ("dp-sgd", 0.95, 0.6))
        for seed in range(3)
    ]
    found = settled(tanh_verdicts.improves(Results([*long, *short])), tanh_verdicts.SIZES["mnist"])
    assert found.word == "holds only untuned"
    assert "each tuned (0.15 and 0.6)" in found.why
    assert tanh_verdicts.improves(Results(long)).word == "undecided"  # no held-out rows, no choice
    assert tanh_verdicts.near_one(Results(long)).word == "refuted"


def test_000_reads_long_trainings_at_the_length_that_all_have():
    rows = tanh_verdicts.on_all(Results([filtered("paper", 0.9), filtered("paper", 0.9, c=2.0, epochs=30)]))
    assert [r.measured["epochs"] for r in rows] == [30, 30]
    assert [len(r.measured["curve"]) for r in rows] == [30, 30]


def test_000_recurrent_networks_are_compared_with_plain_clipping():
    def met(way, accuracy, gradient, spread):
        return [
            Result({"way": way, "spread": spread}, s, {"accuracy": accuracy + s / 1000, "gradient": gradient}, 1.0)
            for s in range(3)
        ]

    def found(filtered):
        rows = [r for s in (1.0, 4.0) for r in (*met("none", 0.1, 99.0, s), *met("clip", 0.8, 9.0, s))]
        return recurrent.explodes_not(
            Results([*rows, *(r for s in (1.0, 4.0) for r in met("filter", filtered, 9.0, s))])
        )

    assert found(0.2).word == "refuted"
    assert found(0.9).word == "reproduces"
    assert found(0.8).word == "undecided"


def table(averages, **more):
    """Rows of 002's table: (form, activation, norm or beta) -> average, three seeds at each rate."""
    found = []
    for (form, activation, at), average in averages.items():
        fields = {"form": form, "activation": activation, "epochs": 10} | more
        fields |= {} if at is None else {("norm" if activation == "relu" else "beta"): at}
        size = {"epochs": 10.0, "examples": 60_000, "parameters": 25_450}
        found += [
            trained(average + 0.001 * s, s, case=fields, average=average + 0.001 * s, epsilon=1.0, **size)
            for s in range(3)
        ]
    return found


LIKE_THE_PAPER = {
    ("paper", "tanh", None): 0.82,
    **{("clipped", "relu", c): a for c, a in ((2, 0.87), (3, 0.85), (21, 0.43))},
    **{("paper", "belu", b): a for b, a in ((1, 0.87), (2, 0.89), (5, 0.90), (20, 0.86))},
}
FIRST_IS_BEST = LIKE_THE_PAPER | {("paper", "belu", b): a for b, a in ((1, 0.93), (2, 0.92), (5, 0.87), (20, 0.6))}


def held_rows(averages, rate):
    """With held-out rows at a rate, and much worse ones at a lower and a higher one."""
    return [
        Result(r.case | {"held_out": True}, r.seed, r.measured | {"validation": r.measured["average"] - less}, 1.0)
        for at, less in ((rate, 0.0), (rate / 100, 0.5), (rate * 100, 0.5))
        for r in table(averages, rate=at)
        if r.seed == 0
    ]


def test_002_is_judged_at_every_common_rate_and_at_each_rows_own():
    judges = (belu_verdicts.belu_is_best, belu_verdicts.peak_inside, belu_verdicts.beats_clipping)
    only = Results(table(LIKE_THE_PAPER, rate=0.1))
    assert [judge(only).word for judge in judges] == ["undecided"] * 3  # no rate was chosen for each
    chosen = Results([*only, *held_rows(LIKE_THE_PAPER, 0.1)])
    assert [judge(chosen).word for judge in judges] == ["reproduces"] * 3
    # at another rate all rows are better, and the paper's order is gone: that rate is each row's own
    better = {row: a + 0.05 for row, a in FIRST_IS_BEST.items()}
    both = Results([*chosen, *table(better, rate=0.3), *held_rows(better, 0.3)])
    assert belu_verdicts.peak_inside(both).word == "holds only untuned"
    edge = Results(r for r in chosen if not (r.case.get("held_out") and r.case["rate"] > 1))
    assert belu_verdicts.peak_inside(edge).word == "undecided"
    swapped = Results([*table(FIRST_IS_BEST, rate=0.1), *held_rows(FIRST_IS_BEST, 0.1)])
    assert belu_verdicts.peak_inside(swapped).word == "refuted"


def test_002_a_number_at_a_rate_that_the_paper_does_not_name_is_never_refuted():
    rows = Results(table(LIKE_THE_PAPER, rate=0.1))
    fields = {"form": "paper", "activation": "tanh"}
    assert belu_verdicts.printed(0.8181, fields, "average")(rows).word == "reproduces"
    assert belu_verdicts.printed(0.9, fields, "average")(rows).word == "undecided"
    assert belu_verdicts.budget(rows).word == "refuted"


def clipped(clipping, accuracy, epochs, seed=0, **more):
    fields = {"clipping": clipping, "form": "paper", "doubled": "nothing", "epochs": epochs} | more
    size = {"epochs": float(epochs), "examples": 50_000, "parameters": 1_387_786}
    return trained(accuracy, seed, case=fields, **size)


@pytest.mark.parametrize(("adaptive", "word"), [(0.64, "reproduces"), (0.58, "refuted"), (0.617, "undecided")])
def test_003_adaptive_norms_are_judged_at_full_length_by_the_spread_of_short_ones(adaptive, word):
    short = [clipped(c, 0.4 + s / 500, 6, s) for c in ("constant", "adaptive") for s in range(3)]
    long = [clipped("constant", 0.615, 60), clipped("adaptive", adaptive, 60)]
    stated = next(s for s in papers.experiment("003", "figure-4").stated if s.what == "adaptive against constant")
    assert stated.judged(Results([*short, *long])).word == word
    assert stated.judged(Results(short)).word == "undecided"


def test_003_the_constant_norm_is_the_one_that_was_searched_for():
    held = [clipped("constant", a, 3, norm=n, held_out=10_000) for n, a in ((1.0, 0.3), (4.0, 0.5))]
    assert clipping.chosen_norm(Results(held)) == 4.0
    assert clipping.chosen_norm(Results()) == 2.0


@pytest.mark.parametrize(
    ("private", "plain", "word"), [(0.11, 0.9, "reproduces"), (0.5, 0.9, "refuted"), (0.1, 0.1, "undecided")]
)
def test_003_memorisation_needs_an_arm_that_memorises(private, plain, word):
    size = {"epochs": 60.0, "examples": 50_000, "parameters": 1_387_786}
    rows = [
        trained(a, case={"data": "noise", "form": form, "epochs": 60}, **size)
        for form, a in (("paper", private), ("none", plain))
    ]
    assert memorisation._prevented(Results(rows)).word == word


def denoised(method, accuracy, rate, *, held_out, epochs=60, seed=0):
    fields = {"method": method, "learning_rate": rate, "held_out": held_out, "data": "mnist"}
    size = {"epochs": float(epochs), "examples": 50_000 if held_out else 60_000, "parameters": 26_010}
    extra = {"validation": accuracy} if held_out else {}
    curve = [[e, accuracy, 1.0] for e in range(1, epochs + 1)]
    return trained(accuracy, seed, case=fields, curve=curve, **size, **extra)


def encoded_rows(tuned):
    method = encoding_verdicts.ENCODED
    rows = [
        denoised(m, a + s / 1000, rate, held_out=True, epochs=6, seed=s)
        for m, best in ((method, 0.15), ("DP-SGD", 2.0))
        for rate in (0.05, 0.15, 2.0, 4.0)
        for a in (0.9 if rate == best else 0.8,)
        for s in range(3)
    ]
    rows += [denoised(method, 0.96, 0.15, held_out=False, epochs=30), denoised("DP-SGD", 0.94, 0.15, held_out=False)]
    return Results([*rows, denoised("DP-SGD", tuned, 2.0, held_out=False)])


@pytest.mark.parametrize(("tuned", "word"), [(0.97, "holds only untuned"), (0.94, "reproduces")])
def test_004_denoising_is_judged_with_a_tuned_baseline(tuned, word):
    verdict = encoding_verdicts.against_dp_sgd(encoding_verdicts.ENCODED, "encoded")
    assert settled(verdict(encoded_rows(tuned)), encoding_verdicts.SIZES["mnist"]).word == word


def test_004_a_rate_at_the_edge_of_the_grid_decides_nothing():
    rows = Results(r for r in encoded_rows(0.97) if r.case["learning_rate"] != 4.0)
    assert encoding_verdicts.against_dp_sgd(encoding_verdicts.ENCODED, "encoded")(rows).word == "undecided"


@pytest.mark.parametrize(
    ("base", "ours", "word"), [(0.962, 0.97, "refuted"), (0.93, 0.96, "reproduces"), (0.93, 0.94, "refuted")]
)
def test_004_a_budget_is_refuted_where_dp_sgd_has_the_accuracy_already(base, ours, word):
    rows = [
        Result(r.case | {"budget": 2.5}, 0, r.measured, 1.0)
        for r in (
            denoised("DP-SGD", base, 1.0, held_out=False),
            denoised(encoding_verdicts.ENCODED, ours, 1.0, held_out=False),
        )
    ]
    assert encoding_verdicts.at_budget("mnist", 2.5, 5.0, 0.96)(Results(rows)).word == word


def test_001_rates_are_chosen_by_short_trainings_with_held_out_rows():
    def met(epsilon, rate, accuracy, *, held_out, data="mnist"):
        norm = budgets.DATA[data][2]
        fields = {"data": data, "epsilon": epsilon, "rate": rate, "norm": norm, "held_out": held_out}
        size = {"epochs": 2.0 if held_out else 15.0, "examples": 60_000, "parameters": 26_010}
        return trained(accuracy, case=fields, noise=1.0, **size, **({"validation": accuracy} if held_out else {}))

    rows = [met(1.0, r, a, held_out=True) for r, a in ((0.25, 0.9), (1.0, 0.8))]
    rows += [met(1.0, r, a, held_out=False) for r, a in ((0.25, 0.91), (1.0, 0.99))]
    assert [r["accuracy"] for r in budgets._settled_rates(Results(rows))] == [0.91]


# --- what has been measured ------------------------------------------------------------------------------------------

STATED = [
    pytest.param(number, experiment, stated, id=f"{number} {experiment.name}: {stated.what}")
    for number in papers.FILES
    for experiment in papers.paper(number).experiments
    for stated in experiment.stated
]


@pytest.mark.parametrize(("number", "experiment", "stated"), STATED)
@pytest.mark.parametrize("size", ["usual", "full"])
def test_no_verdict_on_what_was_measured_rests_on_less_than_the_paper(number, experiment, stated, size):
    results = running.read(MEASURED / number / experiment.name / f"{size}.jsonl")
    found = stated.judged(results)
    assert found.word in WORDS
    if found.word == "undecided" or stated.size is None:
        return
    for arm in found.arms:
        large = [
            r for r in arm
            if r.measured["epochs"] >= 0.5 * (stated.size.epochs or 0) - 0.01
            and r.measured["examples"] >= (stated.size.examples or 0)
            and r.measured["parameters"] >= (stated.size.parameters or 0)
        ]  # fmt: skip
        assert large, f"{found} rests on too little"


@pytest.mark.parametrize(("number", "experiment", "stated"), STATED)
def test_a_statement_without_a_size_trains_nothing_or_compares_nothing_of_theirs(number, experiment, stated):
    trains_nothing = {"noise-size", "figure-5", "epsilon-epochs"}
    of_accounting = "ε of all private models" in stated.what
    if stated.size is None:
        assert experiment.name in trains_nothing | {"rnn"} or of_accounting
    assert stated.judged(Results()) == QUEUED


@pytest.mark.parametrize("file", sorted(MEASURED.glob("0*/*/full.jsonl")), ids=lambda f: "/".join(f.parts[-3:-1]))
def test_every_result_of_full_size_says_how_large_it_is_and_which_commit_made_it(file):
    for line in file.read_text().splitlines():
        values = json.loads(line)
        assert re.fullmatch("[0-9a-f]{40}", values["commit"])
        assert values["seconds"] >= 0
        assert {"epochs", "examples", "parameters"} <= set(values["measured"]) or "accuracy" not in values["measured"]


# --- everything can be drawn -----------------------------------------------------------------------------------------

EXPERIMENTS = [
    pytest.param(number, experiment, id=f"{number} {experiment.name}")
    for number in papers.FILES
    for experiment in papers.paper(number).experiments
]
ANYTHING = {
    "accuracy": 0.8, "average": 0.7, "validation": 0.8, "epsilon": 1.0, "claimed": 1.0, "noise": 1.0, "largest": 2.0,
    "swing": 0.01, "gradient": 9.0, "log_gradient": 1.0, "l1": 1.0, "l2": 1.0, "l1_ratio": 1.0, "l2_ratio": 1.0,
    "per_example": 1.0, "change": 2.0, "spread": 2.0, "distance": 0.1, "kurtosis": 9.0, "gap": 0.1,
    "epochs": 60.0, "examples": 60_000, "parameters": 26_010, "histogram": [[0.0, 1.0]], "names": ["a", "b"],
    "curve": [[e, 0.5, 1.0, 1.0, 1.0, 1.0] for e in range(1, 61)], "gaps": [[1.0, 0.1]], "epsilon_of_white": 2.0,
    "epsilon_of_worst": 3.0,
    "true_positives": 0.02, "low": 0.01, "high": 0.03, "auc": 0.5, "admissible_norm": 2.0, "one_release": 3.0,
}  # fmt: skip


@pytest.mark.parametrize(("number", "experiment"), EXPERIMENTS)
@pytest.mark.parametrize("size", ["quick", "full"])
def test_charts_and_words_are_made_of_all_results_and_of_one(number, experiment, size):
    cases = list(experiment.cases(size))
    everything = Results(Result(case, seed, dict(ANYTHING), 1.0) for case in cases for seed in range(2))
    for results in (everything, Results(everything[:1])):
        if not results:
            continue
        for chart in experiment.charts(results):
            assert svg(chart, alone=True).startswith("<svg")
            assert chart.title
        assert isinstance(experiment.found(results), str)
        for stated in experiment.stated:
            assert stated.judged(results).word in WORDS


def test_003_alpha_is_judged_on_every_data_set():
    def met(data, a, accuracy):
        fields = {"data": data, "alpha": a, "learning_rate": 0.1, "epochs": 60}
        return trained(accuracy, case=fields, parameters=26_010, validation=accuracy)

    flat = [met(d, a, 0.9) for d in ("mnist", "cifar10") for a in (0.5, 1.0, 2.0)]
    assert alpha.near_optimum(Results(flat)).word == "reproduces"
    assert alpha.near_optimum(Results([*flat, met("cifar10", 4.0, 0.95)])).word == "refuted"


# --- the page --------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"


def test_the_page_says_what_was_measured_and_nothing_firmer(monkeypatch):
    monkeypatch.syspath_prepend(str(MEASURED.parent))
    spec = importlib.util.spec_from_file_location("papers_page", MEASURED.parent / "papers.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = PAGE.read_text(encoding="utf-8")
    assert page.headlines(MEASURED) in text
    assert page.everything(MEASURED) in text
    assert page.spent(MEASURED) in text
    for name in [n for n in sys.modules if n == "jobs" or n.startswith("jobs.")]:
        del sys.modules[name]


def test_verdicts_on_the_page_are_of_the_four_words():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| 00\d \S+ \|", line)]
    assert len(rows) > 50
    for row in rows:
        verdict = row.rstrip(" |").rpartition(" | ")[2]
        assert verdict.partition(":")[0] in WORDS, row
