"""Every paper's claims beside what is proven, as `discreet plan --paper` computes them.

    python benchmarks/claims.py [--update]

Prints a table a paper. With --update they are written into the pages docs/papers/*.md, between their marks.
"""

import argparse
import platform
import time
from pathlib import Path

from discreet.accounting.guarantee import round_up
from discreet.papers import claims

PAGES = Path(__file__).parent.parent / "docs" / "papers"


def short(epsilon):
    return round_up(epsilon) if epsilon < 1e4 else f"{epsilon:.1e}"


def table(paper):
    lines = [
        f"Printed by `discreet plan --paper {paper}` and `python benchmarks/claims.py` "
        f"({time.strftime('%Y-%m-%d')}, {platform.machine()}, Python {platform.python_version()}). Epsilon for each "
        'example under Poisson sampling, delta as the paper has it. "Rényi, Mironov" is the papers\' conversion; '
        '"proven as written" is the algorithm as it is described, with its true sensitivity and sampling.',
        "",
        "| configuration | claimed | Rényi, Mironov | Rényi, improved | PLD | proven as written | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    reasons = {}
    for row in claims.rows(paper):
        found = claims.compute(row)
        number = reasons.setdefault(row.reason, len(reasons) + 1)
        claimed = "" if row.claimed is None else f"{row.claimed:g}"
        figures = " | ".join(short(x) for x in (found.mironov, found.improved, found.losses, found.proven))
        lines.append(f"| {row.configuration} | {claimed} | {figures} | {row.verdict} ({number}) |")
    return "\n".join([*lines, "", *(f"{number}. {reason}." for reason, number in reasons.items())])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    for paper in claims.PAPERS:
        found = table(paper)
        print(f"\n## Paper {paper}\n\n{found}", flush=True)
        if arguments.update:
            (page,) = PAGES.glob(f"{paper}-*.md")
            before, rest = page.read_text().split(f"<!-- claims: {paper} -->")
            after = rest.split("<!-- /claims -->")[1]
            page.write_text(f"{before}<!-- claims: {paper} -->\n{found}\n<!-- /claims -->{after}")


if __name__ == "__main__":
    main()
