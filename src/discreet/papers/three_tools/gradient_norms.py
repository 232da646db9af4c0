"""003, figure 3: the norms of gradients over a training."""

import math
import time
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from discreet.papers.experiment import EPOCHS, Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.papers.three_tools.alexnet import alexnet, images
from discreet.papers.three_tools.verdicts import SIZE
from discreet.papers.train_case import SAVED_EVERY, keep, seeded, size_of_run
from discreet.papers.verdicts import QUEUED, Verdict
from discreet.report import Axis, Chart


def _norms_cases(size: Size) -> list[Case]:
    examples, epochs = {"quick": (2_000, 3), "usual": (4_000, 4), "full": (50_000, 30)}[size]
    return [{"examples": examples, "epochs": epochs, "rate": 0.01}]


def _norms_run(case: Case, place: Place) -> Measured:
    """Norms of a batch's gradient by tensor, each point the mean of a twelfth of the training."""
    (x, y), test = images(case["examples"])
    model = seeded(alexnet, place)
    optimizer = torch.optim.SGD(model.parameters(), lr=case["rate"], momentum=0.9)
    steps, batch = case["epochs"] * len(x) // 128, 128
    norms, order, checkpoint, saved = [], torch.randperm(0), place.folder / "checkpoint.pt", time.monotonic()
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        norms, order = state["norms"], state["order"]
    for step in range(len(norms), steps):
        order = order if len(order) >= batch else torch.randperm(len(x))
        rows, order = order[:batch], order[batch:]
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        norms.append([float(p.grad.norm()) for p in model.parameters() if p.grad is not None])
        optimizer.step()
        place.tell(step + 1, steps)
        if time.monotonic() - saved > SAVED_EVERY:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "norms": norms, "order": order}
            keep(checkpoint, state | {"random": torch.get_rng_state()})
            saved = time.monotonic()
    parts = torch.tensor(norms).tensor_split(min(12, steps))
    ends = torch.tensor([len(part) for part in parts]).cumsum(0) * batch / len(x)
    rows = [[float(end), *part.mean(0).tolist()] for end, part in zip(ends, parts, strict=True)]
    norms_over_time = torch.tensor([row[1:] for row in rows])
    change = torch.maximum(norms_over_time[0] / norms_over_time[-1], norms_over_time[-1] / norms_over_time[0])
    return {
        "names": [
            f"layer {1 + i // 2}, {name.rpartition('.')[2]}" for i, (name, _) in enumerate(model.named_parameters())
        ],
        "curve": rows,
        "change": float(change.max()),  # of the tensor whose norm changed most
        "spread": float(norms_over_time[-1].max() / norms_over_time[-1].min()),
        "accuracy": float((model(test[0][:1000]).argmax(1) == test[1][:1000]).double().mean()),
        "epsilon": None,
        **size_of_run(model, (x, y), case["epochs"], steps),
    }


def _norms_charts(results: Results) -> Sequence[Chart]:
    names = results[0].measured["names"]
    lines = tuple(results.course(name, 0, i + 1, colour=i) for i, name in enumerate(names))
    y = Axis("norm of a batch's gradient", "number", log=True)
    return [Chart("norms", "Lengths of gradients by tensor, without privacy", EPOCHS, y, lines)]


def _factor(measure: str, words: str) -> Stated:
    def verdict(results: Results) -> Verdict:
        factor = results.mean(measure)
        if math.isnan(factor):
            return QUEUED
        return Verdict("reproduces" if factor >= 2 else "refuted", f"by a factor of {factor:.1f}", (results,))

    return Stated(words, "very different" if measure == "change" else "may differ", verdict=verdict, size=SIZE)


EXPERIMENT = Experiment(
    "figure-3",
    "Lengths of gradients over a training",
    "The small AlexNet without privacy on CIFAR-10 (a JPEG copy), SGD with momentum, batches of 128; 4 epochs "
    "of 4,000 examples (3 of 2,000 with --quick, 30 of 50,000 with --full).",
    _norms_cases,
    _norms_run,
    _norms_charts,
    (
        _factor("change", "norms at the beginning and at the end"),
        _factor("spread", "norms of one tensor and of another"),
    ),
    needs=("cifar10",),
)
