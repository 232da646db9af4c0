"""Secrets in sequences (Carlini et al. 2019): is one that was trained on likelier than others it might have been?

Paper 003 leaves models of sequences to the future; this is the check for them. Records are made-up text with a
structure that can be learned. Some of them hold a secret each: a beginning of its own, then tokens drawn at random.
After the training each secret is ranked among others that were drawn as it was. Without its record its rank is uniform:
it is in the first tenth with probability 1/10, whatever the model. With it the guarantee allows at most 1 - f(1/10).
Exposure is log2 of how many candidates there are for each that ranks as high.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet._check import check_int
from discreet.audit.exposure import among
from discreet.audit.sanity.setting import Optimizer, Pair, Tell, known, quiet
from discreet.audit.sanity.verdict import Retrained, Verdict
from discreet.errors import ConfigError
from discreet.nn import LSTM
from discreet.stages.plan import Plan
from discreet.training.loop import fit

FIRST = 0.1  # a secret is known where it is in the first tenth
_BEGINNING, _SYMBOLS = 3, 10  # tokens that a secret's record begins with; of how many symbols a secret is made


class Reader(nn.Module):
    """A small model of sequences: the next token from those before, [rows, length] to [rows, vocabulary, length]."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.recurrent = LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every next token; the classes come second, as torch's cross-entropy has them."""
        return self.head(self.recurrent(self.tokens(tokens))[0]).transpose(1, 2)


@dataclass(frozen=True)
class SequenceSetting:
    """A model of sequences and a plan: `make()` returns one that takes tokens [rows, length] to scores [rows,
    vocabulary, length]. `secret` is how many tokens a secret has, and `secrets` how many records hold one.
    """

    plan: Plan
    vocabulary: int = 32
    length: int = 16
    secret: int = 6
    secrets: int = 20
    make: Callable[[], nn.Module] | None = None
    optimizer: Optimizer = lambda model: torch.optim.Adam(model.parameters(), lr=0.003)

    def __post_init__(self) -> None:
        check_int("vocabulary", self.vocabulary, least=_SYMBOLS + 2)
        check_int("secret", self.secret, least=2)
        if self.length < _BEGINNING + self.secret:
            raise ConfigError(
                f"a record of {self.length} tokens has no room for {_BEGINNING} to begin with and a secret of "
                f"{self.secret}; make it {_BEGINNING + self.secret} or longer."
            )
        check_int("secrets", self.secrets, least=1, most=min(self.vocabulary**2, known(self.plan.sampling)))

    def model(self) -> nn.Module:
        """A new one."""
        return Reader(self.vocabulary) if self.make is None else self.make()

    def text(self, rows: int) -> Tensor:
        """Made-up records: tokens that go up by 1, 2 or 3.

        Args:
            rows: how many records.
        """
        steps = torch.randint(1, 4, (rows, self.length))
        return (torch.randint(self.vocabulary, (rows, 1)) + steps.cumsum(1)) % self.vocabulary

    def hidden(self, secrets: Tensor, index: Tensor) -> Tensor:
        """Records that hold secrets, each with the beginning that its index has.

        Args:
            secrets: one for each record.
            index: the number of each record's beginning.
        """
        records = self.text(len(secrets))
        records[:, 0] = self.vocabulary - 1
        records[:, 1], records[:, 2] = index % self.vocabulary, index // self.vocabulary
        records[:, _BEGINNING : _BEGINNING + self.secret] = secrets
        return records

    def draw(self, count: int) -> Tensor:
        """Secrets, drawn at random."""
        return torch.randint(_SYMBOLS, (count, self.secret))

    def perplexity(self, model: nn.Module, secrets: Tensor, index: int) -> Tensor:
        """The log-perplexity of secrets behind one beginning.

        Args:
            model: the network.
            secrets: the candidates.
            index: the number of the beginning.
        """
        records = self.hidden(secrets, torch.full((len(secrets),), index))[:, : _BEGINNING + self.secret]
        with torch.no_grad():
            each = F.cross_entropy(model(records[:, :-1]), records[:, 1:], reduction="none")
        return each[:, _BEGINNING - 1 :].sum(1).double()


