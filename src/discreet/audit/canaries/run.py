"""A run with canaries, and the audit of it."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn

from discreet.accounting.guarantee import Guarantee
from discreet.audit import curves
from discreet.audit.canaries.scores import Attacker, Filter, Score, checked_score, rehearsed_counts
from discreet.audit.canaries.units import EXCLUDED, Directions, Examples, with_canaries
from discreet.audit.guessing import Coins, Counts, Reals, count_correct, guess
from discreet.audit.one_run import OneRun
from discreet.release.attachment import attach
from discreet.stages.noise.random import KeyTree
from discreet.stages.plan import Plan
from discreet.training.evaluation import loss_for
from discreet.training.options import Loss, Rows


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """A run with canaries: the test's result, what is proven of the run, and what was scored.

    `scores` are higher for those that were likelier in; `coins` say who was. `counts` are the numbers of guesses.
    """

    result: OneRun
    guarantee: Guarantee
    scores: Reals
    coins: Coins
    counts: Counts

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for a run folder's audit.json; nothing of who was in."""
        guessed = guess(self.scores, *self.counts)
        said = [float((guessed[coins] == 1).mean()) if coins.any() else 0.0 for coins in (~self.coins, self.coins)]
        point = {"false_positives": said[0], "true_positives": said[1], "label": "canaries guessed to be in"}
        return self.result.to_dict() | {"mu_lower_bound": self.mu_lower_bound(), "points": [point]}

    def refutes_curve(self) -> bool:
        """Whether the guarantee's whole trade-off curve is rejected (curves.rejects): a sharper test than epsilon's."""
        run = self.result
        return curves.rejects(self.guarantee.tradeoff(), run.canaries, run.guesses, run.correct, run.level)

    def mu_lower_bound(self) -> float:
        """The run is not mu-GDP for any smaller mu: it says something of epsilon only if its curve is Gaussian."""
        run = self.result
        return curves.mu_lower_bound(run.canaries, run.guesses, run.correct, run.level)


def audit_run(
    model: nn.Module,
    data: Rows,
    plan: Plan,
    canaries: Examples | Directions,
    *,
    score: Score | None = None,
    guesses: Counts | None = None,
    level: float = 0.05,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    chunk: int | None = None,
    preflight: bool = True,
    on_step: Callable[[int], None] = lambda step: None,
    seed: int | None = None,
) -> AuditedRun:
    """Train a model by a plan on data and canaries, each canary in or out by a fair secret coin; guess the coins.

    The model ends up trained on canaries too: audit a copy of the one that is to be used.

    Args:
        model: what is trained.
        data: the rows beside which canaries are put.
        plan: made for the data and all canaries together, or for any number of rows (`for_canaries`).
        canaries: examples, or directions of the gradient.
        score: how a canary is judged; by default the first that applies. "likelihood" goes by every released gradient
            along the canary's direction, as seen by an attacker who knows the plan, all data and who was drawn, but for
            the canaries: this is the definition of privacy. Noise that remembers is made independent again first. "sum"
            goes by the same gradients, summed up. "parameters" goes by how far the model moved against the direction.
            "loss" goes by how much the loss of an example canary fell.
        guesses: how many are guessed in and out, fixed in advance. By default they follow from the plan, by a
            rehearsal; where there is none they are a twentieth of the canaries each.
        level: the chance that a true claim is rejected.
        loss: as in `fit`.
        optimizer: as in `fit`.
        chunk: the most rows at a time.
        preflight: whether the model is checked first, as `attach` does.
        on_step: called after each step with the number of releases.
        seed: makes coins and noise reproducible, for tests; the guarantee then says that it is broken.

    Returns:
        The test's result beside the run's guarantee, with scores and coins.
    """
    filter_ = Filter.of(plan, canaries) if isinstance(canaries, Directions) else None
    score = checked_score(score, canaries, filter_)
    counts = rehearsed_counts(plan, canaries, filter_, level) if guesses is None else guesses
    guess(np.zeros(canaries.count), *counts)  # say what is wrong with them before anything is trained
    coins = KeyTree(seed).stream("canaries", 0).bernoulli(canaries.count, Fraction(1, 2))
    rows = with_canaries(data, canaries, coins, keep_rows=getattr(plan.sampling, "examples", None) is not None)
    loss = loss or loss_for(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5) if optimizer is None else optimizer
    attacker = Attacker(model, plan, canaries, score, loss, filter_)
    private = attach(model, plan, preflight=preflight, seed=seed)
    device = next(model.parameters()).device
    try:
        for inputs, targets, numbers in private.batches(rows, at_most=chunk):
            attacker.note(inputs, targets, numbers)
            who = numbers.to(device)
            losses = loss(model(inputs.to(device)), targets.to(device))
            if isinstance(canaries, Directions):
                losses = torch.where(who >= 0, canaries.losses(model, who).to(losses.dtype), losses)
            if private.backward(torch.where(who == EXCLUDED, torch.nan, losses)):
                attacker.released(private.released - 1)
                optimizer.step()
                on_step(private.released)
    finally:
        private.detach()
    guarantee = private.guarantee()
    scores = attacker.scores()
    right = count_correct(guess(scores, *counts), coins)
    result = OneRun(canaries.count, sum(counts), right, guarantee.epsilon, guarantee.delta, level)
    return AuditedRun(result, guarantee, scores, coins, counts)
