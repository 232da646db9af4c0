"""What `discreet reproduce` measured, as docs/papers.md shows it.

    discreet reproduce 000 && ... && discreet reproduce 004
    python benchmarks/papers.py [--results results] [--size usual] [--update]

Prints a table a paper: every result that it states, ours in its form and in a sound one, and both epsilons. With
--update the tables are written into docs/papers.md between their marks, and the charts into docs/figures; a paper of
which nothing has been measured there stays as it is.
"""

import argparse
import sys
import time
from pathlib import Path

from race.machine import about, sentence
from race.pages import fill

from discreet import papers
from discreet.papers import running, showing
from discreet.report.charts import svg

DOCS = Path(__file__).parent.parent / "docs"


def measured(number, results, size):
    """Each experiment of a paper with its results, and when they were written."""
    for experiment in papers.paper(number).experiments:
        file = results / number / experiment.name / f"{size}.jsonl"
        yield experiment, running.read(file), file


def section(number, results, size, figures):
    """The part of the page about a paper."""
    lines, flag = [], {"usual": ""}.get(size, f" --{size}")
    for experiment, found, file in measured(number, results, size):
        lines += [f"### {experiment.name}: {experiment.title}", "", experiment.about, ""]
        rows = showing.stated_rows(experiment, found)
        if rows:
            lines += [f"| {' | '.join(showing.HEAD)} |", f"|{' --- |' * len(showing.HEAD)}"]
            lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows] + [""]
        if not found:
            lines += [f"Not run yet: `discreet reproduce {number} {experiment.name}{flag}`.", ""]
            continue
        for chart in experiment.charts(found):
            name = f"paper-{number}-{experiment.name}-{chart.key}.svg"
            lines += [f"![{chart.title}](figures/{name})", ""] + ([chart.note, ""] if chart.note else [])
            if figures is not None:
                (figures / name).write_text(svg(chart, alone=True), encoding="utf-8")
        if words := experiment.found(found):
            lines += [words, ""]
        day = time.strftime("%Y-%m-%d", time.localtime(file.stat().st_mtime))
        seeds, seconds = len({r.seed for r in found}), sum(r.seconds for r in found)
        lines += [
            f"`discreet reproduce {number} {experiment.name}{flag}`, {day}: {len(found)} trainings, {seeds} "
            f"seed{'' if seeds == 1 else 's'}, {seconds:,.0f} seconds of CPU time.",
            "",
        ]
    return "\n".join(lines).rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--size", choices=("quick", "usual", "full"), default="usual")
    parser.add_argument("--update", action="store_true", help="write docs/papers.md and docs/figures")
    arguments = parser.parse_args()
    figures = DOCS / "figures" if arguments.update else None
    machine = sentence(about("papers", sys.argv[1:]))
    print(machine)
    for number in papers.FILES:
        if not any(results for _, results, _ in measured(number, arguments.results, arguments.size)):
            print(f"\n## {number}\n\nnothing is in {arguments.results / number}")
            continue
        found = section(number, arguments.results, arguments.size, figures)
        print(f"\n## {number}\n\n{found}", flush=True)
        if arguments.update:
            fill("docs/papers.md", number, found, kind="paper")
    if arguments.update:
        fill("docs/papers.md", "machine", machine, kind="paper")


if __name__ == "__main__":
    main()
