"""What a plan is checked for when it meets a model's layout, before anything is counted."""

from collections.abc import Sequence
from typing import Any

from discreet.accounting import cost
from discreet.accounting.events import Event, check_units
from discreet.errors import BudgetExhausted, ConfigError
from discreet.stages.noise.discrete import LARGEST
from discreet.stages.plan import Plan
from discreet.stages.sensitivity import GRID, Block, Layout


def check_budget(plan: Plan, layout: Layout, queries: Sequence[Event]) -> None:
    """Refuse a plan that would spend more than its limit, together with what was asked of the data before."""
    if plan.epsilon is None:
        return
    check_units(plan.sampling.contract().unit, queries)
    spent = cost([*plan.events(layout), *queries], plan.delta, plan.tuning).epsilon
    if spent > plan.epsilon:
        raise BudgetExhausted(
            f"the plan's {plan.steps:,} steps would spend epsilon {spent:.4g}, more than its limit {plan.epsilon:g}; "
            "use discreet.calibrate to solve for noise, steps or batch size."
        )


def check_contract(plan: Plan, layout: Layout, state: Any) -> None:
    """Refuse a contract that leaves a parameter out, or noise that cannot be split."""
    contract = plan.mechanism.contract(layout, state)
    plan.mechanism.scales(contract)
    bounded = [name for block in contract.blocks if not block.share for name in block.members]
    if sorted(bounded) != sorted(layout.names):
        odd = sorted(set(bounded) ^ set(layout.names)) or sorted(bounded)
        raise ConfigError(
            f"the contract of {plan.mechanism.bound!r} must have each parameter once; look at {odd[0]!r}."
        )


def check_exact_noise(plan: Plan, layout: Layout, state: Any, blocks: Sequence[Block]) -> None:
    """Refuse noise that exact arithmetic could not draw."""
    scales = plan.mechanism.scales(plan.mechanism.contract(layout, state))
    least, most = (f(factor for _, factor in plan.stretches) for f in (min, max))
    for block, scale in zip(blocks, scales, strict=True):
        if not 0 < least * scale / (block.norm * GRID) <= most * scale / (block.norm * GRID) <= LARGEST:
            raise ConfigError(
                f"the noise of {', '.join(block.members)} is {scale:.3g} on a grid of {block.norm * GRID:.3g}: too "
                "little or too much to be drawn exactly. Use another allocation or multiplier."
            )


def check_shares(plan: Plan) -> None:
    """Refuse noise that is not a sum of shares of the same kind."""
    exact = plan.mechanism.hardening == "exact"
    if not plan.mechanism.noise.law.gaussian or exact:
        what = "exact (discrete) noise" if exact else repr(plan.mechanism.noise)
        raise ConfigError(
            f"{what} cannot be drawn in shares: only Gaussian ones add up to the same law. Use Gaussian noise, or "
            "leave noise_shares out: rank 0 then draws the noise."
        )
