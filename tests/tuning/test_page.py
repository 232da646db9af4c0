"""Pages of a grid: a line for each setting, the best ones; nothing is drawn where nothing was measured."""

from discreet.tuning.page import write_sweep


def rows(count):
    return [
        {"name": f"{n}-{e:g}", "model.name": f"<net {n}>", "budget.epsilon": e, "accuracy": 0.5 + n / 100, "epsilon": e}
        for n in range(count)
        for e in (1.0, 3.0)
    ]


def test_lines_of_the_best_settings(tmp_path):
    page = write_sweep(tmp_path, rows(10), ("model.name", "budget.epsilon")).read_text()
    assert "The best 8 of 10 settings." in page
    assert "&lt;net 9&gt;" in page
    assert "<net" not in page
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 21


def test_nothing_is_drawn_of_what_was_not_measured(tmp_path):
    page = write_sweep(tmp_path, [{**row, "accuracy": None} for row in rows(1)], ("model.name",)).read_text()
    assert "Accuracy against epsilon" not in page
