"""What figures of merit say to a reader."""

import torch

from discreet.report.merit import calibration, in_words, merit_section
from discreet.training.merit import of_classes, of_numbers

LABELS = torch.tensor([0, 0, 1, 0])
FIGURES = of_classes(torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), LABELS)


def test_an_accuracy_that_does_not_exceed_the_majority_is_called_that():
    assert "nothing was learned that shows" in in_words(FIGURES["majority"], FIGURES)
    assert "always saying the commonest class has 75.0%" in in_words(0.99, FIGURES)
    assert in_words(None, FIGURES) == ""


def test_errors_stand_beside_those_of_the_mean():
    found = of_numbers(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 6.0]))
    assert "always saying their mean has 2.16" in in_words(None, found)
    assert "does not do better" in in_words(None, of_numbers(torch.zeros(2), torch.tensor([1.0, 2.0])))
    assert "the mean" in merit_section(None, found)


def test_groups_stand_on_the_console_and_on_the_page():
    groups = [{"name": "<a>", "rows": 30, "accuracy": 0.9}, {"name": "b", "rows": 0, "accuracy": None}]
    figures = FIGURES | {"group": "town", "groups": groups}
    assert in_words(0.75, figures).endswith(" By town: <a> 90.0% (30 rows).")
    assert "&lt;a&gt;" in merit_section(0.75, figures)
    numbers = of_numbers(torch.zeros(2), torch.tensor([1.0, 2.0])) | {
        "target": [0, 9],
        "group": "town",
        "groups": [{"name": "a", "rows": 2, "rmse": 1.5}],
    }
    assert "By town: a 1.5 (2 rows)." in in_words(None, numbers)
    assert "outside 0 to 9 was cut" in merit_section(None, numbers)


def test_the_page_has_classes_by_name_and_says_whom_the_figures_are_about():
    html = merit_section(0.75, FIGURES | {"classes": ["<no>", "yes"]})
    assert "&lt;no&gt;" in html
    assert "66.7%" in html
    assert "not protected" in html
    assert merit_section(0.75, None) == ""


def test_calibration_is_drawn_bin_by_bin():
    assert len(calibration(FIGURES).series[0].points) == 2
    assert calibration(None).series[0].points == ()
