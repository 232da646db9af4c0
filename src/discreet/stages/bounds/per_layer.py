"""Per-layer clipping (McMahan et al. 2018; van der Veen et al. 2018): each part of the model has its own norm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from discreet._check import check_positive
from discreet.errors import ConfigError
from discreet.stages.bounds.clip import shrink, sum_of
from discreet.stages.sensitivity import Block, Blocks, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PerLayerClip:
    """Each unit's gradient is clipped part by part.

    `norms` is one number for every parameter tensor, or a mapping from names to numbers: the name of a parameter
    ("conv1.weight"), or of a module, whose parameters are then clipped together ("conv1").

    Guarantee: one unit changes part l of the sum by at most its norm C_l, and all of it by sqrt(sum of C_l^2).
    """

    norms: float | Mapping[str, float]
    needs: ClassVar[str] = "norms"

    def __post_init__(self) -> None:
        if isinstance(self.norms, Mapping):
            if not self.norms:
                raise ConfigError("PerLayerClip's norms are empty; give a norm for every parameter or module.")
            for name, norm in self.norms.items():
                if not isinstance(name, str):
                    raise ConfigError(f"PerLayerClip names {name!r}; give the names of parameters or modules.")
                check_positive(f"PerLayerClip's norm for {name!r}", norm)
            object.__setattr__(self, "norms", dict(self.norms))
        else:
            check_positive("PerLayerClip's norm", self.norms)

    def start(self, layout: Layout) -> Blocks:
        """The parts, found once from the names of the parameters."""
        return self.contract(layout, None)

    def apply(self, norms: "Mapping[str, Tensor]", state: Blocks) -> "dict[str, Tensor]":
        weights: dict[str, Tensor] = {}
        for block in state.blocks:
            weight = shrink(sum_of({name: norms[name] for name in block.members}), block.norm)
            weights.update(dict.fromkeys(block.members, weight))
        return weights

    def contract(self, layout: Layout, state: Blocks | None) -> Blocks:
        if state is not None:
            return state
        sizes = dict(zip(layout.names, layout.sizes, strict=True))
        if not isinstance(self.norms, Mapping):
            return Blocks(tuple(Block((name,), self.norms, size) for name, size in sizes.items()))
        members: dict[str, list[str]] = {group: [] for group in self.norms}
        for name in layout.names:
            groups = [g for g in members if name == g or name.startswith(g + ".")]
            if len(groups) != 1:
                said = "no norm" if not groups else f"several norms ({', '.join(groups)})"
                raise ConfigError(f"PerLayerClip gives {said} for parameter {name!r}; give each parameter exactly one.")
            members[groups[0]].append(name)
        for group, names in members.items():
            if not names:
                raise ConfigError(f"PerLayerClip names {group!r}, which is no trainable parameter or module.")
        return Blocks(
            tuple(Block(tuple(names), self.norms[g], sum(sizes[n] for n in names)) for g, names in members.items())
        )
