"""discreet tune, discreet sweep."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.panel import Panel
from rich.text import Text

from discreet.cli import options
from discreet.cli.demo import free
from discreet.cli.printing import print_json, say
from discreet.cli.running import values
from discreet.errors import ConfigError
from discreet.runs.config import Config, merged
from discreet.runs.terminal import Terminal

_FLAGS = {**options.DATA, **options.MODEL, **options.BUDGET, **options.COUNTING, **options.OPTIMIZER}
_Workers = Annotated[int, typer.Option(min=1, help="How many are made at a time, each in a process of its own.")]


@options.config_flags({**_FLAGS, "runs": "tune.runs", "distribution": "tune.distribution", "score": "tune.score"})
def tune(
    *,
    config: options.ConfigFile = None,
    out: options.RunFolder = None,
    workers: _Workers = 1,
    flags: dict[str, Any],
    other: options.OtherFields = None,
    as_json: options.AsJson = False,
    log_format: options.LogFormat = "text",
) -> None:
    """Search settings at a cost that is inside the guarantee: only the best of a secret number of trials is released.

    A run's file with a [tune] table says the space; without one it is the learning rate and the epochs. --epsilon is
    that of everything together. The folder of a search in place of a file continues it.

    For example: discreet tune people.csv --label income --epsilon 3 --workers 2
    """
    from discreet.tuning.tune import go_on, is_search
    from discreet.tuning.tune import tune as search

    if config is not None and is_search(config):
        folder = config
        found = _watched(lambda watch: go_on(folder, watch, workers=workers), log_format)
    else:
        asked = options.configured(config, flags, other)
        if asked.tune is None or not asked.tune.space:
            asked = merged(asked, {"tune.space": _usual_space(asked)})
        place = out or free(Path("runs") / f"{Path(asked.data.name).stem}-tuned")
        found = _watched(lambda watch: search(asked, place, watch, workers=workers), log_format)
    _say(found, as_json)


@options.config_flags(
    {**_FLAGS, "public": options.Flag("sweep.public", "Say that the data is public or made up: nothing is charged.")}
)
def sweep(
    *,
    config: options.ConfigFile = None,
    out: options.RunFolder = None,
    workers: _Workers = 1,
    flags: dict[str, Any],
    other: options.OtherFields = None,
    as_json: options.AsJson = False,
    log_format: options.LogFormat = "text",
) -> None:
    """Try every point of a grid, on data that is public or stands for private data: nothing is charged.

    A run's file with a [sweep] table says the space, in lists. The same command again makes what is not there yet.

    For example: discreet sweep --data digits --out runs/grid --set "sweep.space.budget.epsilon=[1.0, 3.0, 8.0]"
    """
    from discreet.tuning.sweep import sweep as search

    asked = options.configured(config, flags, other)
    if out is None:
        raise ConfigError("--out is missing: the folder that the grid is to be kept in.")
    if asked.budget.epsilon is None and asked.budget.noise is None:  # the grid says it
        asked = merged(asked, {"budget.epsilon": 1.0})
    found = _watched(lambda watch: search(asked, out, watch, workers=workers), log_format)
    if as_json:
        print_json({"folder": str(found.folder), "finished": found.finished, "runs": list(found.runs)})
        return
    best = max(found.runs, key=lambda run: run["accuracy"] or 0.0, default=None)
    said = "" if best is None or best["accuracy"] is None else f" The best: {best['name']}, {best['accuracy']:.1%}."
    say(f"{len(found.runs)} of {found.points} runs.{said} Page: {found.page}")


def _usual_space(config: Config) -> dict[str, Any]:
    """What is searched where nobody says it: learning rates around the usual one, and how long."""
    rate = config.optimizer.learning_rate or 0.5
    space: dict[str, Any] = {"optimizer.learning_rate": {"low": rate / 8, "high": rate * 4, "log": True}}
    if config.optimizer.noise_walk is not None:  # which is what decides of a small table
        walk = config.optimizer.noise_walk
        space["optimizer.noise_walk"] = {"low": walk / 4, "high": walk * 2, "log": True}
    if config.budget.steps is None:
        space["budget.epochs"] = [config.budget.epochs / 2, config.budget.epochs, config.budget.epochs * 2]
    return space


def _watched(run: Any, log_format: str) -> Any:
    """Carry it out with a bar or lines; one that was stopped ends with its signal's code."""
    from discreet.runs.progress import watching, watching_in_json

    told = watching_in_json() if log_format == "json" else watching(Terminal(stderr=True))
    with told as (watch, stopped):
        found = run(watch)
    if stopped():
        Terminal(stderr=True).print(f"Stopped, and saved in {found.folder}.", soft_wrap=True, highlight=False)
        raise typer.Exit(128 + stopped())
    return found


def _say(found: Any, as_json: bool) -> None:
    best = found.best
    if as_json:
        print_json(
            {"search": str(found.folder), "finished": found.finished, "best": None if best is None else values(best)}
        )
        return
    console = Terminal()
    if best is None:
        console.print("The number of trials that was drawn is none: nothing is released. Its cost is spent.")
        return
    if found.already:
        console.print(f"{found.folder} has finished; nothing was done.", soft_wrap=True, highlight=False)
    if best.accuracy is not None:
        console.print(f"\nThe best trial: accuracy {best.accuracy:.1%} on held-out data.\n")
    console.print(Panel(Text(str(best.guarantee)), title="What is proven of the best", padding=(1, 2)))
    console.print(
        f"\nRelease this folder, and nothing else of the search: {best.folder}", soft_wrap=True, highlight=False
    )
    console.print(
        f"All trials, for whoever holds the data: {found.folder / 'report.html'}", soft_wrap=True, highlight=False
    )
