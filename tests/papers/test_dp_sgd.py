"""Paper 001's experiments: cases, what they cost, one of each kind end to end, and verdicts on made-up results."""

import math

import pytest
import torch

from discreet.accounting import cost, figures
from discreet.accounting.events import Event
from discreet.papers import paper
from discreet.papers.dp_sgd import budgets as slides
from discreet.papers.dp_sgd import noise_levels, tuning
from discreet.papers.experiment import Place, Result, Results


def results(*rows):
    return Results(Result(case, 0, measured, 1.0) for case, measured in rows)


@pytest.fixture
def small(monkeypatch):
    """Images of two classes, 240 to train on and 60 to test, in the place of MNIST."""
    y = torch.arange(300) % 2
    x = torch.rand(300, 1, 28, 28) + y.view(-1, 1, 1, 1)
    parts = ((x[:240], y[:240]), (x[240:], y[240:]))
    values = {"pairs": lambda name: parts, "LOT": 40, "BATCH": 40, "DIRECTIONS": 5, "HELD_OUT": 40}
    for module in (noise_levels, slides, tuning):
        for name in values.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, values[name])


@pytest.mark.parametrize("size", ["quick", "usual", "full"])
def test_cases_are_plain_and_all_different(size):
    for experiment in paper("001").experiments:
        cases = [tuple(sorted(case.items())) for case in experiment.cases(size)]
        assert len(set(cases)) == len(cases) > 0
        assert all(isinstance(v, (str, int, float)) for case in cases for _, v in case)


def test_everything_that_is_stated_of_a_case_has_one():
    (levels, *_) = paper("001").experiments
    for stated in levels.stated:
        assert any(stated.published.items() <= case.items() for case in levels.cases("quick"))


@pytest.mark.parametrize("level", noise_levels.LEVELS.values(), ids=noise_levels.LEVELS)
def test_a_full_level_reaches_its_epsilon_by_moments(level):
    event = Event(0.01, level.noise, 100 * level.epochs)
    moments = figures([event], 1e-5)["Rényi, Mironov's conversion"]
    assert moments == pytest.approx(level.epsilon, rel=0.005)
    assert cost([event], 1e-5).epsilon < level.epsilon


def test_a_level_counts_its_projection(small, tmp_path):
    case = {"level": "small", "input": "pca", "epochs": 1}
    found = noise_levels._levels_run(case, Place(tmp_path))
    training, pca = Event(40 / 240, 2.0, 6), Event(1.0, 4.0, 1)
    assert found["epsilon"] == pytest.approx(cost([training, pca], 1e-5).epsilon, rel=1e-3)
    assert found["epsilon"] > cost([training], 1e-5).epsilon
    (row,) = found["curve"]
    assert row[2] == pytest.approx(found["epsilon"], rel=1e-3)
    assert row[2:] == sorted(row[2:], reverse=True)  # less at a larger delta


def test_the_baseline_trains_on_directions_without_noise(small, tmp_path):
    train, _ = noise_levels.pairs("mnist")
    directions = noise_levels.without_noise(train).directions
    assert directions.T @ directions == pytest.approx(torch.eye(5), abs=1e-5)
    found = noise_levels._levels_run({"level": "none", "input": "pca", "epochs": 1}, Place(tmp_path))
    assert found["epsilon"] is None


def test_directions_are_asked_for_once(small, tmp_path):
    train, _ = noise_levels.pairs("mnist")
    first, again = (noise_levels.directions(train, 4.0, Place(tmp_path)) for _ in range(2))
    assert torch.equal(first.directions, again.directions)
    assert (tmp_path / "ledger.jsonl").read_text().count("principal directions") == 1


def test_rates_are_compared_on_examples_that_are_not_trained_on(small, tmp_path):
    found = tuning._optimizers_run({"optimizer": "Adam", "rate": 0.001, "epochs": 1}, Place(tmp_path))
    training, pca = Event(40 / 200, 4.0, 5), Event(1.0, 7.0, 1)
    assert found["epsilon"] == pytest.approx(cost([training, pca], 1e-5).epsilon, rel=1e-3)
    assert 0 <= found["validation"] <= 1


