"""What every handle on a run can tell, central or federated."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from discreet.accounting.guarantee import Condition, Guarantee
from discreet.distributed.ranks import Ranks
from discreet.errors import ConfigError, PrivacyError
from discreet.release.private_sum import PrivateSum


class Session:
    """What every handle on a run can tell: how far it is, what it has spent, what a checkpoint must hold."""

    def __init__(self, aggregate: PrivateSum) -> None:
        self.plan, self._aggregate = aggregate.plan, aggregate
        self._assumed: tuple[Condition, ...] = ()

    @property
    def ranks(self) -> Ranks:
        """The processes that train together; this one alone, mostly."""
        return self._aggregate.ranks

    @property
    def writes(self) -> bool:
        """Whether files are this process's to write: that of rank 0, where several train together."""
        return self.ranks.first

    @property
    def run(self) -> str:
        """The run's own random name, which every line of its ledger has; `attach(..., run=)` goes on with it."""
        return self._aggregate.run

    @property
    def released(self) -> int:
        """How many steps have been released."""
        return self._aggregate.released

    @property
    def remaining(self) -> int:
        """How many of the plan's steps are left.

        Where a pass over the data was broken off, by a crash say, the rest of it is lost: a new pass counts anew.
        """
        return self._aggregate.remaining

    def guarantee(self, *, delta: float | None = None, accountant: str | None = None) -> Guarantee:
        """What is proven of this run.

        When the plan's steps are spent, that is the epsilon of what was released. Before, what is proven is the
        epsilon of the declared horizon; `so_far` stands beside it, on a condition.

        Args:
            delta: another delta than the plan's.
            accountant: pld, rdp or another name that `Guarantee.figures()` has, in place of the best.
        """
        proven = self._aggregate.guarantee(self.rests_on)
        return proven if delta is None and accountant is None else proven.at(delta, accountant=accountant)

    def __repr__(self) -> str:
        stages = self.plan.sampling, self.plan.mechanism.bound, self.plan.mechanism.noise
        limit = "" if self.plan.epsilon is None else f" of at most {self.plan.epsilon:g}"
        return (
            f"<{type(self).__name__}: {', '.join(type(stage).__name__ for stage in stages)}; {self.released:,} of "
            f"{self.plan.steps:,} steps released, ε = {self.spent:.3g}{limit} at δ = {self.plan.delta:g}>"
        )

    @property
    def rests_on(self) -> Sequence[Condition]:
        """What was tested of the releases, and what was not: the conditions that are this handle's own."""
        return [*self._conditions(), *self._assumed]

    def assume(self, model: nn.Module, words: Sequence[str] = ()) -> None:
        """Have the guarantee, and the ledger from the next release on, say what is assumed beside.

        Args:
            model: its modules may say what they assume, in a text `assumes`: what public weights were trained on, say.
            words: what else, a text for each condition.
        """
        if isinstance(words, str) or not all(isinstance(text, str) and text for text in words):
            raise ConfigError(f"assumes is {words!r}; it must be a list of texts, one for each condition.")
        stated = (getattr(module, "assumes", None) for module in model.modules())
        texts = [*words, *(text for text in stated if isinstance(text, str) and text)]
        self._assumed = tuple(Condition(text, "assumed") for text in dict.fromkeys(texts))

    def _conditions(self) -> Sequence[Condition]:
        """What the guarantee rests on beside the stages and the ledger."""
        return ()

    @property
    def spent(self) -> float:
        """The epsilon of the releases made so far, for a progress line: what is proven is the guarantee."""
        return self._aggregate.spent

    @property
    def learned(self) -> dict[str, Any]:
        """What an adaptive bound has learned from noisy answers: it has been released, and may be logged."""
        return self._aggregate.learned

    @property
    def anchor(self) -> str:
        """The hash of the ledger's last line: kept elsewhere, it shows whether the file was cut short or rewritten."""
        return self._aggregate.anchor

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the model's and the optimizer's own state."""
        return self._aggregate.state_dict()

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise unless a state may be loaded. Changes nothing.

        Args:
            state: what `state_dict` returned.
        """
        self._aggregate.check_state_dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of the same plan.

        Releases that the state knows of and the ledger does not are counted now; those that the ledger knows of and
        the state does not (a crash after the checkpoint) stay spent. Nothing is ever repeated.

        Args:
            state: what `state_dict` returned.
        """
        self._aggregate.load_state_dict(state)

    def __reduce__(self) -> str:
        raise PrivacyError("this holds the secret key of its run and is not copied; save its state_dict().")
