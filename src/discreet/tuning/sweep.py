"""A grid of settings on data that is public, or stands for private data: nothing is charged to a data set.

    sweep.toml       what was asked for: a run's file with a [sweep] table
    runs/NAME/       a run for each point of the grid, with its own ledger
    runs.csv, report.html    what came out

Each run proves its own epsilon, as if it were the only one: choosing among them by what came out is a choice without
privacy, which public data does not need.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from discreet._documents import parse_toml
from discreet.errors import ConfigError
from discreet.runs import build
from discreet.runs import folder as run_folder
from discreet.runs.config import EXAMPLES, Config, from_dict, load, merged
from discreet.runs.folder import write
from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.runs.space import Settings, Space
from discreet.runs.validation import check
from discreet.tuning.page import write_sweep
from discreet.tuning.trials import Job, carried_out

SPEC, RUNS = "sweep.toml", "runs"
_MOST = 1000  # points of a grid


@dataclass(frozen=True)
class Swept:
    """How a grid ended: for each run that has finished its name, its settings, its accuracy and its epsilon."""

    folder: Path
    runs: tuple[Mapping[str, Any], ...]
    points: int
    page: Path | None

    @property
    def finished(self) -> bool:
        """Whether all runs have been made."""
        return len(self.runs) == self.points


def sweep(config: Config, folder: str | Path, watch: Watch | None = None, *, workers: int = 1) -> Swept:
    """Make a run for each point of a grid, or those of them that are not there yet.

    Args:
        config: a run with a [sweep] table; its data must be public, or said to be.
        folder: a new one, or that of the same grid.
        watch: is told how it goes, and may stop it.
        workers: how many runs are made at a time.

    Raises:
        ConfigError: the data is not said to be public, or the grid cannot be run.
    """
    place, watch = Path(folder), watch or Watch()
    asked = config.sweep
    if asked is None:
        raise ConfigError("there is no [sweep] table with a space; say what is to be tried.")
    if config.data.name not in EXAMPLES and not asked.public:
        raise ConfigError(
            f"a grid charges nothing, so {config.data.name!r} must be public or stand for private data: say public = "
            "true in [sweep] (--public) if that is so. For private data there is discreet tune."
        )
    grid = Space.of(asked.space).grid()
    if len(grid) > _MOST:
        raise ConfigError(f"the grid has {len(grid):,} points; {_MOST:,} is the most.")
    points = {_name(settings, number): _point(config, settings) for number, settings in enumerate(grid)}
    for own in points.values():
        check(own)
    text = build.settled(config).to_toml()
    if (place / SPEC).is_file():
        if load(place / SPEC) != _read(text):
            raise ConfigError(f"{place} is of another grid; choose another --out.")
    else:
        run_folder.make(place)
    with run_folder.held(place):
        run_folder.tidy(place)
        write(place / SPEC, text)
        jobs = [Job(place / RUNS / name, to_builtins(build.settled(own))) for name, own in points.items()]
        settings = dict(zip(points, grid, strict=True))
        left = [job for job in jobs if not (job.folder / "end.json").is_file()]
        made = len(jobs) - len(left)
        for _, finished in carried_out(left, workers, watch):
            made += finished
            watch.stage(f"{made} of {len(jobs)} runs")
        rows = [_row(job.folder, settings[job.folder.name]) for job in jobs if (job.folder / "end.json").is_file()]
        page = write_sweep(place, rows, Space.of(asked.space).fields) if rows else None
    return Swept(place, tuple(rows), len(jobs), page)


def _read(text: str) -> Config:
    """The config of a text, as it is read again from a file."""
    return from_dict(parse_toml(text))


def _point(config: Config, settings: Settings) -> Config:
    """The run of one point: counted by itself."""
    own = merged(structs.replace(config, sweep=None), settings)
    run = structs.replace(own.run, alone=True, ledger=None, dataset=None, dataset_epsilon=None, dataset_delta=None)
    return structs.replace(own, run=run)


def _name(settings: Settings, number: int) -> str:
    """A folder's name: the number of the point, and what is short enough to be said of it."""
    said = [f"{field.rpartition('.')[2]}={value}" for field, value in settings.items()]
    plain = "-".join(word for word in said if len(word) <= 30 and not set(word) & set("/\\[]{}\"' :"))
    return f"{number:03}-{plain}"[:120].rstrip("-")


def _row(folder: Path, settings: Settings) -> dict[str, Any]:
    ended = read_end(folder)
    assert ended is not None
    return {"name": folder.name, **settings, "accuracy": ended.accuracy, "epsilon": ended.guarantee.epsilon}
