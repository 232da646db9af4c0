"""The machine that a figure belongs to: processor, memory, versions, and the allocator's settings."""

import os
import platform
import shlex
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "opacus", "jax", "jax-privacy", "numpy")
GIB = 2**30

# A fresh page costs about as much as clearing it. Left alone, glibc asks the kernel for every large tensor and returns
# it at once, so that a step is charged for the pages of its temporary values; how many differs from library to library.
ALLOCATORS = {
    "default": {},
    "tuned": {
        "MALLOC_MMAP_THRESHOLD_": str(64 * GIB),
        "MALLOC_TRIM_THRESHOLD_": str(64 * GIB),
        "MALLOC_ARENA_MAX": "1",  # the arenas of other threads, which jax computes in, cannot hold large values
    },
}


def environment(threads: int, allocator: str) -> dict[str, str]:
    """The environment of every worker: the same number of threads and the same allocator for all."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    here = str(Path(__file__).parent.parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    count = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return inherited | count | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | ALLOCATORS[allocator]


def cores(threads: int) -> set[int]:
    """The cores that every worker is held to, for libraries that have no setting for threads."""
    return set(sorted(os.sched_getaffinity(0))[-threads:])


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def memory() -> dict[str, int]:
    """Bytes of memory of the machine, and how much of it is free for use."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    return {"total": found["MemTotal"], "available": found["MemAvailable"]}


def versions() -> dict[str, str]:
    import discreet

    found = {"python": platform.python_version(), "discreet": discreet.__version__}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def about(script: str, words: list[str], **settings: Any) -> dict[str, Any]:
    """All that a figure needs beside it: date, machine, versions, command without paths, settings."""
    words = [Path(word).name if "/" in word else word for word in words]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{processor()}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory()['total'] / GIB:.0f} GiB",
        "versions": versions(),
        "command": f"python benchmarks/{script}.py {shlex.join(words)}".rstrip(),
        **settings,
    }


def sentence(found: dict[str, Any]) -> str:
    """Machine, date, versions and command in one line, to stand beside figures."""
    have = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if number != "not installed")
    return f"{found['date']}, {found['machine']}; {have}; `{found['command']}`."


def summary(found: dict[str, Any]) -> str:
    """Date, machine and the versions that decide most, where the commands stand elsewhere."""
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("torch", "opacus"))
    return f"{found['date']}, {found['machine']}, {versions}"
