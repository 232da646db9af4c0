"""The noise, the steps or the batch size that spend a budget, and never more."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from discreet._check import check_positive
from discreet.accounting import cost, delta_curve
from discreet.accounting.events import Event, check_units, merge
from discreet.accounting.tradeoff import TradeOff
from discreet.accounting.tuning import Tuning
from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.stages.plan import Plan

Unknown = Literal["noise", "steps", "batch_size"]

_MOST_STEPS = 10**7
_LEAST, _MUCH, _MOST = 1e-4, 1e3, 1e7  # multipliers searched; beyond the second, first whether there is any


def calibrate(
    plan: "Plan",
    epsilon: float | None = None,
    solve_for: Unknown = "noise",
    *,
    advantage: float | None = None,
    tpr: float | None = None,
    at_fpr: float | None = None,
    group: int = 1,
    beside: Sequence[Event] = (),
) -> "Plan":
    """The plan with its noise, steps or batch size solved so that its proven epsilon, or an attacker's success, fits.

    Guarantee: the returned plan's epsilon does not exceed `epsilon`, and `plan.epsilon` is set to it as a hard
    limit. The multiplier is within 0.1 % of the smallest that fits; steps and batch size are the largest whole
    numbers that fit, the other two being as the plan says. Where the target is a risk, what is proven of the returned
    plan's trade-off curve does not exceed it, and the hard limit is the epsilon that this comes to.

    Args:
        plan: what is to be solved.
        epsilon: the most that may be spent at the plan's delta. Or else one of the risks below.
        solve_for: "noise", "steps" or "batch_size".
        advantage: the most that an attacker's true positives may exceed the false ones by.
        tpr: the most true positives an attacker may have, `at_fpr` false ones.
        at_fpr: the false positives at which `tpr` is meant.
        group: that it is for groups of so many units.
        beside: other releases on the same data, which count too: a private covariance, say. They are planned here, and
            counted when they are made (Ledger.query). They protect the plan's unit (`Event.per` goes from rows to
            users).

    Raises:
        ConfigError: nothing fits, or the target makes no sense.

    With `BandedGaussian(bands="best")` the bands are solved with the noise, and with the groups of a CyclicPoisson that
    has one, or of a Poisson sampling: those with the least `plan.rms_error`. One band is among them.

    >>> from discreet import Clip, Gaussian, Mechanism, Plan, Poisson
    >>> sampling, mechanism = Poisson(examples=60_000, batch_size=256), Mechanism(Clip(1.0), Gaussian())
    >>> plan = calibrate(Plan(sampling=sampling, mechanism=mechanism, steps=14_062, delta=1e-5), epsilon=3)
    >>> round(plan.mechanism.noise.multiplier, 2)
    0.97
    """
    target = _target(epsilon, advantage, tpr, at_fpr)
    if not hasattr(plan, "mechanism"):
        raise ConfigError(f"{plan!r} is not a Plan; make one with discreet.Plan or discreet.methods.")
    check_units(plan.sampling.contract().unit, beside)

    def events(changed: "Plan") -> list[Event]:
        return [*changed.events(group=group), *(replace(p, group=group) for p in beside)]

    def spent(changed: "Plan") -> float:
        return target.spent(events(changed), changed)

    if solve_for == "noise" and (numbers := plan.alternatives()):
        solved = _least_error(replace(plan, epsilon=None), numbers, target, spent)
    else:
        solved = _solved(plan, solve_for, spent, target)
    limit = epsilon
    if limit is None:
        limit = cost(events(solved), plan.delta, plan.tuning, thorough=False).epsilon * (1 + 1e-9)
    return replace(solved, epsilon=limit)


def calibrate_together(
    plans: "Sequence[Plan]", epsilon: float, tuning: Tuning, beside: Sequence[Sequence[Event]]
) -> "list[Plan]":
    """Plans of runs of which only the best is released, their noises solved so that all of it fits.

    Guarantee: the best of a number of runs that is drawn by `tuning`, each by one of these plans that is drawn without
    the data, is (epsilon, delta)-private, whichever plans were drawn. Each plan says so by itself: its tuning has the
    releases of all.

    Args:
        plans: one for each setting that costs something else; alike in delta, unit and adjacency.
        epsilon: the most that may be spent.
        tuning: how many runs are drawn, and by what the best is known.
        beside: for each plan what else its runs ask of the data: of a noisy score too.

    Raises:
        ConfigError: nothing fits, or the plans differ in delta.
    """
    if len({plan.delta for plan in plans}) != 1 or len(plans) != len(beside):
        raise ConfigError("the plans of which the best is taken need one delta, and each what is asked beside it.")
    alone, target = replace(tuning, candidates=()), epsilon
    while True:
        solved = [
            calibrate(replace(plan, tuning=alone), target, beside=asked)
            for plan, asked in zip(plans, beside, strict=True)
        ]
        costs = ((*plan.events(), *asked) for plan, asked in zip(solved, beside, strict=True))
        joint = replace(tuning, candidates=tuple(dict.fromkeys(tuple(merge(releases)) for releases in costs)))
        spent = cost([Event.of_best(joint)], plans[0].delta).epsilon
        if spent <= epsilon:
            return [replace(plan, tuning=joint, epsilon=epsilon) for plan in solved]
        target *= 0.999 * epsilon / spent


@dataclass(frozen=True)
class _Target:
    """What may not be exceeded: an epsilon, or what an attacker achieves."""

    limit: float
    words: str
    risk: Callable[[TradeOff], float] | None = None

    def spent(self, events: Sequence[Event], plan: "Plan") -> float:
        """How much of it these releases spend, at most."""
        if self.risk is None:
            return cost(events, plan.delta, plan.tuning, thorough=False).epsilon
        return self.risk(TradeOff(delta_curve(events, plan.delta, plan.tuning)))


def _target(epsilon: float | None, advantage: float | None, tpr: float | None, at_fpr: float | None) -> _Target:
    if (tpr is None) != (at_fpr is None):
        raise ConfigError(f"tpr={tpr!r} and at_fpr={at_fpr!r} say one thing together; give both.")
    if sum(given is not None for given in (epsilon, advantage, tpr)) != 1:
        raise ConfigError(
            f"epsilon={epsilon!r}, advantage={advantage!r} and tpr={tpr!r} are three ways to say how much may be lost; "
            "give one of them."
        )
    if epsilon is not None:
        return _Target(check_positive("epsilon", epsilon), f"epsilon {epsilon:g}")
    if advantage is not None:
        if not 0 < check_positive("advantage", advantage) < 1:
            raise ConfigError(f"advantage is {advantage!r}; it must be between 0 and 1.")
        return _Target(advantage, f"an advantage of {advantage:g}", lambda curve: curve.advantage)
    assert tpr is not None
    assert at_fpr is not None
    false = check_positive("at_fpr", at_fpr)
    if not false < check_positive("tpr", tpr) < 1:
        raise ConfigError(f"tpr is {tpr!r}; it must be between at_fpr ({at_fpr!r}), which guessing has, and 1.")
    words = f"{tpr:g} true positives at {at_fpr:g} false ones"
    return _Target(tpr, words, lambda curve: curve.power(false))


def _solved(plan: "Plan", solve_for: Unknown, spent: Callable[["Plan"], float], target: _Target) -> "Plan":
    """The plan that fits, whose own limit is not yet changed."""
    plan = replace(plan, epsilon=None)
    if solve_for == "noise":
        return _solve_noise(plan, target, spent)
    if solve_for not in ("steps", "batch_size"):
        raise ConfigError(f"solve_for is {solve_for!r}; it must be 'noise', 'steps' or 'batch_size'.")
    if not plan.mechanism.noise.solved:
        raise ConfigError(f"the noise must be known to solve for {solve_for}; give Gaussian(multiplier).")
    if solve_for == "steps":
        steps = largest(lambda n: spent(replace(plan, steps=n)), target.limit, _MOST_STEPS, plan.steps)
        if steps == 0:
            raise ConfigError(f"not even one step fits {target.words} with {plan.mechanism.noise!r}; add noise.")
        if steps == _MOST_STEPS:
            raise ConfigError(f"more than {_MOST_STEPS:,} steps fit {target.words}; there is nothing to solve.")
        return _refitted(replace(plan, steps=steps), plan, target, spent)

    def of_size(size: int) -> "Plan":
        return replace(plan, sampling=plan.sampling.with_batch_size(size))

    most, start = plan.sampling.largest_batch_size, math.ceil(plan.sampling.batch_size)
    size = largest(lambda n: spent(of_size(n)), target.limit, most, start)
    if size == 0:
        raise ConfigError(
            f"not even batch size 1 fits {target.words} in {plan.steps:,} steps with {plan.mechanism.noise!r}; "
            "add noise or take fewer steps."
        )
    return _refitted(of_size(size), plan, target, spent)


def _refitted(solved: "Plan", plan: "Plan", target: _Target, spent: Callable[["Plan"], float]) -> "Plan":
    """A solved plan with its noise's strategy solved for its own length, if that still fits."""
    again = solved.solved_anew(plan)
    return again if again is solved or spent(again) <= target.limit else solved


