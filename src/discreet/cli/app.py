"""The command line: parses, calls, prints."""

import json
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from discreet import __version__
from discreet._check import check_int
from discreet.errors import ConfigError, PrivacyError
from discreet.runs.config import EXAMPLES, documented

if TYPE_CHECKING:
    from discreet.accounting.guarantee import Guarantee
    from discreet.runs.config import Config
    from discreet.runs.run import Outcome, Watch
    from discreet.stages.plan import Plan
    from discreet.stages.planning import Size

app = typer.Typer(
    help="Train PyTorch models on private data, and know exactly what has been proven about the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _help(section: str, name: str) -> str:
    """A field's description, as the config file has it."""
    return next(text for s, n, text, _ in documented() if (s, n) == (section, name))


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"discreet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Options that stand before a command."""


@app.command()
def demo(
    epsilon: Annotated[float, typer.Option(help="The budget to train to.")] = 3.0,
    delta: Annotated[float, typer.Option(help="The probability left out of the guarantee.")] = 1e-5,
    epochs: Annotated[float, typer.Option(help="How often each example takes part, on average.")] = 60.0,
    out: Annotated[Path, typer.Option(help="The run's folder; an existing one is left alone.")] = Path("runs/demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """The whole story on bundled data: plan, probe, train on scikit-learn's digits, verify, report."""
    import torch
    from torch.nn import functional as F

    from discreet.accounting.guarantee import round_up
    from discreet.cli import demo as digits
    from discreet.ledger.verification import verify as check
    from discreet.models.networks import build
    from discreet.release.preflight.isolation import preflight
    from discreet.runs.run import train as begin

    config, folder = digits.config(epsilon, delta, epochs), digits.free(out)
    told = Console(stderr=True)
    plan = config.plan(EXAMPLES["digits"])
    noise = plan.mechanism.noise.scale or 0.0
    told.print(f"[bold]Plan[/bold]    {plan.steps:,} steps at noise {noise:.3f} fit ε = {epsilon:g}, δ = {delta:g}.")
    torch.manual_seed(0)
    made_up = torch.rand(8, 1, 8, 8), torch.arange(8)
    model = build("cnn", (1, 8, 8), 10)
    preflight(model, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1], reduction="none"), made_up)
    told.print("[bold]Probe[/bold]   on made-up digits: no example has influence on another's gradient.")
    told.print(f"[bold]Train[/bold]   on {EXAMPLES['digits']:,} digits, each step counted before it is released.")
    outcome = _carry_out(lambda watch: begin(config, folder, watch), quiet=True)
    found = check(folder, anchor=outcome.anchor)
    proven = round_up(found.runs[0].guarantee.epsilon)
    told.print(f"[bold]Verify[/bold]  {found.lines:,} lines of the ledger are as they were written: ε = {proven}.")
    report = folder / "report.html"
    if as_json:
        result = _in_json(outcome) | {"report": str(report)}
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    _print_outcome(outcome)


@app.command()
def plan(
    examples: Annotated[int | None, typer.Option(help="How many examples (or users) there are; public.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="How many take part in a step, on average.")] = None,
    epochs: Annotated[float | None, typer.Option(help="How often each takes part, on average.")] = None,
    steps: Annotated[int | None, typer.Option(help="How many releases, instead of epochs.")] = None,
    noise: Annotated[float | None, typer.Option(help="The noise multiplier.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    delta: Annotated[float, typer.Option(help="The probability left out of the guarantee.")] = 1e-5,
    sampling: Annotated[str, typer.Option(help="poisson, fixed-size, shuffled or fixed-batches.")] = "poisson",
    unit: Annotated[str, typer.Option(help="What is protected, in a word.")] = "example",
    group: Annotated[int, typer.Option(help="Protect groups of so many together.")] = 1,
    learning_rate: Annotated[
        float | None, typer.Option(help="A good learning rate at this batch size, to be scaled to the others.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the two curves to this file (.png, .svg, .pdf).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file, as TOML.")] = None,
    paper: Annotated[
        str | None, typer.Option(help="Print what a paper (000 to 004) claims beside what is proven, and nothing else.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Budget against noise, batch size and length, before any data is touched.

    Give three of --noise, --batch-size, --epochs (or --steps) and --epsilon; the fourth is solved.
    """
    if paper is not None:
        _print_claims(paper, as_json)
        return
    from discreet.report import plots
    from discreet.stages import planning

    if examples is None:
        raise ConfigError("--examples is missing: how many examples there are; or use --paper.")
    if plot is not None:
        plots.check(plot)
    with _progress("solving") as bar:
        made = planning.solve(
            examples=examples,
            delta=delta,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            noise=noise,
            epsilon=epsilon,
            sampling=sampling,
            unit=unit,
            group=check_int("group", group, least=1, most=10**6),
        )
        proven = made.guarantee(group=group)
        length = made.sampling.epochs_in(made.steps)
        target = proven.epsilon if epsilon is None else epsilon
        others = []
        if 0 < target <= 100:  # beyond that more noise an example would be the least of one's worries
            others = list(bar(planning.sizes(made, target, learning_rate, group), "other batch sizes"))
        curve = list(bar(planning.over_epochs(made, group=group), "epsilon over epochs")) if plot else []
        remembering = planning.correlated(made, target) if 0 < target <= 100 and group == 1 else ()
    if out is not None:
        made.save(out)
    if plot is not None:
        title = f"{examples:,} {unit}s, δ = {delta:g}, {length:g} epochs"
        plots.budget(plot, others, curve, title)
    figures, attacker = proven.figures(), proven.attacker()
    if as_json:
        result = {
            "plan": made.to_dict(),
            "epochs": length,
            "guarantee": json.loads(proven.to_json()),
            "figures": {k: _finite(v) for k, v in figures.items()},
            "attacker": attacker,
            "batch_sizes": [asdict(size) for size in others],
            "epsilon_over_epochs": [[e, _finite(spent)] for e, spent in curve],
            "correlated": [alternative.to_dict() for alternative in remembering],
        }
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    _print_plan(made, length, proven, others)
    if remembering:
        table = _table("noise, at the same ε and steps", "multiplier", "rms error / DP-SGD's")
        for alternative in remembering:
            table.add_row(*alternative.row())
        Console().print(table)
        typer.echo(planning.advice(remembering))


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; flags replace what it says.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder, a new one.")] = None,
    data: Annotated[str | None, typer.Option(help=_help("data", "name"))] = None,
    folder: Annotated[str | None, typer.Option(help=_help("data", "folder"))] = None,
    label: Annotated[str | None, typer.Option(help=_help("data", "label"))] = None,
    schema: Annotated[str | None, typer.Option(help=_help("data", "schema"))] = None,
    model: Annotated[str | None, typer.Option(help=_help("model", "name"))] = None,
    method: Annotated[str | None, typer.Option(help=_help("method", "name"))] = None,
    epsilon: Annotated[float | None, typer.Option(help=_help("budget", "epsilon"))] = None,
    noise: Annotated[float | None, typer.Option(help=_help("budget", "noise"))] = None,
    delta: Annotated[float | None, typer.Option(help=_help("budget", "delta"))] = None,
    epochs: Annotated[float | None, typer.Option(help=_help("budget", "epochs"))] = None,
    steps: Annotated[int | None, typer.Option(help=_help("budget", "steps"))] = None,
    batch_size: Annotated[int | None, typer.Option(help=_help("budget", "batch_size"))] = None,
    optimizer: Annotated[str | None, typer.Option(help=_help("optimizer", "name"))] = None,
    learning_rate: Annotated[float | None, typer.Option(help=_help("optimizer", "learning_rate"))] = None,
    momentum: Annotated[float | None, typer.Option(help=_help("optimizer", "momentum"))] = None,
    schedule: Annotated[str | None, typer.Option(help=_help("schedule", "name"))] = None,
    averaging: Annotated[float | None, typer.Option(help=_help("averaging", "decay"))] = None,
    seed: Annotated[int | None, typer.Option(help=_help("run", "seed"))] = None,
    chunk: Annotated[int | None, typer.Option(help=_help("run", "chunk"))] = None,
    device: Annotated[str | None, typer.Option(help=_help("run", "device"))] = None,
    tensorboard: Annotated[bool | None, typer.Option("--tensorboard", help=_help("run", "tensorboard"))] = None,
    audit: Annotated[
        int | None,
        typer.Option(help="Put so many canaries beside the data and measure epsilon from below, at some accuracy."),
    ] = None,
    other: Annotated[
        list[str] | None, typer.Option("--set", help="Any other field, as --set model.settings.hidden=[64,64].")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the resolved config and its guarantee, and touch no data.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model on private data to a budget: a run folder with ledger, model, guarantee and report.

    With --audit it exits with 1 if the canaries contradict what is proven.

    For example: discreet train --data digits --model cnn --epsilon 3 --epochs 40 --out runs/digits
    """
    flags = {
        "data.name": data, "data.folder": folder, "data.label": label, "data.schema": schema, "model.name": model,
        "method.name": method, "budget.epsilon": epsilon, "budget.noise": noise, "budget.delta": delta,
        "budget.epochs": epochs, "budget.steps": steps, "budget.batch_size": batch_size, "optimizer.name": optimizer,
        "optimizer.learning_rate": learning_rate, "optimizer.momentum": momentum, "schedule.name": schedule,
        "averaging.decay": averaging, "run.seed": seed, "run.chunk": chunk, "run.device": device,
        "run.tensorboard": tensorboard, "audit.canaries": audit,
    }  # fmt: skip
    _begin(config, flags, other, out, show, as_json)


@app.command()
def federate(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; flags replace what it says.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder, a new one.")] = None,
    data: Annotated[str | None, typer.Option(help=_help("data", "name"))] = None,
    folder: Annotated[str | None, typer.Option(help=_help("data", "folder"))] = None,
    label: Annotated[str | None, typer.Option(help=_help("data", "label"))] = None,
    schema: Annotated[str | None, typer.Option(help=_help("data", "schema"))] = None,
    user: Annotated[str | None, typer.Option(help=_help("federated", "user"))] = None,
    users: Annotated[int | None, typer.Option(help=_help("federated", "users"))] = None,
    partition: Annotated[str | None, typer.Option(help=_help("federated", "partition"))] = None,
    shards: Annotated[int | None, typer.Option(help=_help("federated", "shards"))] = None,
    alpha: Annotated[float | None, typer.Option(help=_help("federated", "alpha"))] = None,
    model: Annotated[str | None, typer.Option(help=_help("model", "name"))] = None,
    method: Annotated[str | None, typer.Option(help=_help("method", "name"))] = None,
    epsilon: Annotated[float | None, typer.Option(help=_help("budget", "epsilon"))] = None,
    noise: Annotated[float | None, typer.Option(help=_help("budget", "noise"))] = None,
    delta: Annotated[float | None, typer.Option(help=_help("budget", "delta"))] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds, each a release.")] = None,
    epochs: Annotated[float | None, typer.Option(help="How often each user takes part, on average.")] = None,
    users_per_round: Annotated[
        int | None, typer.Option(help="How many users take part in a round, on average.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="The server's optimizer; sgd is FedAvg.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The server's learning rate.")] = None,
    momentum: Annotated[float | None, typer.Option(help="The server's momentum.")] = None,
    local_optimizer: Annotated[str | None, typer.Option(help=_help("federated", "optimizer"))] = None,
    local_learning_rate: Annotated[float | None, typer.Option(help=_help("federated", "learning_rate"))] = None,
    local_epochs: Annotated[int | None, typer.Option(help=_help("federated", "epochs"))] = None,
    local_batch_size: Annotated[int | None, typer.Option(help=_help("federated", "batch_size"))] = None,
    engine: Annotated[str | None, typer.Option(help=_help("federated", "engine"))] = None,
    seed: Annotated[int | None, typer.Option(help=_help("run", "seed"))] = None,
    device: Annotated[str | None, typer.Option(help=_help("run", "device"))] = None,
    other: Annotated[
        list[str] | None, typer.Option("--set", help="Any other field, as --set method.settings.norm=0.5.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the resolved config and its guarantee, and touch no data.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model on users' data so that each user is protected, with all records together (DP-FedAvg).

    For example: discreet federate --data mnist --users 1000 --users-per-round 100 --rounds 100 --model mlp --epsilon 8
    --delta 1e-4 --out runs/users
    """
    flags = {
        "data.name": data, "data.folder": folder, "data.label": label, "data.schema": schema, "federated.user": user,
        "federated.users": users, "federated.partition": partition, "federated.shards": shards,
        "federated.alpha": alpha, "model.name": model, "method.name": method, "budget.epsilon": epsilon,
        "budget.noise": noise, "budget.delta": delta, "budget.steps": rounds, "budget.epochs": epochs,
        "budget.batch_size": users_per_round, "optimizer.name": optimizer, "optimizer.learning_rate": learning_rate,
        "optimizer.momentum": momentum, "federated.optimizer": local_optimizer,
        "federated.learning_rate": local_learning_rate, "federated.epochs": local_epochs,
        "federated.batch_size": local_batch_size, "federated.engine": engine, "run.seed": seed, "run.device": device,
    }  # fmt: skip
    _begin(config, flags, other, out, show, as_json, federated=True)


@app.command()
def check(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; flags replace what it says.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The private data by name: its shape, classes and size alone.")
    ] = None,
    shape: Annotated[str | None, typer.Option(help="An example's shape, as 1,28,28, for other data.")] = None,
    classes: Annotated[int | None, typer.Option(help="How many classes there are, for other data.")] = None,
    examples: Annotated[int | None, typer.Option(help="How many private examples there are, for other data.")] = None,
    model: Annotated[str | None, typer.Option(help=_help("model", "name"))] = None,
    method: Annotated[str | None, typer.Option(help=_help("method", "name"))] = None,
    epsilon: Annotated[float | None, typer.Option(help=_help("budget", "epsilon"))] = None,
    noise: Annotated[float | None, typer.Option(help=_help("budget", "noise"))] = None,
    delta: Annotated[float | None, typer.Option(help=_help("budget", "delta"))] = None,
    epochs: Annotated[float | None, typer.Option(help=_help("budget", "epochs"))] = None,
    steps: Annotated[int | None, typer.Option("--steps", "--rounds", help=_help("budget", "steps"))] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "--users-per-round", help=_help("budget", "batch_size"))
    ] = None,
    users: Annotated[int | None, typer.Option(help="Check at user level, with so many users.")] = None,
    sequences: Annotated[
        str | None,
        typer.Option(help="Check a model of sequences for secrets: vocabulary and length of a record, as 32,16."),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help=_help("optimizer", "name"))] = None,
    learning_rate: Annotated[float | None, typer.Option(help=_help("optimizer", "learning_rate"))] = None,
    momentum: Annotated[float | None, typer.Option(help=_help("optimizer", "momentum"))] = None,
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
    other: Annotated[
        list[str] | None, typer.Option("--set", help="Any other field, as --set method.settings.norm=0.5.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Sanity checks before any private data is touched: what does this model memorise under this plan?

    It is trained on made-up data whose labels only memory can tell, with privacy and without. Exits with 1 if the plan
    is too weak, or if more was learned than its guarantee allows. For example: discreet check --data mnist --model cnn
    --epsilon 3 --epochs 15 --batch-size 256 --stand-in digits
    """
    import torch

    from discreet.audit.sanity import running, showing
    from discreet.runs import config as configuration

    if sequences is not None:
        torch.manual_seed(check_int("--seed", seed, least=0, most=2**63 - 1))
        length = {"examples": examples, "batch_size": batch_size, "epochs": epochs, "steps": steps, "delta": delta}
        options = {"runs": runs, "tolerance": tolerance, "level": level}
        _check_secrets(
            _shape(sequences), length | {"epsilon": epsilon, "noise": noise}, learning_rate, options, as_json
        )
        return
    flags = {
        "data.name": data, "model.name": model, "method.name": method, "budget.epsilon": epsilon,
        "budget.noise": noise, "budget.delta": delta, "budget.epochs": epochs, "budget.steps": steps,
        "budget.batch_size": batch_size, "federated.users": users, "optimizer.name": optimizer,
        "optimizer.learning_rate": learning_rate, "optimizer.momentum": momentum,
    }  # fmt: skip
    start = configuration.Config() if config is None else configuration.load(config)
    given = flags | configuration.assignments(other or [])
    made = configuration.merged(start, given | {"audit.canaries": 0})  # checks have canaries of their own kind
    if calibrate and made.budget.epsilon is None and made.budget.noise is None:
        made = configuration.merged(made, {"budget.noise": 1.0})
    made.check()
    asked = running.Asked(
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
    torch.manual_seed(check_int("--seed", seed, least=0, most=2**63 - 1))
    with _counting() as tell:
        search = partial(running.calibrate, tries=tries) if calibrate else running.check
        found = search(made, asked, tell=tell)
    if out is not None:
        showing.write(out, found)
    if as_json:
        typer.echo(showing.as_json(found))
    else:
        Console().print(*showing.tables(found), Text(showing.words(found)), sep="\n")
    if not found.passed:
        raise typer.Exit(1)


def _check_secrets(
    sizes: tuple[int, ...],
    budget: dict[str, Any],
    learning_rate: float | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """The check for models of sequences, with an LSTM of 64 units."""
    import torch

    from discreet.audit.sanity.secrets import SequenceSetting, secrets
    from discreet.stages import presets as methods

    if len(sizes) != 2:
        raise ConfigError("--sequences takes two numbers, the vocabulary and the length of a record, as 32,16.")
    plan = methods.dp_sgd(**{name: value for name, value in budget.items() if value is not None})
    rate = 0.003 if learning_rate is None else learning_rate
    setting = SequenceSetting(
        plan, sizes[0], sizes[1], optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=rate)
    )
    with _counting() as tell:
        found = secrets(setting, **{k: v for k, v in options.items() if v is not None}, tell=tell)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        Console().print(str(found), soft_wrap=True, highlight=False)
    if found.verdict.word in ("too weak", "broken"):
        raise typer.Exit(1)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--shape is {text!r}; write whole numbers with commas between them, as 1,28,28.") from error


@contextmanager
def _counting() -> Generator["Callable[[str, int, int], None]"]:
    """A bar for each thing that is trained; plain lines where there is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if done == total and not console.is_terminal:
                console.print(f"{what}: {total:,} steps", soft_wrap=True, highlight=False)
            if what not in tasks or done < bar.tasks[tasks[what]].completed:
                for old in tasks.values():
                    bar.update(old, visible=False)
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield tell


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Continue a run where it was left; one that has finished says so and is left alone."""
    from discreet.runs.run import resume as go_on

    _carry_out(lambda watch: go_on(run, watch), as_json)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has finished.")],
    canaries: Annotated[
        int | None, typer.Option(help="How many canaries the new run on made-up data has; 1000 if the model has room.")
    ] = None,
    level: Annotated[float, typer.Option(help="The chance that a test rejects what is true, at most.")] = 0.05,
    quick: Annotated[bool, typer.Option("--quick", help="Only attack the model: no new run with canaries.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write true against false positives to this file (.png, .svg, .pdf), log axes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Attack a finished run, and measure epsilon from below, beside what is proven.

    A run that was trained with --audit is tested again. Of any other the model is attacked as it is, and its code and
    plan by a new run with canaries on made-up data. Exits with 1 if what is proven is contradicted.
    """
    from discreet.audit import finished, showing
    from discreet.report import plots
    from discreet.report import write as write_report

    if plot is not None:
        plots.check(plot)
    with _counting() as tell:
        found = finished.audit(run, canaries=canaries, level=level, quick=quick, tell=tell)
        write_report([run])
    if plot is not None:
        finished.plot(run, found, plot)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        Console().print(showing.after(found) if "membership" in found else showing.words(found))
    if found["refuted"]:
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="Where the page goes; beside the run if there is one.")] = None,
) -> None:
    """Write the page that a person reads: one self-contained file."""
    from discreet.report import write

    typer.echo(str(write(runs, out)))


@app.command()
def reproduce(
    paper: Annotated[str | None, typer.Argument(help="000, 001, 002, 003 or 004.")] = None,
    experiments: Annotated[
        list[str] | None, typer.Argument(help="Some of its experiments; all if none is named.")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Small: each in under three minutes on two cores, to show the shape.")
    ] = False,
    full: Annotated[bool, typer.Option(help="The paper's own lengths, however many hours they take.")] = False,
    seeds: Annotated[int | None, typer.Option(help="How often each case is run; 3, or 1 with --quick.")] = None,
    workers: Annotated[int | None, typer.Option(help="Cases at a time, each on one core; as many as cores.")] = None,
    results: Annotated[
        Path, typer.Option(help="The folder of results; what is there already is not run again.")
    ] = Path("results"),
    listed: Annotated[
        bool, typer.Option("--list", help="Only list the experiments; those of all papers if none is named.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """A paper's tables and figures, run again on the real data, beside its own numbers and what is proven.

    For example: discreet reproduce 001 --quick
    """
    from discreet.papers import FILES, running, showing
    from discreet.papers import experiment as find
    from discreet.papers import paper as open_paper

    if quick and full:
        raise ConfigError("--quick and --full are two sizes; give one of them.")
    size: Any = "quick" if quick else "full" if full else "usual"
    console = Console()
    if listed:
        for number in FILES if paper is None else [paper]:
            made = open_paper(number)
            table = _table(f"paper {number}: {made.name}", "cases", "seeds")
            for one in [find(number, name) for name in experiments or [e.name for e in made.experiments]]:
                count = len(list(one.cases(size)))
                table.add_row(f"{one.name}: {one.title}", f"{count}", f"{seeds or one.seeds[size]}")
            console.print(table)
        return
    if paper is None:
        raise ConfigError(f"which paper? Name one of {', '.join(FILES)}, or give --list to see what there is.")
    chosen = open_paper(paper)
    known = [find(paper, name) for name in experiments or [e.name for e in chosen.experiments]]
    command = " ".join(["discreet reproduce", paper, *(experiments or []), *([] if size == "usual" else [f"--{size}"])])
    shown: list[dict[str, Any]] = []
    for number, one in enumerate(known, 1):
        with _cases(f"{one.name} ({number} of {len(known)})") as tell:
            found = running.run(paper, one, results, size=size, seeds=seeds, workers=workers, tell=tell)
        rows = [dict(zip(showing.HEAD, row, strict=True)) for row in showing.stated_rows(one, found)]
        shown.append({"experiment": one.name, "trainings": len(found), "stated": rows, "found": one.found(found)})
        if as_json:
            continue
        console.print(Text(f"\n{one.name}: {one.title}", "bold"))
        for row in rows:
            what, *others = row.items()
            console.print(Text(f"- {what[1]}"))
            console.print(
                Text("  " + "; ".join(value if k == "verdict" else f"{k} {value}" for k, value in others if value))
            )
        console.print(Text(one.found(found)))
    everything = [(e, running.read(results / paper / e.name / f"{size}.jsonl")) for e in chosen.experiments]
    page = showing.write(chosen, everything, results / paper, size, command)
    if as_json:
        typer.echo(
            json.dumps({"paper": paper, "size": size, "page": str(page), "experiments": shown}, ensure_ascii=False)
        )
        return
    console.print(f"\n{page}", soft_wrap=True, highlight=False)


@contextmanager
def _cases(words: str) -> Generator["Callable[[str, int, int], None]"]:
    """A bar for all cases, and one for each that is under way; plain lines where there is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        everything, tasks = bar.add_task(words, total=None), dict[str, Any]()

        def tell(name: str, done: int, total: int) -> None:
            if not name:
                bar.update(everything, completed=done, total=total)
                if not console.is_terminal:
                    console.print(f"{words}: {done} of {total}", soft_wrap=True, highlight=False)
                return
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total, visible=done < total)

        yield tell


def _begin(
    file: Path | None,
    flags: dict[str, Any],
    other: list[str] | None,
    out: Path | None,
    show: bool,
    as_json: bool,
    federated: bool = False,
) -> None:
    """Resolve a config, and show it or carry it out."""
    from discreet.runs import config as configuration

    start = configuration.Config() if file is None else configuration.load(file)
    given = flags | configuration.assignments(other or [])
    if federated and start.federated is None and all(v is None for k, v in given.items() if k.startswith("federated.")):
        raise ConfigError("whose rows are whose is missing: give --user, a table's column, or --users, how many.")
    made = configuration.merged(start, given)
    made.check()
    if show:
        _show(made, as_json)
        return
    if out is None:
        raise ConfigError("--out is missing: the folder that the run is to be kept in.")
    from discreet.runs.run import train as begin

    _carry_out(lambda watch: begin(made, out, watch), as_json)


def _show(made: "Config", as_json: bool) -> None:
    """The resolved config, and what it will prove."""
    examples = made.data.examples or EXAMPLES.get(made.data.name)
    if made.federated is not None:
        examples = made.federated.users
        if examples is None:
            raise ConfigError("how many users there are is not known without reading the data; say --users to plan.")
    if examples is None:
        raise ConfigError(
            f"how many examples {made.data.name!r} has is not known without reading it; say [data] examples "
            "(--set data.examples=...)."
        )
    with _progress("solving"):
        plan = made.plan(examples)
        proven = plan.guarantee(beside=made.beside(plan))
    if as_json:
        result = {"config": made.to_toml(), "plan": plan.to_dict(), "guarantee": json.loads(proven.to_json())}
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    console = Console()
    console.print(Text(made.to_toml()))
    console.print(Panel(Text(str(proven)), title="What this run will prove", padding=(1, 2)))


def _carry_out(run: "Callable[[Watch], Outcome]", as_json: bool = False, quiet: bool = False) -> "Outcome":
    """Run with a bar (or plain lines), stopped cleanly by Ctrl-C or SIGTERM, and print how it ended.

    Where several ranks train together, rank 0 says it for all.
    """
    from discreet.distributed.ranks import find
    from discreet.report import write as write_report
    from discreet.runs.progress import watching

    first = find().first
    with watching(Console(stderr=True, quiet=not first)) as (watch, stopped):
        outcome = run(watch)
        if not first:
            return outcome
        watch.stage("writing the report")
        if not outcome.already or not (outcome.folder / "report.html").is_file():
            write_report([outcome.folder])
    if as_json:
        typer.echo(json.dumps(_in_json(outcome), ensure_ascii=False))
    elif not quiet or stopped():
        _print_outcome(outcome)
    if stopped():
        raise typer.Exit(128 + stopped())
    if outcome.audit is not None and outcome.audit["refuted"]:
        raise typer.Exit(1)
    return outcome


def _in_json(outcome: "Outcome") -> dict[str, Any]:
    return {
        "run": str(outcome.folder),
        "finished": outcome.finished,
        "accuracy": outcome.accuracy,
        "lost_steps": outcome.lost,
        "anchor": outcome.anchor,
        "guarantee": json.loads(outcome.guarantee.to_json()),
        **({} if outcome.audit is None else {"audit": dict(outcome.audit)}),
    }


def _print_outcome(outcome: "Outcome") -> None:
    console = Console()
    if outcome.already:
        console.print(f"{outcome.folder} has finished; nothing was done.", soft_wrap=True)
    elif not outcome.finished:
        console.print(f"\nStopped, and saved. Go on with: discreet resume {outcome.folder}", soft_wrap=True)
    if outcome.accuracy is not None:
        console.print(f"\nAccuracy [bold]{outcome.accuracy:.1%}[/bold] on held-out data.\n")
    console.print(Panel(Text(str(outcome.guarantee)), title="What is proven", padding=(1, 2)))
    if outcome.audit is not None:
        from discreet.audit import showing

        console.print(Panel(showing.words(outcome.audit), title="What was measured", padding=(1, 2)))
    if outcome.lost:
        console.print(f"\n{outcome.lost:,} steps were spent in a crash and are not repeated.")
    console.print(f"\nReport: {outcome.folder / 'report.html'}", soft_wrap=True)
    console.print(f"The ledger's last hash, to keep elsewhere: {outcome.anchor}", soft_wrap=True)


@app.command()
def verify(
    ledgers: Annotated[list[Path], typer.Argument(help="A ledger file, or a run's folder; several are compared.")],
    key: Annotated[Path | None, typer.Option(help="A file with the key that signed the ledger.")] = None,
    anchor: Annotated[
        str | None, typer.Option(help="The hash of a line that must be there, as it was printed or stored elsewhere.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check that a ledger is as it was written, and re-derive what is proven from the file alone.

    Of a run's folder, its model, metrics and statistics are compared with the hashes in its ledger. Of several, it is
    also looked whether one run was copied and continued twice. Exits with 1 if something was changed, moved or taken
    out, and says what.
    """
    from discreet.ledger.forks import forks
    from discreet.ledger.verification import ledger_of

    secret = None if key is None else _read_key(key)
    if len(ledgers) > 1 and anchor is not None:
        raise ConfigError(f"an anchor is of one ledger, and {len(ledgers)} are named; verify each by itself.")
    results = [_verified(ledger, secret, anchor) for ledger in ledgers]
    holds = all(result["holds"] for result in results)
    parted = []
    if len(ledgers) > 1 and holds:
        parted = forks([ledger_of(place) if place.is_dir() else place for place in ledgers])
    if as_json:
        told = [{k: v for k, v in result.items() if k != "words"} for result in results]
        several = {"holds": holds and not parted, "ledgers": told, "forks": [asdict(fork) for fork in parted]}
        typer.echo(json.dumps(told[0] if len(told) == 1 else several, ensure_ascii=False))
    else:
        for result in results:
            if result["holds"]:
                Console().print(Text(result["words"]))
            else:
                _print_broken(result["reason"])
        for fork in parted:
            _print_broken(str(fork))
    if parted or not holds:
        raise typer.Exit(1)


def _verified(ledger: Path, key: bytes | None, anchor: str | None) -> dict[str, Any]:
    """What is found of one ledger, with the words for it."""
    from discreet.ledger.verification import verify as check

    try:
        found = check(ledger, key=key, anchor=anchor)
    except PrivacyError as error:
        return {"holds": False, "reason": str(error)}
    return {"holds": True} | found.to_dict() | {"words": str(found)}


def _print_broken(reason: str) -> None:
    Console(stderr=True).print(Text.assemble(("does not hold: ", "bold red"), reason), soft_wrap=True)


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the key cannot be read from {path}: {error}") from error


def _print_plan(made: "Plan", length: float, proven: "Guarantee", others: "list[Size]") -> None:
    from discreet.accounting.guarantee import round_up

    console = Console()
    console.print(Panel(Text(str(proven)), title="What this plan proves", padding=(1, 2)))
    scale = made.mechanism.noise.scale or 0.0
    table = _table("the plan", "")
    for name, value in (
        ("proven ε", round_up(proven.epsilon)),
        ("δ", f"{proven.delta:g}"),
        ("noise multiplier", f"{scale:.6g}"),
        ("batch size", f"{made.sampling.batch_size:,}"),
        ("steps", f"{made.steps:,}"),
        ("epochs", f"{length:.6g}"),
    ):
        table.add_row(name, value)
    for name, value in proven.figures().items():
        table.add_row(f"ε by {name}", round_up(value))
    console.print(table)
    table = _table("what an attacker can do at most", "")
    for name, value in proven.attacker().items():
        table.add_row(name, f"{value:.2%}")
    console.print(table)
    if others:
        table = _table("batch size, at the same ε and epochs", "steps", "noise", "noise / batch size", "learning rate")
        for size in others:
            rate = "" if size.learning_rate is None else f"{size.learning_rate:.4g}"
            mark = " <" if size.batch_size == made.sampling.batch_size else ""
            noise = f"{size.noise:.4g}", f"{size.noise_per_example:.3g}"
            table.add_row(f"{size.batch_size:,}{mark}", f"{size.steps:,}", *noise, rate)
        console.print(table)


def _print_claims(paper: str, as_json: bool) -> None:
    from discreet.papers import claims

    with _progress("computing") as bar:
        found = list(bar((claims.compute(row) for row in claims.rows(paper)), f"paper {paper}"))
    if as_json:
        typer.echo(json.dumps({"paper": paper, "rows": [f.to_dict() for f in found]}, ensure_ascii=False))
        return
    table = _table(f"paper {paper}", "claimed", "Rényi", "improved", "PLD", "proven as written", "verdict")
    for f in found:
        claimed = "" if f.row.claimed is None else f"{f.row.claimed:g}"
        numbers = [_short(x) for x in (f.mironov, f.improved, f.losses, f.proven)]
        table.add_row(f.row.configuration, claimed, *numbers, f.row.verdict)
    console = Console()
    console.print(table)
    for reason in dict.fromkeys(f"{f.row.verdict}: {f.row.reason}" for f in found):
        console.print(Text(f"- {reason}."))
    console.print("\nε for each example, δ as the paper has it. Rényi: the papers' conversion (Mironov 2017).")


def _finite(value: float) -> float | str:
    return "inf" if value == math.inf else value


def _short(epsilon: float) -> str:
    from discreet.accounting.guarantee import round_up

    return round_up(epsilon) if epsilon < 1e4 else f"{epsilon:.1e}"


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=SIMPLE_HEAD, header_style="bold")
    for name in others:
        table.add_column(name, justify="right")
    return table


@contextmanager
def _progress(words: str) -> Generator[Callable[[Iterable[Any], str], Iterator[Any]]]:
    """A line that shows that something is going on, and what; on the error stream."""
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(words)

        def follow(items: Iterable[Any], what: str) -> Iterator[Any]:
            for number, item in enumerate(items, 1):
                bar.update(task, description=f"{what}: {number}")
                yield item

        yield follow


def main() -> None:
    """Run the command line; what the user got wrong is one clear line and exit code 2."""
    try:
        app(standalone_mode=True)
    except (ConfigError, PrivacyError) as error:
        words = Text.assemble(("discreet: ", "bold red"), str(error))
        Console(stderr=True).print(words, soft_wrap=True)
        sys.exit(2)
