"""Exposure: how much likelier a model finds a secret it was shown than others it might have been (Carlini et al. 2019).

A secret drawn at random is put into the training text; afterwards its log-perplexity is compared with that of other
candidates. Exposure is log2 of how many candidates there are for each that ranks as high: 0 where it ranks last, about
1.4 on average where the model never saw it, log2 of the number of candidates where it ranks first.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.stats import skewnorm

from discreet.accounting.serialization import json_values
from discreet.audit.membership import Power, interval
from discreet.audit.one_run import check_level
from discreet.errors import ConfigError

Secret = TypeVar("Secret")


@dataclass(frozen=True)
class Exposure:
    """A secret's exposure among `candidates` others, of which `likelier` have a perplexity as low as its own or lower.

    `exposure` is log2((candidates + 1) / rank), rank = likelier + 1, the exact one if the candidates are all there are.
    Where they are a random sample, `low` and `high` hold -log2 of the share of likelier secrets with confidence
    1 - level; `high` is infinite where none was found. `extrapolated` takes that share from a fitted law, NaN if none
    was.
    """

    exposure: float
    low: float
    high: float
    likelier: int
    candidates: int
    level: float
    extrapolated: float = math.nan

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, for a run folder's audit.json."""
        names = ("exposure", "low", "high", "extrapolated", "likelier", "candidates", "level")
        return json_values({name: getattr(self, name) for name in names})


def measure(
    log_perplexity: Callable[[Secret], float], secret: Secret, candidates: Iterable[Secret], level: float = 0.05
) -> Exposure:
    """The exposure of a secret by any function that gives a log-perplexity: a language model's loss, say.

    Args:
        log_perplexity: how surprised the model is by a secret.
        secret: the one that was in the training.
        candidates: others that the secret might have been: all of them, or drawn as it was drawn, without looking.
        level: one minus the confidence of the interval.

    >>> found = measure(lambda secret: abs(secret - 7.2), 7, range(7)), measure(abs, 3, range(4, 100))
    >>> [(round(e.exposure, 2), e.likelier) for e in found]
    [(3.0, 0), (6.6, 0)]
    """
    own, others = log_perplexity(secret), [log_perplexity(candidate) for candidate in candidates]
    return replace(among(own, others, level), extrapolated=extrapolated(own, others))


def among(secret: float, candidates: npt.ArrayLike, level: float = 0.05) -> Exposure:
    """The exposure of a secret with this log-perplexity among candidates with those."""
    check_level(level)
    values = np.asarray(candidates, np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any() or math.isnan(secret):
        raise ConfigError("exposure needs the log-perplexity of the secret and of at least one candidate, as numbers.")
    likelier = int((values <= secret).sum())
    ends = interval(likelier, len(values), level)
    return Exposure(
        exposure=math.log2((len(values) + 1) / (likelier + 1)),
        low=-math.log2(ends[1]),
        high=-math.log2(ends[0]) if ends[0] > 0 else math.inf,
        likelier=likelier,
        candidates=len(values),
        level=level,
    )


def most_likely(tradeoff: Power, exposure: float) -> float:
    """How likely an exposure of at least this is, at most, under a guarantee, for one secret drawn uniformly.

    Without the secret its rank is uniform, so its exposure is at least e with probability 2^-e at most; a trade-off
    curve says what that can become with it.

    >>> from discreet.audit.curves import GaussianCurve
    >>> round(most_likely(GaussianCurve(1.0), 10.0), 3)
    0.018
    """
    if not exposure >= 0:
        raise ConfigError(f"exposure is {exposure!r}; it must be a number >= 0.")
    return tradeoff.power(2.0**-exposure)


def extrapolated(secret: float, candidates: npt.ArrayLike) -> float:
    """-log2 of the chance of as low a perplexity under a skew normal law, fitted to the candidates' by likelihood.

    It can be larger than any sample shows, and rests on the law alone: an estimate. NaN where none can be fitted.
    """
    values = np.asarray(candidates, np.float64)
    values = values[np.isfinite(values)]
    if len(values) < 10 or float(values.std()) == 0 or not math.isfinite(secret):
        return math.nan
    mean, std = float(values.mean()), float(values.std())
    chance = float(skewnorm.logcdf((secret - mean) / std, *skewnorm.fit((values - mean) / std)))
    return max(0.0, -chance / math.log(2))
