"""Train PyTorch models on private data, and know exactly what has been proven about the result."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet import data as data
    from discreet import distributed as distributed
    from discreet import features, methods
    from discreet import lightning as lightning
    from discreet import losses as losses
    from discreet import models as models
    from discreet import nn as nn
    from discreet import sklearn as sklearn
    from discreet import transformers as transformers
    from discreet.accounting.calibrate import calibrate
    from discreet.accounting.guarantee import Claim, Condition, Guarantee
    from discreet.accounting.tuning import Tuning, tuning_cost
    from discreet.bounds import (
        AdaptiveClip,
        AutomaticClip,
        BoundedNetwork,
        Clip,
        Encode,
        PerLayerClip,
        RadialTanh,
        ScaledTanh,
        Tanh,
    )
    from discreet.checkpoint import load_checkpoint, save_checkpoint
    from discreet.denoise import JamesStein, Kalman, KolmogorovSmirnov, Score
    from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
    from discreet.isolation import preflight
    from discreet.ledger import Ledger
    from discreet.mechanism import Mechanism
    from discreet.noise import AirySquared, Cauchy, Gaussian, Laplace, Logistic, Sech, StudentT, VarianceGamma
    from discreet.plan import Plan
    from discreet.private import Private, attach
    from discreet.sampling import FixedBatches, FixedSize, Poisson, Shuffled
    from discreet.training import fit
    from discreet.verification import verify

__version__ = "0.1.0"

_HOMES = {
    "AdaptiveClip": "bounds",
    "AirySquared": "noise",
    "AutomaticClip": "bounds",
    "BoundedNetwork": "bounds",
    "BudgetExhausted": "errors",
    "Cauchy": "noise",
    "Claim": "accounting.guarantee",
    "Clip": "bounds",
    "Condition": "accounting.guarantee",
    "ConfigError": "errors",
    "Encode": "bounds",
    "FixedBatches": "sampling",
    "FixedSize": "sampling",
    "Gaussian": "noise",
    "Guarantee": "accounting.guarantee",
    "JamesStein": "denoise",
    "Kalman": "denoise",
    "KolmogorovSmirnov": "denoise",
    "Laplace": "noise",
    "Ledger": "ledger",
    "Logistic": "noise",
    "Mechanism": "mechanism",
    "PerLayerClip": "bounds",
    "Plan": "plan",
    "Poisson": "sampling",
    "PrivacyError": "errors",
    "Private": "private",
    "RadialTanh": "bounds",
    "ScaledTanh": "bounds",
    "Score": "denoise",
    "Sech": "noise",
    "Shuffled": "sampling",
    "StudentT": "noise",
    "Tanh": "bounds",
    "Tuning": "accounting.tuning",
    "VarianceGamma": "noise",
    "attach": "private",
    "calibrate": "accounting.calibrate",
    "fit": "training",
    "load_checkpoint": "checkpoint",
    "preflight": "isolation",
    "save_checkpoint": "checkpoint",
    "tuning_cost": "accounting.tuning",
    "verify": "verification",
}

__all__ = [
    "AdaptiveClip",
    "AirySquared",
    "AutomaticClip",
    "BoundedNetwork",
    "BudgetExhausted",
    "Cauchy",
    "Claim",
    "Clip",
    "Condition",
    "ConfigError",
    "Encode",
    "FixedBatches",
    "FixedSize",
    "Gaussian",
    "Guarantee",
    "JamesStein",
    "Kalman",
    "KolmogorovSmirnov",
    "Laplace",
    "Ledger",
    "Logistic",
    "Mechanism",
    "PerLayerClip",
    "Plan",
    "Poisson",
    "PrivacyError",
    "Private",
    "RadialTanh",
    "ScaledTanh",
    "Score",
    "Sech",
    "Shuffled",
    "StudentT",
    "Tanh",
    "Tuning",
    "VarianceGamma",
    "attach",
    "calibrate",
    "features",
    "fit",
    "load_checkpoint",
    "methods",
    "preflight",
    "save_checkpoint",
    "tuning_cost",
    "verify",
]


# names that others have too stay out of __all__
_MODULES = (
    "data",
    "distributed",
    "features",
    "lightning",
    "losses",
    "methods",
    "models",
    "nn",
    "sklearn",
    "transformers",
)


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that accounting starts without torch."""
    if name in _HOMES:
        return getattr(import_module(f"discreet.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"discreet.{name}")
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
