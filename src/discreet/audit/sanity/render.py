"""What checks found, as tables and words for a person, as JSON, and as pictures in a folder."""

import json
import math
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from discreet.accounting.guarantee import round_up
from discreet.accounting.serialization import json_values
from discreet.audit.sanity.running import Calibrated, Checked
from discreet.audit.sanity.verdict import Verdict
from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.report import plots
from discreet.report.pictures import can_picture, save_picture

_STYLES = {"pass": "green", "too weak": "yellow", "broken": "bold red", "says nothing": "dim"}


def tables(results: Checked | Calibrated) -> list[Table]:
    """The figures."""
    return [_tried(results)] if isinstance(results, Calibrated) else _checked(results)


def words(results: Checked | Calibrated) -> str:
    """What they mean, the test and its level, and what is proven beside them."""
    if isinstance(results, Calibrated):
        if results.noise is None or results.plan is None:
            return f"No noise passes, not even the largest that was tried. {results.tried[0].verdict}"
        epsilon = _epsilon(results.plan.guarantee().epsilon)
        return (
            f"The smallest noise that passed is {results.noise:.4g}: with it the plan is ε = {epsilon}. That nothing "
            "was memorised in a few runs proves nothing; the guarantee is what is proven, and may ask for more noise."
        )
    proven = results.plan.guarantee()
    plan = (
        f"The plan itself is ε = {_epsilon(proven.epsilon)} at δ = {proven.delta:.3g} for each {proven.unit}. A check "
        "that passes is a unit test, and proves nothing; what is proven is the guarantee."
    )
    return "\n".join([*(str(verdict) for _, verdict, _, _ in _rows(results)), "", plan])


def write(folder: Path, results: Checked | Calibrated) -> None:
    """check.json, and the figures as PNG and SVG where matplotlib is installed."""
    try:
        storage.make_folder(folder)
        storage.replace(folder / "check.json", json.dumps(json_values(results.to_dict()), ensure_ascii=False))
    except OSError as error:
        raise ConfigError(f"the check cannot be written to {folder}: {error}") from error
    if isinstance(results, Calibrated) or not can_picture():
        return
    for ending in ("png", "svg"):
        if results.memorisation is not None:
            save_picture(
                folder / f"memorisation.{ending}", plots.memorisation(results.memorisation, results.generalisation)
            )
        if results.patterns is not None:
            save_picture(folder / f"patterns.{ending}", plots.patterns(results.patterns))


def _rows(results: Checked) -> list[tuple[str, Verdict, float, str]]:
    """Each check: what it is, its verdict, the epsilon of what was run, and how it was without privacy."""
    rows: list[tuple[str, Verdict, float, str]] = []
    if results.memorisation is not None:
        memory = results.memorisation
        name = f"random labels on noise, {memory.examples:,} examples"
        rows.append((name, memory.verdict, memory.epsilon, _mean(memory.verdict.plain)))
    if results.generalisation is not None:
        gap = results.generalisation
        name = f"{gap.data}: what was trained on, against what was not (chance)"
        rows.append((name, gap.verdict, gap.epsilon, f"gap {gap.plain_gap:.1%}"))
    if results.patterns is not None:
        users = results.patterns
        name = f"one user's pattern, {users.users:,} users"
        rows.append((name, users.verdict, users.epsilon, _mean(users.verdict.plain)))
    return rows


def _checked(results: Checked) -> list[Table]:
    table = _table("check", "private", "without privacy", "chance", "allowed", "ε of the check", "verdict")
    for name, verdict, epsilon, plain in _rows(results):
        shares = f"{verdict.mean:.1%}", plain, f"{verdict.chance:.1%}", f"{verdict.ceiling:.1%}"
        table.add_row(name, *shares, _epsilon(epsilon), _word(verdict))
    if results.patterns is None:
        return [table]
    sweep = _table("records with the pattern", "private", "without privacy")
    for point in (p for p in results.patterns.points if p.private):
        plain = [p.mean for p in results.patterns.of(point.where, private=False) if p.patterns == point.patterns]
        sweep.add_row(f"{point.where} {point.patterns:,}", f"{point.mean:.1%}", *(f"{p:.1%}" for p in plain))
    return [table, sweep]


def _tried(results: Calibrated) -> Table:
    table = _table("noise", "found", "chance", "allowed in the check", "verdict", "ε of the plan")
    for tried, epsilon in sorted(zip(results.tried, results.epsilons, strict=True), key=lambda pair: pair[0].noise):
        verdict = tried.verdict
        shares = f"{verdict.mean:.1%}", f"{verdict.chance:.1%}", f"{verdict.ceiling:.1%}"
        table.add_row(f"{tried.noise:.4g}", *shares, _word(verdict), _epsilon(epsilon))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=SIMPLE_HEAD, header_style="bold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _word(verdict: Verdict) -> Text:
    return Text(verdict.word, _STYLES[verdict.word])


def _mean(values: tuple[float, ...]) -> str:
    return f"{math.fsum(values) / len(values):.1%}" if values else ""


def _epsilon(value: float) -> str:
    return round_up(value) if value < 1e4 else f"{value:.1e}"
