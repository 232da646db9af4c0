"""What may be done for free after the noise: estimates of the bounded sum from what has been released.

A denoiser sees the noisy sum, the public law of its noise and its own earlier state, and nothing else. Guarantee: its
output is a function of releases that are accounted already, so it costs no privacy, whatever it computes.

    denoiser.check(law)                         refuses a law that it can do nothing with
    denoiser.start(layout) -> state             None where nothing is remembered
    denoiser.apply(released, noise, state)      new tensors, and the new state; its arguments stay as they are

A coordinate that is nan stays nan, and one that is infinite is taken for very large or passed on: neither spoils the
others.

All of them take the noise of one step for independent of other steps', with the law and scale that were asked for. That
is not so of BandedGaussian and BLTGaussian, with which they are refused; a denoiser of one's own that knows better says
`of_dependent_noise = True`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet._check import check_positive
from discreet.errors import ConfigError
from discreet.stages.sensitivity import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.noise.distribution import NoiseDistribution


__all__ = ["Added", "JamesStein", "Kalman", "KolmogorovSmirnov", "Score", "distance"]

Doubles = npt.NDArray[np.float64]

_LARGE = 1e100  # in units of the noise: beyond it every score is at its limit; its square is still finite
_CHUNK = 1 << 18  # values scored at a time
_EXPECTED = math.sqrt(math.pi / 2) * math.log(2)  # of sqrt(n) times the distance, if it is all noise and n is large


@dataclass(frozen=True)
class Added:
    """The public law of the noise that was added: `law` times `scales[name]` on each coordinate of a parameter."""

    law: "NoiseDistribution"
    scales: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, scale in self.scales.items():
            check_positive(f"the noise's scale on {name}", scale, zero=True)

    def on(self, name: str) -> float:
        """The scale on one parameter's coordinates."""
        if name not in self.scales:
            raise ConfigError(f"the noise's scale on {name} is not known; give one for every parameter, 0 for none.")
        return self.scales[name]


# --- Kolmogorov-Smirnov ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KolmogorovSmirnov:
    """The sum G becomes D * G: D is the Kolmogorov-Smirnov distance of all its coordinates from the noise's law.

    After Nasr, Shokri and Houmansadr (2020). It is a rule for the size of a step, long where the sum looks least like
    noise; the direction stays. Under noise alone D is near .8687 / sqrt(n) for n coordinates, so a learning rate for
    the raw sum is far too small here. `rescale` divides by that: then steps of mere noise keep their size on average.
    """

    rescale: bool = False

    def check(self, law: "NoiseDistribution") -> None:
        """Every law has a distribution function."""

    def start(self, layout: Layout) -> None:
        """Nothing is remembered."""

    def apply(self, released: "Mapping[str, Tensor]", noise: Added, state: None) -> "tuple[dict[str, Tensor], None]":
        noisy = [name for name in released if noise.on(name) > 0]
        values = np.empty(sum(released[name].numel() for name in noisy))
        start = 0
        for name in noisy:
            part = values[start : start + released[name].numel()]
            with np.errstate(over="ignore"):
                np.divide(_doubles(released[name]), noise.on(name), out=part)
            start += len(part)
        ordered = _in_order(values)
        if len(ordered) == 0:
            return {name: tensor.detach().clone() for name, tensor in released.items()}, None
        factor = _largest_gap(ordered, noise.law)
        if self.rescale:
            factor *= math.sqrt(len(ordered)) / _EXPECTED
        return {name: _times(tensor, factor if name in noisy else 1.0) for name, tensor in released.items()}, None


def distance(values: npt.ArrayLike, law: "NoiseDistribution") -> float:
    """The two-sided Kolmogorov-Smirnov distance: the largest gap between the values' distribution and the law's.

    The values are in units of the law's scale; those that are nan are left out.

    >>> from discreet.noise import Laplace
    >>> distance([0.0, 0.0, 0.0, 0.0], Laplace())
    0.5
    """
    ordered = _in_order(np.array(values, np.float64).reshape(-1))
    if len(ordered) == 0:
        raise ConfigError("there is no value to measure the distance of; give at least one that is not nan.")
    return _largest_gap(ordered, law)


def _in_order(values: Doubles) -> Doubles:
    """The values in ascending order, sorted in place, without those that are nan."""
    values.sort()
    return values[: len(values) - np.count_nonzero(np.isnan(values))]


