"""A bound and a noise: how one batch becomes one release."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from discreet.contracts import Blocks, Layout, effective_multiplier
from discreet.errors import ConfigError
from discreet.noise import Gaussian

if TYPE_CHECKING:
    from torch import Tensor

Allocation = Literal["joint", "each", "power"]


class Bound(Protocol):
    """What a bound must have; see discreet.bounds."""

    @property
    def needs(self) -> str: ...
    def start(self, layout: Layout) -> Any: ...
    def apply(self, norms: "Mapping[str, Tensor]", state: Any) -> "Mapping[str, Tensor]": ...
    def contract(self, layout: Layout, state: Any) -> Blocks: ...


_BOUND_MEMBERS = ("needs", "start", "apply", "contract")


@dataclass(frozen=True)
class Mechanism:
    """The sum of bounded gradients plus noise.

    `allocation` splits the noise over the bound's blocks; the effective multiplier is the same for all three:

    - "joint": one standard deviation everywhere, s = multiplier * sqrt(sum of C_l^2);
    - "each": in proportion to each block's norm, s_l = multiplier * sqrt(number of blocks) * C_l;
    - "power": the least total noise power, s_l^2 = multiplier^2 * C_l / sqrt(d_l) * sum over j of C_j sqrt(d_j),
      with d_l the number of parameters of block l.
    """

    bound: Bound
    noise: Gaussian
    allocation: Allocation = "joint"

    def __post_init__(self) -> None:
        missing = [m for m in _BOUND_MEMBERS if not hasattr(self.bound, m)]
        if isinstance(self.bound, type) or missing:
            raise ConfigError(
                f"{self.bound!r} is not a bound: it lacks {', '.join(missing) or 'an instance'}; "
                "use Clip(norm), PerLayerClip(norms), AutomaticClip() or a class with the members of discreet.bounds."
            )
        if not isinstance(self.noise, Gaussian):
            raise ConfigError(f"{self.noise!r} is not a noise that is proven; use Gaussian(multiplier).")
        if self.allocation not in get_args(Allocation):
            raise ConfigError(
                f"allocation is {self.allocation!r}; it must be one of {', '.join(get_args(Allocation))}."
            )

    def scales(self, contract: Blocks) -> tuple[float, ...]:
        """The noise's standard deviation for each block of the contract."""
        blocks, multiplier = contract.blocks, self.noise.multiplier
        if self.noise.std is not None:
            return (self.noise.std,) * len(blocks)
        if multiplier is None:
            raise ConfigError("the noise is still to be solved; use discreet.calibrate(plan, epsilon=...).")
        if self.allocation == "each":
            return tuple(multiplier * math.sqrt(len(blocks)) * b.norm for b in blocks)
        if self.allocation == "power":
            total = sum(b.norm * math.sqrt(b.size) for b in blocks)
            return tuple(multiplier * math.sqrt(b.norm / math.sqrt(b.size) * total) for b in blocks)
        return (multiplier * contract.norm,) * len(blocks)

    def multiplier(self, layout: Layout | None) -> float:
        """The effective noise multiplier (T6 of docs/theory.md), which is all that privacy depends on."""
        if self.noise.multiplier is not None:
            return self.noise.multiplier
        if layout is None:
            one, two = Layout(("parameters",), ((1,),)), Layout(("parameters", "others"), ((1,), (1,)))
            try:
                contract, other = self.bound.contract(one, None), self.bound.contract(two, None)
            except ConfigError:
                contract = other = Blocks(())
            if not contract.blocks or other.norm != contract.norm:
                raise ConfigError(
                    f"Gaussian(std={self.noise.std!r}) with {self.bound!r} depends on the model's parameters; "
                    "use Gaussian(multiplier), or read the guarantee of an attached model."
                )
        else:
            contract = self.bound.contract(layout, self.bound.start(layout))
        return effective_multiplier(contract, self.scales(contract))
