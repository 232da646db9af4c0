"""docs/architectures.md: what was measured of architectures, as tables and what they come to."""

import statistics
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
START = "<!-- by benchmarks/architectures.py from here -->"
SOUND, MIXING = ("transformers", "by hand"), "mixing"


def update(kept, wide):
    """Write the tables under what the page says itself."""
    lines = [*page(kept), *(at_width(wide) if wide else ())]
    PAGE.write_text(PAGE.read_text().split(START)[0] + f"{START}\n\n" + "\n".join(lines) + "\n")


def at_width(kept):
    """A section for models of a realistic width."""
    about = kept["about"]
    rows = {name: row for name, row in kept.items() if name != "about"}
    yield from ("", "## At width 256", "")
    yield f"Texts of 64 tokens, 16 in a batch; {about['date']}, {about['machine']}, torch {about['torch']},"
    yield f"transformers {about['transformers']}: `{about['command']}`, then `--update`."
    yield "What could not be made so wide is left out."
    yield ""
    yield from outcomes("transformers", rows)
    yield from ("", *table(rows))


def page(kept):
    about = kept["about"]
    rows = {name: row for name, row in kept.items() if name != "about"}
    groups = {group: {n: r for n, r in rows.items() if r["group"] == group} for group in (*SOUND, MIXING)}
    yield f"{about['date']}, {about['machine']}, torch {about['torch']}, transformers {about['transformers']}: "
    yield f"`{about['command']}`, then `--update`."
    yield ""
    yield from summary(groups)
    for group, title in zip(SOUND, ("Architectures of transformers", "Networks written by hand"), strict=True):
        yield from ("", f"## {title}", "", *table(groups[group]))
    yield from ("", "## What mixes examples", "")
    yield "| name | with a loss that can be called | losses as a tensor, to the engine alone |"
    yield "| --- | --- | --- |"
    for name, row in groups[MIXING].items():
        yield f"| {name} | {row['outcome']} | {row.get('bare', row['outcome'])} |"
    yield from ("", "## Not tried", "")
    yield "What could not be made tiny by the names of its fields, or takes inputs that the script does not make:"
    yield ""
    yield ", ".join(f"`{name}`" for name, row in groups["transformers"].items() if row["outcome"] == "error") + "."


def summary(groups):
    """How many of each outcome, and the spread of ratios."""
    for group in SOUND:
        yield from outcomes(group, groups[group])
    mixing = groups[MIXING].values()
    tested = sum(row["outcome"] == "refused" for row in mixing)
    alone = sum(row.get("bare", row["outcome"]) == "refused" for row in mixing)
    told = f"with a loss that the library can call {tested} refused, by the engine alone {alone}"
    yield f"- **mixing**: {len(mixing)} tried; {told}."


def outcomes(group, rows):
    """How many of a group's rows have each outcome, and the spread of their ratios."""
    tried = {name: row for name, row in rows.items() if row["outcome"] != "error"}
    yield (
        f"- **{group}**: {len(tried)} tried. "
        + ", ".join(
            f"{sum(row['outcome'] == kind for row in tried.values())} {words}"
            for kind, words in (
                ("exact", "exact in batches, with bare tensors of losses"),
                ("one at a time", "exact one example at a time, with a warning"),
                ("refused", "refused"),
                ("mixes", "accepted although examples alone have other gradients"),
                ("wrong", "wrong"),
            )
        )
        + "."
    )
    ratios = {name: row["ratio"] for name, row in tried.items() if "ratio" in row}
    if ratios:
        ordered = sorted(ratios, key=ratios.get)
        ninth = ratios[ordered[int(0.9 * len(ordered))]]
        worst = ", ".join(f"{name} {ratios[name]:.1f}" for name in ordered[:-11:-1])
        memory = statistics.median(row["memory"] for row in tried.values() if "memory" in row)
        yield (
            f"  Times beside SGD's step, of {len(ratios)} that were timed: "
            f"median {statistics.median(ratios.values()):.2f}, nine in ten under "
            f"{ninth:.2f}; the ten slowest: {worst}. Median of memory: {memory:.2f}."
        )


def table(rows):
    """A line for each of what was tried."""
    yield "| name | | exact to | time | memory | kernels | ops without a rule |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    yield from (line(name, row) for name, row in rows.items() if row["outcome"] != "error")


def line(name, row):
    outcome = {"exact": "exact", "one at a time": "one at a time", "refused": "refused: " + row.get("why", "")[:90]}
    words = outcome.get(row["outcome"], f"**{row['outcome']}**")
    notes = [words, *(["draws at random"] if row.get("random") else []), *(["found anew"] if not found(row) else [])]
    kernels = ", ".join(f"{count} {kernel}" for kernel, count in row.get("kernels", {}).items())
    slow = ", ".join(f"{count} {op}" for op, count in row.get("slow", {}).items())
    error = f"{row['error']:.0e}" if "error" in row else ""
    times = [f"{row[key]:.2f}" if key in row else "" for key in ("ratio", "memory")]
    return f"| {name} | {', '.join(notes)} | {error} | {times[0]} | {times[1]} | {kernels} | {slow} |"


def found(row):
    """Whether what one step taught holds for the next."""
    return row.get("learned", True)
