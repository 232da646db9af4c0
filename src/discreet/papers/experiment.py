"""What an experiment is: cases that are run, what is measured in each, and what the paper states about them."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from discreet.papers.verdicts import QUEUED, Extent, Verdict, reached, settled
from discreet.report import Axis, Chart, Series

Size = Literal["quick", "usual", "full"]
Case = Mapping[str, Any]  # plain values: what is run, apart from the seed
Measured = dict[str, Any]  # plain values: `accuracy`, `epsilon` (proven), `claimed`, `curve`, and whatever else

EPOCHS, ACCURACY = Axis("epochs", "number", low=0.0), Axis("accuracy on the test set", "share")
ONE_SEED: Mapping[Size, int] = {"quick": 1, "usual": 1, "full": 1}


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
        absent = object()
        return Results(r for r in self if all(r.case.get(k, absent) == v for k, v in fields.items()))

    def values(self, name: str) -> list[float]:
        """A measured value of all that have it; those that are not finite are left out."""
        return [v for v in self.all(name) if math.isfinite(v)]

    def all(self, name: str) -> list[float]:
        """A measured value of all that have it, infinite ones too."""
        return [float(r.measured[name]) for r in self if r.measured.get(name) is not None]

    def mean(self, name: str = "accuracy") -> float:
        """Over seeds; nan without any."""
        values = self.values(name)
        return statistics.fmean(values) if values else math.nan

    def held_out(self) -> float:
        """The mean accuracy on held-out rows, by which settings are chosen; below any other where there is none."""
        mean = self.mean("validation")
        return -math.inf if math.isnan(mean) else mean

    def deviation(self, name: str = "accuracy") -> float:
        """The standard deviation over seeds; nan for fewer than two."""
        values = self.values(name)
        return statistics.stdev(values) if len(values) > 1 else math.nan

    def settings(self, name: str) -> list[Any]:
        """The values that a field of the cases has, in the order of the cases."""
        return list(dict.fromkeys(r.case[name] for r in self if name in r.case))

    def line(self, name: str, x: str, y: str = "accuracy", **look: Any) -> Series:
        """Means over seeds of `y`, against a field of the cases, with the seeds' smallest and largest."""
        groups = sorted((float(value), self.where(**{x: value})) for value in self.settings(x))
        rows = [(at, some.mean(y), some.values(y)) for at, some in groups]
        points = tuple((at, mean) for at, mean, _ in rows if math.isfinite(mean))
        spread = tuple((at, min(values), max(values)) for at, _, values in rows if len(values) > 1)
        return Series(name, points, spread=spread, **look)

    def course(self, name: str, x: int = 0, y: int = 1, **look: Any) -> Series:
        """Means over seeds along the training, with the smallest and largest: columns of `curve`, by default accuracy
        over epochs."""
        curves = [r.measured["curve"] for r in self if r.measured.get("curve")]
        length = min((len(c) for c in curves), default=0)
        rows = [
            (statistics.fmean(float(c[i][x]) for c in curves), [float(c[i][y]) for c in curves]) for i in range(length)
        ]
        points = tuple((at, statistics.fmean(values)) for at, values in rows)
        spread = tuple((at, min(values), max(values)) for at, values in rows if len(values) > 1)
        return Series(name, points, spread=spread, **look)


@dataclass(frozen=True)
class Stated:
    """A result that the paper states, and the cases that are ours: in the paper's form, and in a sound one.

    `theirs` is a figure of `measure`, or words. `published` and `sound` are fields of the cases. `verdict` says what
    came out; without it, figures are compared. `size` is that of the paper's trainings, below which nothing is decided;
    None where nothing is trained. `headline` is for the few that the paper is known for.
    """

    what: str
    theirs: float | str
    claimed: float | None = None
    published: Case | None = None
    sound: Case | None = None
    measure: str = "accuracy"
    verdict: Callable[[Results], Verdict] | None = None
    size: Extent | None = None
    headline: bool = False

    def judged(self, results: Results) -> Verdict:
        """The verdict, of what was measured, after the rule about sizes."""
        if not results:
            return QUEUED
        if self.verdict is not None:
            return settled(self.verdict(results), self.size)
        ours = results.where(**(self.published if self.published is not None else self.sound or {}))
        if not isinstance(self.theirs, float):
            return QUEUED
        return settled(reached(ours, self.theirs, name=self.measure), self.size)


def headline(what: str, theirs: str, verdict: Callable[[Results], Verdict], size: Extent) -> Stated:
    """Words that the paper is known for, judged by a function of their own."""
    return Stated(what, theirs, verdict=verdict, size=size, headline=True)


@dataclass(frozen=True)
class Experiment:
    """A table or a figure: its cases at a size, how one is run, and how results are shown.

    `run` is a function of a module, so that other processes can be told of it. `charts` are drawn from whatever has
    been measured so far. `found` says in a sentence or two what came out. `shown` takes, of all results, those whose
    means stand beside the paper's figures: not the trainings by which rates were chosen.
    """

    name: str
    title: str
    about: str
    cases: Callable[[Size], Iterable[Case]]
    run: Callable[[Case, Place], Measured]
    charts: Callable[[Results], Sequence[Chart]] = lambda results: ()
    stated: tuple[Stated, ...] = ()
    found: Callable[[Results], str] = lambda results: ""
    shown: Callable[[Results], Results] = lambda results: results
    seeds: Mapping[Size, int] = field(default_factory=lambda: {"quick": 1, "usual": 3, "full": 3})
    needs: tuple[str, ...] = ()  # data sets that must be there


@dataclass(frozen=True)
class Paper:
    """A paper: its number, its name, and what of it is run again."""

    number: str
    name: str
    experiments: tuple[Experiment, ...]
