"""The one-run test against a whole trade-off curve: sharper than one (epsilon, delta), where the curve is known.

Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run" (2024). A run is
f-private if whoever tells neighbouring data sets apart with false positives x has false negatives of at least f(x).
"""

from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from discreet._check import check_positive
from discreet.audit.one_run import check_counts, check_level, largest

Curve = Callable[[float], float]


@dataclass(frozen=True)
class GaussianCurve:
    """The curve of N(0, 1) against N(mu, 1): G(x) = Phi(Phi^-1(1 - x) - mu).

    >>> round(GaussianCurve(1.0)(0.05), 4)
    0.7405
    """

    mu: float

    def __post_init__(self) -> None:
        check_positive("mu", self.mu, zero=True)

    def __call__(self, false_positives: float) -> float:
        return float(ndtr(ndtri(1 - false_positives) - self.mu))

    def power(self, false_positives: float) -> float:
        """The most true positives at these false positives."""
        return float(ndtr(ndtri(false_positives) + self.mu))


def rejects(curve: Curve, canaries: int, guesses: int, correct: int, level: float = 0.05) -> bool:
    """Whether at least `correct` right guesses of `guesses` have a chance below `level` under f-privacy.

    A rejected claim is disproved at this level; one that is not is not proven by that.

    Let p_i be the chance of i right guesses of c', about m canaries. Turning one right guess's canary into its
    opposite gives, for every t,

        r_t <= 1 - f(l_(t-1)),   r_t = sum over i >= t of i p_i / m,   l_t = sum over i >= t of (c' - i) p_i / m,

    so l_(t-1) >= f(1 - r_t). From a tail of mass `level` at c the least mass that all t demand is computed, one t after
    another; if that is more than there is (r_0 + l_0 = c' / m), the tail is lighter than `level`.

    Args:
        curve: f, a symmetric trade-off curve: `guarantee.tradeoff()`, which is what a run claims, or a GaussianCurve.
        canaries: how many were in or out by a coin.
        guesses: how many coins were guessed.
        correct: how many guesses were right.
        level: the chance that a true claim is rejected.

    >>> rejects(GaussianCurve(0.5), 10_000, 200, 180), rejects(GaussianCurve(1.5), 10_000, 200, 180)
    (True, False)
    """
    check_counts(canaries, guesses, correct, 0.0)
    check_level(level)
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    most = guesses / canaries * (1 + 1e-12)
    for i in range(correct - 1, -1, -1):
        demanded = curve(1 - right)
        if demanded > wrong:
            right += i / (guesses - i) * (demanded - wrong)
            wrong = demanded
        if right + wrong > most:
            return True
    return False


def mu_lower_bound(canaries: int, guesses: int, correct: int, level: float = 0.05) -> float:
    """The largest mu whose Gaussian curve is rejected: the run is not mu-GDP for any smaller one.

    That is no lower bound on epsilon by itself: a run may violate a Gaussian curve and keep the same (epsilon, delta).
    It becomes one on the condition that the run's true curve is Gaussian. To disprove a claim, audit the claimed curve.

    >>> round(mu_lower_bound(10_000, 400, 373), 3)
    0.725
    """
    return largest(lambda mu: rejects(GaussianCurve(mu), canaries, guesses, correct, level))
