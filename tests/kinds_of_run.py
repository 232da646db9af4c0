"""Small runs of every kind, for disk_faults.py to break, and what must be true of them however they were broken."""

import json
from dataclasses import dataclass

import torch

from discreet.ledger import storage
from discreet.ledger.extract import EXTRACT
from discreet.ledger.verification import verify
from discreet.runs.config import from_dict
from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.runs.run import resume, train
from discreet.runs.trained.model import load

STEPS = 4


def images(rows=24):
    """Data for a config to name."""
    draw = torch.Generator().manual_seed(0)
    return torch.rand(rows, 1, 6, 6, generator=draw), torch.arange(rows) % 2


def settings(**sections):
    values = {
        "data": {"name": "kinds_of_run:images"},
        "model": {"name": "linear"},
        "budget": {"noise": 4.0, "steps": STEPS, "batch_size": 8},
        "optimizer": {"learning_rate": 0.1},
        "evaluation": {"every": 0.7},
        "run": {"checkpoint_every": 0.0, "preflight": False},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    return from_dict(values)


def stages(**more):
    sampling, bound = {"type": "Poisson"}, {"type": "Clip", "norm": 1.0}
    return {"sampling": sampling, "bound": bound, "noise": {"type": "Gaussian"}} | more


FEATURES = {
    "extractors": {"fine": {"kind": "patches", "atoms": 4, "size": 3, "images": 4, "grid": 1}},
    "cache": False,
    "workers": 1,
}
BUDGET = {"noise": None, "epsilon": 3.0}
SCHEMA = """guessed = ["age"]
[age]
range = "private"
[job]
categories = "private"
[y]
classes = ["no", "yes"]
"""
TABLE = {"data": {"label": "y"}, "budget": BUDGET}
SHARED = {"dataset": "images", "dataset_epsilon": 50.0, "dataset_delta": 1e-5}
KINDS = {
    "plain": {},
    "adaptive": {"method": {"name": "adaptive_clipping"}},
    "scheduled": {"stages": stages(noise_schedule=[1.5, 0.8])},
    "shuffled": {"stages": stages(sampling={"type": "Shuffled"})},
    "allocation": {"stages": stages(sampling={"type": "Allocation", "batches": 2})},
    "weighted": {"stages": stages(sampling={"type": "WeightedPoisson", "sizes": [12, 7], "batch_sizes": [4, 4]})},
    "bands": {"method": {"name": "band_mf", "settings": {"bands": 2}}},
    "buffers": {"method": {"name": "dp_ftrl", "settings": {"buffers": 1}}, "budget": {"batch_size": 6}},
    "reserved": {"run": {"reserve": 3}},
    "audited": {"audit": {"canaries": 6, "score": "sum"}},
    "federated": {"federated": {"users": 12}, "budget": {"batch_size": 4}},
    "features": {"features": FEATURES, "budget": BUDGET, "method": {"settings": {"norm": 0.3}}},
    "table": TABLE | {"run": {"alone": True}},
    "data set": {"run": SHARED},
    "table on a data set": TABLE | {"run": SHARED},
    "two on a data set": {"run": SHARED},
}


# their files are written as a plain run's
ALIKE = ("adaptive", "scheduled", "shuffled", "weighted", "bands", "buffers")


def people(path):
    """A table of people beside its schema, which marks columns as private; its path."""
    if not path.exists():
        rows = [f"{20 + i},{'cook' if i % 3 else 'clerk'},{'yes' if i > 15 else 'no'}\n" for i in range(30)]
        path.write_text("age,job,y\n" + "".join(rows))
        path.with_name("people.schema.toml").write_text(SCHEMA)
    return str(path)


@dataclass(frozen=True)
class Kind:
    """A kind of run: how it is begun and gone on with in a folder, and what its ledger must say."""

    name: str

    @property
    def shared(self):
        """Whether its ledger is a data set's."""
        return "run" in KINDS[self.name] and "dataset" in KINDS[self.name]["run"]

    @property
    def asks(self):
        """Whether it asks something of the data beside training."""
        return KINDS[self.name].get("budget") is BUDGET

    def config(self, place):
        """What is run; a table lies beside the folder, as no ledger says what is in it."""
        sections = dict(KINDS[self.name])
        if "label" in sections.get("data", {}):
            sections["data"] = sections["data"] | {"name": people(place.parent / "people.csv")}
        if self.shared:
            sections["run"] = sections["run"] | {"ledger": str(self.ledger(place))}
        return settings(**sections)

    def ledger(self, place):
        return place / "all.jsonl" if self.shared else place / "a" / "ledger.jsonl"

    def begin(self, place):
        """The run, or two: the second one within a step of the first, and both counted in one file."""
        if self.name == "two on a data set":
            inner = lambda step: self._go_on(place, "b") if step == 2 else None  # noqa: E731
            self._go_on(place, "a", Watch(step=inner))
        else:
            self._go_on(place, "a")

    def go_on(self, place):
        """Whatever was begun, to its end; the last one first."""
        for name in ("b", "a") if self.name == "two on a data set" else ("a",):
            self._go_on(place, name)

    @property
    def beside_it(self):
        """Whether another run of the same plan is made beside it when it was broken."""
        return self.shared and self.name != "two on a data set"

    def beside(self, place):
        """Another run of the same plan, where several count in one file."""
        if self.beside_it:
            self._go_on(place, "b")

    def _go_on(self, place, name, watch=None):
        if (place / name / "config.toml").exists():
            resume(place / name, watch)
        else:
            train(self.config(place), place / name, watch)

    def check(self, place, seen):
        """Raise unless everything that was seen is counted, nothing was spent twice, and nothing was left behind."""
        found = verify(self.ledger(place))
        counted = {run.run: run for run in found.runs}
        queries = {words[1] for words in seen if words[0] == "query"}
        assert len(queries) <= len(found.queries), f"other statistics for one count: {queries}"
        steps = [words for words in seen if words[0] != "query"]
        assert len(set(steps)) == len(steps), f"a step was released twice: {steps}"
        for run, _ in steps:
            made = [int(step) for name, step in steps if name == run]
            assert run in counted, f"run {run} was seen, and is not counted"
            assert max(made) <= counted[run].released, f"{made} were seen, {counted[run].released} are counted"
        for run in found.runs:
            assert run.released <= run.planned == STEPS
        for folder in (p for p in place.iterdir() if p.is_dir()):
            self._check_folder(folder)
        left = [p for p in place.rglob("*") if storage.SCRATCH.fullmatch(p.name) or p.name in ("coins", "noise.json")]
        locks = [p for p in place.glob("all.jsonl.*.lock") if p.name.count(".") > 2]
        assert not left + locks, f"left behind: {left + locks}"

    def _check_folder(self, folder):
        end = read_end(folder)
        assert end is not None, f"{folder} has not ended"
        assert end.finished
        found = verify(folder)
        assert not found.absent
        if self.asks:
            assert end.guarantee.epsilon <= BUDGET["epsilon"]
            assert len(found.queries) == sum(1 for p in folder.parent.iterdir() if p.is_dir())
        trained = load(folder)
        assert trained.guarantee == end.guarantee
        if self.shared:
            extract = verify(folder / EXTRACT)
            (own,) = (run for run in extract.runs if run.run == found.own)
            assert own.guarantee == end.guarantee
            assert own.head == end.anchor
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert records[-1]["step"] <= STEPS


def warm(kind, place):
    """Have everything imported and computed once that a fork is to have already."""
    torch.set_num_threads(1)
    place.mkdir()
    kind.begin(place)
    kind.go_on(place)
    kind.check(place, [])
