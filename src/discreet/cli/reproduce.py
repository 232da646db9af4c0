"""discreet reproduce."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from discreet.cli.printing import print_json, table
from discreet.errors import ConfigError
from discreet.runs.progress import Display, display
from discreet.runs.terminal import Terminal


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
    from discreet.papers import FILES, render, running
    from discreet.papers import experiment as find
    from discreet.papers import paper as open_paper

    if quick and full:
        raise ConfigError("--quick and --full are two sizes; give one of them.")
    size: Any = "quick" if quick else "full" if full else "usual"
    console = Terminal()
    if listed:
        for number in FILES if paper is None else [paper]:
            _list(number, experiments, size, seeds)
        return
    if paper is None:
        raise ConfigError(f"which paper? Name one of {', '.join(FILES)}, or give --list to see what there is.")
    chosen = open_paper(paper)
    named = [find(paper, name) for name in experiments or [e.name for e in chosen.experiments]]
    command = " ".join(["discreet reproduce", paper, *(experiments or []), *([] if size == "usual" else [f"--{size}"])])
    told: list[dict[str, Any]] = []
    for number, one in enumerate(named, 1):
        with display() as shown:
            tell = partial(_tell, shown, f"{one.name} ({number} of {len(named)})")
            measured = running.run(paper, one, results, size=size, seeds=seeds, workers=workers, tell=tell)
        rows = [dict(zip(render.HEAD, row, strict=True)) for row in render.stated_rows(one, measured)]
        told.append({"experiment": one.name, "trainings": len(measured), "stated": rows, "found": one.found(measured)})
        if as_json:
            continue
        console.print(Text(f"\n{one.name}: {one.title}", "bold"))
        for row in rows:
            what, *others = row.items()
            console.print(Text(f"- {what[1]}"))
            console.print(
                Text("  " + "; ".join(value if k == "verdict" else f"{k} {value}" for k, value in others if value))
            )
        console.print(Text(one.found(measured)))
    everything = [(e, running.read(results / paper / e.name / f"{size}.jsonl")) for e in chosen.experiments]
    page = render.write(chosen, everything, results / paper, size, command)
    if as_json:
        print_json({"paper": paper, "size": size, "page": str(page), "experiments": told})
    else:
        console.print(f"\n{page}", soft_wrap=True, highlight=False)


def _list(number: str, names: list[str] | None, size: Any, seeds: int | None) -> None:
    """The experiments of a paper, and how much each is."""
    from discreet.papers import experiment, paper

    chosen = paper(number)
    rows = table(f"paper {number}: {chosen.name}", "cases", "seeds")
    for one in [experiment(number, name) for name in names or [e.name for e in chosen.experiments]]:
        rows.add_row(f"{one.name}: {one.title}", f"{len(list(one.cases(size)))}", f"{seeds or one.seeds[size]}")
    Terminal().print(rows)


def _tell(shown: Display, everything: str, case: str, done: int, total: int) -> None:
    """A bar for all cases, and one for each that is under way; lines for all where there is no terminal."""
    if case:
        shown.bar(case, completed=done, total=total, visible=done < total)
    else:
        shown.bar(everything, completed=done, total=total)
        shown.say(f"{everything}: {done} of {total}")
