"""The command line: parses, calls, prints."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from discreet import __version__
from discreet.errors import ConfigError, PrivacyError

app = typer.Typer(
    help="Train PyTorch models on private data, and know exactly what has been proven about the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
    """Train a small network on scikit-learn's digits, privately, and print what is proven about it."""
    from discreet import demo as digits
    from discreet.accounting.guarantee import round_up
    from discreet.report import page

    columns = (TextColumn("training privately"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("steps", total=None)
        found = digits.run(
            out,
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            on_start=lambda plan: progress.update(bar, total=plan.steps),
            on_step=lambda: progress.advance(bar),
        )
    accuracy = f"{found.accuracy:.1%}"
    report = found.folder / "report.html"
    figures = {"test accuracy": accuracy, "proven ε": round_up(found.guarantee.epsilon), "δ": f"{delta:g}"}
    report.write_text(page("Digits, read privately", found.plan, found.guarantee, figures), encoding="utf-8")
    if as_json:
        result = {"accuracy": found.accuracy, "guarantee": json.loads(found.guarantee.to_json()), "report": str(report)}
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    console = Console()
    console.print(f"\nTest accuracy [bold]{accuracy}[/bold] on {digits.TEST_EXAMPLES} images never trained on.\n")
    console.print(Panel(str(found.guarantee), title="What is proven", padding=(1, 2)))
    console.print(f"\nReport: {report}", soft_wrap=True)


def main() -> None:
    """Run the command line; what the user got wrong is one clear line and exit code 2."""
    try:
        app(standalone_mode=True)
    except (ConfigError, PrivacyError) as error:
        Console(stderr=True).print(f"[bold red]discreet:[/bold red] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)
