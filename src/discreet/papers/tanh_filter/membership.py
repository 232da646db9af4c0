"""000's future work: membership inference on models trained with the filter, with DP-SGD and without privacy.

LiRA (Carlini et al. 2022) with 16 shadow models: 10,000 images, each model trained on a half of them, and a target
whose half is to be told from the other. Beside it what one release gives away of one image with pixels in range: its
filtered gradient is lengthened by changing pixels, and epsilon follows from its norm and the noise, exactly.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from discreet import Plan
from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.audit.membership import confidence, halves, judge, lira
from discreet.models import build
from discreet.papers.experiment import ONE_SEED, Case, Experiment, Measured, Place, Results, Size
from discreet.papers.held_out import COPY
from discreet.papers.train_case import Pair, ordinary, pairs, private, seeded
from discreet.stages import presets as methods

METHODS = {"none": "without privacy", "paper": "the paper's filter", "dp-sgd": "DP-SGD"}
NOISE, DELTA, BATCH = 1.1, 1e-5, 256


def cases(size: Size) -> list[Case]:
    """Each method on each data set."""
    examples, models, epochs, data = {
        "quick": (1_000, 4, 4, ("mnist",)),
        "usual": (2_000, 8, 10, ("mnist",)),
        "full": (10_000, 16, 30, ("mnist", "cifar10")),
    }[size]
    return [
        {"data": name, "method": method, "candidates": examples, "models": models, "epochs": epochs, "rate": 0.15}
        for name in data
        for method in METHODS
    ]


def run(case: Case, place: Place) -> Measured:
    """Train shadow models and a target, each kept when it has been trained; then the attack."""
    (x, y), test = pairs(case["data"])
    x, y = x[: case["candidates"]], y[: case["candidates"]]
    shadows = halves(len(x), case["models"], seed=place.seed)
    target = np.random.default_rng(place.seed + 1).permutation(len(x)) < len(x) // 2
    told = np.empty((len(shadows) + 1, len(x)))
    measured: Measured = {}
    model = nn.Module()
    for i, members in enumerate([*shadows, target]):
        folder = place.folder / f"model-{i}"
        confidences, weights = folder / "confidence.npy", folder / "weights.pt"
        folder.mkdir(parents=True, exist_ok=True)
        last = i == len(shadows)
        if last or not confidences.is_file():
            rows = torch.from_numpy(np.flatnonzero(members))
            # a seed of its own for each model, and steps told as parts of all
            at = Place(folder, 1000 * place.seed + i, _part_of(place, i, len(told)))
            model, measured = _trained(case, (x[rows], y[rows]), test, at)
            np.save(confidences, confidence(_logits(model, x).double().numpy(), y.numpy()))
            torch.save(model.state_dict(), weights)
        told[i] = np.load(confidences)
    attack = judge("LiRA", lira(told[-1], told[:-1], shadows), target, false_positives=(0.01,))
    point = attack.points[0]
    return measured | {
        "true_positives": point.true_positives,
        "low": point.low,
        "high": point.high,
        "auc": attack.auc,
        **(one_release(model, x, y, case) if case["method"] != "none" else {}),
    }


def _part_of(place: Place, index: int, count: int) -> Callable[[int, int], None]:
    return lambda done, total: place.tell(index * total + done, count * total)


def plan_of(case: Case, examples: int, parameters: int) -> Plan:
    """Table I's noise on a half of the images."""
    length: dict[str, Any] = {
        "examples": examples,
        "batch_size": BATCH,
        "epochs": case["epochs"],
        "noise": NOISE,
        "delta": DELTA,
    }
    if case["method"] == "dp-sgd":
        return methods.dp_sgd(**length)
    return methods.tanh_filter(**length, parameters=parameters, form="paper")


def _trained(case: Case, train: Pair, test: Pair, place: Place) -> tuple[nn.Module, Measured]:
    shape = tuple(train[0].shape[1:])
    model = seeded(lambda: build("cnn", shape, 10), place)
    training: dict[str, Any] = {"learning_rate": case["rate"]}
    if case["method"] == "none":
        return model, ordinary(model, train, test, place, epochs=2 * case["epochs"], batch_size=64, **training)
    plan = plan_of(case, len(train[0]), sum(p.numel() for p in model.parameters()))
    return model, private(model, train, test, plan, place, evaluate_every=float(case["epochs"]), **training)


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(2000)])


def one_release(model: nn.Module, x: Tensor, y: Tensor, case: Case, *, tried: int = 8, steps: int = 40) -> Measured:
    """The longest bounded gradient of an image with pixels from 0 to 1, and epsilon of one release with it or without.

    Images that are misclassified most are changed by steps along the sign of the gradient of that length.
    """
    weights = {n: p.detach() for n, p in model.named_parameters()}
    filtered = case["method"] == "paper"

    def length(image: Tensor, label: Tensor) -> Tensor:
        def loss(values: dict[str, Tensor]) -> Tensor:
            return F.cross_entropy(functional_call(model, values, (image[None],)), label[None])

        gradient = torch.cat([g.flatten() for g in grad(loss)(weights).values()])
        return (gradient.tanh() if filtered else gradient).norm()

    worst = _logits(model, x).log_softmax(1).gather(1, y[:, None])[:, 0].argsort()[:tried]
    starts = [(x[i], y[i]) for i in worst] + [(torch.ones_like(x[0]), y[i]) for i in worst[:1]]
    best = 0.0
    for image, label in starts:
        for _ in range(steps):
            image = (image + 0.05 * grad(length)(image, label).sign()).clamp(0, 1)
        best = max(best, float(length(image, label)))
    norm = best if filtered else min(best, 1.0)
    return {"admissible_norm": norm, "one_release": cost([Event(1.0, NOISE / max(norm, 1e-6), 1)], DELTA).epsilon}


def shown(results: Results, data: str) -> str:
    """What the attack found on a data set, by method."""
    told = []
    for method, name in METHODS.items():
        some = results.where(data=data, method=method)
        if some:
            low, high = min(some.values("low")), max(some.values("high"))
            rate = some.mean("true_positives")
            told.append(f"{name} {rate:.1%} ({low:.1%} to {high:.1%}), area {some.mean('auc'):.3f}")
    return f"True positives at 1 % false ones: {'; '.join(told)}" if told else "queued"


def found(results: Results) -> str:
    """Both attacks, in words."""
    parts = [f"{data}: {shown(results, data)}." for data in results.settings("data")]
    for data in results.settings("data"):
        for method in ("paper", "dp-sgd"):
            some = results.where(data=data, method=method)
            if some and math.isfinite(some.mean("one_release")):
                parts.append(
                    f"{data}, {METHODS[method]}: an image with pixels in range has a bounded gradient of norm "
                    f"{some.mean('admissible_norm'):.2f}, so one release has epsilon {some.mean('one_release'):.2f} "
                    f"at delta 1e-5 against somebody who knows all other images."
                )
    return " ".join(parts)


EXPERIMENT = Experiment(
    "membership",
    "Membership inference, the paper's future work",
    f"{COPY}LiRA with 16 shadow models, each trained on a half of 10,000 images for 30 epochs (60 without "
    "privacy) at Table I's noise and learning rate 0.15, and a target; less below size full. The attacker "
    "scores all images. Beside it what one release gives away of one image with pixels in range.",
    cases,
    run,
    found=found,
    seeds=ONE_SEED,
    needs=("mnist",),
)
