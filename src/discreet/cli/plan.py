"""discreet plan."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.panel import Panel
from rich.text import Text

from discreet._check import check_int, within
from discreet._documents import check_writable
from discreet.cli.printing import print_json, table
from discreet.errors import ConfigError
from discreet.runs.progress import display
from discreet.runs.terminal import Terminal

if TYPE_CHECKING:
    from discreet.accounting.guarantee import Guarantee
    from discreet.stages.plan import Plan
    from discreet.stages.planning import Size


def plan(
    examples: Annotated[int | None, typer.Option(help="How many examples (or users) there are; public.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="How many take part in a step, on average.")] = None,
    epochs: Annotated[float | None, typer.Option(help="How often each takes part, on average.")] = None,
    steps: Annotated[int | None, typer.Option(help="How many releases, instead of epochs.")] = None,
    noise: Annotated[float | None, typer.Option(help="The noise multiplier.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    delta: Annotated[float, typer.Option(help="The probability left out of the guarantee.")] = 1e-5,
    sampling: Annotated[
        str, typer.Option(help="poisson, fixed-size, allocation, shuffled, fixed-batches.")
    ] = "poisson",
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
    from discreet.report.pictures import check_picture, save_picture
    from discreet.stages import planning
    from discreet.stages.caution import cautions

    if examples is None:
        raise ConfigError("--examples is missing: how many examples there are; or use --paper.")
    if plot is not None:
        check_picture(plot)
    if out is not None:
        check_writable(out)
    if out is not None:
        check_writable(out)
    with display() as shown:
        shown.only("solving", 0)
        chosen = planning.solve(
            examples=examples,
            delta=delta,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            noise=noise,
            epsilon=epsilon,
            sampling=sampling,
            unit=unit,
            group=within("group", check_int("group", group, least=1), f"--group is {group:.3g}"),
        )
        proven = chosen.guarantee(group=group)
        length = chosen.sampling.epochs_in(chosen.steps)
        target = proven.epsilon if epsilon is None else epsilon
        others = []
        if 0 < target <= 100:  # beyond that more noise an example would be the least of one's worries
            others = list(shown.follow(planning.sizes(chosen, target, learning_rate, group), "other batch sizes"))
        shown.only("correlated noise", 0)
        remembering = planning.correlated(chosen, target) if 0 < target <= 100 and group == 1 else ()
        curve = list(shown.follow(planning.over_epochs(chosen, group=group), "epsilon over epochs")) if plot else []
    if out is not None:
        chosen.save(out)
    if plot is not None:
        title = f"{examples:,} {unit}s, δ = {delta:g}, {length:g} epochs"
        save_picture(plot, plots.budget(others, curve, title))
    if as_json:
        result = {
            "plan": chosen.to_dict(),
            "epochs": length,
            "guarantee": json.loads(proven.to_json()),
            "figures": proven.figures(),
            "attacker": proven.attacker(),
            "batch_sizes": [asdict(size) for size in others],
            "epsilon_over_epochs": curve,
            "cautions": cautions(chosen),
            "correlated": [alternative.to_dict() for alternative in remembering],
        }
        print_json(result)
        return
    for caution in cautions(chosen):
        Terminal(stderr=True).print(f"Caution: {caution}.", highlight=False, soft_wrap=True)
    _print_plan(chosen, length, proven, others)
    if remembering:
        errors = table("noise, at the same ε and steps", "multiplier", "rms error / DP-SGD's")
        for alternative in remembering:
            errors.add_row(*alternative.row())
        Terminal().print(errors)
        typer.echo(planning.advice(remembering))


def _print_plan(chosen: "Plan", length: float, proven: "Guarantee", others: "list[Size]") -> None:
    from discreet.accounting.guarantee import round_up

    console = Terminal()
    console.print(Panel(Text(str(proven)), title="What this plan proves", padding=(1, 2)))
    scale = chosen.mechanism.noise.scale or 0.0
    rows = table("the plan", "")
    for name, value in (
        ("proven ε", round_up(proven.epsilon)),
        ("δ", f"{proven.delta:g}"),
        ("noise multiplier", f"{scale:.6g}"),
        (
            "batch size",
            f"{chosen.sampling.batch_size:,.6g}"
            if chosen.sampling.batch_size % 1
            else f"{chosen.sampling.batch_size:,}",
        ),
        ("steps", f"{chosen.steps:,}"),
        ("epochs", f"{length:.6g}"),
    ):
        rows.add_row(name, value)
    for name, value in proven.figures().items():
        rows.add_row(f"ε by {name}", round_up(value))
    console.print(rows)
    rows = table("what an attacker can do at most", "")
    for name, value in proven.attacker().items():
        rows.add_row(name, f"{value:.2%}")
    console.print(rows)
    if others:
        rows = table("batch size, at the same ε and epochs", "steps", "noise", "noise / batch size", "learning rate")
        for size in others:
            rate = "" if size.learning_rate is None else f"{size.learning_rate:.4g}"
            mark = " <" if size.batch_size == chosen.sampling.batch_size else ""
            noise = f"{size.noise:.4g}", f"{size.noise_per_example:.3g}"
            rows.add_row(f"{size.batch_size:,}{mark}", f"{size.steps:,}", *noise, rate)
        console.print(rows)


def _print_claims(paper: str, as_json: bool) -> None:
    from discreet.papers import claims

    with display() as shown:
        computed = list(shown.follow((claims.compute(row) for row in claims.rows(paper)), f"paper {paper}"))
    if as_json:
        print_json({"paper": paper, "rows": [claim.to_dict() for claim in computed]})
        return
    rows = table(f"paper {paper}", "claimed", "Rényi", "improved", "PLD", "proven as written", "verdict")
    for each in computed:
        claimed = "" if each.row.claimed is None else f"{each.row.claimed:g}"
        numbers = [_short(x) for x in (each.mironov, each.improved, each.losses, each.proven)]
        rows.add_row(each.row.configuration, claimed, *numbers, each.row.verdict)
    console = Terminal()
    console.print(rows)
    for reason in dict.fromkeys(f"{each.row.verdict}: {each.row.reason}" for each in computed):
        console.print(Text(f"- {reason}."))
    console.print("\nε for each example, δ as the paper has it. Rényi: the papers' conversion (Mironov 2017).")


def _short(epsilon: float) -> str:
    from discreet.accounting.guarantee import round_up

    return round_up(epsilon) if epsilon < 1e4 else f"{epsilon:.1e}"
