"""Discrete Gaussian noise on whole numbers, sampled exactly: no floating point decides a value.

Canonne, Kamath and Steinke (2020): a discrete Laplace value y is accepted with probability
exp(-(|y| - s^2 / t)^2 / (2 s^2)). Each decision compares a uniform number, of as many random bits as it takes, with a
transcendental one. Sixty-three bits and float64 with a margin for its errors decide nearly all of them; the rest are
decided with more bits and digits.
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.stages.noise.random import SecureStream

Whole = npt.NDArray[np.int64]
_MARGIN = 1e-13  # relative, far above what float64's logarithm, exponential and a few products lose
LARGEST = 2.0**40  # of the parameter: values then stay far below 2^63


def discrete_gaussian(count: int, parameter: float, source: "SecureStream") -> Whole:
    """`count` independent values with probability proportional to exp(-k^2 / (2 parameter^2)), exactly.

    >>> from discreet.noise.source import Root
    >>> discrete_gaussian(3, 1e-3, Root(seed=0).stream("doc", 0)).tolist()
    [0, 0, 0]
    """
    if not 0 < parameter <= LARGEST:
        raise ConfigError(f"a discrete Gaussian's parameter is {parameter!r}; it must be above 0 and at most 2^40.")
    spread = math.floor(parameter) + 1
    accepted: list[Whole] = []
    missing = count
    while missing > 0:
        tries = missing + missing // 2 + 32
        size = _geometric(tries, spread, source)
        negative = source.signs(tries) < 0
        allowed = ~(negative & (size == 0)) & _accepted(size, parameter, spread, source)
        values = np.where(negative, -size, size)[allowed]
        accepted.append(values[:missing])
        missing -= len(accepted[-1])
    return np.concatenate(accepted) if accepted else np.empty(0, np.int64)


def _bits(count: int, source: "SecureStream") -> npt.NDArray[np.uint64]:
    return source.octets(8 * count).view(np.uint64) >> np.uint64(1)


def _geometric(count: int, spread: int, source: "SecureStream") -> Whole:
    """floor(-spread * log U): the value k has probability proportional to exp(-k / spread), exactly."""
    bits = _bits(count, source)
    low, high = bits.astype(np.float64) * 2.0**-63, (bits.astype(np.float64) + 1) * 2.0**-63  # U lies between
    with np.errstate(divide="ignore"):
        most = np.floor(-spread * np.log(low * (1 - _MARGIN)) * (1 + _MARGIN))
        least = np.floor(-spread * np.log(np.minimum(high * (1 + _MARGIN), 1.0)) * (1 - _MARGIN))
    decided = most == least
    out = np.where(decided, least, 0).astype(np.int64)
    for i in np.flatnonzero(~decided):
        out[i] = _refine(
            int(bits[i]), source, lambda u: int((-spread * u.ln()).to_integral_value(rounding="ROUND_FLOOR"))
        )
    return out


def _accepted(size: Whole, parameter: float, spread: int, source: "SecureStream") -> npt.NDArray[np.bool_]:
    """Coins of probability exp(-(size - s^2 / t)^2 / (2 s^2)), exactly."""
    bits = _bits(len(size), source)
    exponent = (size - parameter * parameter / spread) ** 2 / (2 * parameter * parameter)
    # where the difference is small against its terms its relative error is not: bound it by the terms
    slack = _MARGIN * (1 + exponent + (size + parameter) ** 2 / (parameter * parameter))
    low, high = np.exp(-exponent - slack), np.exp(-exponent + slack)
    u = bits.astype(np.float64) * 2.0**-63
    yes, no = (u + 2.0**-62) * (1 + _MARGIN) <= low, u * (1 - _MARGIN) >= high
    out = yes.copy()
    for i in np.flatnonzero(~(yes | no)):

        def below(u: Decimal, size: int = int(size[i])) -> int:
            square = Decimal(parameter) ** 2
            return int(u < (-((Decimal(size) - square / spread) ** 2) / (2 * square)).exp())

        out[i] = bool(_refine(int(bits[i]), source, below))
    return out


def _refine(bits: int, source: "SecureStream", decide: Callable[[Decimal], int]) -> int:
    """What a function of U says, with as many more random bits of U as it takes for both its ends to agree."""
    width = 63
    while True:
        bits = (bits << 64) | int.from_bytes(source.octets(8).tobytes(), "little")
        width += 64
        with localcontext(Context(prec=80 + width // 3)):
            low = (Decimal(bits) + Decimal("1e-20")) / Decimal(2) ** width
            high = (Decimal(bits + 1) - Decimal("1e-20")) / Decimal(2) ** width
            answers = decide(low), decide(min(high, Decimal(1)))
        if answers[0] == answers[1]:
            return answers[0]
