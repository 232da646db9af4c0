import math
from types import SimpleNamespace

from discreet.report import plots

VERDICT = SimpleNamespace(chance=0.1, ceiling=0.2)


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
