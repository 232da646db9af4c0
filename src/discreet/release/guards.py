"""What must hold of model and losses before a step; one plan at a time, and a plain backward pass raises."""

import math
import os
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed.distributed_c10d as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from discreet.distributed.ranks import Ranks
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients import UnitGradients
from discreet.stages.plan import Plan

_HELD: "weakref.WeakValueDictionary[int, nn.Parameter]" = weakref.WeakValueDictionary()


def ready(model: nn.Module, plan: Plan) -> Plan:
    """The plan, fitted to the model; what cannot be made private is refused by name, before anything is touched."""
    _check_model(model)
    if not isinstance(plan, Plan):
        raise ConfigError(f"{plan!r} is not a Plan; make one with discreet.Plan or discreet.methods.")
    if not plan.mechanism.noise.solved:
        raise ConfigError("the plan's noise is still to be solved; use discreet.calibrate(plan, epsilon=...).")
    return plan if plan.mechanism.fitted else plan.fit_to(model)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class ParameterGuard:
    """A hold on a model's trainable parameters, until it is released; the model is not wrapped, and is as it was then.

    Args:
        model: what a plan is attached to.
        used: the parameters that backward passes reach, where they are not the model's own (sharded ones made whole).
        ranks: the processes that train together, where others may appear.
    """

    def __init__(
        self, model: nn.Module, used: Mapping[str, nn.Parameter] | None = None, ranks: Ranks | None = None
    ) -> None:
        self._parameters, self._ranks, self._process = trainable(model), ranks, os.getpid()
        used = self._parameters if used is None else used
        self._formats = {name: (p.dtype, p.device) for name, p in self._parameters.items()}
        self._norms = [(name, m) for name, m in model.named_modules() if isinstance(m, _NormBase)]
        self.held = True
        _HELD.update({id(p): p for p in self._parameters.values()})
        _watch_optimizers()
        self._guards = [p.register_post_accumulate_grad_hook(_refuse_plain) for p in used.values()]

    def check(self) -> None:
        """Raise unless the plan is attached still, in this process, and the model's normalisations are as they were.

        Raises:
            PrivacyError: in a fork of the process that attached, where other ranks have appeared, or after `detach`.
        """
        if os.getpid() != self._process:
            raise PrivacyError(
                "this process was forked from the one that attached the plan; two of them would spend the same budget. "
                "Attach in the process that trains."
            )
        if self._ranks is not None and self._ranks.alone and dist.is_initialized():
            self._ranks.check()
        if not self.held:
            raise PrivacyError("the plan was detached from the model; attach it again to go on training.")
        if self._norms:
            self._check_modes()

    def check_model(self) -> list[int]:
        """Raise if what was attached has been moved or frozen since, or a normalisation keeps statistics of the data.

        Returns:
            The version of each parameter: another one, and it has been written to.
        """
        versions = []
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad or (parameter.dtype, parameter.device) != self._formats[name]:
                what = "moved to another dtype or device" if parameter.requires_grad else "frozen"
                raise PrivacyError(f"parameter {name!r} was {what} after attach; detach and attach again.")
            if bool(parameter._backward_hooks):
                _check_hooks(name, parameter)
            versions.append(parameter._version)
        if self._norms:
            self._check_modes()
        return versions

    def _check_modes(self) -> None:
        """Raise if a normalisation has begun to keep or use statistics of the data."""
        for name, module in self._norms:
            problem = _problem(module)
            if problem is not None:
                raise PrivacyError(f"module {name!r} ({type(module).__name__}) {problem}")

    def detach(self) -> None:
        """Let the model go."""
        self.held = False
        for guard in self._guards:
            guard.remove()
        for parameter in self._parameters.values():
            _HELD.pop(id(parameter), None)


def refuse_written() -> None:
    """Parameters were written to while a batch was open."""
    raise PrivacyError(
        "the model's parameters changed between two chunks of one batch; step the optimizer only when "
        "private.backward(losses) returns True. Nothing was released."
    )


def _refuse_plain(parameter: Tensor) -> None:
    """Runs when a gradient was accumulated by a plain backward pass: takes it away again, and says so."""
    parameter.grad = None
    raise PrivacyError(
        "loss.backward() was called on an attached model, which would train without privacy; use "
        "private.backward(losses) with one loss per example, or private.detach() first. Where another model is to be "
        "trained through this one (a generator), name what gets gradients: loss.backward(inputs=[*other.parameters()])."
    )


_LOOKED_AT: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()
_WATCHED: list[RemovableHandle] = []


def _watch_optimizers() -> None:
    """Have every optimizer looked at once, when it steps: nothing is put on it."""
    if not _WATCHED:
        _WATCHED.append(register_optimizer_step_pre_hook(_look_at))


