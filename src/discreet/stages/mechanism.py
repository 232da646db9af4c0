"""A bound, a noise and perhaps a denoiser: how one batch becomes one release."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

from discreet._check import check_int
from discreet.accounting.events import Hardening, Law, Magnitudes, Query
from discreet.accounting.gaussian import gaussian_rate
from discreet.errors import ConfigError, PrivacyError
from discreet.stages.sensitivity import Block, Contract, Layout, asked, doubled, effective_multiplier, norm_of, rounded

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.stages.noise.random import SecureStream


Allocation = Literal["joint", "each", "power"]


class Bound(Protocol):
    """What every bound must have; see discreet.bounds for what else it may have."""

    @property
    def needs(self) -> str: ...
    def start(self, layout: Layout) -> Any: ...
    def contract(self, layout: Layout, state: Any) -> Contract: ...


class NoiseMemory(Protocol):
    """What a noise keeps from step to step, where later noise cancels a part of what was added before."""

    def filter(self, drawn: "Tensor", key: Hashable, first: int) -> None:
        """Turn fresh noise of unit scale into this step's, in place.

        Args:
            drawn: independent values, a piece of a step's noise.
            key: which buffer the piece belongs to.
            first: where in that buffer it begins.
        """

    def advance(self) -> None:
        """The step's noise is complete: what was filtered is the past now."""


class Noise(Protocol):
    """What a noise must have; see discreet.stages.noise.distribution.

    It may also have `start() -> NoiseMemory | None`: what it keeps from step to step. Without, steps are independent.
    """

    @property
    def scale(self) -> float | None: ...
    @property
    def absolute(self) -> float | None: ...
    @property
    def solved(self) -> bool: ...
    @property
    def law(self) -> Law: ...
    def scaled(self, scale: float) -> Self: ...
    def sample(self, out: "Tensor", scale: float, source: "SecureStream") -> None: ...


class Denoiser(Protocol):
    """What a denoiser must have; see discreet.stages.denoise."""

    def start(self, layout: Layout) -> Any: ...
    def apply(self, released: "Mapping[str, Tensor]", noise: Any, state: Any) -> "tuple[Mapping[str, Tensor], Any]": ...


# which function does the work, by what a bound needs to see of each unit's gradient
_WORK = {"norms": "apply", "elements": "apply", "outputs": "install"}
_NOISE_MEMBERS = ("scale", "absolute", "solved", "law", "scaled", "sample")


