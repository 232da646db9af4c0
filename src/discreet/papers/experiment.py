"""What an experiment is: cases that are run, what is measured in each, and what the paper states about them."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from discreet.report.charts import Chart, Series

Size = Literal["quick", "usual", "full"]
Case = Mapping[str, Any]  # plain values: what is run, apart from the seed
Measured = dict[str, Any]  # plain values: `accuracy`, `epsilon` (proven), `claimed`, `curve`, and whatever else


@dataclass(frozen=True)
class Place:
    """Where a case is run: a folder of its own that is gone when it has finished, and who is told how far it is."""

    folder: Path
    seed: int = 0
    tell: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True)
class Result:
    """A case, one of its seeds, what was measured, and the seconds of CPU time that it took."""

    case: Case
    seed: int
    measured: Measured
    seconds: float

    def __getitem__(self, name: str) -> Any:
        return self.case[name] if name in self.case else self.measured[name]


class Results(tuple[Result, ...]):
    """Results of an experiment, to choose from."""

    __slots__ = ()

    def where(self, **fields: Any) -> "Results":
        """Those whose case has these values."""
        missing = object()
        return Results(r for r in self if all(r.case.get(k, missing) == v for k, v in fields.items()))

    def values(self, name: str) -> list[float]:
        """A measured value of all that have it; those that are not finite are left out."""
        return [v for v in self.all(name) if math.isfinite(v)]

    def all(self, name: str) -> list[float]:
        """A measured value of all that have it, infinite ones too."""
        return [float(r.measured[name]) for r in self if r.measured.get(name) is not None]

    def mean(self, name: str = "accuracy") -> float:
        """Over seeds; nan without any."""
        found = self.values(name)
        return statistics.fmean(found) if found else math.nan

    def held_out(self) -> float:
        """The mean accuracy on held-out rows, by which settings are chosen; below any other where there is none."""
        mean = self.mean("validation")
        return -math.inf if math.isnan(mean) else mean

    def deviation(self, name: str = "accuracy") -> float:
        """The standard deviation over seeds; nan for fewer than two."""
        found = self.values(name)
        return statistics.stdev(found) if len(found) > 1 else math.nan

    def settings(self, name: str) -> list[Any]:
        """The values that a field of the cases has, in the order of the cases."""
        return list(dict.fromkeys(r.case[name] for r in self if name in r.case))

    def line(self, name: str, x: str, y: str = "accuracy", **look: Any) -> Series:
        """Means over seeds of `y`, against a field of the cases."""
        points = ((float(value), self.where(**{x: value}).mean(y)) for value in self.settings(x))
        return Series(name, tuple(sorted((a, b) for a, b in points if math.isfinite(b))), **look)

    def course(self, name: str, x: int = 0, y: int = 1, **look: Any) -> Series:
        """Means over seeds along the training: columns of `curve`, by default accuracy over epochs."""
        curves = [r.measured["curve"] for r in self if r.measured.get("curve")]
        length = min((len(c) for c in curves), default=0)
        rows = [[c[i] for c in curves] for i in range(length)]
        points = tuple(
            (statistics.fmean(float(r[x]) for r in row), statistics.fmean(float(r[y]) for r in row)) for row in rows
        )
        return Series(name, points, **look)


@dataclass(frozen=True)
class Stated:
    """A result that the paper states, and the cases that are ours: in the paper's form, and in a sound one.

    `theirs` is a figure of `measure`, or words. `published` and `sound` are fields of the cases. `verdict` says in
    words what came out; without it, figures are compared: ours reproduces theirs within a point, or two deviations.
    """

    what: str
    theirs: float | str
    claimed: float | None = None
    published: Case | None = None
    sound: Case | None = None
    measure: str = "accuracy"
    verdict: Callable[[Results], str] | None = None

    def judged(self, results: Results) -> str:
        """The verdict, of what was measured."""
        if self.verdict is not None:
            return self.verdict(results) if results else "not run"
        ours = results.where(**(self.published if self.published is not None else self.sound or {}))
        mean, deviation = ours.mean(self.measure), ours.deviation(self.measure)
        if not isinstance(self.theirs, float) or math.isnan(mean):
            return "not run" if math.isnan(mean) else ""
        off = mean - self.theirs
        if abs(off) <= max(0.01, 2 * deviation if math.isfinite(deviation) else 0.0):
            return "reproduces"
        return f"ours is {abs(off) * 100:.1f} points {'higher' if off > 0 else 'lower'}"


@dataclass(frozen=True)
class Experiment:
    """A table or a figure: its cases at a size, how one is run, and how results are shown.

    `run` is a function of a module, so that other processes can be told of it. `charts` are drawn from whatever has
    been measured so far. `found` says in a sentence or two what came out.
    """

    name: str
    title: str
    about: str
    cases: Callable[[Size], Iterable[Case]]
    run: Callable[[Case, Place], Measured]
    charts: Callable[[Results], Sequence[Chart]] = lambda results: ()
    stated: tuple[Stated, ...] = ()
    found: Callable[[Results], str] = lambda results: ""
    seeds: Mapping[Size, int] = field(default_factory=lambda: {"quick": 1, "usual": 3, "full": 3})
    needs: tuple[str, ...] = ()  # data sets that must be there


@dataclass(frozen=True)
class Paper:
    """A paper: its number, its name, and what of it is run again."""

    number: str
    name: str
    experiments: tuple[Experiment, ...]
