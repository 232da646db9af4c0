"""From scores to guesses: the highest were in, the lowest were out, and of the others nothing is said.

How many are guessed is fixed before the run is seen, or one of a declared few at a level that is shared among them.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from discreet._check import check_int, check_positive
from discreet.audit.one_run import check_level, exact_epsilon_lower_bound
from discreet.errors import ConfigError

Reals = npt.NDArray[np.float64]
Guesses = npt.NDArray[np.int8]
Coins = npt.NDArray[np.bool_]
Counts = tuple[int, int]  # guesses of "in", and of "out"


def guess(scores: npt.ArrayLike, included: int, excluded: int) -> Guesses:
    """+1 for the `included` highest scores, -1 for the `excluded` lowest, 0 for the others.

    Equal scores are taken in the order of their numbers, of which the coins know nothing.

    >>> guess([0.3, 2.0, -1.0, 0.1], included=1, excluded=2).tolist()
    [0, 1, -1, -1]
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise ConfigError("scores must be a row of numbers, one for each canary, and none of them NaN.")
    check_int("the number of guesses 'included'", included, least=0)
    check_int("the number of guesses 'excluded'", excluded, least=0)
    if included + excluded > len(values):
        raise ConfigError(
            f"{included} + {excluded} guesses about {len(values)} canaries; guess about each of them once at most."
        )
    order = np.argsort(values, kind="stable")
    guesses = np.zeros(len(values), np.int8)
    guesses[order[len(order) - included :]] = 1
    guesses[order[:excluded]] = -1
    return guesses


def count_correct(guesses: Guesses, coins: Coins) -> int:
    """How many guesses are right; `coins` says who was included."""
    if len(guesses) != len(coins):
        raise ConfigError(f"{len(guesses)} guesses and {len(coins)} coins; one of each for every canary.")
    return int(((guesses == 1) & coins).sum() + ((guesses == -1) & ~coins).sum())


def best_of(
    scores: npt.ArrayLike,
    coins: Coins,
    declared: Sequence[Counts],
    lower_bound: Callable[[int, int, int, float], float],
    level: float = 0.05,
) -> tuple[float, Counts]:
    """The largest lower bound over a few declared numbers of guesses, each at an equal share of the level (Bonferroni).

    Args:
        scores: of the canaries, higher for those that were likelier in.
        coins: who was in.
        declared: pairs of numbers of guesses, in and out. The list must have been fixed before the scores were seen;
            what comes back is valid for all of it.
        lower_bound: the test: `lower_bound(canaries, guesses, correct, level)`.
        level: the chance that a true claim is rejected.

    Returns:
        The bound, and the numbers of guesses that gave it.
    """
    check_level(level)
    if not declared:
        raise ConfigError("no numbers of guesses were declared; give at least one pair (included, excluded).")
    bounds = []
    for counts in declared:
        right = count_correct(guess(scores, *counts), coins)
        bounds.append((lower_bound(len(coins), sum(counts), right, level / len(declared)), counts))
    return max(bounds)


def counts_for(canaries: int, scores: npt.ArrayLike, coins: Coins, delta: float, level: float = 0.05) -> Counts:
    """Numbers of guesses that are good if scores come out as in a rehearsal: made-up scores and coins.

    A choice to be made before the run, from its plan (`rehearsed`). The test is valid whether it was good or not. Each
    number is judged by what it leaves one standard deviation below what is expected.

    Args:
        canaries: how many the run has.
        scores: made up, as by `rehearsed`.
        coins: made up likewise.
        delta: of the guarantee.
        level: the chance that a true claim is rejected.

    Returns:
        How many are guessed in, and how many out.

    >>> counts_for(2000, *rehearsed(rate=1.0, mu=1.5, steps=1), delta=1e-5)
    (100, 75)
    """
    check_int("the number of canaries", canaries, least=2)
    ranked = coins[np.argsort(np.asarray(scores, np.float64), kind="stable")]
    sizes = np.arange(1, len(ranked) + 1)
    top, bottom = np.cumsum(ranked[::-1]) / sizes, np.cumsum(~ranked) / sizes
    tried = sorted({0, *(max(1, round(canaries / 2 * 0.75**k)) for k in range(30))})
    options = []
    for counts in ((a, b) for a in tried for b in tried if a + b):
        places = [min(max(0, round(k * len(ranked) / canaries) - 1), len(ranked) - 1) for k in counts]
        right = float(top[places[0]]), float(bottom[places[1]])
        expected = sum(k * p for k, p in zip(counts, right, strict=True))
        spread = math.sqrt(sum(k * p * (1 - p) for k, p in zip(counts, right, strict=True)) + 0.5)
        bound = exact_epsilon_lower_bound(canaries, sum(counts), max(0, math.floor(expected - spread)), delta, level)
        options.append((bound, -sum(counts), counts))
    return max(options)[2]


def rehearsed(rate: float, mu: float, steps: int, *, canaries: int = 20_000, seed: int = 0) -> tuple[Reals, Coins]:
    """Made-up scores and coins of a run in which a canary takes part in each step with chance `rate`.

    Args:
        rate: the chance of taking part in a step.
        mu: what the canary moves the sum of one step by, in standard deviations of the noise.
        steps: how many.
        canaries: how many are made up.
        seed: of a public generator, as nothing of it is secret.

    Returns:
        The run's `log_likelihood` of each, and the coins.
    """
    check_positive("mu", mu)
    check_int("steps", steps, least=1)
    random = np.random.default_rng(seed)
    coins = random.random(canaries) < 0.5
    scores = np.zeros(canaries)
    for _ in range(min(steps, 2000)):  # further steps would change the choice little
        there = coins & (random.random(canaries) < rate)
        scores += log_likelihood(mu * there + random.standard_normal(canaries), rate, mu)
    return scores, coins


def log_likelihood(seen: Reals, rate: float, mu: float | Reals) -> Reals:
    """log of the density of what was seen of a canary in one step with it, to that without it: Gaussian noise of
    standard deviation 1, to which the canary adds `mu` with chance `rate`.

        log(1 - q + q exp(mu x - mu^2 / 2))

    >>> float(log_likelihood(np.array(2.0), 1.0, 1.0))
    1.5
    """
    ratio = mu * seen - np.square(mu) / 2
    return ratio if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)
