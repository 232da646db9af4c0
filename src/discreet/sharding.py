"""Models whose parameters are sharded over the ranks by FSDP2 (`fully_shard`): whole while gradients are taken apart.

Between steps a rank has its shard of every parameter, of its gradient and of the optimizer's state. For a batch, every
rank has the whole parameters from `private.backward` on until it returns (FSDP2's own gathering decides what is whole
in the forward pass), takes its own examples' gradients apart as any rank does, and adds them to a sum of its own; of
the total it keeps its shard. So what is released is exactly what an unsharded model releases.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from discreet.attachment import trainable
from discreet.distributed import Ranks, is_sharded
from discreet.errors import ConfigError
from discreet.mechanism import Bound

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class Sharding:
    """A sharded model's parameters: how they become whole, and how gradients become shards."""

    def __init__(self, model: nn.Module, ranks: Ranks, bound: Bound) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._ranks = ranks
        self._modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
        if not isinstance(model, FSDPModule):
            raise ConfigError(
                "parameters are spread over ranks, but not by fully_shard(model): tensor parallelism and models of "
                "which only parts are sharded are not supported. Call fully_shard(model) on the whole model last."
            )
        if bound.needs == "outputs":
            raise ConfigError(
                f"{type(bound).__name__} keeps weights within bounds, which takes whole weights; do not shard them."
            )
        self._parameters = dict(model.named_parameters())
        for name, parameter in self._parameters.items():
            _check(name, parameter, ranks)
        for module in self._modules:
            _check_policies(module)
        with self.whole():
            self.parameters = trainable(model)  # whole ones: the same objects each time, empty between steps

    @contextmanager
    def whole(self) -> Generator[None]:
        """Have all parameters whole, whatever passes are run; to be entered by all ranks alike."""
        states: list[Any] = [module._get_fsdp_state() for module in self._modules]
        groups = [group for state in states for group in state._fsdp_param_groups]
        before = [group.reshard_after_backward for group in groups]
        with self._ranks.watched("nothing of this step was released"):
            for module in self._modules:
                module.unshard()
                module.set_reshard_after_backward(False, recurse=False)
        try:
            yield
        finally:
            for group, resharded in zip(groups, before, strict=True):
                group.reshard_after_backward = resharded
            for module in self._modules:
                module.reshard()

    def shard(self, name: str, gradient: Tensor) -> Tensor:
        """This rank's part of a gradient, as its parameter is sharded."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        parameter: Any = self._parameters[name]
        mesh, placements = parameter.device_mesh, parameter.placements
        sizes, starts = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
        part = gradient[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
        return DTensor.from_local(
            part.contiguous(), mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
        )


def sharding_of(model: nn.Module, ranks: Ranks, bound: Bound) -> Sharding | None:
    """How a model is sharded, if it is; what cannot be made exact is refused by name."""
    return Sharding(model, ranks, bound) if any(is_sharded(p) for p in model.parameters()) else None


def _check(name: str, parameter: Any, ranks: Ranks) -> None:
    if not is_sharded(parameter):
        raise ConfigError(f"parameter {name!r} is not sharded and others are; call fully_shard(model) on the whole.")
    if parameter.device_mesh.ndim != 1 or parameter.device_mesh.size() != ranks.size:
        raise ConfigError(
            f"parameter {name!r} is spread over a mesh of shape {tuple(parameter.device_mesh.shape)}, and {ranks.size} "
            "ranks train together: hybrid sharding and tensor parallelism are not supported. Shard over one "
            "dimension that holds exactly the ranks of the group."
        )


def _check_policies(module: "FSDPModule") -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    state: Any = module._get_fsdp_state()
    if state._mp_policy != MixedPrecisionPolicy():
        raise ConfigError(
            f"{type(module).__name__} has {state._mp_policy}: gradients would be rounded on the way. Leave mp_policy "
            "out of fully_shard; use autocast around the model for less precision."
        )
    for group in state._fsdp_param_groups:
        if isinstance(group.offload_policy, CPUOffloadPolicy):
            raise ConfigError(f"{type(module).__name__} is offloaded to the CPU, which is not supported; leave it out.")
