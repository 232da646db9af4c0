"""What a plan's steps cost together: one by one, a round through all groups as one, or the whole run as one release.

Noise that remembers, and users who take part a declared number of times, make a run one mechanism. Here is which
combinations are proven (C1, C4 of docs/theory-correlated.md); all others are refused by name.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from discreet.accounting.events import Query, Theorem
from discreet.errors import ConfigError
from discreet.stages.noise.correlated.banded import square_root
from discreet.stages.noise.correlated.sensitivity import Pattern
from discreet.stages.noise.correlated.workload import Workload
from discreet.stages.sampling import CyclicPoisson, Poisson

if TYPE_CHECKING:
    from discreet.stages.mechanism import Mechanism
    from discreet.stages.plan import Plan, Sampler
    from discreet.stages.sensitivity import Layout


def is_correlated(noise: Any) -> bool:
    """Whether a step's noise has to do with earlier steps'."""
    return bool(getattr(noise, "correlated", False))


def pattern_of(sampling: "Sampler") -> Pattern:
    """The steps in which one unit can take part."""
    who = sampling.contract()
    return Pattern(who.separation, who.most)


def is_whole_run(sampling: "Sampler", mechanism: "Mechanism") -> bool:
    """Whether the whole run is charged as one release, with its first step."""
    who = sampling.contract()
    return who.rate == 1 and (who.most is not None or is_correlated(mechanism.noise))


def theorem_of(plan: "Plan") -> Theorem:
    """By what a plan's events stand for more steps than they have."""
    if plan.whole_run:
        return "C1"
    return "C4" if plan.sampling.contract().separation > 1 and plan.sampling.contract().rate < 1 else ""


def solved_for(mechanism: "Mechanism", sampling: "Sampler", steps: int) -> "Mechanism":
    """The mechanism with its noise's strategy solved for a run of so many steps, where it has one."""
    solve: Any = getattr(mechanism.noise, "for_run", None)
    if solve is None:
        return mechanism
    noise = solve(steps, pattern_of(sampling))
    return mechanism if noise == mechanism.noise else replace(mechanism, noise=noise)


def whole_run_query(plan: "Plan", layout: "Layout | None") -> Query:
    """The one release that a whole run amounts to: its multiplier is in units of the run's sensitivity."""
    one = plan.mechanism.query(layout)
    pattern = pattern_of(plan.sampling)
    noise: Any = plan.mechanism.noise
    sensitivity: float = math.sqrt(pattern.times(plan.steps))
    if hasattr(noise, "sensitivity"):
        sensitivity = noise.sensitivity(plan.steps, pattern)
    return one if sensitivity == 0 else replace(one, multiplier=one.multiplier / sensitivity)


