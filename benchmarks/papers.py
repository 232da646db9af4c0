"""What `discreet reproduce` and the queue measured, as docs/papers.md shows it.

    python benchmarks/papers.py [--results benchmarks/measured] [--update]

Of every experiment the trainings of the paper's own size are taken (full.jsonl, made by benchmarks/job_queue.py or
`discreet reproduce --full`), and where there are none yet, the shorter ones (usual.jsonl), which decide nothing. Prints
what was spent, a table of headlines, one of every stated result, and a section a paper; with --update they are written
into docs/papers.md between their marks, and the charts into docs/figures.
"""

import argparse
import json
import sys
from pathlib import Path

from jobs import all_jobs
from race.machine import about, sentence
from race.pages import fill

from discreet import papers
from discreet.papers import render, running
from discreet.papers.experiment import Results
from discreet.papers.verdicts import our_size, too_small
from discreet.report.charts import svg

DOCS = Path(__file__).parent.parent / "docs"
MEASURED = Path(__file__).parent / "measured"


def measured(number, results):
    """Each experiment of a paper with the results of the cases that it has now, their size, and their file."""
    for experiment in papers.paper(number).experiments:
        for size in ("full", "usual"):
            file, cases = results / number / experiment.name / f"{size}.jsonl", list(map(dict, experiment.cases(size)))
            found = Results(r for r in running.read(file) if r.case in cases)
            if found or size == "usual":
                yield experiment, found, size, file
                break


# --- tables ----------------------------------------------------------------------------------------------------------


def share(stated, verdict):
    """How much of the paper's own compute the smallest arm of a verdict has; 1 where nothing is trained."""
    if stated.size is None:
        return 1.0
    theirs = (stated.size.epochs, stated.size.examples, stated.size.parameters)

    def part(result):
        ours = (result.measured.get(name, 0) for name in ("epochs", "examples", "parameters"))
        found = 1.0
        for mine, other in zip(ours, theirs, strict=True):
            found *= 1.0 if other is None else min(1.0, float(mine) / other)
        return found

    return min((max((part(r) for r in arm), default=0.0) for arm in verdict.arms), default=0.0)


def sceptic(stated, verdict):
    """Whether a verdict would convince one."""
    if verdict.word == "undecided":
        return "no: undecided"
    if stated.size is None:
        return "yes: it is computed, or the paper trains nothing"
    enough = [[r for r in arm if not too_small(Results([r]), stated.size)] for arm in verdict.arms]
    seeds = min(len({r.seed for r in arm}) for arm in enough)
    if seeds >= 3:
        return f"yes: {seeds} seeds at its size"
    return f"partly: {seeds} seed{'' if seeds == 1 else 's'} at its size"


def table(head, rows):
    """A table of Markdown."""
    cells = [[str(cell).replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *cells]])


def spent(results):
    """What was spent on each paper, what is left in the queue, and how much of its own compute each statement has."""
    jobs, rows, totals = all_jobs({}), [], [0.0, 0.0]
    for number in papers.FILES:
        hours, shares, decided, done = 0.0, [], 0, set()
        for experiment, found, size, _ in measured(number, results):
            if size == "full":
                hours += sum(r.seconds for r in found) / 3600
                done |= {running._key(r.case, r.seed) for r in found}
            for stated in experiment.stated:
                verdict = stated.judged(found)
                shares.append(share(stated, verdict))
                decided += verdict.word != "undecided"
        left = sum(j.estimate for j in jobs if j.group == number and running._key(j.case, j.seed) not in done) / 3600
        totals = [totals[0] + hours, totals[1] + left]
        part = sum(shares) / len(shares)
        rows.append((number, f"{hours:.1f}", f"{left:.1f}", f"{part:.0%}", f"{decided} of {len(shares)}"))
    rows.append(("all", f"{totals[0]:.1f}", f"{totals[1]:.1f}", "", ""))
    head = (
        "paper",
        "core-hours at its own size",
        "queued, core-hours",
        "of its own compute, mean over statements",
        "decided",
    )
    return table(head, rows)


def headlines(results):
    """The few statements that each paper is known for."""
    rows = []
    for number in papers.FILES:
        for experiment, found, _, _ in measured(number, results):
            cells = render.stated_rows(experiment, found)
            for stated, row in zip(experiment.stated, cells, strict=True):
                if stated.headline:
                    verdict = stated.judged(found)
                    what, theirs, published, sound, *_ = row
                    size = our_size(verdict.arms) or "none yet"
                    sizes = "the paper trains nothing" if stated.size is None else f"{size}; theirs {stated.size}"
                    rows.append((number, what, theirs, published, sound, sizes, str(verdict), sceptic(stated, verdict)))
    head = ("paper", "stated", "theirs", "ours, their form", "ours, sound", "size and seeds", "verdict", "convincing?")
    return table(head, rows)


def everything(results):
    """All that is stated."""
    rows = [
        (f"{number} {experiment.name}", *row)
        for number in papers.FILES
        for experiment, found, _, _ in measured(number, results)
        for row in render.stated_rows(experiment, found)
    ]
    return table(("paper", *render.HEAD), rows)


# --- sections --------------------------------------------------------------------------------------------------------


def section(number, results, figures):
    """The part of the page about a paper."""
    lines = []
    for experiment, found, size, file in measured(number, results):
        flag = " --full" if size == "full" else ""
        lines += [f"### {experiment.name}: {experiment.title}", "", experiment.about, ""]
        if not found:
            lines += [f"Not run yet: `discreet reproduce {number} {experiment.name} --full`.", ""]
            continue
        if size == "usual" and any(stated.size is not None for stated in experiment.stated):
            lines += [
                "What follows is from trainings that are shorter and smaller than the paper's: it decides nothing.",
                "",
            ]
        for chart in experiment.charts(found):
            if not any(series.points for series in chart.series if series.look != "hollow"):
                continue
            name = f"paper-{number}-{experiment.name}-{chart.key}.svg"
            lines += [f"![{chart.title}](figures/{name})", ""] + ([chart.note, ""] if chart.note else [])
            if figures is not None:
                (figures / name).write_text(svg(chart, alone=True), encoding="utf-8")
        if words := experiment.found(found):
            lines += [words, ""]
        kept = [json.loads(line) for line in file.read_text().splitlines()]
        commits = sorted({values["commit"][:7] for values in kept if "commit" in values})
        by = f", at commit{'' if len(commits) == 1 else 's'} {', '.join(commits)}" if commits else ""
        seeds, seconds = len({r.seed for r in found}), sum(r.seconds for r in found)
        lines += [
            f"`discreet reproduce {number} {experiment.name}{flag}`, {max(values['at'] for values in kept)}: "
            f"{len(found)} trainings, {seeds} seed{'' if seeds == 1 else 's'}, {seconds:,.0f} seconds of CPU time{by}.",
            "",
        ]
    return "\n".join(lines).rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=MEASURED)
    parser.add_argument("--update", action="store_true", help="write docs/papers.md and docs/figures")
    arguments = parser.parse_args()
    figures = DOCS / "figures" if arguments.update else None
    if figures is not None:
        for old in figures.glob("paper-*.svg"):
            old.unlink()
    parts = {
        "machine": sentence(about("papers", sys.argv[1:])),
        "spent": spent(arguments.results),
        "headlines": headlines(arguments.results),
        "all": everything(arguments.results),
        **{number: section(number, arguments.results, figures) for number in papers.FILES},
    }
    for name, text in parts.items():
        print(f"\n## {name}\n\n{text}")
        if arguments.update:
            fill("docs/papers.md", name, text, kind="paper")


if __name__ == "__main__":
    main()
