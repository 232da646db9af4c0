"""The line that opens a run: its plan, the model's parameters and contract, what one step costs, versions."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from discreet.accounting.event_serialization import event_to_dict
from discreet.errors import ConfigError
from discreet.stages.plan import Plan
from discreet.stages.sensitivity import Layout

_PACKAGES = ("discreet", "torch", "numpy", "scipy", "cryptography")


def opening_of(plan: Plan, layout: Layout) -> dict[str, Any]:
    """The line that opens a run."""
    contract = plan.mechanism.contract(layout, plan.mechanism.bound.start(layout))
    blocks = [[list(b.members), b.norm, b.size] for b in contract.blocks]
    content = {
        "kind": "run",
        "plan": plan.to_dict(),
        "steps": plan.steps,
        "participations": plan.charges(plan.steps),
        "pass": steps_in_a_pass(plan),
        "phase": event_to_dict(plan.event(layout, steps=1)),
        **({"schedule": plan.stretches} if plan.noise_schedule else {}),
        "contract": {"blocks": blocks, "premises": list(contract.premises)},
        "parameters": [[n, list(s)] for n, s in zip(layout.names, layout.shapes, strict=True)],
        "versions": {name: _version(name) for name in _PACKAGES},
    }
    try:
        return json.loads(json.dumps(content))
    except TypeError as error:
        raise ConfigError(
            f"the plan's stages cannot be written down: {error}; give them settings of plain values."
        ) from error


def difference(written: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """In what a run that was written down is another than one's own: "plan", "model", or "" for nothing."""
    event = written["phase"]
    newer = {"unit", "crowded", "crowded_rate"} - set(event)  # older lines have none
    mine = {key: value for key, value in own["phase"].items() if key not in newer}
    if written.get("plan") != own["plan"]:
        return "plan"
    return "model" if written.get("parameters") != own["parameters"] or event != mine else ""


def steps_in_a_pass(plan: Plan) -> int:
    """How many steps in a row a unit takes part in only once.

    Args:
        plan: whose sampler says so.
    """
    low, high = 1, max(2, plan.steps + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if plan.charges(middle) <= 1 else (low, middle)
    return low


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
