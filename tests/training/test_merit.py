"""Figures of merit, against scikit-learn's and by hand."""

import pytest
import torch

from discreet import ConfigError
from discreet.training.evaluation import evaluate_fully
from discreet.training.merit import HeldOut, merit, of_classes, of_numbers

SCORES = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(3, (60,), generator=torch.Generator().manual_seed(1))


def test_figures_of_classes_are_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    found, said = of_classes(SCORES, LABELS), SCORES.argmax(1)
    assert found["recall"] == pytest.approx(metrics.recall_score(LABELS, said, average=None))
    assert found["confusion"] == metrics.confusion_matrix(LABELS, said).tolist()
    chances = SCORES.double().softmax(1)
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(LABELS, chances, multi_class="ovr"))
    assert found["majority"] == pytest.approx(float(LABELS.bincount().max()) / 60)
    assert sum(count for *_, count in found["calibration"]) == 60


def test_equal_scores_are_no_better_than_a_coin_and_sure_ones_that_are_wrong_are_off():
    assert of_classes(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1]))["auc"] == 0.5
    sure = of_classes(torch.tensor([[50.0, 0.0]] * 4), torch.tensor([0, 1, 1, 1]))
    assert sure["calibration_error"] == pytest.approx(0.75)
    assert sure["recall"] == [1.0, 0.0]
    assert of_classes(torch.zeros(2, 3), torch.tensor([0, 0]))["recall"] == [1.0, None, None]
    assert of_classes(torch.zeros(2, 2), torch.tensor([0, 0]))["auc"] is None


def test_numbers_are_compared_with_their_mean():
    found = of_numbers(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 6.0]))
    assert found["rmse"] == pytest.approx(3**0.5)
    assert (found["mae"], found["mean_mae"]) == (1.0, 2.0)
    assert found["r2"] == pytest.approx(1 - 9 / 14)
    assert of_numbers(torch.zeros(2), torch.ones(2))["r2"] is None


def test_errors_are_told_in_the_targets_own_units():
    scaled = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([-1.0, 0.0, 0.0])
    found, plain = merit(*scaled, HeldOut(target=(100.0, 300.0))), merit(*scaled)
    assert found["rmse"] == pytest.approx(100 * plain["rmse"])
    assert found["mean_mae"] == pytest.approx(100 * plain["mean_mae"])
    assert (found["r2"], found["target"]) == (pytest.approx(plain["r2"]), [100.0, 300.0])


def test_each_group_has_its_figure_and_one_without_rows_has_none():
    about = HeldOut(group="town", group_names=("a", "b", "others"), groups=torch.tensor([0, 0, 0, 1]))
    scores, labels = torch.eye(2)[[0, 1, 1, 0]], torch.tensor([0, 1, 0, 1])
    accuracies = [(g["name"], g["rows"], g["accuracy"]) for g in merit(scores, labels, about)["groups"]]
    assert accuracies == [("a", 3, pytest.approx(2 / 3)), ("b", 1, 0.0), ("others", 0, None)]
    numbers = merit(torch.tensor([1.0, 1.0, 1.0, 5.0]), torch.tensor([1.0, 1.0, 4.0, 1.0]), about)
    assert [g["rmse"] for g in numbers["groups"]] == [pytest.approx(3**0.5), 4.0, None]
    with pytest.raises(ConfigError, match="have a group"):
        merit(scores, labels, HeldOut(group="town", group_names=("a",), groups=torch.zeros(3)))


def test_they_are_measured_where_there_is_one_target_a_row():
    model = torch.nn.Linear(4, 3)
    x = torch.randn(60, 4)
    assert set(evaluate_fully(model, (x, LABELS))) == {"loss", "accuracy", "merit"}
    assert "rmse" in evaluate_fully(torch.nn.Linear(4, 1), (x, x[:, 0]))["merit"]
    assert "merit" not in evaluate_fully(torch.nn.Conv1d(4, 3, 1), (torch.randn(5, 4, 2), torch.randint(3, (5, 2))))
