"""Whether a state that was saved may be loaded: its counts, and what its stages keep."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from discreet._check import check_int
from discreet.errors import PrivacyError
from discreet.stages.plan import Plan


def check_counts(state: Mapping[str, Any], plan: Plan) -> tuple[int, int]:
    """A state's numbers of releases and participations, if it is this plan's and they can be.

    Raises:
        PrivacyError: it is another plan's, or its numbers cannot be.
    """
    if state.get("format") != "discreet-state/1" or state.get("plan") != plan.to_dict():
        raise PrivacyError("the state belongs to another plan; attach the plan it was saved with.")
    released = check_int("the state's number of releases", state.get("released", -1), least=0)
    taken = check_int("the state's number of participations", state.get("participations", released), least=0)
    if not plan.charges(released) <= taken <= released <= plan.steps:
        raise PrivacyError(f"the state counts {released} releases and {taken} participations, which cannot be.")
    together = state.get("together", {})
    if not isinstance(together, Mapping) or set(together) - {"ranks", "rows", "noise_shares"}:
        raise PrivacyError("the state's 'together' is not what is known of ranks; load it as it was saved.")
    return released, taken


def check_stages(state: Mapping[str, Any], bound: Any, denoised: Any, shapes: Mapping[str, torch.Size]) -> None:
    """Raise unless what bound and denoiser keep has the form of their own states."""
    fits = {"bound": _alike(state.get("bound"), bound), "denoise": _fits(state.get("denoise"), denoised, shapes)}
    for key in (key for key, fine in fits.items() if not fine):
        raise PrivacyError(f"the state's {key!r} does not fit the plan's stage; load it as it was saved.")


def _fits(saved: Any, own: Any, shapes: Mapping[str, torch.Size]) -> bool:
    """Whether a saved state can be a denoiser's: its keys, and tensors of the parameters' shapes by their names."""
    if not isinstance(own, dict):
        return saved is None or own is not None
    if not isinstance(saved, dict) or (own and saved.keys() != own.keys()):
        return False
    tables = [saved, *(v for v in saved.values() if isinstance(v, dict))]
    named = [(k, v) for table in tables for k, v in table.items() if k in shapes and isinstance(v, Tensor)]
    return all(tensor.shape == shapes[name] for name, tensor in named)


def _alike(saved: Any, own: Any) -> bool:
    """Whether a saved value has the form of one's own: the same keys, names and shapes, and finite numbers."""
    if isinstance(own, Mapping):
        return isinstance(saved, Mapping) and set(saved) == set(own) and all(_alike(saved[k], own[k]) for k in own)
    if isinstance(own, (list, tuple)) and not own:
        return isinstance(saved, (list, tuple))
    if isinstance(own, (list, tuple)):
        same = isinstance(saved, (list, tuple)) and len(saved) == len(own)
        return same and all(_alike(f, o) for f, o in zip(saved, own, strict=True))
    if isinstance(own, Tensor):
        return isinstance(saved, Tensor) and (saved.shape, saved.dtype) == (own.shape, own.dtype)
    if isinstance(own, (bool, str)) or own is None:
        return type(saved) is type(own) and saved == own
    return isinstance(saved, (int, float)) and not isinstance(saved, bool) and abs(saved) < 1e300
