"""An audit within a training run: canaries beside its data by secret coins, and what the releases say of them.

What is tested is declared before the first release: how many canaries, how many guesses of each kind, by which score,
at which level. The coins are tossed once, and are on disk, for the owner alone, until the audit is done: a run that was
killed keeps them. Where they are lost, the run goes on with every canary out, and the audit is declared lost.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from discreet._check import check_int
from discreet.accounting.guarantee import Guarantee
from discreet.accounting.serialization import json_values
from discreet.audit import curves
from discreet.audit.canaries import (
    EXCLUDED,
    AuditedRun,
    Directions,
    Filter,
    Likelihood,
    Others,
    Score,
    add_released,
    checked_score,
    directions,
    gradient_of,
    parameters_of,
    rehearsed_counts,
    with_canaries,
)
from discreet.audit.guessing import Reals, count_correct, guess
from discreet.audit.one_run import OneRun, check_level
from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.stages.noise.random import KeyTree
from discreet.stages.plan import Plan
from discreet.training.options import Loss, Rows

ATTACKERS: dict[str, str] = {
    "likelihood": "sees every released gradient, and knows all data and who was drawn, but for the canaries",
    "sum": "sees every released gradient",
    "parameters": "sees the first and the last model",
}


@dataclass(frozen=True)
class AuditSpec:
    """What an audit is, said before its run: so many canaries, so many guessed in and out, by a score, at a level.

    `seed` is of the canaries' directions, which are public.
    """

    canaries: int
    guesses_in: int
    guesses_out: int
    level: float
    score: Score
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AuditSpec":
        """The same again; anything unknown or missing is a ConfigError."""
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"an audit's declaration cannot be read: {error}") from error


def declare(
    model: nn.Module, plan: Plan, canaries: int, *, level: float = 0.05, score: Score | None = None, seed: int = 0
) -> AuditSpec:
    """Fix an audit from the model and the plan alone.

    Args:
        model: whose gradients canaries have.
        plan: of the run.
        canaries: how many.
        level: the chance that a true claim is rejected.
        score: how a canary is judged; by default the first that the plan allows.
        seed: of the canaries' directions, which are public.

    Returns:
        What the ledger says before the first release.

    Raises:
        ConfigError: says why a plan cannot be audited so.
    """
    check_int("[audit] canaries", canaries, least=2)
    check_level(level)
    bound = plan.mechanism.bound
    if bound.needs == "outputs":
        raise ConfigError(
            f"{type(bound).__name__} bounds what goes through the network, and a gradient canary does not: its run "
            "cannot be audited so. Leave [audit] out, or clip gradients."
        )
    units = directions(model, plan, canaries, seed=seed)
    scoring = Filter.of(plan, units)
    counts = rehearsed_counts(plan, units, scoring, level)
    return AuditSpec(canaries, *counts, level, checked_score(score, units, scoring), seed)


def verdicts(run: OneRun, guarantee: Guarantee) -> dict[str, Any]:
    """Which of what is said of a run its audit rejects: the proven epsilon, its whole curve, and each claim.

    What is proven is `refuted` if either of the first two is rejected. Where it is true, each is rejected with a chance
    of at most the level, so one of the two with at most twice that.
    """
    curve = math.isfinite(guarantee.epsilon) and curves.rejects(
        guarantee.tradeoff(), run.canaries, run.guesses, run.correct, run.level
    )
    claims = []
    for claim in guarantee.claims:
        tested = replace(run, epsilon=claim.epsilon)
        claims.append(
            {
                "source": claim.source,
                "epsilon": json_values(claim.epsilon),
                "p_value": tested.p_value,
                "refuted": tested.disproves,
            }
        )
    return {"curve_refuted": curve, "refuted": curve or run.disproves, "claims": claims}


class RunAuditor:
    """Canaries in a run of `discreet.fit(..., audit=witness)`, and what an attacker keeps of its releases.

    `secret` is the file that coins and scores are kept in while the run goes on. Scores by likelihood are computed with
    the data themselves, so that file is as private as the data; `forget_secret` takes it away.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        declared: AuditSpec,
        loss: Loss,
        *,
        secret: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.declared, self.lost = declared, ""
        self._model, self._plan = model, plan
        self._canaries: Directions = directions(model, plan, declared.canaries, seed=declared.seed)
        scoring = Filter.of(plan, self._canaries)
        checked_score(declared.score, self._canaries, scoring)
        self._likelihood: Likelihood | None = None
        if declared.score == "likelihood":
            assert scoring is not None
            self._likelihood = Likelihood(scoring, plan, Others(model, plan, loss))
        self._path, self._seed = None if secret is None else Path(secret), seed
        self._coins = np.zeros(declared.canaries, np.bool_)
        self._scores = np.zeros(declared.canaries)
        self._first = parameters_of(model) if declared.score == "parameters" else torch.zeros(1).double()

    @property
    def count(self) -> int:
        """How many rows there are beside the data."""
        return self.declared.canaries

    @property
    def at_most(self) -> int:
        """How many rows at a time leave room for their directions."""
        return max(1, 2**26 // sum(self._canaries.layout.sizes))

    def join(self, data: Rows, released: int) -> Any:
        """The data with the canaries behind them, each row with its number; the coins are tossed, or are as they were.

        `released` says how many releases there have been: coins are tossed before the first one, and never again.
        """
        if self._path is not None and self._path.is_file():
            self._read()
        elif released == 0:
            coins = KeyTree(self._seed).stream("canaries", 0).bernoulli(self.count, Fraction(1, 2))
            self._coins = np.asarray(coins, np.bool_)
            self.save()
        else:
            self._lose(f"{released:,} steps were released, and the coins of their canaries are gone")
        keep_rows = getattr(self._plan.sampling, "examples", None) is not None
        return with_canaries(data, self._canaries, self._coins, keep_rows=keep_rows)

    def note(self, inputs: Tensor, targets: Tensor, who: Tensor) -> None:
        """Rows of the data that are about to be used, where others are compared with them."""
        if self._likelihood is not None and not self.lost:
            self._likelihood.others.note(inputs, targets, who)

    def losses(self, who: Tensor, losses: Tensor) -> Tensor:
        """Each row's own loss, that of a canary its direction's; nothing of those that are out."""
        losses = torch.where(who >= 0, self._canaries.losses(self._model, who).to(losses.dtype), losses)
        return torch.where(who == EXCLUDED, torch.nan, losses)

    def forget(self) -> None:
        """The batch was given up, and will be taken again."""
        if self._likelihood is not None:
            self._likelihood.others.forget()

    def released(self, step: int) -> None:
        """A gradient was released: take note of it."""
        if self.lost or self.declared.score == "parameters":
            return
        total = gradient_of(self._model) * self._plan.sampling.batch_size
        add_released(total, step, self._canaries, self._likelihood, self._scores)

    def _scored(self) -> Reals:
        """The scores of all processes that the run had, this one included."""
        return self._scores if self._likelihood is None else self._scores + self._likelihood.scores()

    def result(self, guarantee: Guarantee) -> AuditedRun | None:
        """What the run gave away of the coins, beside what is proven of it; None where the audit was lost."""
        if self.lost:
            return None
        declared, scores = self.declared, self._scored()
        if declared.score == "parameters":
            moved = self._canaries.along(self._first - parameters_of(self._model))
            scores = moved.nan_to_num(-1e300, 1e300, -1e300).numpy()
        counts = declared.guesses_in, declared.guesses_out
        right = count_correct(guess(scores, *counts), self._coins)
        result = OneRun(self.count, sum(counts), right, guarantee.epsilon, guarantee.delta, declared.level)
        return AuditedRun(result, guarantee, scores, self._coins, counts)

    def figures(self, guarantee: Guarantee) -> dict[str, Any]:
        """The audit as plain values, for a run folder's audit.json: counts and bounds, nothing of who was in."""
        declared = self.declared
        told = {
            "kind": "gradient canaries in one run",
            "score": declared.score,
            "attacker": ATTACKERS[declared.score],
            "guesses_in": declared.guesses_in,
            "guesses_out": declared.guesses_out,
            "covered": declared.score != "likelihood",
        }
        audited = self.result(guarantee)
        if audited is None:
            return told | {"canaries": declared.canaries, "level": declared.level, "lost": self.lost, "refuted": False}
        return told | audited.to_dict() | verdicts(audited.result, guarantee)

    # --- what a crash must not take ------------------------------------------------------------------------------

    def save(self) -> None:
        """Keep coins and scores, in one move, where only the owner reads them."""
        if self._path is None or self.lost:
            return
        state = {
            "coins": torch.from_numpy(self._coins.astype(np.uint8)),
            "scores": torch.from_numpy(self._scored().copy()),
            "first": self._first,
        }
        try:
            storage.replace(self._path, lambda scratch: save_file(state, scratch), private=True)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"the audit's coins cannot be written to {self._path}: {error}") from error

    def forget_secret(self) -> None:
        """Take coins and scores from the disk: the audit is done."""
        if self._path is not None:
            try:
                storage.remove(self._path)
            except OSError as error:
                raise ConfigError(f"the audit's coins cannot be taken from {self._path}: {error}") from error

    def _read(self) -> None:
        assert self._path is not None
        try:
            storage.is_file(self._path)
            state = load_file(self._path)
            coins, scores, first = state["coins"].numpy(), state["scores"].numpy(), state["first"]
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            self._lose(f"the coins cannot be read: {error}")
            return
        if coins.shape != self._coins.shape or scores.shape != self._scores.shape or first.shape != self._first.shape:
            self._lose("the coins are those of other canaries")
            return
        self._coins, self._scores, self._first = coins.astype(np.bool_), scores.copy(), first

    def _lose(self, why: str) -> None:
        self.lost = why
        self._coins = np.zeros(self.count, np.bool_)
