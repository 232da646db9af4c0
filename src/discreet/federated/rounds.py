"""A plan whose units are users, attached to a model: who takes part in a round, and what becomes of their updates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discreet._check import check_positive
from discreet.accounting.guarantee import Condition
from discreet.distributed.ranks import refuse
from discreet.errors import ConfigError, PrivacyError
from discreet.federated.engines import ProbedEngine
from discreet.federated.local import Pair
from discreet.gradients import UnitGradients
from discreet.gradients.forms import Materialised, PerExampleGrad, sum_dtype
from discreet.ledger import Ledger
from discreet.release.guards import ParameterGuard, ready, trainable
from discreet.release.private_sum import PrivateSum
from discreet.release.session import Session
from discreet.stages.plan import Plan


class Rounds(Session):
    """Private rounds of federated training, wherever the updates are made.

        rounds = Rounds(model, plan)
        while rounds.remaining:
            cohort = rounds.draw()              # secret; may be empty
            rounds.add(cohort, updates)         # how far each user's weights moved, in one call or several
            rounds.release()                    # p.grad = -(sum of bounded updates + noise) / denominator
            optimizer.step()                    # SGD with learning rate 1 is FedAvg

    The denominator is public: the number of users who take part on average, or what you declare as the total weight of
    so many. An update that is not finite, that never comes, or that comes a second time contributes exactly zero.

    Guarantee: leaving a user out, with all records, moves the sum by at most the bound's contract, whatever the user
    sends; and each round is counted before it is released.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        ledger: str | Path | Ledger | None = None,
        *,
        denominator: float | None = None,
        preflight: bool = True,
        seed: int | None = None,
        engine: ProbedEngine | None = None,
    ) -> None:
        if isinstance(plan, Plan):
            _check_plan(plan)
        refuse("federated training")
        plan = ready(model, plan)
        self._denominator = (
            plan.sampling.batch_size if denominator is None else check_positive("denominator", denominator)
        )
        self._parameters = trainable(model)
        count = plan.sampling.batch_size
        super().__init__(PrivateSum(self._parameters, plan, ledger, count=count, probe=preflight, seed=seed))
        self.model = model
        self._attachment = ParameterGuard(model)
        self._cohort: set[int] | None = None  # users of the open round
        self._heard: set[int] = set()  # those of them whose update has come
        self._engine = engine
        self._probed = engine is not None and engine.alone and preflight  # that no user has influence on another's

    def draw(self, users: int | None = None, *, available: Sequence[int] | None = None) -> list[int]:
        """Who takes part in the next round, by number from 0; nobody is to know. An open round is given up.

        Args:
            users: how many there are, where the plan does not say.
            available: those who can be reached, for a plan that takes who is there (MinSeparation).
        """
        self._check()
        length = getattr(self.plan.sampling, "examples", None) if users is None else users
        if length is None:
            raise ConfigError("the plan does not say how many users there are; give rounds.draw(users=...).")
        self.plan.sampling.check_length(length)
        if not self.remaining:
            raise PrivacyError(f"all {self.plan.steps:,} rounds of the plan are spent.")
        self._aggregate.clear()
        cohort = [int(user) for user in self._aggregate.draw(length, self.released, available)]
        self._cohort, self._heard = set(cohort), set()
        return cohort

    def train(self, users: Sequence[Pair], numbers: Sequence[int], weights: Tensor | None = None) -> None:
        """Make the updates of users who were drawn by the engine that these rounds were begun with, and add them.

        Args:
            users: their records.
            numbers: their numbers.
            weights: from 0 to 1: what each bounded update is multiplied by.
        """
        if self._engine is None:
            raise ConfigError("these rounds were begun without an engine; make the updates, and hand them to add().")
        self._add(numbers, self._engine.updates(users, numbers, self.released), weights)

    def add(
        self, users: Sequence[int], updates: Mapping[str, Tensor], weights: Sequence[float] | Tensor | None = None
    ) -> None:
        """Bound users' updates and add them. How they were made is not known.

        Args:
            users: their numbers.
            updates: for each parameter a tensor [users, *shape].
            weights: from 0 to 1: what each bounded update is multiplied by.
        """
        self._probed = False
        self._add(users, updates, weights)

    @torch.no_grad()
    def _add(
        self, users: Sequence[int], updates: Mapping[str, Tensor], weights: Sequence[float] | Tensor | None
    ) -> None:
        self._check()
        if self._cohort is None:
            raise PrivacyError(
                "there is no open round: rounds.draw() says who takes part, and then come their updates."
            )
        if not self._cohort.issuperset(users):
            raise PrivacyError("an update came from a user who was not drawn in this round; only those may be added.")
        self._check_updates(len(users), updates)
        shares = None if weights is None else checked_weights(weights, len(users))
        first = {user: i for i, user in reversed(list(enumerate(users)))}
        fresh = sorted(i for user, i in first.items() if user not in self._heard)
        self._heard.update(users)
        if not fresh:
            return
        rows = torch.tensor(fresh)
        forms: dict[str, PerExampleGrad] = {}
        for name, parameter in self._parameters.items():
            moved = updates[name].detach().to(parameter.device, sum_dtype(parameter.dtype))
            forms[name] = Materialised(moved if len(fresh) == len(users) else moved[rows.to(moved.device)])
        gradients = UnitGradients(forms, len(fresh), self._parameters)
        self._aggregate.add(gradients, None, None if shares is None else shares[rows])

    def release(self) -> None:
        """Count the round, add the noise, and assign the gradients: what has not come by now contributes nothing."""
        self._check()
        if self._cohort is None:
            raise PrivacyError("there is no open round to release; begin one with rounds.draw().")
        self._cohort = None
        rests_on = self.rests_on if self._aggregate.on_disk else None
        released = self._aggregate.release(rests_on, **({} if self._probed else {"unprobed": True}))
        # an update is a step down, a gradient points up; what was divided by is the number of users a round
        back = -self.plan.sampling.batch_size / self._denominator
        for name, moved in released.items():
            self._parameters[name].grad = moved.mul_(back).to(self._parameters[name].dtype)

    def _conditions(self) -> list[Condition]:
        unit = self.plan.sampling.contract().unit
        alone = f"each {unit}'s update was made from released weights and the {unit}'s own data alone"
        probed = self._probed and not self._aggregate.unprobed
        return [
            Condition(f"{alone}, probed on made-up {unit}s" if probed else alone, "checked" if probed else "assumed"),
            Condition(f"all records of a {unit} are under one number", "assumed"),
        ]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self._cohort = None
        super().load_state_dict(state)

    def detach(self) -> None:
        """Take the plan off the model: it is as it was. The guarantee of what was released can still be read."""
        if self._attachment.held:
            self._cohort = None
            self._aggregate.clear()
            self._aggregate.close()
            self._attachment.detach()

    def _check(self) -> None:
        self._attachment.check()
        self._attachment.check_model()

    def _check_updates(self, users: int, updates: Mapping[str, Tensor]) -> None:
        odd = set(updates) ^ set(self._parameters)
        if odd:
            raise ConfigError(f"updates must have each trainable parameter once; look at {min(odd)!r}.")
        for name, parameter in self._parameters.items():
            shape, wanted = tuple(updates[name].shape), (users, *parameter.shape)
            if shape != wanted or not updates[name].is_floating_point():
                raise ConfigError(
                    f"the updates of {name!r} are {updates[name].dtype} of shape {shape[1:]} each; they must be "
                    f"floating point of shape {wanted[1:]}, one for each user."
                )


def _check_plan(plan: Plan) -> None:
    """Refuse plans whose units are not users, or whose stages cannot see a user's update."""
    unit = plan.sampling.contract().unit
    if unit == "example":
        raise ConfigError(
            "the plan protects each example, and a round takes users, with all their records; say so in the sampler: "
            "Poisson(examples=1_000, batch_size=100, unit='user'), or use discreet.methods.dp_fedavg."
        )
    if plan.mechanism.bound.needs == "outputs":
        raise ConfigError(
            f"{type(plan.mechanism.bound).__name__} bounds gradients inside the network, and a user's update is many "
            "steps of them; use Clip, PerLayerClip or AdaptiveClip."
        )
    if plan.mechanism.microbatch > 1:
        raise ConfigError("microbatches are of examples; a user's whole update is bounded, so leave microbatch at 1.")


def checked_weights(weights: Sequence[float] | Tensor, users: int) -> Tensor:
    """One weight a user, from 0 to 1, or a ConfigError, which does not say how many users there are."""
    values = torch.as_tensor(weights, dtype=torch.float64)
    if values.shape != (users,) or not bool(((values >= 0) & (values <= 1)).all()):
        raise ConfigError("weights must be numbers from 0 to 1, one for each user.")
    return values
