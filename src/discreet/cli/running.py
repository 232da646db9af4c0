"""A run from the command line: begun or shown, watched, reported, and how it ended."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.panel import Panel
from rich.text import Text

from discreet.cli.printing import print_json
from discreet.errors import ConfigError
from discreet.runs.config import EXAMPLES, Config
from discreet.runs.progress import Watch, display, watching, watching_in_json
from discreet.runs.terminal import Terminal

if TYPE_CHECKING:
    from discreet.runs.outcome import Outcome


def begin(config: Config, out: Path | None, show: bool, as_json: bool, log_format: str = "text") -> None:
    """Carry out a config in a new folder, or show what it says and will prove."""
    config.check()
    if show:
        _show(config, as_json)
        return
    if config.tune is not None or config.sweep is not None:
        raise ConfigError("the file has a [tune] or [sweep] table: a search is begun with discreet tune, or sweep.")
    if out is None:
        raise ConfigError("--out is missing: the folder that the run is to be kept in.")
    from discreet.runs.run import train

    carry_out(lambda watch: train(config, out, watch), as_json, log_format=log_format)


def _show(config: Config, as_json: bool) -> None:
    examples = config.data.examples or EXAMPLES.get(config.data.name)
    if config.federated is not None:
        examples = config.federated.users
        if examples is None:
            raise ConfigError("how many users there are is not known without reading the data; say --users to plan.")
    if examples is None:
        raise ConfigError(
            f"how many examples {config.data.name!r} has is not known without reading it; say [data] examples "
            "(--set data.examples=...)."
        )
    from discreet.stages.caution import cautions

    with display() as shown:
        shown.only("solving", 0)
        plan = config.plan(examples)
        proven = plan.guarantee(beside=config.beside(plan))
    if as_json:
        guarantee = json.loads(proven.to_json())
        print_json(
            {"config": config.to_toml(), "plan": plan.to_dict(), "guarantee": guarantee, "cautions": cautions(plan)}
        )
        return
    for caution in cautions(plan):
        Terminal(stderr=True).print(f"Caution: {caution}.", highlight=False, soft_wrap=True)
    console = Terminal()
    console.print(Text(config.to_toml()))
    console.print(Panel(Text(str(proven)), title="What this run will prove", padding=(1, 2)))


def carry_out(
    run: "Callable[[Watch], Outcome]", as_json: bool = False, quiet: bool = False, log_format: str = "text"
) -> "Outcome":
    """Run with a bar (or plain lines), stopped cleanly by Ctrl-C or SIGTERM, and print how it ended.

    Where several ranks train together, rank 0 says it for all. The exit code is 128 and the signal's number for a run
    that was stopped, and 1 for one whose audit contradicts what is proven.
    """
    from discreet.distributed.ranks import find
    from discreet.report import write as write_report

    first = find().first
    told = (
        watching_in_json(quiet=not first) if log_format == "json" else watching(Terminal(stderr=True, quiet=not first))
    )
    with told as (watch, stopped):
        outcome = run(watch)
        if not first:
            return outcome
        watch.stage("writing the report")
        if not outcome.already or not (outcome.folder / "report.html").is_file():
            write_report([outcome.folder], stages=outcome.stages)
    if as_json:
        print_json(values(outcome))
    elif not quiet or stopped():
        print_outcome(outcome)
    if stopped() or not outcome.finished:  # by a signal to this process, or to another rank
        raise typer.Exit(128 + (stopped() or signal.SIGTERM))
    if outcome.audit is not None and outcome.audit["refuted"]:
        raise typer.Exit(1)
    return outcome


def values(outcome: "Outcome") -> dict[str, Any]:
    """How a run ended, as plain values."""
    return {
        "run": str(outcome.folder),
        "finished": outcome.finished,
        "accuracy": outcome.accuracy,
        **({} if outcome.merit is None else {"merit": dict(outcome.merit)}),
        "lost_steps": outcome.lost,
        "anchor": outcome.anchor,
        "guarantee": json.loads(outcome.guarantee.to_json()),
        **({} if outcome.audit is None else {"audit": dict(outcome.audit)}),
    }


def print_outcome(outcome: "Outcome") -> None:
    """How a run ended, for a person."""
    console = Terminal()
    if outcome.already:
        console.print(f"{outcome.folder} has finished; nothing was done.", soft_wrap=True)
    elif not outcome.finished:
        console.print(f"\nStopped, and saved. Go on with: discreet resume {outcome.folder}", soft_wrap=True)
    if outcome.merit is not None:
        from discreet.report.merit import in_words

        console.print(Text(f"\n{in_words(outcome.accuracy, outcome.merit)}\n"))
    elif outcome.accuracy is not None:
        console.print(f"\nAccuracy [bold]{outcome.accuracy:.1%}[/bold] on held-out data.\n", markup=True)
    console.print(Panel(Text(str(outcome.guarantee)), title="What is proven", padding=(1, 2)))
    if outcome.audit is not None:
        from discreet.audit import render

        console.print(Panel(render.words(outcome.audit), title="What was measured", padding=(1, 2)))
    if outcome.lost:
        console.print(f"\n{outcome.lost:,} steps were spent in a crash and are not repeated.")
    console.print(f"\nReport: {outcome.folder / 'report.html'}", soft_wrap=True)
    console.print(f"The ledger's last hash, to keep elsewhere: {outcome.anchor}", soft_wrap=True)
