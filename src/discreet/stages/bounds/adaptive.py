"""Adaptive clipping: clipping norms that follow the gradients, learned from noisy answers alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from discreet._check import check_int, check_positive
from discreet.accounting.events import Claimed, Event
from discreet.errors import ConfigError
from discreet.stages.bounds.clip import one_block, shrink, sum_of
from discreet.stages.bounds.per_layer import PerLayerClip
from discreet.stages.sensitivity import Block, Blocks, Contract, Layout

if TYPE_CHECKING:
    from torch import Tensor, nn

Rule = Literal["quantile", "mean"]
State = dict[str, list[Any]]  # "parts": names, "norms": clipping norms, "reaches": how long a norm may count as

_LARGEST = 1e8  # a clipping norm


@dataclass(frozen=True)
class AdaptiveClip:
    """Clipping whose norms are learned on the way: each step also asks, with noise, how long the gradients are.

    `rule` "quantile" (Andrew et al. 2021): the share b of gradients that are not longer than C is asked, and
    C <- C exp(-speed (b - quantile)). `rule` "mean" (van der Veen et al. 2018, with the noise inside the average): the
    mean of min(||g||, K) is asked; C <- max(least, factor * mean), K <- reach * C.

    `norm` is where C starts. With `per_layer` every parameter tensor has its own C; where `norm` is a mapping, as
    PerLayerClip has it, its keys are the parts. `share` is the part of the budget that the questions get: the noise on
    a question is multiplier / sqrt(share / parts) times what one unit can change in the answer, and that on the
    gradients grows by 1 / sqrt(1 - share); together they are worth `multiplier` (T6 of docs/theory.md).

    Guarantee: at every step one unit changes part l of the sum by at most its present C_l, and answer l by at most
    1/2 ("quantile") or K_l ("mean"). C and K depend on earlier noisy answers and on nothing else. `tensors` is the
    number of parameter tensors, where it is known before the model is.
    """

    norm: float | Mapping[str, float] = 1.0
    rule: Rule = "quantile"
    per_layer: bool = False
    quantile: float = 0.5
    speed: float = 0.2
    factor: float = 1.05
    reach: float = 2.0
    least: float = 1e-3
    share: float = 0.01
    tensors: int | None = None
    needs: ClassVar[str] = "norms"

    def __post_init__(self) -> None:
        start = PerLayerClip(self.norm)
        object.__setattr__(self, "norm", start.norms)
        if self.rule not in get_args(Rule):
            raise ConfigError(f"AdaptiveClip's rule is {self.rule!r}; it must be one of {', '.join(get_args(Rule))}.")
        for name in ("speed", "factor", "reach", "least"):
            check_positive(f"AdaptiveClip's {name}", getattr(self, name))
        for name in ("quantile", "share"):
            if not 0 < check_positive(f"AdaptiveClip's {name}", getattr(self, name)) < 1:
                raise ConfigError(f"AdaptiveClip's {name} is {getattr(self, name)!r}; it must be between 0 and 1.")
        if self.tensors is not None:
            check_int("AdaptiveClip's tensors", self.tensors, least=1)
        for norm in self.norm.values() if isinstance(self.norm, Mapping) else (self.norm,):
            if not self.least <= norm <= _LARGEST:
                raise ConfigError(
                    f"AdaptiveClip starts at the norm {norm:g}; it must be from least ({self.least:g}) to {_LARGEST:g}."
                )

    @staticmethod
    def share_of(noise: float, question: float) -> float:
        """The share of the budget at which gradients and questions have these noise multipliers.

        Args:
            noise: the gradients' noise multiplier.
            question: the questions'.

        >>> round(AdaptiveClip.share_of(0.725, 2.5), 4)
        0.0776
        """
        return noise**2 / (noise**2 + question**2)

    def from_noise(self, model: "nn.Module", losses: "Callable[[nn.Module], Tensor]") -> "AdaptiveClip":
        """The same, started from gradients on made-up data. Nothing private is touched, so it costs nothing.

        Args:
            model: the model that is to be trained.
            losses: `losses(model)` gives one loss for each row of noise.
        """
        from discreet.gradients import Engine

        found = losses(model)
        norms = Engine(model).gradients(found, len(found)).norms()
        layout = Layout(tuple(norms), tuple(tuple(p.shape) for p in model.parameters() if p.requires_grad))
        start: dict[str, float] = {}
        keys = self._keys(layout)
        for key, names in zip(keys, self.start(layout)["parts"], strict=True):
            length = sum_of({name: norms[name] for name in names}).sqrt()
            usual = float(length.quantile(self.quantile)) if self.rule == "quantile" else float(length.mean())
            start[key] = self._within(usual * (self.factor if self.rule == "mean" else 1.0))
        joint = not self.per_layer and not isinstance(self.norm, Mapping)
        return replace(self, norm=start[keys[0]] if joint else start)

    @property
    def layout(self) -> Layout | None:
        """A layout of as many tensors as this bound was made for, their sizes unknown."""
        if self.tensors is None or isinstance(self.norm, Mapping):
            return None
        return Layout(tuple(f"tensor {i}" for i in range(self.tensors)), ((1,),) * self.tensors)

    def start(self, layout: Layout) -> State:
        if self.tensors is not None and len(layout.names) != self.tensors:
            raise ConfigError(
                f"AdaptiveClip was made for {self.tensors} tensors, and the model has {len(layout.names)}, which "
                "changes the noise on each; say tensors= as it is, or leave it out."
            )
        blocks = self._parts(layout).blocks
        norms = [self._within(block.norm) for block in blocks]
        parts = [list(block.members) for block in blocks]
        return {"parts": parts, "norms": norms, "reaches": [self.reach * norm for norm in norms]}

    def apply(self, norms: "Mapping[str, Tensor]", state: State) -> "dict[str, Tensor]":
        weights: dict[str, Tensor] = {}
        for names, norm in zip(state["parts"], state["norms"], strict=True):
            weight = shrink(sum_of({name: norms[name] for name in names}), norm)
            weights.update(dict.fromkeys(names, weight))
        return weights

    def ask(self, norms: "Mapping[str, Tensor]", state: State) -> "dict[str, Tensor]":
        """For each part one number a unit, of which only the noisy sum is ever seen."""
        answers: dict[str, Tensor] = {}
        for names, norm, reach in zip(state["parts"], state["norms"], state["reaches"], strict=True):
            length = sum_of({name: norms[name] for name in names}).sqrt()
            if self.rule == "quantile":
                answers[question(names)] = (length <= norm).to(length.dtype) - 0.5
            else:
                answers[question(names)] = length.clamp(max=reach)
        return answers

    def learn(self, answers: "Mapping[str, Tensor]", state: State) -> State:
        """The next state, from the noisy answers, each divided by the public batch size."""
        norms: list[float] = []
        for names, norm in zip(state["parts"], state["norms"], strict=True):
            answer = float(answers[question(names)])
            if self.rule == "quantile":
                step = -self.speed * (answer + 0.5 - self.quantile)
                norms.append(self._within(norm * math.exp(min(max(step, -20.0), 20.0))))
            else:
                norms.append(self._within(self.factor * answer))
        return {"parts": state["parts"], "norms": norms, "reaches": [self.reach * norm for norm in norms]}

    def contract(self, layout: Layout, state: State | None) -> Blocks:
        state = self.start(layout) if state is None else state
        sizes = dict(zip(layout.names, layout.sizes, strict=True))
        share = self.share / len(state["parts"])
        gradients, questions = [], []
        for names, norm, reach in zip(state["parts"], state["norms"], state["reaches"], strict=True):
            gradients.append(Block(tuple(names), norm, sum(sizes[name] for name in names)))
            questions.append(Block((question(names),), 0.5 if self.rule == "quantile" else reach, 1, share))
        return Blocks((*gradients, *questions), ("clipping norms were learned from noisy answers alone",))

    def claims(self, event: Event, contract: Contract, scales: tuple[float, ...]) -> tuple[Claimed, ...]:
        """The paper's, for its own rule: every part and every question accounted as if it had a batch of its own."""
        if self.rule != "mean":
            return ()
        alone = [replace(event, multiplier=s / b.norm) for b, s in zip(contract.blocks, scales, strict=True)]
        reason = (
            f"{len(alone)} sums over the same batch share one sampling coin; their moments were added up as if each "
            "had its own"
        )
        return (Claimed("van der Veen et al. 2018: moments of all parts added up", tuple(alone), "false", reason),)

    def _within(self, norm: float) -> float:
        return min(max(norm, self.least), _LARGEST) if norm == norm else self.least

    def _parts(self, layout: Layout) -> Blocks:
        if self.per_layer or isinstance(self.norm, Mapping):
            return PerLayerClip(self.norm).contract(layout, None)
        return one_block(layout, self.norm)

    def _keys(self, layout: Layout) -> tuple[str, ...]:
        """What the parts are called in a mapping."""
        return tuple(self.norm) if isinstance(self.norm, Mapping) else layout.names if self.per_layer else ("all",)


def question(names: list[str]) -> str:
    """What the question about a part is called: no parameter's name has two dots in a row."""
    return f"{names[0]}..norm"
