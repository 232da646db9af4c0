"""From scores to guesses: the highest were in, the lowest were out, and of the others nothing is said.

How many are guessed is fixed before the run is seen, or one of a declared few at a level that is shared among them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from discreet.audit.one_run import check_level, exact_epsilon_lower_bound
from discreet.errors import ConfigError, positive, whole

Scores = npt.NDArray[np.float64]
Guesses = npt.NDArray[np.int8]
Counts = tuple[int, int]


def guess(scores: npt.ArrayLike, included: int, excluded: int) -> Guesses:
    """+1 for the `included` highest scores, -1 for the `excluded` lowest, 0 for the others.

    Equal scores are taken in the order of their numbers, of which the coins know nothing.

    >>> guess([0.3, 2.0, -1.0, 0.1], included=1, excluded=2).tolist()
    [0, 1, -1, -1]
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise ConfigError("scores must be a row of numbers, one for each canary, and none of them NaN.")
    whole("the number of guesses 'included'", included, least=0)
    whole("the number of guesses 'excluded'", excluded, least=0)
    if included + excluded > len(values):
        raise ConfigError(
            f"{included} + {excluded} guesses about {len(values)} canaries; guess about each of them once at most."
        )
    order = np.argsort(values, kind="stable")
    found = np.zeros(len(values), np.int8)
    found[order[len(order) - included :]] = 1
    found[order[:excluded]] = -1
    return found


def count_correct(guesses: Guesses, coins: npt.NDArray[np.bool_]) -> int:
    """How many guesses are right; `coins` says who was included."""
    if len(guesses) != len(coins):
        raise ConfigError(f"{len(guesses)} guesses and {len(coins)} coins; one of each for every canary.")
    return int(((guesses == 1) & coins).sum() + ((guesses == -1) & ~coins).sum())


def best_of(
    scores: npt.ArrayLike,
    coins: npt.NDArray[np.bool_],
    declared: Sequence[Counts],
    lower_bound: Callable[[int, int, int, float], float],
    level: float = 0.05,
) -> tuple[float, Counts]:
    """The largest lower bound over a few declared numbers of guesses, each at an equal share of the level (Bonferroni).

    `lower_bound(canaries, guesses, correct, level)` is the test. The list must have been fixed before the scores were
    seen; what comes back is valid for all of it.
    """
    check_level(level)
    if not declared:
        raise ConfigError("no numbers of guesses were declared; give at least one pair (included, excluded).")
    found = []
    for counts in declared:
        right = count_correct(guess(scores, *counts), coins)
        found.append((lower_bound(len(coins), sum(counts), right, level / len(declared)), counts))
    return max(found)


def counts_for(canaries: int, mu: float, delta: float, level: float = 0.05) -> Counts:
    """Numbers of guesses that are good if scores are N(0, 1) for those out and N(mu, 1) for those in.

    A choice to be made before the run, from its plan: it need not be right for the test to be valid. Found by trying
    out what is expected at each number: included and excluded are equally many, by symmetry.

    >>> counts_for(2000, 1.5, 1e-5)
    (98, 98)
    """
    whole("the number of canaries", canaries, least=2)
    positive("mu", mu)
    thresholds = np.linspace(mu / 2, mu + 8, 4001)
    tails = ndtr(-thresholds), ndtr(mu - thresholds)
    guessed, right = canaries / 2 * (tails[0] + tails[1]), canaries / 2 * tails[1]
    tried = sorted({max(1, round(canaries / 2 * 0.9**k)) for k in range(100)})
    found = []
    for one in tried:
        share = float(np.interp(-one, -guessed, right / guessed))
        correct = int(2 * one * share)
        found.append((exact_epsilon_lower_bound(canaries, 2 * one, correct, delta, level), -one))
    count = -max(found)[1]
    return count, count
