"""What correlated noise gains in accuracy at equal epsilon, in trainings: its figures are docs/correlated.md's.

Of each setting and arm, learning rates are tried without the last training rows, and chosen by the accuracy on those;
while the best one is at an edge, the next beyond it is tried. Then the arm is trained on all rows at that rate, from
several seeds, and the test set is looked at. So the later jobs of an arm are there only when its earlier ones are done.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import discreet
from discreet import federated, methods
from discreet.data.made_up import sentences
from discreet.models import build
from discreet.papers.experiment import Measured, Place
from discreet.papers.train_case import OPTIMIZERS, Pair, pairs, seeded
from discreet.training import evaluate, fit
from jobs import Job

Case = Mapping[str, Any]
HELD_OUT = {"mnist": 10_000, "fashion-mnist": 10_000, "sentences": 2_000}
SEEDS = (0, 1, 2, 3, 4)
FEW = 2.0  # between two learning rates that are tried
FARTHEST = 4  # how many rates may be tried beyond those at the start
SAVED_EVERY = 45.0  # seconds between checkpoints: what a kill can cost


@dataclass(frozen=True)
class Setting:
    """A training at equal epsilon by several arms, each with the learning rates that are tried at first."""

    case: Case
    rates: Mapping[str, tuple[float, ...]]
    priority: float
    estimate: float
    function: str


def images(data: str, epsilon: float, epochs: int, priority: float) -> Setting:
    """A network for images, with batches of 256."""
    rates = {"DP-SGD": (1.0, 2.0, 4.0), "bands": (2.0, 4.0, 8.0), "BLT": (1.0, 2.0, 4.0)}
    case = {"data": data, "model": "cnn", "epsilon": epsilon, "epochs": epochs, "batch_size": 256}
    return Setting(case, rates, priority, 15.0 * epochs, "central")


def users(epsilon: float, priority: float) -> Setting:
    """MNIST's rows dealt to 6,000 users of ten each, who come when they come: at most 3 times, 30 rounds apart."""
    case = {"data": "mnist", "model": "mlp", "epsilon": epsilon, "users": 6_000, "rounds": 90, "most": 3}
    rates = {"independent": (0.5, 1.0, 2.0), "BLT": (2.0, 4.0, 8.0), "bands": (2.0, 4.0, 8.0)}
    return Setting(case, rates, priority, 40.0, "rounds")


def words(epsilon: float, priority: float) -> Setting:
    """A transformer that has learned one language, and learns another one in one epoch of 10,000 sentences."""
    case = {"data": "sentences", "model": "next_word", "epsilon": epsilon, "epochs": 1, "batch_size": 100}
    rates = dict.fromkeys(("DP-SGD", "bands", "BLT"), (0.5, 1.0, 2.0))
    return Setting(case, rates, priority, 20.0, "central")


SETTINGS = (  # what decides most first: the cheapest of each kind, then the middle budget, then the others, then length
    users(8.0, 11),
    images("mnist", 3.0, 2, 12),
    images("fashion-mnist", 3.0, 2, 13),
    words(8.0, 14),
    images("mnist", 8.0, 2, 15),
    images("fashion-mnist", 8.0, 2, 16),
    images("mnist", 1.0, 2, 17),
    images("fashion-mnist", 1.0, 2, 18),
    users(3.0, 19),
    words(3.0, 20),
    images("mnist", 3.0, 10, 70),
    images("fashion-mnist", 3.0, 10, 71),
    *(images(data, epsilon, 10, 72) for epsilon in (8.0, 1.0) for data in ("mnist", "fashion-mnist")),
)
LATER = {"central": "BLT", "rounds": "bands"}  # a third arm, which comes after the others of all settings


def jobs(done: Mapping[str, Mapping[str, Any]]) -> Iterator[Job]:
    """What can be done now, given the lines of results by their key."""
    for setting in SETTINGS:
        for arm, rates in setting.rates.items():
            late = 60 * (arm == LATER[setting.function])
            tried = [tuned(setting, arm, rate, late) for rate in rates]
            found = {job.case["learning_rate"]: done[job.key]["measured"] for job in tried if job.key in done}
            for _ in range(FARTHEST):
                if len(found) < len(tried):
                    break
                best = max(found, key=lambda rate: found[rate]["validation"])
                beyond = {min(found): best / FEW, max(found): best * FEW}
                if best not in beyond:
                    break
                tried.append(tuned(setting, arm, beyond[best], late))
                found |= {beyond[best]: done[tried[-1].key]["measured"]} if tried[-1].key in done else {}
            yield from tried
            if len(found) == len(tried):
                best = max(found, key=lambda rate: found[rate]["validation"])
                case = {**setting.case, "arm": arm, "learning_rate": best}
                yield from (_job(setting, case, seed, late + 0.5 + seed / 100) for seed in SEEDS)


