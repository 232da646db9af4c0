"""discreet budget."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from discreet.cli.options import AsJson, OwnStages
from discreet.cli.printing import print_json, table
from discreet.errors import ConfigError
from discreet.runs.terminal import Terminal


def budget(
    dataset: Annotated[
        str | None, typer.Argument(help="A data set's name, its file, or its ledger; all of them if not given.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="The folder that holds runs, with their registry `datasets`.")] = Path(
        "runs"
    ),
    stages: OwnStages = None,
    as_json: AsJson = False,
) -> None:
    """What each run on a data set has spent, who ran it and when, the total, and what is left of the cap.

    For example: discreet budget people
    """
    from discreet.ledger.budget import read_budget
    from discreet.runs.registry import REGISTRY
    from discreet.stages.custom import stage_classes

    registry, own = runs / REGISTRY, stage_classes(stages or [])
    ledgers = sorted(registry.glob("*.jsonl")) if dataset is None else [_ledger(dataset, registry)]
    if not ledgers:
        raise ConfigError(f"{registry} counts no data set yet; say --runs, the folder beside whose runs it is.")
    found = [read_budget(ledger, own) for ledger in ledgers]
    if as_json:
        plain = [_plain(one) for one in found]
        print_json(plain if dataset is None else plain[0])
        return
    for one in found:
        _print(one)


def _ledger(dataset: str, registry: Path) -> Path:
    """The ledger of a data set by its name, its file or the ledger itself."""
    if Path(dataset).suffix == ".jsonl":
        return Path(dataset)
    place = registry / f"{dataset}.jsonl"
    place = place if place.is_file() else registry / f"{Path(dataset).stem}.jsonl"
    if not place.is_file():
        known = ", ".join(sorted(p.stem for p in registry.glob("*.jsonl"))) or "none"
        raise ConfigError(f"{registry} counts no data set {dataset!r}; it has: {known}. Say --runs if it is elsewhere.")
    return place


def _plain(found: Any) -> dict[str, Any]:
    return {
        "dataset": found.dataset,
        "ledger": str(found.ledger),
        "epsilon": found.total.epsilon,
        "delta": found.delta,
        "unit": found.total.unit,
        "cap": found.cap,
        "left": found.left,
        "spent": [asdict(one) for one in found.spent],
    }


def _print(found: Any) -> None:
    from discreet.accounting.guarantee import round_up

    rows = table(f"data set {found.dataset}", "when", "who", "steps", "alone ε", "")
    for one in found.spent:
        steps = "" if not one.name else f"{one.released:,} of {one.planned:,}"
        name = Text(one.place or one.what)
        rows.add_row(
            name, one.at.replace("T", " ").removesuffix("Z"), Text(one.by), steps, round_up(one.epsilon), one.state
        )
    console = Terminal()
    console.print(rows)
    together = f"Together ε = {round_up(found.total.epsilon)} at δ = {found.delta:g} for each {found.total.protected}"
    limit = "no cap; discreet train --cap sets one" if found.cap is None else f"the cap is {found.cap:g}"
    console.print(f"{together}: {limit}.", highlight=False, soft_wrap=True)
    if found.left is not None:
        one = f"one more run of ε = {math.floor(found.left * 1000) / 1000:g} alone, at that δ, would fit under it"
        console.print(
            f"Left: {one} (as a single Gaussian release; the ledger decides by the run's own)."
            if found.left
            else "Left: nothing.",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        "Runs count with all steps that they were declared to have; times are UTC.", highlight=False, soft_wrap=True
    )
