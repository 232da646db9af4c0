"""The papers at their own size: cases of `--full`, the cheapest evidence that decides something first.

A rule of PLAN takes cases of an experiment, and says how many seeds they have, when their turn is, and how many seconds
of one core a training takes (measured on shorter ones; the queue's status is only as good).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from discreet import papers
from jobs import Job

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """Cases of an experiment that `takes` says yes to: for so many seeds, at a priority, each with an estimate."""

    paper: str
    experiment: str
    priority: float
    seconds: float | Callable[[Case], float]
    seeds: int = 1
    takes: Callable[[Case], bool] = lambda case: True


def has(**fields: Any) -> Callable[[Case], bool]:
    """Cases with these values; of a tuple, one of them."""

    def takes(case: Case) -> bool:
        return all(case.get(k) in v if isinstance(v, tuple) else case.get(k) == v for k, v in fields.items())

    return takes


def both(*all_of: Callable[[Case], bool]) -> Callable[[Case], bool]:
    """Cases that all of them take."""
    return lambda case: all(takes(case) for takes in all_of)


def whole(case: Case) -> bool:
    """Nothing is held out."""
    return not case.get("held_out")


CLIPPED = has(method=("DP-SGD", "Gaussian, KS"))
KS = has(method="Student-t, encoded, KS")


def as_published(case: Case) -> bool:
    """Figure 4's own two ways of clipping, at figure 1's norm."""
    return (
        case["form"] == "paper"
        and case["doubled"] == "nothing"
        and case.get("norm", 2.0) == 2.0
        and "held_out" not in case
    )


PRINTED = has(method="Algorithm 1 as printed")
FITTED = has(method="Student-t, fitted envelope, KS")
DP_SGD = has(method="DP-SGD")
BOTH = ("paper", "dp-sgd")
ONE_RATE = both(whole, has(learning_rate=0.15))


def figures(case: Case) -> bool:
    """000's figures: c, k, and of the other reading of k one value."""
    return case["method"] in BOTH and (case["c"] == 1.0 or case["k"] == 1.0 or case["k"] == 4.0)


PADDED = has(input="padded", loss="cross-entropy")
DISTANCES = has(method=("Gaussian, Wasserstein", "Gaussian, Cramér-von Mises", "Gaussian, Kuiper"))


def _row(case: Case) -> bool:
    """One of table 1's own rows, as published."""
    return case["form"] in ("ordinary", "paper") or (case["form"] == "clipped" and case["activation"] == "relu")


