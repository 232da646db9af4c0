"""What a shuffled pass gives away for certain: a lower bound on epsilon, beside the upper one that is proven.

An attack that works on some data bounds every proof from below. Here all others' shares are -1, the unit's is +1, and
the attacker looks at the largest of a pass's noisy sums. The unit is in a batch at random, and moves its sum by 2
above the others' (by 1 where its record is empty). What is seen of a pass is sorted into a few bins; passes are
independent, so that their losses add up. Losses are rounded down, so that the bound is one.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr

from discreet.accounting.pld_grid import Reals

_CELLS = 1 << 19
_BINS = 100


@lru_cache(maxsize=64)
def lower_bound(
    multiplier: float, examples: int, batch_size: int, passes: int, delta: float, *, replaced: bool = False
) -> float:
    """An epsilon that is reached: no proof for shuffled passes, with this noise, can say less.

    Args:
        multiplier: the noise multiplier of each batch.
        examples: how many there are.
        batch_size: how many make a batch; a last one that is smaller is not looked at.
        passes: how often each example is seen, each time in a new order.
        delta: at which epsilon is meant.
        replaced: one record is replaced by any other, and not by an empty one.

    >>> lower_bound(1.0, 1_000, 1_000, 1, 1e-5) <= 4.377  # one batch a pass: the Gaussian mechanism's
    True
    """
    if passes == 0 or multiplier <= 0:
        return 0.0
    whole = examples // batch_size
    seen = _Pass(multiplier, whole, whole * batch_size / examples)
    high, low = 2.0, 0.0 if replaced else 1.0
    edges = seen.edges(high, low)
    both = seen.masses(edges, high), seen.masses(edges, low)
    return max(_reached(p, q, passes, delta) for p, q in (both, both[::-1]))


class _Pass:
    """The largest of a pass's sums, where one that is in a batch `there` times of one is moved."""

    def __init__(self, sigma: float, batches: int, there: float) -> None:
        self.sigma, self.batches, self.there = sigma, batches, there

    def below(self, at: Reals, shift: float) -> Reals:
        """How likely the largest is at most this."""
        one = log_ndtr(at / self.sigma)
        moved = np.exp((self.batches - 1) * one + log_ndtr((at - shift) / self.sigma))
        return self.there * moved + (1 - self.there) * np.exp(self.batches * one)

    def masses(self, edges: Reals, shift: float) -> Reals:
        """How likely it is in each bin."""
        return np.diff(np.concatenate([[0.0], self.below(edges, shift), [1.0]]))

    def edges(self, high: float, low: float) -> Reals:
        """Bins of about equal mass, and finer ones above."""
        far = self.sigma * (8 + math.sqrt(2 * math.log(self.batches + 1)))
        at = np.linspace(-6 * self.sigma, high + far, 4000)
        between = (self.below(at, high) + self.below(at, low)) / 2
        wanted = np.concatenate([np.linspace(0, 1, _BINS + 1)[1:-1], 1 - np.geomspace(1e-2, 1e-7, _BINS // 4)])
        return at[np.unique(np.searchsorted(between, wanted).clip(max=len(at) - 1))]


def _reached(p: Reals, q: Reals, passes: int, delta: float) -> float:
    """The largest epsilon at which what is seen of all passes has a hockey-stick divergence of delta at least."""
    likely = (p > 1e-14) & (q > 1e-14)  # what is left out only helps the attacker
    losses, p = np.log(p[likely] / q[likely]), p[likely]
    step = max(1e-4, float(np.ptp(losses)) * passes / _CELLS)
    places = np.floor(losses / step).astype(int)
    first, last = int(places.min()), int(places.max())
    one = np.bincount(places - first, p)
    count = (last - first) * passes + 1
    size = next_fast_len(count)
    law = irfft(rfft(one, size) ** passes, size)[:count]
    law = np.maximum(law - 1e-15 * passes, 0.0)  # far more than a transform's error
    values = step * (first * passes + np.arange(count))
    above = np.cumsum(law[::-1])[::-1], np.cumsum((law * np.exp(-np.maximum(values, -700)))[::-1])[::-1]
    deltas = above[0] - np.exp(np.minimum(values, 700)) * above[1]  # of delta, at each value
    (enough,) = np.nonzero(deltas >= delta)
    return max(0.0, float(values[enough[-1]])) if len(enough) else 0.0
