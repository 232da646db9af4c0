"""discreet check."""

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from discreet._check import check_int, shown, within
from discreet.cli import options
from discreet.cli.printing import print_json
from discreet.errors import ConfigError
from discreet.runs.config import merged
from discreet.runs.progress import display
from discreet.runs.terminal import Terminal

_FLAGS = {
    "data": options.Flag("data.name", "The private data by name: its shape, classes and size alone."),
    **options.MODEL,
    **options.BUDGET,
    "steps": options.Flag("budget.steps", names=("--steps", "--rounds")),
    "batch_size": options.Flag("budget.batch_size", names=("--batch-size", "--users-per-round")),
    "users": options.Flag("federated.users", "Check at user level, with so many users."),
    **options.OPTIMIZER,
}


@options.config_flags(_FLAGS)
def check(
    *,
    config: options.ConfigFile = None,
    flags: dict[str, Any],
    shape: Annotated[str | None, typer.Option(help="An example's shape, as 1,28,28, for other data.")] = None,
    classes: Annotated[int | None, typer.Option(help="How many classes there are, for other data.")] = None,
    examples: Annotated[int | None, typer.Option(help="How many private examples there are, for other data.")] = None,
    sequences: Annotated[
        str | None,
        typer.Option(help="Check a model of sequences for secrets: vocabulary and length of a record, as 32,16."),
    ] = None,
    plain_learning_rate: Annotated[
        float | None, typer.Option(help="The learning rate without privacy, if it is to be another.")
    ] = None,
    stand_in: Annotated[
        str | None,
        typer.Option(help="Public data that is like the private, to see accuracy and its gap: a name or file."),
    ] = None,
    runs: Annotated[int, typer.Option(help="Independent retrainings.")] = 3,
    check_epochs: Annotated[
        float | None, typer.Option(help="Epochs of a retraining; 20, or the plan's if full.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="As many examples (or users) and steps as the plan.")] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Look for the smallest noise that passes; epsilon and noise are not needed."),
    ] = False,
    tries: Annotated[int, typer.Option(help="How many noises are tried with --calibrate.")] = 6,
    tolerance: Annotated[
        float | None, typer.Option(help="How far above chance still passes: 0.05, or 0.1 for users.")
    ] = None,
    level: Annotated[float, typer.Option(help="The chance that a sound plan is called broken.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of made-up data and first weights; noise is secret and has none.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A folder for check.json and the figures (which need matplotlib).")
    ] = None,
    other: options.OtherFields = None,
    as_json: options.AsJson = False,
) -> None:
    """Sanity checks before any private data is touched: what does this model memorise under this plan?

    It is trained on made-up data whose labels only memory can tell, with privacy and without. Exits with 1 if the plan
    is too weak, or if more was learned than its guarantee allows. For example: discreet check --data mnist --model cnn
    --epsilon 3 --epochs 15 --batch-size 256 --stand-in digits
    """
    import torch

    from discreet.audit.sanity import render, running

    torch.manual_seed(check_int("--seed", seed, least=0, most=2**63 - 1))
    if sequences is not None:
        _check_secrets(_shape(sequences), flags, examples, as_json, runs=runs, tolerance=tolerance, level=level)
        return
    own = {"audit.canaries": 0}  # checks have canaries of their own kind
    checked = merged(options.configured(config, flags, other), own)
    if calibrate and checked.budget.epsilon is None and checked.budget.noise is None:
        checked = merged(checked, {"budget.noise": 1.0})
    checked.check()
    if classes is not None:
        within("categories", check_int("--classes", classes, least=2), f"--classes is {classes:,}")
    question = running.Asked(
        shape=None if shape is None else _shape(shape),
        classes=classes,
        examples=examples,
        full=full,
        runs=runs,
        epochs=check_epochs,
        stand_in=stand_in,
        plain_learning_rate=plain_learning_rate,
        tolerance=tolerance,
        level=level,
    )
    with display() as shown:
        search = partial(running.calibrate, tries=tries) if calibrate else running.check
        result = search(checked, question, tell=shown.only)
    if out is not None:
        render.write(out, result)
    if as_json:
        print_json(result.to_dict())
    else:
        Terminal().print(*render.tables(result), Text(render.words(result)), sep="\n")
    if not result.passed:
        raise typer.Exit(1)


def _check_secrets(
    sizes: tuple[int, ...], flags: dict[str, Any], examples: int | None, as_json: bool, **settings: Any
) -> None:
    """The check for models of sequences, with an LSTM of 64 units."""
    import torch

    from discreet.audit.sanity.secrets import SequenceSetting, secrets
    from discreet.stages.presets import dp_sgd

    if len(sizes) != 2:
        raise ConfigError("--sequences takes two numbers, the vocabulary and the length of a record, as 32,16.")
    length: dict[str, Any] = {name: flags[f"budget.{name}"] for name in options.BUDGET} | {"examples": examples}
    plan = dp_sgd(**{name: value for name, value in length.items() if value is not None})
    rate = 0.003 if flags["optimizer.learning_rate"] is None else flags["optimizer.learning_rate"]
    setting = SequenceSetting(
        plan, sizes[0], sizes[1], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=rate)
    )
    with display() as shown:
        result = secrets(setting, **{k: v for k, v in settings.items() if v is not None}, tell=shown.only)
    if as_json:
        print_json(result.to_dict())
    else:
        Terminal().print(str(result), soft_wrap=True, highlight=False)
    if result.verdict.word in ("too weak", "broken"):
        raise typer.Exit(1)


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
        within(
            "example_values", math.prod(map(abs, sizes)), f"--shape {shown(text)} is {shown(math.prod(sizes))} values"
        )
        if len(sizes) > 60:
            raise ValueError("more dimensions than a tensor has")
        return sizes
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"--shape is {shown(text)}; write whole numbers with commas between them, as 1,28,28."
        ) from error
