"""The charts of a plan, of checks and of an attack, which commands write as pictures."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from discreet.report.charts import Axis, Chart, Panels, Point, Series

if TYPE_CHECKING:
    from discreet.audit.sanity.generalisation import Generalisation
    from discreet.audit.sanity.memorisation import Memorisation
    from discreet.audit.sanity.patterns import Patterns
    from discreet.stages.planning import Size

_EPOCHS = Axis("epochs", "number", low=0.0)
_ACCURACY = Axis("accuracy", "share", low=0.0, high=1.0)


def budget(sizes: "Sequence[Size]", epochs: Sequence[Point], title: str) -> Panels:
    """Noise an example against batch size (paper 003, figure 5), and epsilon over epochs."""
    noise = tuple((float(s.batch_size), s.noise_per_example) for s in sizes)
    charts = (
        Chart(
            "noise-over-batch-size",
            "Noise an example, at equal ε",
            Axis("batch size", "count", log=True),
            Axis("noise multiplier / batch size", "number", log=True),
            (Series("noise an example", noise),),
        ),
        Chart(
            "epsilon-over-epochs",
            "ε over the run",
            _EPOCHS,
            Axis("proven ε", "epsilon", low=0.0),
            (Series("proven ε", tuple(epochs)),),
        ),
    )
    return Panels(title, charts)


def memorisation(result: "Memorisation", gap: "Generalisation | None") -> Panels:
    """Accuracy on random labels over epochs (paper 003, figure 1a), and on a stand-in with its gap (1b, 1c)."""
    lines = _pair(result.private, result.plain)
    title, verdict = "Random labels on noise, training accuracy", result.verdict
    charts = [
        Chart("memorisation", title, _EPOCHS, _ACCURACY, (*lines, *_allowed(lines, verdict.chance, verdict.ceiling)))
    ]
    if gap is not None:
        gaps = Series("private", ((0.0, gap.gap),), "bars"), Series(_PLAIN, ((1.0, gap.plain_gap),), "bars", 1)
        names, share = Axis("", "number", names=("private", _PLAIN)), Axis("gap", "share")
        title = f"{gap.data}, accuracy on held-out data"
        charts.append(Chart("stand-in", title, _EPOCHS, _ACCURACY, _pair(gap.private, gap.plain)))
        charts.append(Chart("gap", "Training less held-out accuracy", names, share, gaps))
    proven = f"ε = {result.epsilon:.3g}, δ = {result.delta:.1g}"
    return Panels(f"noise {result.noise:.3g}, {result.examples:,} examples: {proven}", tuple(charts))


def patterns(result: "Patterns") -> Panels:
    """How likely the pattern's label is, against how many records have it (paper 003, figure 2).

    A band goes from the lowest to the highest answer of a retraining.
    """
    charts = []
    for where, title in (("centralised", "One user's records"), ("distributed", "Anybody's records")):
        lines = []
        for colour, private in enumerate((True, False)):
            points = result.of(where, private=private)
            means = tuple((float(p.patterns), p.mean) for p in points)
            spread = tuple((float(p.patterns), min(p.answers), max(p.answers)) for p in points)
            lines.append(Series("private" if private else _PLAIN, means, colour=colour, spread=spread))
        if not any(line.points for line in lines):
            continue
        ceiling = result.verdict.ceiling if where == "centralised" else None
        x, y = Axis("records with the pattern", "count", log=True), Axis("probability of its label", "share", 0.0, 1.0)
        charts.append(Chart(where, title, x, y, (*lines, *_allowed(lines, result.verdict.chance, ceiling))))
    proven = f"ε = {result.epsilon:.3g}, δ = {result.delta:.1g} for each user"
    return Panels(f"noise {result.noise:.3g}, {result.users:,} users: {proven}", tuple(charts))


def membership(curve: Sequence[Sequence[float]], allowed: Callable[[float], float] | None) -> Panels:
    """Who was trained on, told by the loss: true against false positives on logarithmic axes, and what is allowed."""
    grid = [10 ** (-4 + 4 * i / 100) for i in range(101)]
    series = [Series("attack", tuple((x, y) for x, y in curve if x > 0 and y > 0))]
    if allowed is not None:
        series.append(Series("allowed", tuple((x, allowed(x)) for x in grid), "dashed", 1))
    series.append(Series("guessing", ((grid[0], grid[0]), (1.0, 1.0)), colour=None))
    x, y = (Axis(name, "share", 1e-4, 1.0, log=True) for name in ("false positives", "true positives"))
    return Panels("", (Chart("membership", "Membership by the loss", x, y, tuple(series)),))


_PLAIN = "without privacy"


def _pair(private: Sequence[Point], plain: Sequence[Point]) -> tuple[Series, Series]:
    return Series("private", tuple(private)), Series(_PLAIN, tuple(plain), colour=1)


def _allowed(lines: Sequence[Series], chance: float, ceiling: float | None) -> list[Series]:
    """Lines across: what chance reaches, and what the guarantee allows."""
    ends = [x for line in lines for x, _ in line.points]
    across = [Series("chance", tuple((x, chance) for x in (min(ends), max(ends))), colour=None)]
    if ceiling is not None:
        points = tuple((x, ceiling) for x in (min(ends), max(ends)))
        across.append(Series("allowed by the guarantee", points, "dashed", 2))
    return across
