"""Every paper's claims beside what is proven, as the tables of docs/claims.md.

python benchmarks/claims.py
"""

import platform
import time

from discreet import claims
from discreet.accounting.guarantee import round_up


def short(epsilon):
    return round_up(epsilon) if epsilon < 1e4 else f"{epsilon:.1e}"


def main():
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, Python {platform.python_version()}")
    for paper in claims.PAPERS:
        print(f"\n## Paper {paper}\n")
        print("| configuration | claimed | Rényi, Mironov | Rényi, improved | PLD | proven as written | verdict |")
        print("|---|---|---|---|---|---|---|", flush=True)
        reasons = {}
        for row in claims.rows(paper):
            found = claims.compute(row)
            number = reasons.setdefault(row.reason, len(reasons) + 1)
            claimed = "" if row.claimed is None else f"{row.claimed:g}"
            figures = " | ".join(short(x) for x in (found.mironov, found.improved, found.losses, found.proven))
            print(f"| {row.configuration} | {claimed} | {figures} | {row.verdict} ({number}) |", flush=True)
        print()
        for reason, number in reasons.items():
            print(f"{number}. {reason}.")


if __name__ == "__main__":
    main()
