"""Results as tables: for the terminal, and as Markdown for the docs. Both read the same rows as the JSON file has."""

import statistics
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
FAILED = {"fails": "does not run"}  # other words stand for themselves


def grouped(rows: Iterable[Row]) -> dict[tuple[str, int], dict[str, Row]]:
    """The rows of each model and number of threads, by competitor."""
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["threads"]), {})[row["competitor"]] = row
    return found


def middle(row: Row, clock: str) -> float:
    return statistics.median(row[clock])


def ratio(row: Row, base: Row | None, clock: str) -> float | None:
    """How many times the step of non-private SGD, medians of rounds that were run in turns."""
    if base is None or base["status"] != "ran" or row["status"] != "ran":
        return None
    return middle(row, clock) / middle(base, clock)


def said(row: Row) -> str:
    return FAILED.get(row["status"], row["status"])


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def memory(row: Row) -> str:
    """The peak, and what later steps need where the first one, with probes and caches to fill, needs far more."""
    peak = f"{row['peak']:.0f} MiB"
    return f"{peak} at first, {row['later']:.0f} later" if row["first"] > 1.5 * row["later"] + 50 else peak


HEAD = ["model, batch", "competitor", "wall ms", "least", "x SGD", "CPU ms", "least", "x SGD", "peak MiB", ""]


def lines(rows: Iterable[Row]) -> list[list[str]]:
    """One line a competitor: medians and least values of wall time and of CPU time, ratios, memory, what to know."""
    found = []
    for (model, _), group in grouped(rows).items():
        base = group.get("SGD")
        for name, row in group.items():
            if row["status"] != "ran":
                why = f"{said(row)}: {row['why']}"
                found.append([model, name, *[""] * 7, why])
                continue
            cells = [model, name]
            for clock in ("wall", "cpu"):
                cells += [f"{1e3 * middle(row, clock):.2f}", f"{1e3 * min(row[clock]):.2f}"]
                cells.append(times(ratio(row, base, clock)))
            at_first = memory(row) if "later" in memory(row) else ""
            found.append([*cells, f"{row['peak']:.0f}", "; ".join(filter(None, [at_first, row["note"]]))])
    return found


def plain(head: list[str], body: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    left = {0, 1, len(head) - 1}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, *body]
    )


def markdown(head: list[str], body: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])


def overview(rows: list[Row], threads: int, clock: str) -> str:
    """One line a model, one column a competitor: times the step of SGD, and peak memory."""
    rows = [row for row in rows if row["threads"] == threads]
    names = [n for n in dict.fromkeys(row["competitor"] for row in rows) if any_ran(rows, n)]
    marks: dict[str, int] = {}

    def cell(row: Row | None, base: Row | None) -> str:
        if row is None:
            return ""
        note = row.get("note") or (row["why"] if row["status"] in ("cannot", "fails") else "")
        mark = f" ({marks.setdefault(note, len(marks) + 1)})" if note else ""
        if row["status"] != "ran":
            return said(row) + mark
        if row is base or base is None or base["status"] != "ran":
            return f"{1e3 * middle(row, clock):.3g} ms, {memory(row)}{mark}"
        return f"{times(ratio(row, base, clock))}x, {memory(row)}{mark}"

    body = [
        [model, *(cell(group.get(name), group.get("SGD")) for name in names)]
        for (model, _), group in grouped(rows).items()
    ]
    table = markdown(["model, batch", *names], body)
    return "\n".join([table, *(["", *(f"{i}. {note}" for note, i in marks.items())] if marks else [])])


def any_ran(rows: list[Row], name: str) -> bool:
    return any(row["status"] != "missing" for row in rows if row["competitor"] == name)
