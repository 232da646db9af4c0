"""What `discreet reproduce` measured, as docs/papers.md shows it.

    discreet reproduce 000 && ... && discreet reproduce 004
    python benchmarks/papers.py [--results results] [--size usual] [--update]
    python benchmarks/papers.py --results benchmarks/measured --update       # from what was measured for the page

Prints one table, every result that the papers state, ours in their form and in a sound one, and both epsilons; then a
section a paper. With --update they are written into docs/papers.md between their marks, and the charts into
docs/figures; what stands there of a paper of which nothing has been measured in that folder stays as it is.
"""

import argparse
import json
import sys
from pathlib import Path

from race.machine import about, sentence
from race.pages import fill

from discreet import papers
from discreet.papers import running, showing
from discreet.papers.experiment import Results
from discreet.report.charts import svg

DOCS = Path(__file__).parent.parent / "docs"


def measured(number, results, size):
    """Each experiment of a paper with the results of the cases that it has now, and the file that they are in."""
    for experiment in papers.paper(number).experiments:
        file, cases = results / number / experiment.name / f"{size}.jsonl", [dict(c) for c in experiment.cases(size)]
        yield experiment, Results(r for r in running.read(file) if r.case in cases), file


def section(number, results, size, figures):
    """The part of the page about a paper."""
    lines, flag = [], {"usual": ""}.get(size, f" --{size}")
    for experiment, found, file in measured(number, results, size):
        lines += [f"### {experiment.name}: {experiment.title}", "", experiment.about, ""]
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
        day = max(json.loads(line)["at"] for line in file.read_text().splitlines())
        seeds, seconds = len({r.seed for r in found}), sum(r.seconds for r in found)
        lines += [
            f"`discreet reproduce {number} {experiment.name}{flag}`, {day}: {len(found)} trainings, {seeds} "
            f"seed{'' if seeds == 1 else 's'}, {seconds:,.0f} seconds of CPU time.",
            "",
        ]
    return "\n".join(lines).rstrip()


def stated(number, results, size):
    """The rows of a paper in the table of all: its number and the experiment, then as showing.HEAD."""
    for experiment, found, _ in measured(number, results, size):
        for row in showing.stated_rows(experiment, found):
            cells = (f"{number} {experiment.name}", *row)
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def table(rows):
    """All papers' rows under one head."""
    head = ("paper", *showing.HEAD)
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--size", choices=("quick", "usual", "full"), default="usual")
    parser.add_argument("--update", action="store_true", help="write docs/papers.md and docs/figures")
    arguments = parser.parse_args()
    figures = DOCS / "figures" if arguments.update else None
    machine = sentence(about("papers", sys.argv[1:]))
    print(machine)
    page, rows, sections = (DOCS / "papers.md").read_text().splitlines(), [], {}
    for number in papers.FILES:
        if any(found for _, found, _ in measured(number, arguments.results, arguments.size)):
            rows += stated(number, arguments.results, arguments.size)
            sections[number] = section(number, arguments.results, arguments.size, figures)
        else:
            rows += [line for line in page if line.startswith(f"| {number} ")]
    print(f"\n{table(rows)}")
    for number, found in sections.items():
        print(f"\n## {number}\n\n{found}")
    if arguments.update:
        for name, found in {"machine": machine, "all": table(rows), **sections}.items():
            fill("docs/papers.md", name, found, kind="paper")


if __name__ == "__main__":
    main()
