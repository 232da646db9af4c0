"""What 000 and 004 share: a network small enough for hundreds of trainings, and settings chosen on held-out rows.

Images are halved first (means of 2 x 2 pixels), which looks at one image at a time. Where something is to be chosen,
the last 10,000 training rows are kept out of the training, and the choice is made on them, never on the test set.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from discreet.models import build
from discreet.papers.experiment import Place, Results
from discreet.papers.train_case import Pair, pairs, seeded
from discreet.report import Series
from discreet.training import evaluate

RATES = {"mnist": 256 / 60_000, "cifar10": 256 / 50_000}  # of the papers: batches of 256
SHOWN = {"mnist": "MNIST", "cifar10": "CIFAR-10 (JPEG copy)"}
COPY = "CIFAR-10 is a JPEG copy here. "
_HELD = 10_000


class Data:
    """A data set for a network: what it is trained on, what choices are made on (or nothing), and the test set."""

    def __init__(self, name: str, network: str, *, choose: bool) -> None:
        train, test = (_sized(part, network) for part in pairs(name))
        held = min(_HELD, len(train[0]) // 5) if choose else 0
        trained = len(train[0]) - held
        self.train: Pair = (train[0][:trained], train[1][:trained])
        self.held: Pair | None = (train[0][trained:], train[1][trained:]) if choose else None
        self.test, self.name, self._network = test, name, network

    @property
    def sampled(self) -> dict[str, int]:
        """How many examples there are, and the batch that keeps the paper's sampling rate."""
        examples = len(self.train[0])
        return {"examples": examples, "batch_size": max(1, round(examples * RATES.get(self.name, 0.05)))}

    def model(self, place: Place) -> nn.Module:
        """The network, with the seed's first weights."""
        channels, height, width = self.train[0].shape[1:]
        if self._network != "small":
            return seeded(lambda: build(self._network, (channels, height, width), 10), place)
        return seeded(lambda: _small(channels, (height - 3) // 2 * ((width - 3) // 2)), place)

    def validated(self, model: nn.Module) -> dict[str, float]:
        """The accuracy on held-out rows, if there are any."""
        return {} if self.held is None else {"validation": evaluate(model, self.held, rows=2000)["accuracy"]}


def size_of(model: nn.Module) -> int:
    """How many parameters it has."""
    return sum(p.numel() for p in model.parameters())


def gradients(model: nn.Module, rows: Pair, count: int = 2000) -> Iterator[Tensor]:
    """Each example's gradient, flat, of the first `count` examples, some at a time."""
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (x[None],)), y[None])

    for x, y in zip(rows[0][:count].split(250), rows[1][:count].split(250), strict=True):
        by_parameter = vmap(grad(loss), (None, 0, 0))(weights, x, y)
        yield torch.cat([g.flatten(1) for g in by_parameter.values()], 1)


def chosen(results: Results, *names: str) -> Results:
    """Of these results, those with the values of the named fields that did best on held-out rows, mean over seeds."""
    settings = dict.fromkeys(tuple(r.case[n] for n in names) for r in results)
    groups = [results.where(**dict(zip(names, values, strict=True))) for values in settings]
    return max(groups, key=Results.held_out, default=Results())


def rate_of(results: Results, among: Results) -> str:
    """The learning rate of these results, and whether it is the lowest or highest that was tried.

    Where it is, a better one may lie beyond.
    """
    rate, tried = results[0]["learning_rate"], among.settings("learning_rate")
    edge = len(tried) > 1 and rate in (min(tried), max(tried))
    return f"learning rate {rate:g}{', at the edge of those tried' if edge else ''}"


def in_steps(series: Series, data: str) -> Series:
    """A course over epochs as one over training steps, which is what the papers' figures have."""
    steps = 1 / RATES.get(data, 0.05)
    spread = tuple((x * steps, low, high) for x, low, high in series.spread)
    return replace(series, points=tuple((x * steps, y) for x, y in series.points), spread=spread)


def _sized(part: Pair, network: str) -> Pair:
    x, y = part
    return (F.avg_pool2d(x, 2), y) if network == "small" else (x, y)


def _small(channels: int, places: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 8, 5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8 * places, 10))