@dataclass(frozen=True)
class Secrets(Retrained):
    """How many secrets were known, with privacy and without, and their mean exposure in bits."""

    told: ClassVar[str] = "exposure"

    epsilon: float
    delta: float
    records: int
    candidates: int

    def __str__(self) -> str:
        told = [f"{sum(bits) / len(bits):.1f}" for bits in (self.private, self.plain)]
        nobody = 1 / math.log(2)
        return (
            f"{self.verdict} Mean exposure {told[0]} bits with privacy, {told[1]} without; {nobody:.1f} where nothing "
            f"is known, {math.log2(self.candidates + 1):.1f} at most."
        )


def secrets(
    setting: SequenceSetting,
    *,
    runs: int = 3,
    candidates: int = 500,
    tolerance: float = 0.1,
    level: float = 0.05,
    tell: Tell = quiet,
) -> Secrets:
    """Train on text with secrets, and compare with chance and with the guarantee's ceiling.

    Args:
        setting: model, plan and text.
        runs: how many times anew.
        candidates: how many others the secret might have been.
        tolerance: how far above chance a plan is too weak.
        level: the chance of a false alarm.
        tell: called as tell(what, done, total) while it goes on.
    """
    check_int("runs", runs, least=1)
    check_int("candidates", candidates, least=10)
    proven = setting.plan.fit_to(setting.model()).guarantee()
    outcomes, exposures = [], []
    for i in range(runs):
        share, bits = _one(setting, candidates, lambda step, steps, i=i: tell(f"secrets, private {i + 1}", step, steps))
        outcomes.append(share)
        exposures.append(bits)
    plain, bits = _one(setting, candidates, lambda s, n: tell("secrets, without privacy", s, n), private=False)
    ceiling = proven.tradeoff().power(FIRST) if np.isfinite(proven.epsilon) else 1.0
    verdict = Verdict(tuple(outcomes), (plain,), FIRST, ceiling, tolerance, level)
    records = known(setting.plan.sampling)
    return Secrets(verdict, tuple(exposures), (bits,), proven.epsilon, proven.delta, records, candidates)


def _one(
    setting: SequenceSetting, candidates: int, tell: Callable[[int, int], None], *, private: bool = True
) -> tuple[float, float]:
    """One training: the share of secrets in the first tenth, and their mean exposure."""
    drawn = setting.draw(setting.secrets)
    rows = known(setting.plan.sampling)
    records = torch.cat([setting.text(rows - len(drawn)), setting.hidden(drawn, torch.arange(len(drawn)))])
    model = setting.model()
    data = records[:, :-1], records[:, 1:]
    (_privately if private else _plainly)(setting, model, data, tell)
    model.eval()
    first, bits = 0, 0.0
    for i, secret in enumerate(drawn):
        others = setting.perplexity(model, torch.cat([secret[None], setting.draw(candidates)]), i).numpy()
        exposure = among(float(others[0]), others[1:])
        first += exposure.likelier + 1 <= FIRST * (candidates + 1)
        bits += exposure.exposure
    return first / len(drawn), bits / len(drawn)


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none").mean(1)


def _privately(setting: SequenceSetting, model: nn.Module, data: Pair, tell: Callable[[int, int], None]) -> None:
    plan = setting.plan
    fit(
        model,
        data,
        plan,
        loss=_loss,
        optimizer=setting.optimizer(model),
        on_step=lambda step: tell(step, plan.steps),
    )


def _plainly(setting: SequenceSetting, model: nn.Module, data: Pair, tell: Callable[[int, int], None]) -> None:
    """As many steps on batches as large, shuffled; neither bound nor noise."""
    optimizer, steps, size = setting.optimizer(model), setting.plan.steps, math.ceil(setting.plan.sampling.batch_size)
    order = torch.randperm(len(data[0]))
    for step in range(1, steps + 1):
        order = order if len(order) >= min(size, len(data[0])) else torch.randperm(len(data[0]))
        rows, order = order[:size], order[size:]
        optimizer.zero_grad()
        _loss(model(data[0][rows]), data[1][rows]).mean().backward()
        optimizer.step()
        tell(step, steps)