def _look_at(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """Warn of an optimizer that trains what a plan covers together with what none does."""
    if not _HELD or optimizer in _LOOKED_AT:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    loose = [tuple(p.shape) for p in parameters if _HELD.get(id(p)) is not p]
    if len(loose) == len(parameters):  # it has nothing to do with a plan
        return
    _LOOKED_AT.add(optimizer)
    if loose:
        shown = ", ".join(map(str, loose[:4])) + (", ..." if len(loose) > 4 else "")
        warnings.warn(
            f"the optimizer holds {len(loose)} trainable parameters that no plan covers, of shapes {shown}, beside "
            f"{len(parameters) - len(loose)} that one does: nothing makes their gradients private. Attach a module "
            "that holds all of them, or leave them out of the optimizer.",
            stacklevel=3,
        )


def _check_model(model: nn.Module) -> None:
    """Refuse what cannot be made private, by name, before anything is touched."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{type(model).__name__} is not a torch.nn.Module.")
    for name, module in model.named_modules():
        where = f"module {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        problem = _problem(module)
        if problem is not None:
            raise PrivacyError(f"{where} {problem}")
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ConfigError("the model has no trainable parameters; set requires_grad on what is to be trained.")
    for name, parameter in trainable.items():
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise ConfigError(f"parameter {name!r} is {parameter.dtype}; only floating point can be trained.")
        if _HELD.get(id(parameter)) is parameter:
            raise PrivacyError(f"parameter {name!r} has a plan attached already; call detach() on that one first.")
        _check_hooks(name, parameter)


def _check_hooks(name: str, parameter: nn.Parameter) -> None:
    if bool(parameter._backward_hooks):
        raise PrivacyError(
            f"parameter {name!r} has a gradient hook, which would see gradients before the noise, and not each "
            "example's; remove it, and look at p.grad when private.backward(losses) has returned True."
        )


def _problem(module: nn.Module) -> str | None:
    """What is wrong with a module, as the end of a sentence, or None."""
    if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None:
        return "is compiled, so its uses of parameters cannot be seen; attach the model it was compiled from."
    if isinstance(module, torch.jit.ScriptModule):
        return "is a TorchScript module, which cannot be taken apart by examples; attach the original module."
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "spreads a batch over devices itself; attach the module inside it, and its ranks train together."
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        return (
            "uses statistics of the whole batch, which mixes examples, and keeps them; replace it by GroupNorm, as "
            "discreet.nn.convert(model, batch_norm='group') does, or put it in eval mode."
        )
    if isinstance(module, _NormBase) and module.training and module.track_running_stats:
        return "keeps statistics of the data in its buffers, past any noise; set track_running_stats=False."
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        return "rewrites its weight in the forward pass (max_norm), past any noise; set max_norm=None."
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.scale_grad_by_freq:
        return "divides by counts over the whole batch (scale_grad_by_freq), which mixes examples; set it to False."
    if _drops_tokens(module):
        return (
            "drops tokens of one example when those of others fill an expert, and keeps how many; turn that off, in "
            f"its config: expert_capacity={_NO_LIMIT}, moe_eval_capacity_token_fraction=0.0."
        )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module._parameters.values()):
        return "is not initialised yet (a lazy module); run it once on constants before attaching."
    return None


def refuse_unmanaged(gradients: UnitGradients, model: nn.Module, sharded: Mapping[int, str]) -> None:
    """Raise where the losses reach parameters that no plan covers, or none that one does.

    Args:
        gradients: what a backward pass found.
        model: the attached model.
        sharded: names of the parameters that stand for sharded ones, by identity.
    """
    current = {id(p): name for name, p in model.named_parameters()} | dict(sharded)
    for tensor in gradients.unmanaged_leaves:
        if id(tensor) in current:
            raise PrivacyError(
                f"parameter {current[id(tensor)]!r} was unfrozen, added or replaced after attach, so nothing "
                "bounds its gradient; detach and attach again."
            )
    if not gradients.forms:
        raise PrivacyError(
            "the losses come from another model: nothing that the plan is attached to took part in them. Attach "
            "the model that is trained, and not a copy of it."
        )


def check_losses(losses: Tensor, rows: int) -> Tensor | None:
    """Raise unless there is one loss for each row.

    Args:
        losses: what came as losses.
        rows: how many rows the batch has.

    Returns:
        Which losses are finite; None: all of them. Losses on a device are not waited for.
    """
    if not isinstance(losses, Tensor) or losses.shape != (rows,) or not losses.is_floating_point():
        raise PrivacyError(  # without the number of rows: how many were drawn is private
            f"the losses {_in_words(losses)}; one loss for each row of the batch is needed. Use reduction='none', "
            "and sum or average over everything but the first dimension."
        )
    values = losses.detach()
    return None if values.is_cpu and math.isfinite(values.sum().item()) else values.isfinite()


def _in_words(losses: Any) -> str:
    """What is wrong with losses, without a size."""
    if not isinstance(losses, Tensor):
        return f"are {type(losses).__name__} and no tensor"
    if not losses.is_floating_point():
        return f"are {losses.dtype}"
    if losses.dim() == 1:
        return "have shape (n,), and n is not the number of rows"
    return f"have {losses.dim()} dimensions" if losses.dim() else "have shape ()"


_NO_LIMIT = 10**9  # tokens of a batch, of which no batch has more


def _drops_tokens(module: nn.Module) -> bool:
    """Whether a router of the library transformers has a capacity over the whole batch, which no gradient shows."""
    if type(module).__name__ != "NllbMoeTop2Router":
        return False
    fraction = getattr(module, "moe_eval_capacity_token_fraction", 1)
    return fraction > 0 or (getattr(module, "expert_capacity", None) or 0) < _NO_LIMIT
