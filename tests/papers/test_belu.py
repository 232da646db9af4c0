"""Paper 002's experiments: cases, what they cost, one of each form end to end, and verdicts on made-up results."""

import math

import pytest
import torch

from discreet.papers import paper
from discreet.papers.belu import readings, table
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
        plan = table.plan_of({**case, "epochs": 10}, table.network(case["activation"], case.get("beta", 1)))
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
    found = table.trained({**case, "epochs": 2}, data, data, Place(tmp_path))
    assert len(found["curve"]) == 2
    assert found["average"] == pytest.approx((found["curve"][0][1] + found["curve"][1][1]) / 2)


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
    words = table._rates_found(results(*rows))
    assert "tanh, as published: 0.3; ReLU, clipped to 2: 0.1; on average over forms 0.1." in words
    assert words.endswith(f"Table 1 is run with {table.RATE:g}.")


# --- readings of B ---------------------------------------------------------------------------------------------------


def read(**fields):
    row = {"activation": "belu", "private": True, "beta": 3, "reading": "sum", "loss": "cross-entropy"}
    return row | {"input": "padded", "rate": 0.1, "epochs": 1} | fields


@pytest.mark.parametrize("loss", ["cross-entropy", "equation 6"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "belu"])
def test_gradients_written_out_are_those_of_autograd(loss, activation):
    made = readings.network(read(loss=loss, activation=activation), 12, seed=0)
    x, y = 3 * torch.randn(5, 12), torch.arange(5)
    leaves = [t.requires_grad_() for t in (*made.weights, *made.biases)]
    out = made.outputs(x)[2]
    wanted = torch.nn.functional.one_hot(y, 10).float()
    each = (
        0.5 * (made.activation(out) - wanted).square().sum(1)
        if made.squared
        else torch.nn.functional.cross_entropy(out, y, reduction="none")
    )
    for i, norms in enumerate(made.norms(x, y).detach()):
        grads = torch.autograd.grad(each[i], leaves, retain_graph=True)
        for layer in (0, 1):
            exact = torch.cat([grads[layer].flatten(), grads[layer + 2]]).norm()
            assert float(norms[layer]) == pytest.approx(float(exact), rel=1e-4, abs=1e-6)


def test_the_readings_differ_in_their_noise():
    made = readings.network(read(), 12, seed=0)
    noise = {r: readings.deviations(read(reading=r), made) for r in readings.READINGS}
    assert noise["sum"] == (4.0, 4.0)
    assert noise["line 7"] == (32.0, 32.0)
    assert noise["mean"] == (256.0, 256.0)
    assert noise["per layer"][1] == 4.0
    same = readings.deviations(read(reading="per layer", beta=20), made)
    assert same[0] == noise["per layer"][0]  # beta is not in the first layer's bound
    assert readings.deviations(read(private=False), made) == (0.0, 0.0)


def test_the_distance_from_the_paper_is_zero_for_its_own_numbers():
    rows = [
        Result(row | {"reading": "sum"}, 0, {"average": a, "accuracy": b}, 0.0)
        for row, (a, b) in zip(readings.ROWS, readings.PRINTED, strict=True)
    ]
    assert readings.distance(Results(rows)) == pytest.approx(0.0)
    assert math.isnan(readings.distance(Results(rows[1:])))
