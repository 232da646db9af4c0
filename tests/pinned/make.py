"""Write what the present version releases to pinned.json: `PYTHONPATH=src:tests python tests/pinned/make.py`.

Only after a change that is meant to release something else, and after reading which cases changed.
"""

import json
from pathlib import Path

import torch
from pinned.pinned_cases import CASES, fingerprint, kept

PLACE = Path(__file__).with_name("pinned.json")


def main():
    torch.set_num_threads(1)
    lines = [f"{json.dumps(name)}: {json.dumps(kept(run()))}" for name, run in CASES.items()]
    text = ",\n".join(lines)
    PLACE.write_text(f'{{"arithmetic": {json.dumps(fingerprint())},\n"released": {{\n{text}\n}}}}\n')


if __name__ == "__main__":
    main()
