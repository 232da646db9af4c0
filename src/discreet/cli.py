"""The command line: parses, calls, prints."""

import json
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
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
from discreet.errors import ConfigError, PrivacyError, whole

if TYPE_CHECKING:
    from discreet.accounting.guarantee import Guarantee
    from discreet.plan import Plan
    from discreet.planning import Size

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
    report.write_text(
        page("Digits, read privately", found.plan, found.guarantee, figures, found.anchor), encoding="utf-8"
    )
    if as_json:
        result = {"accuracy": found.accuracy, "guarantee": json.loads(found.guarantee.to_json()), "report": str(report)}
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    console = Console()
    console.print(f"\nTest accuracy [bold]{accuracy}[/bold] on {digits.TEST_EXAMPLES} images never trained on.\n")
    console.print(Panel(Text(str(found.guarantee)), title="What is proven", padding=(1, 2)))
    console.print(f"\nReport: {report}", soft_wrap=True)
    console.print(f"Ledger: {found.folder / 'ledger.jsonl'}, last hash {found.anchor}", soft_wrap=True)


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
    from discreet import planning, plots

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
            group=whole("group", group, least=1, most=10**6),
        )
        proven = made.guarantee(group=group)
        length = made.sampling.epochs_in(made.steps)
        target = proven.epsilon if epsilon is None else epsilon
        others = []
        if 0 < target <= 100:  # beyond that more noise an example would be the least of one's worries
            others = list(bar(planning.sizes(made, target, learning_rate, group), "other batch sizes"))
        curve = list(bar(planning.over_epochs(made, group=group), "epsilon over epochs")) if plot else []
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
        }
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    _print_plan(made, length, proven, others)


@app.command()
def verify(
    ledger: Annotated[Path, typer.Argument(help="A ledger file, or a run's folder.")],
    key: Annotated[Path | None, typer.Option(help="A file with the key that signed the ledger.")] = None,
    anchor: Annotated[
        str | None, typer.Option(help="The hash of a line that must be there, as it was printed or stored elsewhere.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check that a ledger is as it was written, and re-derive what is proven from the file alone.

    Exits with 1 if a line was changed, moved or taken out, and says which.
    """
    from discreet.verification import verify as check

    try:
        found = check(ledger, key=None if key is None else _read_key(key), anchor=anchor)
    except PrivacyError as error:
        if as_json:
            typer.echo(json.dumps({"holds": False, "reason": str(error)}, ensure_ascii=False))
        else:
            Console(stderr=True).print(Text.assemble(("does not hold: ", "bold red"), str(error)), soft_wrap=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps({"holds": True} | found.to_dict(), ensure_ascii=False))
    else:
        Console().print(Text(str(found)))


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
    from discreet import claims

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
