import pytest

from discreet import ConfigError
from discreet.report.charts import Axis, Chart, Panels, Series
from discreet.report.pictures import _scale, check_picture, save_picture

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'discreet[plots]'")

CHART = Chart("a", "A", Axis("x", "count"), Axis("y", "share"), (Series("s", ((1, 0.5),)),))
PANELS = Panels("two $panels$", (CHART, CHART))


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
