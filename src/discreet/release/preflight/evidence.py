"""What was seen of a run while it ran, and which conditions of its guarantee that carries."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from discreet.accounting.guarantee import Condition

# Who computed the losses: the library's own loop and loss; a function that the library called; or somebody else, who
# handed over tensors.
Source = Literal["library", "function", "tensors"]

HANDED_OUT = Condition("the losses were computed from the rows that were handed out", "proven")
_NAMED = 3  # paths of state that are named one by one


@dataclass(frozen=True)
class Evidence:
    """One frozen record of what was tested, on which steps, and by whom the loop was run. The run writes it."""

    probes: bool = True  # whether they are on
    sources: frozenset[Source] = frozenset()
    tested: tuple[int, ...] = ()  # steps on which gradients were compared, and agreed
    whole: bool = False  # whether they were compared in a batch of the batch's own size, too
    undecided: tuple[str, ...] = ()  # what a test could not tell
    altered: bool = False  # whether a batch was used that is not as it was handed out
    replayed: bool = False  # whether the model's recorded calls were replayed
    compared: frozenset[str] = frozenset()  # state that changes in the same way, whatever the rows
    kept: frozenset[str] = frozenset()  # attributes that depend on the rows, and that no gradient was seen to depend on
    once: bool = False  # whether what the loss function holds was looked at on one step alone
    several: bool = False  # whether some step took several forward passes: how many, the number of rows decides

    @cached_property
    def isolated(self) -> bool:
        """Whether all that was computed could be tested, and was."""
        called = bool(self.sources) and "tensors" not in self.sources
        whole = not (self.undecided or self.altered or self.kept)
        return self.probes and called and bool(self.tested) and whole

    def conditions(self, *, agreed: bool, earlier: bool, own: bool, changed: set[str]) -> list[Condition]:
        """What the guarantee rests on, and how firmly.

        `agreed` is whether the evidence of all ranks is as good, `earlier` whether some steps before had less, `own`
        whether the library computed the losses of all steps before, and `changed` is what the model holds that is not
        as it was at attach.
        """
        unknown = sorted(path.removeprefix("model.") for path in changed - self.compared - self.kept)
        why = self._why(unknown)
        if not why and not (agreed and not earlier):
            why = "some steps were made without such a test"
        tested = not why
        own = own and self.sources == {"library"} and not earlier
        rows = HANDED_OUT if own else replace(HANDED_OUT, status="checked" if tested else "assumed")
        return [
            *self._isolation(why),
            rows,
            self._state(unknown, tested=tested),
            Condition("each row of the data is of one unit alone: none is made of others when it is read", "assumed"),
            Condition(
                "nothing outside the model (a global, what a loss holds) keeps what depends on the data", "assumed"
            ),
        ]

    def _isolation(self, why: str) -> list[Condition]:
        """What is known of examples not mixing; `why` it is not more."""
        text = "no example's gradient depends on another example"
        if not why:
            count = len(self.tested)
            when = "one step" if count == 1 else f"{count} steps"
            return [Condition(f"{text}: compared beside other rows and in a batch of its own, on {when}", "checked")]
        seen = "probed by reweighting the losses"
        if self.replayed:
            seen += ", and the model's outputs on its recorded calls by replaying them with one row replaced"
        probed = [Condition(seen, "checked")] if self.sources and self.probes else []
        return [Condition(f"{text} ({why})", "assumed"), *probed]

    def _state(self, unknown: list[str], *, tested: bool) -> Condition:
        """What is known of the model keeping nothing of the data."""
        text = "nothing in the model that depends on the data is kept from batch to batch"
        if self.kept:
            held = _listed(sorted(path.removeprefix("model.") for path in self.kept))
            text = f"what modules keep of a batch in {held} is never read later, nor released"
        if unknown:
            text += f" (changed since attach, and never compared: {_listed(unknown)})"
        if self.several and self.compared:
            changing = _listed(sorted(path.removeprefix("model.") for path in self.compared))
            text += (
                f" ({changing} changes with every forward pass, and of how many rows were drawn depends how many "
                "passes a step has, where at_most or memory cuts a batch)"
            )
            tested = False
        return Condition(text, "checked" if tested else "assumed")

    def _why(self, unknown: list[str]) -> str:
        """Why it is not known that examples do not mix; nothing if it is."""
        if not self.probes:
            return "preflight was turned off"
        if not self.sources:
            return "no step was made yet"
        if "tensors" in self.sources:
            return "the losses came as tensors; private.backward(loss_fn, batch) can test it"
        if self.undecided:
            return self.undecided[0]
        if self.altered:
            return "a batch was changed between private.batches and private.backward"
        if not self.tested:
            return "no step could be tested"
        if not self.whole:
            return "a whole batch was not compared yet"
        if self.once:
            return "what the loss function holds was seen on one step alone"
        return "the model keeps what may depend on the data" if self.kept or unknown else ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more


__all__ = ["HANDED_OUT", "Evidence", "Source"]
