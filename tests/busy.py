"""Run a command beside so many processes that do nothing but compute: `python tests/busy.py 4 python -m pytest`."""

import os
import subprocess
import sys

BUSY = "while True: pass"


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        return subprocess.call(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    sys.exit(main())
