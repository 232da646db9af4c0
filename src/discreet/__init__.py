"""Train PyTorch models on private data, and know exactly what has been proven about the result."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet import methods
    from discreet.accounting.calibrate import calibrate
    from discreet.accounting.guarantee import Claim, Condition, Guarantee
    from discreet.accounting.tuning import Tuning, tuning_cost
    from discreet.bounds import AutomaticClip, Clip, PerLayerClip
    from discreet.checkpoint import load_checkpoint, save_checkpoint
    from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
    from discreet.ledger import Ledger
    from discreet.mechanism import Mechanism
    from discreet.noise import AirySquared, Cauchy, Gaussian, Laplace, Logistic, Sech, StudentT, VarianceGamma
    from discreet.plan import Plan
    from discreet.private import Private, attach
    from discreet.probes import preflight
    from discreet.sampling import FixedBatches, FixedSize, Poisson, Shuffled
    from discreet.verification import verify

__version__ = "0.1.0"

_HOMES = {
    "AirySquared": "noise",
    "AutomaticClip": "bounds",
    "BudgetExhausted": "errors",
    "Cauchy": "noise",
    "Claim": "accounting.guarantee",
    "Clip": "bounds",
    "Condition": "accounting.guarantee",
    "ConfigError": "errors",
    "FixedBatches": "sampling",
    "FixedSize": "sampling",
    "Gaussian": "noise",
    "Guarantee": "accounting.guarantee",
    "Laplace": "noise",
    "Ledger": "ledger",
    "Logistic": "noise",
    "Mechanism": "mechanism",
    "PerLayerClip": "bounds",
    "Plan": "plan",
    "Poisson": "sampling",
    "PrivacyError": "errors",
    "Private": "private",
    "Sech": "noise",
    "Shuffled": "sampling",
    "StudentT": "noise",
    "Tuning": "accounting.tuning",
    "VarianceGamma": "noise",
    "attach": "private",
    "calibrate": "accounting.calibrate",
    "load_checkpoint": "checkpoint",
    "preflight": "probes",
    "save_checkpoint": "checkpoint",
    "tuning_cost": "accounting.tuning",
    "verify": "verification",
}

__all__ = [
    "AirySquared",
    "AutomaticClip",
    "BudgetExhausted",
    "Cauchy",
    "Claim",
    "Clip",
    "Condition",
    "ConfigError",
    "FixedBatches",
    "FixedSize",
    "Gaussian",
    "Guarantee",
    "Laplace",
    "Ledger",
    "Logistic",
    "Mechanism",
    "PerLayerClip",
    "Plan",
    "Poisson",
    "PrivacyError",
    "Private",
    "Sech",
    "Shuffled",
    "StudentT",
    "Tuning",
    "VarianceGamma",
    "attach",
    "calibrate",
    "load_checkpoint",
    "methods",
    "preflight",
    "save_checkpoint",
    "tuning_cost",
    "verify",
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