def _least_error(plan: "Plan", numbers: Sequence[int], target: _Target, spent: Callable[["Plan"], float]) -> "Plan":
    """The plan with the number of bands that is the least noisy where it just fits.

    The error falls and then rises; where it has risen twice only the largest number is tried, with which there may be
    no sampling at all. It may be better again, but seldom is: that is found out roughly first.
    """

    def solved(bands: int, *, rough: bool = False) -> "Plan":
        return _solve_noise(plan.with_bands(bands, rough=rough), target, spent)

    best, risen = solved(numbers[0]), 0
    for bands in numbers[1:-1]:
        found = solved(bands)
        best, risen = (found, 0) if found.rms_error < best.rms_error else (best, risen + 1)
        if risen == 2:
            break
    if len(numbers) > 1 and solved(numbers[-1], rough=True).rms_error < 1.15 * best.rms_error:
        found = solved(numbers[-1])
        best = found if found.rms_error < best.rms_error else best
    return best


def _solve_noise(plan: "Plan", target: _Target, spent_by: Callable[["Plan"], float]) -> "Plan":
    epsilon = target.limit

    def at(scale: float) -> "Plan":
        return replace(plan, mechanism=plan.mechanism.with_scale(scale))

    @cache
    def spent(scale: float) -> float:
        return spent_by(at(scale))

    if plan.steps == 0 or spent(_LEAST) <= epsilon:
        return at(_LEAST)
    low, high = 0.5, 1.0
    while spent(high) > epsilon:
        low, high = high, high * 2
        if high > _MUCH and spent(_MOST) > epsilon:
            raise ConfigError(f"no noise up to {_MOST:g} reaches {target.words} at delta {plan.delta:g}.")
    while spent(low) <= epsilon:
        low, high = low / 2, low
    while high / low > 1.0006:
        # where the line through the logarithms meets the target, a little to either side; never far from the ends
        middle = math.sqrt(low * high)
        if spent(high) > 0 and math.isfinite(spent(low)) and high / low < 2.1:
            share = math.log(spent(low) / epsilon) / math.log(spent(low) / spent(high))
            guess = low * (high / low) ** share
            middle = guess * (1.0003 if high / guess > guess / low else 1 / 1.0003)
            middle = min(max(middle, low * 1.0002), high / 1.0002)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    chosen = _round_up(high)
    return at(chosen if spent(chosen) <= epsilon else high)


