"""What is proven of a run, in a form that can be read aloud and in a form that can be parsed."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["proven", "checked", "assumed", "broken"]
Verdict = Literal["holds", "holds if", "unproven", "false"]


@dataclass(frozen=True)
class Condition:
    """Something the proof rests on, and how far it is known: proven, checked by a probe, assumed, or broken."""

    text: str
    status: Status


@dataclass(frozen=True)
class Claim:
    """A figure somebody states for this method, beside what is proven: never a guarantee."""

    source: str
    epsilon: float
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of a run: what is proven, given the conditions.

    `so_far` is the epsilon of the releases made until now, beside the declared horizon's `epsilon`; it may be
    quoted only if stopping here was not decided by looking at the outputs.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    proof: str
    conditions: tuple[Condition, ...] = ()
    claims: tuple[Claim, ...] = ()
    steps: int = 0
    released: int | None = None
    so_far: float | None = None

    @property
    def sound(self) -> bool:
        """Whether no condition is known to be broken."""
        return all(c.status != "broken" for c in self.conditions)

    def __str__(self) -> str:
        parts = [f"NOT PRIVATE AS IT STANDS: {c.text}." for c in self.conditions if c.status == "broken"]
        if math.isinf(self.epsilon):
            parts.append(f"Nothing is proven about the privacy of any {self.unit}: {self.proof}.")
        else:
            parts.append(
                f"The released model is (ε = {round_up(self.epsilon)}, δ = {self.delta:g})-differentially private for "
                f"each {self.unit}: {_NEIGHBOURS[self.adjacency].format(unit=self.unit)}, the probability of any "
                f"outcome changes by at most a factor of e^ε = {_factor(self.epsilon)}, apart from a probability "
                f"of δ. Proof: {self.proof}."
            )
        if self.released is not None and self.released < self.steps:
            parts.append(f"This is the figure for all {self.steps:,} planned steps; {self.released:,} were released.")
            if self.so_far is not None:
                parts.append(
                    f"For those alone ε is {round_up(self.so_far)}, which may be quoted only if the decision to stop "
                    "was not made by looking at the outputs."
                )
        for status, opening in _OPENINGS.items():
            texts = [c.text for c in self.conditions if c.status == status]
            if texts:
                parts.append(f"{opening} {'; '.join(texts)}.")
        parts += [f"{c.source} claims ε = {c.epsilon:g}: {c.verdict}, {c.reason}." for c in self.claims]
        return " ".join(parts)

    def to_json(self) -> str:
        """The machine-readable twin; infinite figures are the string "inf"."""
        return json.dumps(_plain({"format": "discreet-guarantee/1"} | asdict(self)), ensure_ascii=False, indent=2)


_NEIGHBOURS = {
    "zero-out": "if one {unit}'s record were replaced by an empty one that contributes nothing",
    "add-remove": "if one {unit} were added or removed",
    "replace": "if one {unit} were replaced by another",
}
_OPENINGS = {
    "proven": "By construction,",
    "checked": "Checked while it ran:",
    "assumed": "Assumed, not checked:",
}


def _plain(value: Any) -> Any:
    """The same with infinite figures in words, as JSON has none."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return "inf" if value == math.inf else value


def round_up(value: float) -> str:
    """Three decimals, or three significant digits below one, never rounded down.

    >>> round_up(2.38162), round_up(0.0001234), round_up(0.0)
    ('2.382', '0.000124', '0')
    """
    if not 1e-200 < value < 1e200:
        return "∞" if value > 1 else "0" if value == 0 else f"{value:g}"
    digits = 3 if value >= 1 else 2 - math.floor(math.log10(value))
    scale = 10.0**digits
    return f"{math.ceil(value * scale * (1 - 1e-12)) / scale:.{digits}f}"


def _factor(epsilon: float) -> str:
    return f"{math.exp(epsilon) * 1.0005:.4g}" if epsilon < 50 else "more than 10^21"
