"""Which tool finds which planted fault: the faults and tools of tests/planted.py, every tool on every fault.

python benchmarks/faults.py
"""

import platform
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from planted import FAULTS, LEVEL, TOOLS, UNBROKEN, found


def main():
    torch.set_num_threads(1)
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, one thread, torch {torch.__version__}; level {LEVEL:g}\n"
    )
    print(f"| fault | {' | '.join(TOOLS)} |")
    print(f"| --- |{' --- |' * len(TOOLS)}")
    for fault in (*FAULTS, *UNBROKEN):
        marks = ["found" if found(fault, tool) else "" for tool in TOOLS]
        print(f"| {fault.name} | {' | '.join(marks)} |", flush=True)


if __name__ == "__main__":
    main()