def test_a_budget_is_what_a_case_spends(small, tmp_path):
    found = slides._budgets_run({"data": "mnist", "epsilon": 8.0, "rate": 0.05, "epochs": 1}, Place(tmp_path))
    assert 7.9 < found["epsilon"] <= 8
    assert found["noise"] > 0
    assert 0 <= found["validation"] <= 1


@pytest.mark.parametrize("experiment", paper("001").experiments, ids=lambda e: e.name)
def test_charts_are_drawn_of_what_there_is(experiment):
    measured = {"accuracy": 0.9, "validation": 0.8, "noise": 1.0, "epsilon": 1.0, "claimed": 1.5}
    curve = [[1.0, 0.8, 0.5, 0.4, 0.3, 0.2], [2.0, 0.9, 0.6, 0.5, 0.4, 0.3]]
    everything = results(*((case, {**measured, "curve": curve}) for case in experiment.cases("quick")))
    for chart in experiment.charts(everything):
        assert all(series.points for series in chart.series)
    assert len(experiment.charts(Results(everything[:1]))) == len(experiment.charts(everything))
    assert isinstance(experiment.found(everything), str)


def test_the_rate_falls_as_in_the_article():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule, rates = noise_levels.their_rates(optimizer, 2000), []
    for _ in range(1200):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.1)
    assert rates[500] == pytest.approx(0.076)
    assert rates[1000] == pytest.approx(rates[-1]) == pytest.approx(0.052)


def test_epsilon_over_epochs_is_that_of_the_claims(tmp_path):
    (growth,) = (e for e in paper("001").experiments if e.name == "epsilon-epochs")
    poisson, shuffled = (growth.run(case, Place(tmp_path)) for case in growth.cases("quick"))
    assert poisson["epsilon"] == pytest.approx(1.352, abs=0.001)
    assert poisson["claimed"] == pytest.approx(1.928, abs=0.001)
    assert shuffled["epsilon"] == pytest.approx(23.347, abs=0.001)
    found = results(*zip(growth.cases("quick"), (poisson, shuffled), strict=True))
    assert "23.34" in growth.found(found)
    assert [len(chart.series) for chart in growth.charts(found)] == [2, 1]


def budgets(mnist, fashion, best=(0.25, 1.0)):
    """Accuracies at epsilon 0.5 and 8, and the rates that are best at each."""
    rows = []
    for data, accuracies in (("mnist", mnist), ("fashion-mnist", fashion)):
        for epsilon, accuracy, winner in zip((0.5, 8.0), accuracies, best, strict=True):
            for rate in slides.RATES:
                case = {"data": data, "epsilon": epsilon, "rate": rate, "epochs": 1}
                measured = {"accuracy": accuracy, "validation": 0.5 + (rate == winner) / 10, "noise": 4 / epsilon}
                rows.append((case, measured))
    return results(*rows)


def test_the_chosen_rate_is_best_on_held_out_examples_not_on_the_test_set():
    rows = [
        ({"optimizer": "SGD", "rate": 0.1}, {"accuracy": 0.9, "validation": 0.5}),
        ({"optimizer": "SGD", "rate": 0.2}, {"accuracy": 0.8, "validation": 0.6}),
    ]
    assert tuning._optimizers_found(results(*rows)).endswith("SGD 80.0% (rate 0.2).")


def test_the_frontier_only_rises():
    curve = [[1.0, 0.5, 0.2, 0.1, 0.1, 0.1], [2.0, 0.7, 0.3, 0.2, 0.2, 0.2], [3.0, 0.6, 0.4, 0.3, 0.3, 0.3]]
    found = results(({"level": "large", "input": "pca"}, {"accuracy": 0.6, "curve": curve}))
    assert noise_levels._frontier(found, 0, 0).points == ((0.2, 0.5), (0.3, 0.7))
    assert noise_levels._pca_helps(found) == ""
    assert math.isnan(found.mean("validation"))