PLAN = (
    # 002: minutes
    Rule("002", "table-1", 10, 20, 3, both(_row, whole, has(rate=0.1))),
    Rule("002", "table-1", 12.5, 17, 1, both(_row, has(held_out=True))),
    Rule("002", "table-1", 20, 20, 3, both(_row, whole, has(rate=(0.01, 0.03, 0.3)))),
    Rule("002", "table-1", 26, 20, 1, both(lambda c: not _row(c), whole, has(rate=(0.03, 0.1, 0.3)))),
    Rule("002", "readings", 12.2, 8, 1, both(PADDED, has(reading=("sum", "per layer", "line 7")))),
    Rule("002", "readings", 12.3, 8, 3, both(PADDED, has(reading=("per layer", "sum"), rate=0.1))),
    Rule("002", "readings", 12.4, 8, 1, has(attacked=True)),
    Rule("002", "readings", 24, 8, 1),
    # 001
    Rule("001", "noise-levels", 12, 560, 1, has(level="small", input="pca")),
    Rule("001", "noise-levels", 12.45, 190, 1, has(level=("medium", "large", "none"), input="pca")),
    Rule("001", "noise-levels", 23, 190, 3, has(level="medium", input="pca")),
    Rule("001", "noise-levels", 23, 55, 3, has(level="large", input="pca")),
    Rule("001", "noise-levels", 23, 60, 3, has(level="none")),
    Rule("001", "noise-levels", 30, 560, 3, has(level="small", input="pca")),
    Rule("001", "accuracy-epsilon", 18, 22, 1, has(held_out=True)),
    Rule("001", "accuracy-epsilon", 25.5, 170, 1, has(held_out=False)),
    Rule("001", "noise-levels", 50, 300, 1, has(input="pixels")),
    Rule("001", "optimizers", 51, 190, 1),
    Rule("001", "clipping-norm", 52, 190, 1),
    # 004: at one learning rate first, then at others
    Rule("004", "denoising-mnist", 13, 840, 1, both(CLIPPED, has(held_out=False, learning_rate=0.15))),
    Rule("004", "denoising-mnist", 14, 2600, 1, both(KS, has(held_out=False, learning_rate=0.15))),
    Rule("004", "denoising-mnist", 15, 840, 1, both(CLIPPED, has(held_out=False, learning_rate=2.0))),
    Rule("004", "denoising-mnist", 21, 85, 3, both(CLIPPED, has(held_out=True))),
    Rule("004", "gradients", 24.2, 100, 1),
    Rule("004", "denoising-mnist", 28, 520, 1, both(KS, has(held_out=True))),
    Rule("004", "denoising-mnist", 29, 520, 1, both(PRINTED, has(held_out=True))),
    Rule("004", "denoising-mnist", 31, 2600, 1, both(PRINTED, has(held_out=False, learning_rate=0.15))),
    Rule("004", "denoising-mnist", 30, 520, 1, both(FITTED, has(held_out=True, learning_rate=(0.15, 0.5, 2.0)))),
    Rule("004", "denoising-mnist", 32, 85, 1, both(DISTANCES, has(held_out=True))),
    Rule("004", "denoising-mnist", 35, 2600, 1, both(KS, has(held_out=False, learning_rate=2.0))),
    # 004: budgets on both data sets
    Rule("004", "budgets", 34, 840, 1, both(DP_SGD, has(data="mnist", budget=(2.5, 5.0), learning_rate=(0.15, 1.0)))),
    Rule("004", "budgets", 36, 2000, 1, both(DP_SGD, has(data="cifar10", budget=3.6, learning_rate=(0.15, 0.5)))),
    Rule("004", "budgets", 36.5, 2000, 1, both(DP_SGD, has(data="cifar10", budget=5.0, learning_rate=0.5))),
    Rule("004", "budgets", 37, 5300, 1, both(KS, has(data="cifar10", budget=3.6, learning_rate=0.15))),
    Rule("004", "budgets", 47, 2600, 1, both(KS, has(data="mnist", budget=2.5, learning_rate=1.0))),
    Rule("004", "budgets", 48, 840, 1, both(DP_SGD, has(data="mnist", batch_size=1024))),
    # 000: the filter against DP-SGD
    Rule("000", "mnist", 16, 1150, 1, has(method=BOTH, epochs=60)),
    Rule("000", "mnist", 22, 95, 3, has(held_out=True, method=BOTH, learning_rate=0.15)),
    Rule("000", "mnist", 22.5, 95, 1, has(held_out=True)),
    Rule("000", "rnn", 23.5, 60, 1),
    Rule("000", "mnist", 25, 500, 1, both(whole, has(method=BOTH, learning_rate=(0.6, 2.4)))),
    Rule("000", "mnist", 27, 570, 1, both(ONE_RATE, figures)),
    Rule("000", "mnist", 27.5, 400, 1, both(ONE_RATE, has(method="radial"))),
    Rule("000", "membership", 31.5, 900, 1, has(data="mnist")),
    Rule("000", "cifar10", 33, 155, 3, has(held_out=True, method=BOTH, learning_rate=0.15)),
    Rule("000", "cifar10", 33.1, 155, 1, has(held_out=True, method=BOTH)),
    Rule("000", "cifar10", 33.2, 800, 1, both(ONE_RATE, figures)),
    Rule("000", "cifar10", 38, 800, 1, both(whole, has(method=BOTH, learning_rate=0.6))),
    Rule("000", "membership", 38.5, 1300, 1, has(data="cifar10")),
    # 003: the norm is searched for, then both ways of clipping at full length; seeds of six epochs
    Rule("003", "figure-2", 19, 140, 1),
    Rule("003", "figure-2", 43, 140, 3),
    Rule("003", "figure-4", 24.5, 420, 1, has(held_out=10_000)),
    Rule("003", "figure-4", 33.5, 1050, 1, both(as_published, has(epochs=6))),
    Rule("003", "table-1", 33.7, 1050, 1, has(epochs=6, form="paper", batch_size=1024)),
    Rule("003", "figure-4", 34.5, 10_200, 1, both(as_published, has(epochs=60))),
    Rule("003", "table-1", 39, 5_200, 1, has(epochs=30, form="paper", batch_size=1024)),
    Rule("003", "figure-1", 40, lambda c: 620 if c["form"] == "none" else 1050, 1, has(epochs=6)),
    Rule("003", "figure-4", 41, 1050, 3, both(as_published, has(epochs=6))),
    Rule("003", "figure-4", 41.5, 1050, 1, has(epochs=6, doubled=("beta", "noise on norms"))),
    Rule("003", "alpha", 32.5, 50, 1),
    Rule("003", "figure-3", 42, 3_100, 1),
    Rule("003", "figure-4", 46, 1050, 1, lambda c: c["form"] == "sound" and c["epochs"] == 6 and c.get("norm", 2) == 2),
    Rule("003", "figure-1", 49, 6_200, 1, has(epochs=60, data="noise", form="none")),
)


def jobs(done: Mapping[str, Any]) -> Iterator[Job]:
    """All of them, whatever is done; a case that two rules take has the earlier turn."""
    found: dict[str, Job] = {}
    for rule in PLAN:
        experiment = papers.experiment(rule.paper, rule.experiment)
        for case in map(dict, experiment.cases("full")):
            if not rule.takes(case):
                continue
            seconds = rule.seconds(case) if callable(rule.seconds) else rule.seconds
            for seed in range(rule.seeds):
                job = Job(
                    f"{rule.paper}/{rule.experiment}/full.jsonl",
                    case,
                    seed,
                    f"{experiment.run.__module__}:{experiment.run.__name__}",
                    rule.priority + seed / 10,
                    seconds,
                    rule.paper,
                )
                if job.key not in found or found[job.key].priority > job.priority:
                    found[job.key] = job
    yield from found.values()
