"""Train PyTorch models on private data, and know exactly what has been proven about the result."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet import methods
    from discreet.accounting.calibrate import calibrate
    from discreet.accounting.guarantee import Claim, Condition, Guarantee
    from discreet.bounds import AutomaticClip, Clip, PerLayerClip
    from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
    from discreet.mechanism import Mechanism
    from discreet.noise import Gaussian
    from discreet.plan import Plan
    from discreet.private import Private, attach
    from discreet.sampling import Poisson

__version__ = "0.1.0"

_HOMES = {
    "AutomaticClip": "bounds",
    "BudgetExhausted": "errors",
    "Claim": "accounting.guarantee",
    "Clip": "bounds",
    "Condition": "accounting.guarantee",
    "ConfigError": "errors",
    "Gaussian": "noise",
    "Guarantee": "accounting.guarantee",
    "Mechanism": "mechanism",
    "PerLayerClip": "bounds",
    "Plan": "plan",
    "Poisson": "sampling",
    "Private": "private",
    "PrivacyError": "errors",
    "attach": "private",
    "calibrate": "accounting.calibrate",
}

__all__ = [
    "AutomaticClip",
    "BudgetExhausted",
    "Claim",
    "Clip",
    "Condition",
    "ConfigError",
    "Gaussian",
    "Guarantee",
    "Mechanism",
    "PerLayerClip",
    "Plan",
    "Poisson",
    "PrivacyError",
    "Private",
    "attach",
    "calibrate",
    "methods",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that accounting starts without torch."""
    if name in _HOMES:
        return getattr(import_module(f"discreet.{_HOMES[name]}"), name)
    if name == "methods":
        return import_module("discreet.methods")
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