def _largest_gap(ordered: Doubles, law: "NoiseDistribution") -> float:
    """max over i of (i + 1) / n - F(x_i) and F(x_i) - i / n, with F evaluated at few of the x_i.

    Between x_a and x_b neither exceeds b / n - F(x_a) or F(x_b) - (a + 1) / n, as F never falls. So a stretch whose
    limit is not above the best gap known is done with, and the others are cut in half: the result is exact.
    """
    n = len(ordered)

    def below(at: npt.NDArray[np.intp]) -> Doubles:
        return np.asarray(law.cdf(np.clip(ordered[at], -law.far, law.far)), np.float64)

    at = np.unique(np.append(np.arange(0, n, max(1, math.isqrt(n) // 2)), n - 1))
    mass = below(at)
    best = float(np.maximum((at + 1) / n - mass, mass - at / n).max())
    left, right, low, high = at[:-1], at[1:], mass[:-1], mass[1:]
    while True:
        limit = np.maximum(right / n - low, high - (left + 1) / n)
        (undecided,) = np.nonzero((limit > best) & (right - left > 1))
        if len(undecided) == 0:
            return best
        left, right, low, high = left[undecided], right[undecided], low[undecided], high[undecided]
        at = (left + right) // 2
        mass = below(at)
        best = max(best, float(np.maximum((at + 1) / n - mass, mass - at / n).max()))
        left, right = np.concatenate((left, at)), np.concatenate((at, right))
        low, high = np.concatenate((low, mass)), np.concatenate((mass, high))


# --- the score ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Each coordinate x becomes scale * score(x / scale) / Fisher information: what the noise's own law makes of it.

    For a signal that is small against the noise this has the signal as its mean, and of all functions of x with that
    property the least variance, scale^2 / Fisher information (Cramér and Rao). Gaussian noise: x itself, as nothing
    is to be gained. Larger signals are shortened; with heavy tails a very large coordinate is taken for noise.
    """

    def check(self, law: "NoiseDistribution") -> None:
        """Every law has a score."""

    def start(self, layout: Layout) -> None:
        """Nothing is remembered."""

    def apply(self, released: "Mapping[str, Tensor]", noise: Added, state: None) -> "tuple[dict[str, Tensor], None]":
        return {name: _scored(tensor, noise.law, noise.on(name)) for name, tensor in released.items()}, None


def _scored(tensor: "Tensor", law: "NoiseDistribution", scale: float) -> "Tensor":
    import torch

    if scale == 0 or law.gaussian:
        return tensor.detach().clone()
    flat = tensor.detach().reshape(-1)
    out = torch.empty_like(flat)
    for start in range(0, len(flat), _CHUNK):
        with np.errstate(over="ignore"):
            values = np.clip(_doubles(flat[start : start + _CHUNK]) / scale, -_LARGE, _LARGE)
        scores = np.asarray(law.score(values), np.float64) * (scale / law.fisher)
        out[start : start + _CHUNK] = torch.from_numpy(scores)
    return out.reshape(tensor.shape)


# --- James and Stein ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JamesStein:
    """The sum G of n coordinates becomes (1 - (n - 2) v / ||G||^2)_+ * G, with v the noise's variance.

    With `each`, every parameter is shrunk by itself; without, all of them by one factor, each in units of its noise.
    Guarantee, for Gaussian noise and n > 2: the expected squared error (in units of the noise) is below that of G,
    whatever the signal (James and Stein 1961). Where n <= 2, G stays. For other noise of finite variance it is the
    same estimate without that proof; its error for large n is near that of the best factor there is.
    """

    each: bool = True

    def check(self, law: "NoiseDistribution") -> None:
        """Refuse a law without a variance."""
        _needs_variance("JamesStein", law)

    def start(self, layout: Layout) -> None:
        """Nothing is remembered."""

    def apply(self, released: "Mapping[str, Tensor]", noise: Added, state: None) -> "tuple[dict[str, Tensor], None]":
        self.check(noise.law)
        noisy = [name for name in released if noise.on(name) > 0]
        sizes = {name: _size(released[name], noise.on(name)) for name in noisy}
        variance = noise.law.variance
        if self.each:
            factors = {name: _shrinkage(count, squared / variance) for name, (count, squared) in sizes.items()}
        else:
            count, squared = sum(c for c, _ in sizes.values()), sum(s for _, s in sizes.values())
            factors = dict.fromkeys(noisy, _shrinkage(count, squared / variance))
        return {name: _times(tensor, factors.get(name, 1.0)) for name, tensor in released.items()}, None


def _size(tensor: "Tensor", scale: float) -> tuple[int, float]:
    """How many finite coordinates there are, and their squared length in units of the scale."""
    values = _doubles(tensor)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return len(values), float(np.square(values / scale).sum())


def _shrinkage(count: int, squared: float) -> float:
    """James and Stein's positive part, from a squared length in units of the noise's variance."""
    if count <= 2:
        return 1.0
    return max(0.0, 1 - (count - 2) / squared) if squared > 0 else 0.0


# --- Kalman ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kalman:
    """Each coordinate's estimate follows the sums from step to step: e_t = e_{t-1} + k_t (G_t - e_{t-1}), e_1 = G_1.

    `drift` is how much the true sum is expected to change in one step, as a standard deviation in units of that of
    the noise. The gain is then Kalman's: with r = scale^2 * the law's variance, the variance p of the estimate first
    grows to p + drift^2 r, then k = p / (p + r), and p becomes k r. The gain falls from 1 to the root of
    k^2 = drift^2 (1 - k); drift 0 takes the plain mean of all sums. `gain` instead fixes k after the first step.

    It is the filter of DiSK (Zhang et al. 2024), whose kappa is a fixed gain. DiSK also looks ahead: its loop takes
    gradients at x_t + (x_t - x_{t-1}) (1 - kappa) / kappa, so that the mean of old and new does not lag behind. That
    point is known from released quantities alone, so it is free as well, and a choice of the loop: nothing changes
    here.

    The state is the estimates, in float32 or better, and their variances. A coordinate that is not finite in one step
    is passed on as it is, and remembered as it was before.
    """

    drift: float | None = None
    gain: float | None = None

    def __post_init__(self) -> None:
        if (self.drift is None) == (self.gain is None):
            raise ConfigError(f"Kalman(drift={self.drift!r}, gain={self.gain!r}) needs one of the two, and only one.")
        if self.drift is not None:
            check_positive("Kalman's drift", self.drift, zero=True)
        if self.gain is not None and check_positive("Kalman's gain", self.gain) > 1:
            raise ConfigError(f"Kalman's gain is {self.gain!r}; it must be above 0 and at most 1 (no memory).")

    def check(self, law: "NoiseDistribution") -> None:
        """Refuse a law without a variance, where the gain is to be computed from it."""
        if self.gain is None:
            _needs_variance("Kalman(drift)", law)

    def start(self, layout: Layout) -> dict[str, Any]:
        """Nothing is known yet."""
        return {"estimates": {}, "variances": {}}

    def apply(
        self, released: "Mapping[str, Tensor]", noise: Added, state: dict[str, Any]
    ) -> "tuple[dict[str, Tensor], dict[str, Any]]":
        self.check(noise.law)
        filtered, estimates, variances = {}, dict(state["estimates"]), dict(state["variances"])
        for name, tensor in released.items():
            scale, earlier = noise.on(name), estimates.get(name)
            if earlier is not None and earlier.shape != tensor.shape:
                raise ConfigError(
                    f"{name} has shape {tuple(tensor.shape)}, but its earlier estimate has {tuple(earlier.shape)}; "
                    "start anew, or load the state of this model."
                )
            gain = 1.0
            if self.drift is not None:
                added = scale * scale * noise.law.variance
                gain, variances[name] = _gain(variances.get(name, math.inf), self.drift, added)
            elif self.gain is not None and scale > 0:
                gain = self.gain
            filtered[name], estimates[name] = _followed(tensor, earlier, gain)
        return filtered, {"estimates": estimates, "variances": variances}


def _gain(variance: float, drift: float, noise: float) -> tuple[float, float]:
    """Kalman's gain, and the estimate's variance after it; from its variance before, and that of the noise."""
    before = variance + drift * drift * noise
    gain = before / (before + noise) if noise > 0 and math.isfinite(before) else 1.0
    return gain, gain * noise


def _followed(tensor: "Tensor", earlier: "Tensor | None", gain: float) -> "tuple[Tensor, Tensor]":
    """The new estimate in the tensor's own dtype, and what to remember of it: two new tensors."""
    import torch

    wide = torch.promote_types(tensor.dtype, torch.float32)
    measured = tensor.detach().to(wide, copy=True)
    if earlier is None:
        return tensor.detach().clone(), measured
    known = earlier.to(tensor.device, wide)
    moved = known + gain * (measured - known) if gain < 1 else measured
    estimate = torch.where(known.isfinite(), moved, measured)
    return estimate.to(tensor.dtype), torch.where(estimate.isfinite(), estimate, known)


DENOISERS = (JamesStein, Kalman, KolmogorovSmirnov, Score)  # those that a saved plan finds by name


# --- what they share ---------------------------------------------------------------------------------------------


def _doubles(tensor: "Tensor") -> Doubles:
    """The values in float64, to be read only: they may be the tensor's own."""
    import torch

    return tensor.detach().reshape(-1).cpu().to(torch.float64).numpy()


def _times(tensor: "Tensor", factor: float) -> "Tensor":
    """A new tensor; what is not finite stays as it is, also where the factor is 0."""
    return tensor.detach().where(~tensor.isfinite(), 0.0) if factor == 0 else tensor.detach() * factor


def _needs_variance(who: str, law: "NoiseDistribution") -> None:
    if not math.isfinite(law.variance):
        raise ConfigError(
            f"{who} works with the noise's variance, which is {law.variance} for {law!r}; use Score(), or noise of "
            "finite variance (StudentT with df > 2, Laplace, Gaussian)."
        )