@dataclass(frozen=True)
class Mechanism:
    """The sum of bounded gradients plus noise.

    `allocation` splits the noise over the bound's blocks; the effective multiplier is the same for all three:

    - "joint": one scale everywhere, s = multiplier * sqrt(sum of C_l^2);
    - "each": in proportion to each block's norm, s_l = multiplier * sqrt(number of blocks) * C_l;
    - "power": the least total noise power, s_l^2 = multiplier^2 * C_l / sqrt(d_l) * sum over j of C_j sqrt(d_j),
      with d_l the number of parameters of block l.

    With `microbatch` m > 1 the mean gradient of about m examples is bounded, not each example's: one of them can turn a
    bounded vector into any other, so the sum moves by twice the bound, and the noise follows.

    `hardening` "exact" rounds bounded contributions to a grid, sums them as whole numbers and draws discrete Gaussian
    noise exactly, so that no floating point stands between the contributions and the release. (Gradients are floats
    still: that one row's last bits do not depend on the others is assumed.) It is slower, as every contribution is
    made, and is accounted by Rényi divergences. "idealised" is the usual arithmetic, taken for real numbers.

    `denoise` is applied to what was released and can see nothing else, so it costs nothing.
    """

    bound: Bound
    noise: Noise
    allocation: Allocation = "joint"
    microbatch: int = 1
    hardening: Hardening = "idealised"
    denoise: Denoiser | None = None

    def __post_init__(self) -> None:
        work = _WORK.get(str(getattr(self.bound, "needs", None)), "apply")
        missing = [m for m in ("needs", "start", work, "contract") if not hasattr(self.bound, m)]
        if isinstance(self.bound, type) or missing:
            raise ConfigError(
                f"{self.bound!r} is not a bound: it lacks {', '.join(missing) or 'an instance'}; "
                "use Clip(norm), PerLayerClip(norms), AutomaticClip() or a class with the members of discreet.bounds."
            )
        if self.bound.needs not in _WORK:
            raise ConfigError(f"{self.bound!r} needs {self.bound.needs!r}; it must be one of {', '.join(_WORK)}.")
        missing = [m for m in _NOISE_MEMBERS if not hasattr(self.noise, m)]
        if isinstance(self.noise, type) or missing:
            raise ConfigError(
                f"{self.noise!r} is not a noise: it lacks {', '.join(missing) or 'an instance'}; "
                "use Gaussian(multiplier), another of discreet.noise, or a class derived from its Family."
            )
        if self.allocation not in get_args(Allocation):
            raise ConfigError(
                f"allocation is {self.allocation!r}; it must be one of {', '.join(get_args(Allocation))}."
            )
        check_int("microbatch", self.microbatch, least=1)
        if self.hardening not in get_args(Hardening):
            raise ConfigError(f"hardening is {self.hardening!r}; it must be one of {', '.join(get_args(Hardening))}.")
        if self.hardening == "exact" and (not self.noise.law.gaussian or self.noise.absolute is not None):
            raise ConfigError(f"exact hardening is for Gaussian(multiplier), not {self.noise!r}.")
        if getattr(self.noise, "correlated", False):
            self._check_correlated()
        if self.bound.needs == "outputs" and (self.microbatch > 1 or self.hardening == "exact"):
            raise ConfigError(
                f"{self.bound!r} never sees one example's gradient, so there are no microbatches and no exact sums."
            )
        if hasattr(self.bound, "ask"):
            if self.bound.needs != "norms" or not hasattr(self.bound, "learn"):
                raise ConfigError(
                    f"{self.bound!r} asks; then it needs 'norms', and learns: give it learn(answers, state)."
                )
            if not self.noise.law.gaussian or self.noise.absolute is not None:
                raise ConfigError(
                    f"{self.bound!r} also asks something of each batch, for which noise is set aside: use "
                    f"Gaussian(multiplier), not {self.noise!r}."
                )
            if self.hardening == "exact":
                raise ConfigError(f"{self.bound!r} changes from step to step, and exact sums need one grid.")
        if self.denoise is not None:
            self._check_denoiser(self.denoise)
        if self.noise.absolute is not None and self.allocation != "joint":
            raise ConfigError(
                f"{self.noise!r} is one scale everywhere, so allocation {self.allocation!r} says nothing; give the "
                "noise as a multiplier."
            )

    def _check_correlated(self) -> None:
        """Refuse what is not proven, or not true, of noise that takes back a part of earlier steps'."""
        name = type(self.noise).__name__
        if self.hardening == "exact":
            raise ConfigError(f"exact hardening is for whole numbers, and the noise of {name} is filtered.")
        if self.microbatch > 1:
            raise ConfigError(f"{name} is proven for sums over single units; leave microbatch at 1.")
        if self.denoise is not None and not getattr(self.denoise, "of_dependent_noise", False):
            raise ConfigError(
                f"{type(self.denoise).__name__} takes each step's noise for independent of all other steps', and for "
                f"as large; that of {name} is neither. Leave denoise out, or use Gaussian noise."
            )

    def _check_denoiser(self, denoise: Denoiser) -> None:
        missing = [m for m in ("start", "apply") if not hasattr(denoise, m)]
        if isinstance(denoise, type) or missing:
            raise ConfigError(
                f"{denoise!r} is not a denoiser: it lacks {', '.join(missing) or 'an instance'}; use one of "
                "discreet.stages.denoise, or a class with its members."
            )
        check = getattr(denoise, "check", None)
        if check is not None:
            check(self.noise.law)

    def contract(self, layout: Layout, state: Any) -> Contract:
        """What one unit may change now.

        Args:
            layout: the parameters' names and shapes.
            state: the bound's state, None where it has none.
        """
        one = self.bound.contract(layout, state)
        if self.hardening == "exact":
            one = rounded(one)
        return one if self.microbatch == 1 else doubled(one)

    def scales(self, contract: Contract) -> tuple[float, ...]:
        """The noise's scale (a Gaussian's standard deviation) for each block of the contract.

        Args:
            contract: what one unit may change.
        """
        multiplier = self.noise.scale
        if self.noise.absolute is not None:
            return (self.noise.absolute,) * len(contract.blocks)
        if multiplier is None:
            raise ConfigError("the noise is still to be solved; use discreet.calibrate(plan, epsilon=...).")
        left = 1 - math.fsum(block.share for block in asked(contract))
        if not left > 0:
            raise ConfigError(f"{self.bound!r} sets the whole budget aside for what it asks; give it a smaller share.")
        gradients = [block for block in contract.blocks if not block.share]
        scales = iter(self._allocated(gradients, multiplier / math.sqrt(left)))
        return tuple(multiplier * b.norm / math.sqrt(b.share) if b.share else next(scales) for b in contract.blocks)

    def scale_of_each(self, contract: Contract, factor: float = 1.0) -> dict[str, float]:
        """The noise's scale for each member of a contract.

        Args:
            contract: what one unit may change.
            factor: what all scales are multiplied by.
        """
        scales: dict[str, float] = {}
        for block, scale in zip(contract.blocks, self.scales(contract), strict=True):
            scales.update(dict.fromkeys(block.members, scale * factor))
        return scales

    def _allocated(self, blocks: Sequence[Block], multiplier: float) -> tuple[float, ...]:
        """Scales whose effective multiplier is this one."""
        if self.allocation == "each":
            return tuple(multiplier * math.sqrt(len(blocks)) * b.norm for b in blocks)
        if self.allocation == "power":
            total = sum(b.norm * math.sqrt(b.size) for b in blocks)
            return tuple(multiplier * math.sqrt(b.norm / math.sqrt(b.size) * total) for b in blocks)
        return (multiplier * math.hypot(*(b.norm for b in blocks)),) * len(blocks)

    def multiplier(self, layout: Layout | None) -> float:
        """The effective noise multiplier (T6 of docs/theory.md); of other noise than Gaussian, that of one that is
        proven to hide no more (T5), or 0 if there is none.

        Args:
            layout: the parameters' names and shapes; None: not known yet.
        """
        return self.query(layout).multiplier

    def query(self, layout: Layout | None) -> Query:
        """All that privacy depends on in one release.

        Args:
            layout: the parameters' names and shapes; None: not known yet.
        """
        contract = self.contract_for(layout)
        scale = self.noise.scale
        if scale is None:
            stated = contract or self._contract_of_any_model()
            scale = effective_multiplier(stated, self.scales(stated))
        law = self.noise.law
        if law.gaussian or scale == 0:
            return Query(scale, hardening=self.hardening)
        shifts = None
        if contract is not None and contract.magnitudes is not None:
            scales = set(self.scales(contract))
            if len(scales) == 1:  # each coordinate's shift in units of the noise it really gets
                unit, magnitudes = scales.pop(), contract.magnitudes
                shifts = Magnitudes(tuple(x / unit for x in magnitudes.levels), magnitudes.counts)
        try:
            rate = gaussian_rate(law)
        except PrivacyError:
            if shifts is None:
                if contract is None and self._magnitudes_of_any_model():
                    raise self._depends_on_the_model() from None
                raise
            return Query(0.0, law, scale, shifts)
        return Query(scale / rate, law, scale, shifts)

    def start_noise(self) -> NoiseMemory | None:
        """What the noise keeps from step to step, at the beginning; None where steps are independent."""
        start = getattr(self.noise, "start", None)
        return None if start is None else start()

    def contract_for(self, layout: Layout | None) -> Contract | None:
        """The contract at the first step.

        Args:
            layout: the parameters' names and shapes; None: those that the bound was fitted to.
        """
        if layout is None:
            layout = getattr(self.bound, "layout", None)
        return None if layout is None else self.contract(layout, self.bound.start(layout))

    def fit_to(self, model: Any) -> "Mechanism":
        """The same with a bound that knows the model's facts, where it has use for them.

        Args:
            model: the model that is to be trained.
        """
        fit = getattr(self.bound, "fit_to", None)
        return self if fit is None else replace(self, bound=fit(model))

    @property
    def fitted(self) -> bool:
        """Whether the bound has what it needs to know of the model."""
        return not hasattr(self.bound, "fit_to") or getattr(self.bound, "layout", None) is not None

    def with_scale(self, scale: float) -> "Mechanism":
        """The same with another amount of noise, in units of the sensitivity.

        Args:
            scale: the amount of noise.
        """
        return replace(self, noise=self.noise.scaled(scale))

    def _contract_of_any_model(self) -> Contract:
        """The contract, if it is the same for every model."""
        try:
            contract, other = (self.contract(layout, None) for layout in _LAYOUTS)
            if norm_of(other) == norm_of(contract):
                return contract
        except ConfigError:
            pass
        raise self._depends_on_the_model()

    def _magnitudes_of_any_model(self) -> bool:
        """Whether the bound bounds every coordinate."""
        try:
            return self.contract(_LAYOUTS[0], None).magnitudes is not None
        except ConfigError:
            return False

    def _depends_on_the_model(self) -> ConfigError:
        return ConfigError(
            f"what {self.noise!r} with {self.bound!r} proves depends on the model's parameters; "
            "use Gaussian(multiplier), or read the guarantee of an attached model."
        )


_LAYOUTS = Layout(("parameters",), ((1,),)), Layout(("parameters", "others"), ((1,), (1,)))
