"""Models whose parameters are sharded over the ranks by FSDP2 (`fully_shard`).

Between steps a rank has its shard of every parameter, of its gradient and of the optimizer's state. Where the bound
works on norms, a rank never has more: backward passes gather parameters module by module (fsdp_backward.py), sums are
added up over the ranks parameter by parameter (ShardedSums), and each rank draws the noise of its own shard. What needs
whole gradients side by side (bounds on elements, microbatches, exact sums, denoisers, shares of noise) has whole
parameters from `private.backward` on until it returns, adds them to a whole sum of its own, and keeps its shard of the
total. Either way what is released is what an unsharded model releases.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from discreet.distributed.fsdp_backward import GatheringPasses
from discreet.distributed.ranks import Ranks, is_sharded
from discreet.errors import ConfigError
from discreet.release.guards import trainable
from discreet.stages.mechanism import Mechanism

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


class Sharding:
    """A sharded model's parameters: how they become whole, and how gradients become shards."""

    def __init__(self, model: nn.Module, ranks: Ranks, mechanism: Mechanism) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._ranks = ranks
        self._modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
        if not isinstance(model, FSDPModule):
            raise ConfigError(
                "parameters are spread over ranks, but not by fully_shard(model): tensor parallelism and models of "
                "which only parts are sharded are not supported. Call fully_shard(model) on the whole model last."
            )
        if mechanism.bound.needs == "outputs":
            raise ConfigError(
                f"{type(mechanism.bound).__name__} keeps weights within bounds, which takes whole weights; do not "
                "shard them."
            )
        self._parameters = dict(model.named_parameters())
        for name, parameter in self._parameters.items():
            _check(name, parameter, ranks)
        for module in self._modules:
            _check_policies(module)
        self.names = self._whole_ones()
        trained: dict[str, Any] = trainable(model)
        whole = {name: parameter for parameter, name in self.names.values()}
        self.parameters = {name: whole[name] for name in trained}
        self.passes: GatheringPasses | None = None
        self.shards: dict[str, Tensor] | None = None  # this rank's parts of the parameters, where sums are sharded
        if self._by_norms(model, mechanism):
            self.passes = GatheringPasses(self._modules, ranks, self.whole)
            self.shards = {name: p.to_local().detach() for name, p in trained.items()}

    def _whole_ones(self) -> dict[int, tuple[nn.Parameter, str]]:
        """The parameters as passes see them, by their ids: the same objects each time, empty where they are sharded."""
        names = {id(p): name for name, p in self._parameters.items()}
        found: dict[int, tuple[nn.Parameter, str]] = {}
        for module in self._modules:
            with self._ranks.watched("nothing was released"):
                module.unshard()
            for group in _groups(module):
                for one in group.fsdp_params:
                    found[id(one.unsharded_param)] = one.unsharded_param, names[id(one.sharded_param)]
            module.reshard()
        return found

    def _by_norms(self, model: nn.Module, mechanism: Mechanism) -> bool:
        """Whether norms and sums are all that is needed, and shards are what sums are scattered into."""
        plain = mechanism.bound.needs == "norms" and mechanism.microbatch == 1 and mechanism.hardening != "exact"
        sharded: list[Any] = list(self._parameters.values())
        rows = all(p.placements[0].is_shard(0) for p in sharded)
        order = all(p.device_mesh.get_local_rank() == self._ranks.rank for p in sharded)
        made = any(isinstance(module, ParametrizationList) for module in model.modules())
        return plain and mechanism.denoise is None and not self._ranks.noise_shares and rows and order and not made

    def opened(self, losses: Any) -> AbstractContextManager[None]:
        """What a chunk's gradients are taken apart in; to be entered by all ranks alike."""
        return self.whole() if self.passes is None else self.passes.opened(losses)

    def remove(self) -> None:
        """Leave the model as it was."""
        if self.passes is not None:
            self.passes.remove()

    @contextmanager
    def whole(self) -> Generator[None]:
        """Have all parameters whole, whatever passes are run; to be entered by all ranks alike."""
        groups = [group for module in self._modules for group in _groups(module)]
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
        """This rank's part of a gradient, as its parameter is sharded; of one that is such a part, itself."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        parameter: Any = self._parameters[name]
        mesh, placements = parameter.device_mesh, parameter.placements
        part = gradient
        if self.shards is None:
            sizes, starts = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
            part = gradient[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
        return DTensor.from_local(
            part.contiguous(), mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
        )


def sharding_of(model: nn.Module, ranks: Ranks, mechanism: Mechanism) -> Sharding | None:
    """How a model is sharded, if it is; what cannot be made exact is refused by name."""
    return Sharding(model, ranks, mechanism) if any(is_sharded(p) for p in model.parameters()) else None


def _groups(module: "FSDPModule") -> list[Any]:
    state: Any = module._get_fsdp_state()
    return state._fsdp_param_groups


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
    for group in _groups(module):
        if isinstance(group.offload_policy, CPUOffloadPolicy):
            raise ConfigError(f"{type(module).__name__} is offloaded to the CPU, which is not supported; leave it out.")
