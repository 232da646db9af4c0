"""What the queue runs: a job is a name, a function with its case and seed, a priority and an estimate.

jobs/papers.py        the papers at their own size (all cases of `discreet reproduce --full` that are affordable)
jobs/correlated.py    what correlated noise gains in accuracy, at learning rates chosen for each

Another file joins by a function `jobs(done)` that returns Jobs, and by its name in MODULES; `done` has the lines of
results by their key, for jobs that depend on what came out before. A function that a job names is
called with the case and a discreet.papers.experiment.Place: a folder that is there again after a kill, the seed, and
`tell(done, total)`, to be called every second or so. It returns a dictionary of plain values. A long job keeps a
checkpoint in that folder and goes on from it (discreet.papers.train_case does).
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MODULES = ("jobs.papers", "jobs.correlated")


@dataclass(frozen=True)
class Job:
    """One measurement: `function` ("module:name") of the case and a place; its line goes to `results` under measured.

    Lower priorities come first. `estimate` is in seconds of one core. `group` is what core-hours are added up by.
    """

    results: str  # such as 002/table-1/full.jsonl
    case: Mapping[str, Any]
    seed: int
    function: str
    priority: float
    estimate: float
    group: str

    @property
    def key(self) -> str:
        """The same for the same case and seed of the same file, whatever the commit."""
        text = json.dumps([self.results, sorted(self.case.items()), self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """In words."""
        words = ", ".join(f"{k} {v}" for k, v in self.case.items())
        return f"{self.results.removesuffix('.jsonl')}: {words}, seed {self.seed}"

    def load(self) -> Callable[[Mapping[str, Any], Any], dict[str, Any]]:
        """The function itself."""
        module, _, name = self.function.partition(":")
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found


def all_jobs(done: Mapping[str, Any]) -> list[Job]:
    """Every job of every file that is known of with these results, those that come first in front."""
    found = {job.key: job for module in MODULES for job in importlib.import_module(module).jobs(done)}
    return sorted(found.values(), key=lambda job: job.priority)
