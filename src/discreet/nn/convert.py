"""Conversion of a model: torch's recurrent layers become the library's, with the same parameters and names."""

import copy
import warnings
from typing import Any, Literal

from torch import nn

from discreet.errors import ConfigError
from discreet.nn.layers import GRU, LSTM, RNN, Recurrent

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


def convert(model: nn.Module, *, batch_norm: Literal["keep", "group"] = "keep") -> nn.Module:
    """A copy of the model in which torch's LSTM, GRU and RNN are discreet.nn's; the model itself stays as it is.

    Parameters keep their names, values, dtype, device and `requires_grad`, and modules their mode, so that state dicts
    load both ways; what was tied stays tied. Left alone, with a warning that names them: subclasses of torch's layers,
    which may compute something else, layers with hooks, a `forward` or parametrisations of their own, and LSTMs with
    `proj_size`. They still work with privacy, but slower.

    `batch_norm="group"` puts GroupNorm in the place of BatchNorm, which mixes examples: the largest of 32, 16, 8, 4, 2
    and 1 groups that divides the channels, weight and bias copied, statistics dropped. It is another function.

    Args:
        model: a model, which stays as it is.
        batch_norm: "keep" leaves BatchNorm, which mixes examples, in its place; "group" puts GroupNorm there.

    >>> convert(nn.Sequential(nn.Embedding(9, 4), nn.GRU(4, 8, batch_first=True)))[1]
    GRU(4, 8, batch_first=True)
    """
    if batch_norm not in ("keep", "group"):
        raise ConfigError(f"batch_norm is {batch_norm!r}; it must be 'keep' or 'group'.")
    model = copy.deepcopy(model)
    left: list[str] = []
    converted: dict[int, nn.Module] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in modules.items():
        if id(module) not in converted:
            converted[id(module)] = _converted(module, name, left, group=batch_norm == "group")
    if left:
        warnings.warn(f"convert left alone {'; '.join(left)}.", stacklevel=2)
    for name, module in modules.items():
        replacement = converted[id(module)]
        if replacement is module:
            continue
        if not name:
            return replacement
        parent, _, own = name.rpartition(".")
        modules[parent]._modules[own] = replacement
    return model


def _converted(module: nn.Module, name: str, left: list[str], *, group: bool) -> nn.Module:
    """What stands in for one module: itself in most cases."""
    shown = f"{type(module).__name__} {name!r}" if name else type(module).__name__
    if isinstance(module, _RECURRENT):
        reason = _why_not(module)
        if reason:
            left.append(f"{shown}: {reason}")
            return module
        return _with_same_parameters(module)
    if group and isinstance(module, _BATCH_NORMS):
        if type(module) not in _BATCH_NORMS:
            left.append(f"{shown}: a subclass may compute something else")
            return module
        return _grouped(module)
    return module


def _why_not(module: Any) -> str:
    """Why a recurrent layer cannot be converted, or nothing."""
    if hasattr(module, "parametrizations"):
        return "it has parametrisations"
    if type(module) not in _RECURRENT:
        return "a subclass may compute something else"
    if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        return "it has hooks or a forward of its own"
    if module._backward_hooks or module._backward_pre_hooks:
        return "it has hooks"
    return "it has proj_size" if getattr(module, "proj_size", 0) else ""


def _with_same_parameters(module: Any) -> Recurrent:
    settings: dict[str, Any] = {
        "num_layers": module.num_layers, "bias": module.bias, "batch_first": module.batch_first,
        "dropout": module.dropout, "bidirectional": module.bidirectional, "device": "meta",
    }  # fmt: skip
    if isinstance(module, nn.RNN):
        settings["nonlinearity"] = module.nonlinearity
    kind = LSTM if isinstance(module, nn.LSTM) else GRU if isinstance(module, nn.GRU) else RNN
    layer = kind(module.input_size, module.hidden_size, **settings)
    for name in list(layer._parameters):
        layer._parameters[name] = module._parameters[name]
    return layer.train(module.training)


def _grouped(module: Any) -> nn.GroupNorm:
    channels = int(module.num_features)
    groups = next(n for n in (32, 16, 8, 4, 2, 1) if channels % n == 0)
    norm = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine, device="meta")
    for name, parameter in module._parameters.items():
        norm._parameters[name] = parameter
    return norm.train(module.training)