def alternatives(plan: "Plan") -> tuple[int, ...]:
    """The numbers of bands among which a plan's is still to be chosen, in order; none where nothing is open."""
    noise: Any = plan.mechanism.noise
    if getattr(noise, "bands", None) != "best":
        return ()
    sampling, steps = cyclic(plan.sampling), max(1, plan.steps)
    if not isinstance(sampling, CyclicPoisson):
        most = min(steps, sampling.contract().separation)
    elif sampling.groups > 1:  # more bands cost nothing where there are as many groups
        return (min(steps, sampling.groups),)
    else:
        most = min(steps, sampling.examples // sampling.batch_size)
    return tuple(sorted({most, *(b for i in range(20) for b in (2**i, 3 * 2**i) if b < most)}))


def with_bands(plan: "Plan", bands: int, *, rough: bool = False) -> "Plan":
    """The plan with so many bands, and groups: more bands take back more, and smaller groups hide less.

    `rough` takes the first coefficients of the square root, which need not be solved and are nearly as good.
    """
    noise: Any = plan.mechanism.noise
    sampling = cyclic(plan.sampling)
    if isinstance(sampling, CyclicPoisson) and sampling.groups == 1:
        sampling = replace(sampling, groups=bands)
    coefficients = square_root(bands).coefficients if rough else ()
    noise = replace(noise, bands=bands, coefficients=coefficients)
    return replace(plan, sampling=sampling, mechanism=replace(plan.mechanism, noise=noise))


def cyclic(sampling: "Sampler") -> "Sampler":
    """Poisson sampling of a public number of examples, in one group; other samplers as they are."""
    plain = isinstance(sampling, Poisson) and sampling.cap is None and sampling.adjacency in (None, "zero-out")
    if not plain or sampling.examples is None:
        return sampling
    return CyclicPoisson(examples=sampling.examples, batch_size=sampling.batch_size, unit=sampling.unit)


def solved_anew(plan: "Plan", before: "Plan") -> "Plan":
    """The plan with its strategy solved for its own length, if that of the one before was solved for its own."""
    noise, old = plan.mechanism.noise, before.mechanism.noise
    solve: Any = getattr(old, "resolved", None)
    if solve is None or solve(before.steps, pattern_of(before.sampling)) != old:
        return plan
    again: Any = noise
    return replace(plan, mechanism=replace(plan.mechanism, noise=again.resolved(plan.steps, pattern_of(plan.sampling))))


def rms_error(plan: "Plan") -> float:
    """The root mean squared error, over the steps, of the sum of all noisy means up to each: in clipping norms.

    It is what of the noise the model sees, if it learns at a constant rate, and by which plans are compared.
    """
    noise: Any = plan.mechanism.noise
    if noise.scale is None:
        raise ConfigError("the noise is still to be solved; use discreet.calibrate(plan, epsilon=...).")
    steps, of = max(1, plan.steps), getattr(noise, "error", None)
    if of is None:
        return noise.scale * math.sqrt(noise.law.variance * (steps + 1) / 2) / plan.sampling.batch_size
    return noise.scale * of(steps, Workload(momentum=getattr(noise, "momentum", 0.0))) / plan.sampling.batch_size


def check(sampling: "Sampler", mechanism: "Mechanism") -> None:
    """Refuse noise that remembers with a sampler for which nothing is proven."""
    who = sampling.contract()
    noise: Any = mechanism.noise
    if who.most is not None and not getattr(sampling, "continues", False):
        raise ConfigError(f"{sampling!r} says how often a unit takes part; then it must also say `continues`.")
    if not is_correlated(noise):
        if who.most is not None and (not noise.law.gaussian or mechanism.hardening == "exact"):
            raise ConfigError(
                f"{sampling!r} makes the run one release, for which Gaussian noise is needed, on real numbers: use "
                f"Gaussian, BandedGaussian or BLTGaussian, not {noise!r} with {mechanism.hardening} arithmetic."
            )
        return
    name, kind = type(noise).__name__, type(sampling).__name__
    if who.adjacency == "replace":
        raise ConfigError(
            f"{name} is proven for a unit that is left out, not for one that is replaced by another, and {kind} is "
            "analysed for that. Use CyclicPoisson, FixedOrder or MinSeparation."
        )
    if who.scheme != "poisson" or who.overflow:
        raise ConfigError(
            f"nothing is proven for {name} with {sampling!r}: who takes part must be a matter of each one's own coin, "
            "with no cap, or public. Use CyclicPoisson, FixedOrder or MinSeparation."
        )
    if noise.width <= who.separation or who.rate == 1:
        if not getattr(sampling, "continues", False):
            raise ConfigError(
                f"{name} asks how far apart a unit's steps are, also when a run is taken up again, which {kind} does "
                "not say. Use FixedOrder or MinSeparation, or CyclicPoisson with banded noise."
            )
    else:
        many = "no end of bands" if math.isinf(noise.width) else f"{noise.width} bands"
        groups = f"{who.separation} group{'s' * (who.separation > 1)}"
        raise ConfigError(
            f"{name} has {many}, and {kind} {groups}: two steps of one unit would share noise, and its coins hide "
            "nothing that is proven. There must be at least as many groups as bands: use BandedGaussian(bands=) with "
            "CyclicPoisson(groups=) alike, or FixedOrder."
        )