def tuned(setting: Setting, arm: str, rate: float, late: float) -> Job:
    """A training of which only the held-out rows are looked at."""
    return _job(setting, {**setting.case, "arm": arm, "learning_rate": rate, "held_out": True}, 0, late)


def _job(setting: Setting, case: Case, seed: int, later: float) -> Job:
    what = f"correlated/{setting.function}.jsonl"
    function = f"jobs.correlated:{setting.function}"
    return Job(what, case, seed, function, setting.priority + later, setting.estimate, "correlated")


# --- the trainings ---------------------------------------------------------------------------------------------------


def parts(case: Case, seed: int) -> tuple[Pair, Pair]:
    """What is trained on, and what is looked at: the test part, or the last training rows."""
    if case["data"] == "sentences":
        made = sentences(rows=10_000, tested=5_000, seed=1 + seed)
        train, test = made.train, made.test
    else:
        train, test = pairs(case["data"])
    if not case.get("held_out"):
        return train, test
    kept = len(train[0]) - HELD_OUT[case["data"]]
    return (train[0][:kept], train[1][:kept]), (train[0][kept:], train[1][kept:])


def central(case: Case, place: Place) -> Measured:
    """A network on examples, by DP-SGD, by bands with cyclic coins, or by BLT in one fixed order."""
    train, test = parts(case, place.seed)
    length: Any = {"examples": len(train[0]), "batch_size": case["batch_size"], "epochs": case["epochs"]}
    make: Any = {"DP-SGD": methods.dp_sgd, "bands": methods.band_mf, "BLT": methods.dp_ftrl}[case["arm"]]
    plan = make(**length, epsilon=case["epsilon"], delta=1e-5)
    model = seeded(lambda: build("cnn", train[0].shape[1:], 10), place) if case["model"] == "cnn" else spoken(place)
    optimizer = OPTIMIZERS["sgd"](model.parameters(), lr=case["learning_rate"])
    fitted = fit(model, train, plan, test=test, optimizer=optimizer, **_kept(plan, place))
    return _measured(case, place, plan, model, test, fitted, len(train[0]))


def spoken(place: Place) -> torch.nn.Module:
    """A small transformer that was taught on public sentences whose words mean something else: 1 is 2, and so on."""
    model = seeded(lambda: build("discreet.models.text:next_word", (8,), 32, words=32, width=32), place)
    x, y = sentences(rows=20_000, tested=1, seed=1_000 + place.seed).train
    x, y = (x + 1) % 32, (y + 1) % 32
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def rounds(case: Case, place: Place) -> Measured:
    """DP-FedAvg without coins: independent noise, BLT, or as many bands as rounds between two of a user's."""
    train, test = parts(case, place.seed)
    count = len(train[0]) * case["users"] // 60_000  # ten rows each, also where some are held out
    apart = case["rounds"] // case["most"]
    bands = {"independent": 1, "bands": apart, "BLT": None}[case["arm"]]
    plan = methods.dp_fedavg(
        users=count, users_per_round=count // apart, rounds=case["rounds"], separation=apart, most=case["most"],
        bands=bands, epsilon=case["epsilon"], delta=1e-5, norm=0.5,
    )  # fmt: skip
    people = federated.Users.dealt(*train, count, seed=place.seed)
    model = seeded(lambda: build("mlp", train[0].shape[1:], 10), place)
    optimizer = OPTIMIZERS["sgd"](model.parameters(), lr=case["learning_rate"])
    local = federated.Local(learning_rate=0.1, epochs=1, batch_size=5)
    fitted = federated.fit(model, people, plan, local=local, test=test, optimizer=optimizer, **_kept(plan, place))
    return _measured(case, place, plan, model, test, fitted, count)


def _kept(plan: discreet.Plan, place: Place) -> dict[str, Any]:
    """What a training that is killed goes on from, and how often that was: the noise before it is not taken back."""
    with (place.folder / "begun").open("a") as file:
        file.write("x")
    return {
        "checkpoint": place.folder / "checkpoint",
        "checkpoint_every": SAVED_EVERY,
        "evaluate_rows": 2000,
        "evaluate_every": plan.sampling.epochs_in(plan.steps),
        "preflight": False,
        "on_step": lambda step: place.tell(step, plan.steps),
    }


def _measured(
    case: Case, place: Place, plan: discreet.Plan, model: torch.nn.Module, test: Pair, fitted: Any, units: int
) -> Measured:
    accuracy = evaluate(model, test, rows=2000)["accuracy"]
    noise: Any = plan.mechanism.noise
    return {
        "validation" if case.get("held_out") else "accuracy": accuracy,
        "epsilon": fitted.guarantee.epsilon,
        "delta": plan.delta,
        "noise": noise.scale,
        "bands": getattr(noise, "bands", None),
        "rms_error": plan.rms_error,
        "restarts": (place.folder / "begun").stat().st_size - 1,
        "epochs": plan.sampling.epochs_in(plan.steps),
        "steps": plan.steps,
        "units": units,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
