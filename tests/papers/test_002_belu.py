"""Paper 002's experiments: cases, what they cost, one of each form end to end, and verdicts on made-up results."""

import pytest
import torch

from discreet.papers import belu, paper
from discreet.papers.experiment import Place, Result, Results

FORMS = (
    {"form": "ordinary", "activation": "relu"},
    {"form": "paper", "activation": "tanh"},
    {"form": "paper", "activation": "belu", "beta": 2},
    {"form": "clipped", "activation": "belu", "beta": 2, "norm": 3},
    {"form": "certified", "activation": "belu", "beta": 1},
)


def results(*rows):
    return Results(Result(case, 0, measured, 1.0) for case, measured in rows)


def scores(relu, belus, tanh=0.7):
    """Average accuracies by clipping norm, and by beta; BELU's last epoch is the average and a tenth of beta."""
    return results(
        ({"form": "paper", "activation": "tanh"}, {"average": tanh, "accuracy": tanh}),
        *(({"form": "clipped", "activation": "relu", "norm": c}, {"average": a, "epsilon": 0.5}) for c, a in relu),
        *(
            (
                {"form": "paper", "activation": "belu", "beta": b},
                {"average": a, "accuracy": a + gap, "epsilon": 9000.0},
            )
            for b, a, gap in belus
        ),
    )


@pytest.mark.parametrize("size", ["quick", "usual", "full"])
def test_cases_are_plain_and_all_different(size):
    for experiment in paper("002").experiments:
        cases = [tuple(sorted(case.items())) for case in experiment.cases(size)]
        assert len(set(cases)) == len(cases) > 0
        assert all(isinstance(v, (str, int, float)) for case in cases for _, v in case)


def test_at_full_size_every_row_of_the_table_is_run():
    table = paper("002").experiments[1]
    cases = list(table.cases("full"))
    for stated in table.stated:
        for wanted in (stated.published, stated.sound):
            assert wanted is None or any(wanted.items() <= case.items() for case in cases), stated.what


def test_sound_forms_have_one_epsilon_and_the_published_one_proves_next_to_nothing():
    proven = {}
    for case in FORMS[1:]:
        plan = belu.plan_of({**case, "epochs": 10}, belu.network(case["activation"], case.get("beta", 1)))
        proven[case["form"], case["activation"]] = plan.guarantee().epsilon
    assert proven["clipped", "belu"] == pytest.approx(0.494, abs=0.001)
    assert proven["certified", "belu"] == pytest.approx(proven["clipped", "belu"], rel=1e-6)
    assert proven["paper", "belu"] == pytest.approx(9418.5, rel=0.001)
    assert proven["paper", "tanh"] > 1000


@pytest.mark.parametrize("case", FORMS, ids=lambda c: f"{c['form']} {c['activation']}")
def test_each_form_trains(case, tmp_path):
    y = torch.arange(192) % 2
    x = torch.rand(192, 1, 28, 28)
    data = (x, y)
    found = belu.trained({**case, "epochs": 2}, data, data, Place(tmp_path))
    assert len(found["curve"]) == 2
    assert found["average"] == pytest.approx((found["curve"][0][1] + found["curve"][1][1]) / 2)


def test_verdicts_on_the_figures():
    as_told = scores([(2, 0.8), (6, 0.7), (21, 0.4)], [(1, 0.85, 0.05), (5, 0.9, 0.03), (20, 0.8, 0.01)])
    not_so = scores([(2, 0.9), (6, 0.9), (21, 0.9)], [(1, 0.85, 0.01), (5, 0.8, 0.02), (20, 0.7, 0.05)])
    for verdict in (belu._belu_is_best, belu._peak, belu._gap_closes, belu._beats_clipping):
        assert verdict(as_told).startswith("reproduces: ")
        assert verdict(not_so).startswith("does not: ")
        assert verdict(as_told.where(form="ordinary")) == "not run"
    assert belu._budget(as_told).startswith("holds where gradients are clipped (0.5")
    assert "9,000" in belu._budget(as_told)
    assert belu._table_found(as_told).startswith("At one proven ε of 0.5")


def test_a_gap_that_is_not_the_same_in_all_seeds_is_no_finding():
    def seen(seed, beta, gap):
        case = {"form": "paper", "activation": "belu", "beta": beta}
        return Result(case, seed, {"average": 0.8, "accuracy": 0.8 + gap}, 1.0)

    first = [seen(seed, 1, 0.006 + 0.0001 * seed) for seed in range(3)]
    scattered = Results([*first, *(seen(seed, 20, gap) for seed, gap in enumerate((-0.03, 0.02, 0.001)))])
    assert belu._gap_closes(scattered).startswith("within the seeds' spread: 0.6 points at β = 1, -0.3 at 20, ± 1.5")
    steady = Results([*first, *(seen(seed, 20, 0.0001 * seed) for seed in range(3))])
    assert belu._gap_closes(steady).startswith("reproduces: ")


@pytest.mark.parametrize("experiment", paper("002").experiments, ids=lambda e: e.name)
def test_charts_are_drawn_of_what_there_is(experiment):
    measured = {"accuracy": 0.9, "average": 0.8, "epsilon": 1.0, "curve": [[1.0, 0.7], [2.0, 0.9]]}
    everything = results(*((case, measured) for case in experiment.cases("quick")))
    for chart in experiment.charts(everything):
        assert all(series.points for series in chart.series)
    assert len(experiment.charts(Results(everything[:1]))) == len(experiment.charts(everything))
    assert experiment.found(everything)


def test_the_rate_of_the_table_is_said_beside_the_best():
    relu = {"form": "clipped", "activation": "relu", "norm": 2}
    tanh = {"form": "paper", "activation": "tanh"}
    rows = [({**relu, "rate": r}, {"accuracy": a}) for r, a in ((0.1, 0.8), (0.3, 0.5))]
    rows += [({**tanh, "rate": r}, {"accuracy": a}) for r, a in ((0.1, 0.8), (0.3, 0.9))]
    words = belu._rates_found(results(*rows))
    assert "tanh, as published: 0.3; ReLU, clipped to 2: 0.1; on average over forms 0.1." in words
    assert words.endswith(f"Table 1 is run with {belu.RATE:g}.")
