import math
from types import SimpleNamespace

import pytest

from discreet import ConfigError
from discreet.report import plots
from discreet.report.charts import Axis, Chart, Panels, Series
from discreet.report.pictures import _scale, check_picture, save_picture

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'discreet[plots]'")

CHART = Chart("a", "A", Axis("x", "count"), Axis("y", "share"), (Series("s", ((1, 0.5),)),))
PANELS = Panels("two $panels$", (CHART, CHART))
VERDICT = SimpleNamespace(chance=0.1, ceiling=0.2)


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_has_the_format_of_its_name(tmp_path, form, magic):
    save_picture(tmp_path / f"figure.{form}", PANELS)
    assert (tmp_path / f"figure.{form}").read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["figure.jpeg", "nowhere/figure.png", "."])
def test_a_picture_that_cannot_be_written_is_refused_beforehand(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be written to"):
        check_picture(tmp_path / name)


def test_an_axis_reaches_what_it_must_and_what_is_drawn():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.plot((0.5, 2.0), (1e-6, 0.3))
    _scale(axes, "x", Axis("x", "number", low=0.0, high=1.0), (0.5, 2.0))
    _scale(axes, "y", Axis("y", "share", low=1e-4, high=1.0, log=True), (1e-6, 0.3, 0.0))
    assert axes.get_xlim() == (0.0, 2.0)
    assert axes.get_ylim() == (1e-6, pytest.approx(1.02))


def test_a_budgets_charts_are_its_figures():
    sizes = [SimpleNamespace(batch_size=size, noise_per_example=1 / size) for size in (32, 64)]
    noise, epsilon = plots.budget(sizes, [(1.0, 0.5), (2.0, 0.8)], "title").charts
    assert noise.series[0].points == ((32.0, 1 / 32), (64.0, 1 / 64))
    assert epsilon.series[0].points == ((1.0, 0.5), (2.0, 0.8))


def test_a_check_is_drawn_beside_chance_and_what_is_allowed():
    found = SimpleNamespace(
        verdict=VERDICT, private=((0, 0.1), (2, 0.12)), plain=((0, 0.1), (4, 0.9)), noise=1.0, examples=100,
        epsilon=2.0, delta=1e-5,
    )  # fmt: skip
    gap = SimpleNamespace(data="digits", private=((0, 0.5),), plain=((0, 0.6),), gap=0.01, plain_gap=0.2)
    assert len(plots.memorisation(found, None).charts) == 1
    memory, _, gaps = plots.memorisation(found, gap).charts
    series = {s.name: s.points for s in memory.series}
    assert series["chance"] == ((0, 0.1), (4, 0.1))
    assert series["allowed by the guarantee"] == ((0, 0.2), (4, 0.2))
    assert [s.points for s in gaps.series] == [((0.0, 0.01),), ((1.0, 0.2),)]


def test_patterns_have_a_panel_for_each_place_they_were_tried_in():
    points = [SimpleNamespace(patterns=k, mean=k / 10, answers=(0.0, k / 5)) for k in (1, 5)]
    found = SimpleNamespace(
        of=lambda where, private: points if where == "centralised" else [], verdict=VERDICT, noise=1.0, users=9,
        epsilon=2.0, delta=1e-5,
    )  # fmt: skip
    (chart,) = plots.patterns(found).charts
    assert chart.series[0].points == ((1.0, 0.1), (5.0, 0.5))
    assert chart.series[0].spread == ((1.0, 0.0, 0.2), (5.0, 0.0, 1.0))


def test_an_attacks_curve_leaves_out_what_logarithms_cannot_show():
    (chart,) = plots.membership([[0.0, 0.0], [0.1, 0.3], [1.0, 1.0]], lambda x: min(1.0, math.e * x)).charts
    series = {s.name: s.points for s in chart.series}
    assert series["attack"] == ((0.1, 0.3), (1.0, 1.0))
    assert series["allowed"][-1] == (1.0, 1.0)
    assert "allowed" not in {s.name for s in plots.membership([[0.1, 0.3]], None).charts[0].series}
