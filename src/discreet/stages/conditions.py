"""The guarantee of a plan: what its releases prove, and what that rests on."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from discreet.accounting.events import Event
from discreet.accounting.guarantee import Claim, Condition, Guarantee, Status, guarantee
from discreet.accounting.shuffling import lower_bound
from discreet.accounting.tuning import Tuning
from discreet.stages.participation import (
    is_correlated,
)
from discreet.stages.sampling import Shuffled
from discreet.stages.sensitivity import Layout

if TYPE_CHECKING:
    from discreet.stages.plan import Plan


def guarantee_of(
    plan: "Plan", layout: Layout | None, events: Sequence[Event], *, taking_part: Status = "proven"
) -> Guarantee:
    """The guarantee of these releases of a plan, for a model of this layout (None: not known yet).

    `taking_part` is how far it is known who took part: by construction, but where ranks must have had the same rows.
    """
    who = plan.sampling.contract()
    contract = plan.mechanism.contract_for(layout)
    premises = () if contract is None else contract.premises
    words = getattr(plan.sampling, "taking_part", None) or _TAKING_PART[who.scheme, who.rate == 1]
    conditions = (
        Condition(words.format(unit=who.unit), taking_part),
        *_remembered(plan),
        *_reached(plan, layout),
        Condition(f"each {who.unit}'s share of each sum was bounded before the noise was added", "proven"),
        *(Condition(text, "proven") for text in premises),
        *_ARITHMETIC[plan.mechanism.hardening],
        Condition(f"random numbers that are drawn for each {who.unit} (dropout, changed copies) are secret", "assumed"),
        Condition("nothing but the released gradients, and what is computed from them, leaves the run", "assumed"),
        Condition(
            "figures of merit were computed on other data than the training examples, whom this does not protect",
            "assumed",
        ),
        Condition(
            "what prepares the data (ranges, categories, sizes, words) was stated without looking at it, or is counted",
            "assumed",
        ),
        Condition("settings were chosen without these rows, or by noisy scores that a ledger counts", "assumed"),
    )
    if plan.tuning is not None:
        conditions = (*conditions, *_of_a_choice(plan.tuning))
    proven = guarantee(
        events,
        plan.delta,
        unit=who.unit,
        adjacency=who.adjacency,
        conditions=conditions,
        tuning=plan.tuning,
        steps=plan.steps,
    )
    return replace(proven, claims=_claims(plan, layout) if proven.group == 1 else ())


def _of_a_choice(tuning: Tuning) -> tuple[Condition, ...]:
    """What the guarantee of the best of several runs rests on."""
    if tuning.distribution == "all":
        return (Condition("there were no more runs than are counted", "assumed"),)
    held_out = "a score of rows that are not protected, or of public data, or one that is private and counted elsewhere"
    by = "a score with noise, which is counted" if tuning.score == "noisy" else held_out
    return (
        Condition(f"the best run was chosen by {by}, and only it was released", "assumed"),
        Condition(
            "how many runs there were, and their settings, were drawn once and without the data; the number, the time "
            "that all took and every other run stay secret",
            "assumed",
        ),
    )


def _claims(plan: "Plan", layout: Layout | None) -> tuple[Claim, ...]:
    """What others say of the plan's bound, by Rényi divergences and the conversion that they use."""
    contract, said = plan.mechanism.contract_for(layout), getattr(plan.mechanism.bound, "claims", None)
    if contract is None or said is None or plan.steps == 0 or not plan.mechanism.noise.solved:
        return ()
    scales, claims = plan.mechanism.scales(contract), []
    stretches = [(event, factor) for event, (_, factor) in zip(plan.events(layout), plan.stretches, strict=True)]
    for several in zip(*(said(p, contract, tuple(f * s for s in scales)) for p, f in stretches), strict=True):
        epsilon = _as_claimed([event for claimed in several for event in claimed.events], plan.delta)
        claims.append(Claim(several[0].source, epsilon, several[0].verdict, several[0].reason))
    return tuple(claims)


def _as_claimed(events: Sequence[Event], delta: float) -> float:
    from discreet.accounting import rdp

    return rdp.classic(rdp.divergences(events), rdp.ORDERS, delta)


_ARITHMETIC = {
    "idealised": (Condition("noise and coins are secret and are those of exact real arithmetic", "assumed"),),
    "exact": (
        Condition("contributions were summed as whole numbers, and their noise was drawn exactly", "proven"),
        Condition("no example's gradient depends, in its last bits, on the others of its batch", "assumed"),
        Condition("noise and coins are secret", "assumed"),
    ),
}


_TAKING_PART = {
    ("poisson", False): "each {unit} took part in each step by its own secret coin",
    ("poisson", True): "each {unit} took part as often as was counted, whoever it was",
    ("fixed-size", False): "each step's {unit}s were a secret, uniformly random set of fixed size",
    ("fixed-size", True): "each {unit} took part in each step",
    (
        "allocation",
        False,
    ): "each {unit} picked one batch of every epoch by a secret draw of its own, anew in each epoch",
    ("allocation", True): "each {unit} took part in each step",
    ("fixed-batches", False): "each step's {unit}s were one of several fixed batches, chosen at random",
    ("fixed-batches", True): "each {unit} took part in each step",
}


def _reached(plan: "Plan", layout: Layout | None) -> tuple[Condition, ...]:
    """What an attack reaches, where far more is proven than is known to be needed."""
    sampling, mechanism = plan.sampling, plan.mechanism
    usual = mechanism.bound.needs == "norms" and mechanism.microbatch == 1 and not plan.noise_schedule
    if not isinstance(sampling, Shuffled) or not usual or not mechanism.noise.law.gaussian:
        return ()
    query = plan.event(layout)
    passes = plan.steps // sampling.steps_in_a_pass
    least = lower_bound(
        query.multiplier, sampling.examples, sampling.batch_size, passes, plan.delta,
        replaced=query.adjacency == "replace",
    )  # fmt: skip
    if least == 0:
        return ()
    least = math.floor(100 * least) / 100
    words = f"no proof for passes in a random order, with this noise, can say less than {least:g}: an attack reaches it"
    return (Condition(words, "proven"),)


def _remembered(plan: "Plan") -> tuple[Condition, ...]:
    """What is to be said where steps have to do with each other, or chances with places."""
    conditions = []
    if is_correlated(plan.mechanism.noise):
        last = getattr(plan.mechanism.noise, "width", 0) - 1
        whose = (
            "all earlier noise" if last == float("inf") else f"the noise of the last {last:g} step{'s' * (last > 1)}"
        )
        after = "a run that was taken up again went on with fresh noise (C5, C6)"
        conditions.append(Condition(f"the noise of each step takes back a part of {whose}, and {after}", "proven"))
    who = plan.sampling.contract()
    beside: str = getattr(plan.sampling, "assumes", "")
    if beside:
        conditions.append(Condition(beside.format(unit=who.unit), "assumed"))
    if plan.continues and (who.separation > 1 or who.most is not None):
        order = (
            f"the numbers of the {who.unit}s, by which they take part, do not depend on what any of them holds, and "
            "stay the same when the run is taken up again"
        )
        conditions.append(Condition(order, "assumed"))
    return tuple(conditions)