def _round_up(multiplier: float) -> float:
    """Six significant digits, upwards: a figure people can copy."""
    scale = 10.0 ** (5 - math.floor(math.log10(multiplier)))
    return math.ceil(multiplier * scale) / scale


def largest(spent: Callable[[int], float], target: float, most: int, start: int) -> int:
    """The largest whole number up to `most` whose cost fits, with the next one not fitting; 0 if 1 does not fit.

    Costs grow about like a power: each guess is where the straight line through the logarithms of the last bracket
    meets the target, and the bracket is closed from both sides.
    """
    costs: dict[int, float] = {}

    def cost(n: int) -> float:
        if n not in costs:
            costs[n] = spent(n)
        return costs[n]

    if cost(1) > target:
        return 0
    low, high = 1, max(2, min(start, most))
    while high < most and cost(high) <= target:
        low, high = high, min(most, high * 4)
    if cost(high) <= target:
        return most
    width = 1
    while high - low > 1:
        guess = (low + high) // 2
        if cost(low) > 0 and math.isfinite(cost(high)):
            slope = math.log(cost(high) / cost(low)) / math.log(high / low)
            if slope > 0:
                guess = math.floor(low * math.exp(math.log(target / cost(low)) / slope))
        # step over the target on the side that is farther from the guess, so that both ends come in
        guess += width if high - guess > guess - low else -width
        guess = min(max(guess, low + 1), high - 1)
        if cost(guess) <= target:
            low = guess
        else:
            high = guess
        width = 1 if high - low <= 4 * width else 2 * width
    return low
