"""discreet train."""

from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli import options
from discreet.cli.demo import free
from discreet.cli.running import begin
from discreet.errors import ConfigError
from discreet.runs import recipes
from discreet.runs.terminal import Terminal

_AUDIT = "Put so many canaries beside the data and measure epsilon from below, at some accuracy."
_RUN = {
    "schedule": "schedule.name",
    "averaging": "averaging.decay",
    "group": "evaluation.group",
    "seed": "run.seed",
    "chunk": "run.chunk",
    "device": "run.device",
    "tensorboard": "run.tensorboard",
    "audit": options.Flag("audit.canaries", _AUDIT),
}


@options.config_flags(
    {**options.DATA, **options.MODEL, **options.BUDGET, **options.COUNTING, **options.OPTIMIZER, **_RUN}
)
def train(
    *,
    config: options.ConfigFile = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="One that comes with the package, as mnist (--recipe list names them); flags replace what it says."
        ),
    ] = None,
    out: options.RunFolder = None,
    flags: dict[str, Any],
    other: options.OtherFields = None,
    show: options.Show = False,
    as_json: options.AsJson = False,
    log_format: options.LogFormat = "text",
) -> None:
    """Train a model on private data to a budget: a run folder with ledger, model, guarantee and report.

    With --audit it exits with 1 if the canaries contradict what is proven.

    For example: discreet train --data digits --model cnn --epsilon 3 --epochs 40 --out runs/digits

    Where no more is said than the data and a budget, it is the data's recipe: discreet train --data mnist --epsilon 3

    Or a table: discreet schema people.csv --label income, and then discreet train people.csv --label income --epsilon 1
    """
    if recipe == "list":
        typer.echo("\n".join(recipes.names()))
        return
    if recipe is not None and config is not None:
        raise ConfigError(f"both {config} and --recipe {recipe} say what to run; give one of them.")
    if recipe is None and config is None:
        recipe = _usual(flags, other)
        if recipe is not None:
            Terminal(stderr=True).print(
                f"As nothing but a budget is said, this is the recipe {recipe!r}.", highlight=False
            )
    file = config if recipe is None else recipes.path(recipe)
    if out is None and recipe is not None:
        out = free(Path("runs") / recipe)
    if out is None and file is not None and options.is_data(file):
        out = free(Path("runs") / file.stem)
    begin(options.configured(file, flags, other), out, show, as_json, log_format)


_ASIDE = (
    "run.dataset",
    "run.dataset_epsilon",
    "run.alone",
    "data.name",
    "data.folder",
    "budget.epsilon",
    "budget.delta",
    "run.seed",
    "run.device",
    "run.tensorboard",
)


def _usual(flags: dict[str, Any], other: list[str] | None) -> str | None:
    """The recipe that is meant where no more is said than which data, what budget, and how it is run."""
    said = {name for name, value in flags.items() if value is not None}
    if bool(other) or not said <= set(_ASIDE) or flags["data.name"] is None:
        return None
    return recipes.usual(str(flags["data.name"]), flags["budget.epsilon"])
