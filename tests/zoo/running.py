"""Members run through the library: what it said of each, and when."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from discreet import Clip, Gaussian, Mechanism, Plan, Poisson, PrivacyError, attach
from zoo.cases import Member

STEPS = 12


@dataclass(frozen=True)
class Outcome:
    """How a run ended: refused by the library (`message` says why, `step` when; -1 is before the first), ended by
    another error, or accepted; then `isolation` and `rows` are what the guarantee says of examples being mixed and of
    losses coming from the rows that were handed out."""

    member: Member
    kind: Literal["refused", "accepted", "error"]
    step: int
    message: str = ""
    isolation: str = ""
    rows: str = ""

    @property
    def vouched(self) -> bool:
        """Whether the run ended with a word stronger than assumed for examples not being mixed."""
        return self.kind == "accepted" and self.isolation in ("checked", "proven")

    @property
    def wrong(self) -> bool:
        """A sound member that did not run, or a mixing one that was vouched for."""
        return self.kind != "accepted" if self.member.sound else self.vouched


def run(member: Member, steps: int = STEPS, seed: int = 0) -> Outcome:
    """Train a member in a plain loop, as the README does it."""
    torch.manual_seed(seed)
    case = member.make()
    model, length = case.model, len(case.data[0]) if isinstance(case.data, tuple) else len(case.data)
    plan = Plan(
        sampling=Poisson(examples=length, batch_size=case.batch_size),
        mechanism=Mechanism(Clip(1.0), Gaussian(1.0)),
        steps=min(steps, case.steps or steps),
        delta=1e-5,
    )
    loss, augment = case.loss, case.augment  # the case itself leads to what the loop does, which a loss does not know
    done, private = -1, None
    try:
        private = attach(model, plan, seed=seed)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

        def loss_fn(batch: Any) -> Tensor:
            return loss(model, batch if augment is None else (augment(batch[0]), *batch[1:]))

        for batch in private.batches(case.data, collate_fn=case.collate_fn):
            done += 1
            if case.look is not None:
                case.look(batch)
            private.backward(loss_fn, batch)
            optimizer.step()
            if case.after_step is not None:
                case.after_step(model)
        conditions = private.guarantee().conditions
    except PrivacyError as error:
        return Outcome(member, "refused", done, str(error))
    except Exception as error:
        return Outcome(member, "error", done, f"{type(error).__name__}: {error}")
    finally:
        if private is not None:
            private.detach()
    isolation = [c.status for c in conditions if "another example" in c.text]
    rows = [c.status for c in conditions if "handed out" in c.text]
    return Outcome(member, "accepted", done, isolation=_weakest(isolation), rows=_weakest(rows))


def _weakest(found: list[str]) -> str:
    order = ["broken", "assumed", "checked", "proven"]
    return min(found, key=order.index) if found else "unsaid"


def keep(outcome: Outcome, steps: int, seed: int, file: Path) -> None:
    """Add a run's outcome to a file of such lines of JSON, which `benchmarks/zoo.py --kept` reads."""
    said = {name: value for name, value in vars(outcome).items() if name != "member"}
    line = json.dumps({"name": outcome.member.name, "steps": steps, "seed": seed, "outcome": said})
    with file.open("a") as lines:
        print(line, file=lines)


# Words of a refusal, and the probe that says them.
PROBES = (
    ("uses statistics of the whole batch", "attach"),
    ("keeps statistics of the data", "attach"),
    ("carries something from one batch", "state"),
    ("in its backward pass", "together"),
    ("in a batch of its own", "alone"),
    ("with the rows beside it", "beside others"),
    ("mixes examples", "reweighting"),
    ("do not add up to autograd's", "sums"),
)


def probe_of(outcome: Outcome) -> str:
    """Which probe a refusal came from, by its words."""
    if outcome.kind != "refused":
        return ""
    return next((probe for words, probe in PROBES if words in outcome.message), "engine")
