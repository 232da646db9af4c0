"""A plan attached to a model: batches are drawn, losses become private gradients, spending is counted."""

import os
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from discreet.accounting import cost, cost_for_search
from discreet.accounting.guarantee import Condition, Guarantee
from discreet.contracts import GRID, Layout, asked
from discreet.denoise import Added
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError, whole
from discreet.gradients import Engine
from discreet.gradients.engine import UnitGradients
from discreet.gradients.graph import now
from discreet.gradients.slots import Slots
from discreet.gradients.uses import parts
from discreet.ledger import SEEDED, Account, Ledger
from discreet.loading import Collate, Draw, PaddedCollate, length_of, load
from discreet.noise.discrete import LARGEST
from discreet.noise.source import Root
from discreet.plan import Plan, guarantee_of
from discreet.probes import Recorder, check_bound, check_rows, check_sums, replay
from discreet.sums import FloatSums, Sums, WholeSums

_ATTACHED: "weakref.WeakValueDictionary[int, nn.Parameter]" = weakref.WeakValueDictionary()


def attach(
    model: nn.Module,
    plan: Plan,
    ledger: str | Path | Ledger | None = None,
    *,
    preflight: bool = True,
    seed: int | None = None,
) -> "Private":
    """Attach a plan to an unmodified model, and return the handle that draws batches and makes gradients private.

    `ledger` is a file that counts what is released (None: in memory), or a Ledger, which can cap a whole data set.
    `preflight` has the first batch probed for what would break the guarantee (discreet.preflight); it costs about two
    steps, once. `seed` makes noise and sampling reproducible; whoever knows it can take the noise off again, so the
    guarantee says that it is broken.
    """
    _check_model(model)
    if not isinstance(plan, Plan):
        raise ConfigError(f"{plan!r} is not a Plan; make one with discreet.Plan or discreet.methods.")
    if not plan.mechanism.noise.solved:
        raise ConfigError("the plan's noise is still to be solved; use discreet.calibrate(plan, epsilon=...).")
    plan = plan if plan.mechanism.fitted else plan.fit_to(model)
    return Private(model, plan, ledger, preflight, seed)


@dataclass
class _Chunk:
    """A part of one logical batch that has been handed out."""

    step: int
    units: int
    first: bool
    last: bool
    slots: Tensor | None = None  # which microbatch each unit belongs to, where there are any
    since: int = 0
    done: bool = False


class Private:
    """What `attach` returns. One object owns the current logical batch; nothing of it is on the model."""

    def __init__(
        self, model: nn.Module, plan: Plan, ledger: str | Path | Ledger | None, preflight: bool, seed: int | None
    ) -> None:
        self.plan = plan
        self._model = model
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._layout = Layout(tuple(self._parameters), tuple(tuple(p.shape) for p in self._parameters.values()))
        self._columns = _columns(self._layout)
        self._bound: Any = plan.mechanism.bound
        self._state = self._bound.start(self._layout)
        self._denoised = None if plan.mechanism.denoise is None else plan.mechanism.denoise.start(self._layout)
        self._formats = {name: (p.dtype, p.device) for name, p in self._parameters.items()}
        self._norms = [(name, m) for name, m in model.named_modules() if isinstance(m, _NormBase)]
        self._on_disk = ledger is not None
        self._ledger = Account(Ledger(ledger) if isinstance(ledger, (str, Path)) else ledger, plan, self._layout)
        self._root = Root(seed)
        self._begun = self._ledger.released  # the step at which this process took over
        self._process = os.getpid()
        self._engine = Engine(model)
        self._sums = self._make_sums()
        self._slots, self._divisor = None, plan.sampling.batch_size
        size = plan.mechanism.microbatch
        if size > 1:
            self._divisor = max(1, round(plan.sampling.batch_size / size))
            self._slots = Slots(self._parameters, self._divisor, size)
        self._gate: Any = None
        try:
            self._check_budget()
            self._check_contract()
            self._check_noise()
            if self._bound.needs == "outputs":
                self._gate = self._bound.install(model)
        except BaseException:
            self._ledger.close()
            raise
        self._chunks: deque[_Chunk] = deque()
        self._iteration = 0
        self._own_loop = False  # whether the library's own loop and loss are all that uses this
        self._versions: list[int] = []  # of the parameters, when the open batch began
        self._since = now()
        self._length: int | None = None  # of the data a loader of one's own reads, once its collate is made
        self._attached = True
        _ATTACHED.update({id(p): p for p in self._parameters.values()})
        self._probes = _Probes(model) if preflight else None
        self._guards = [p.register_post_accumulate_grad_hook(_refuse_plain) for p in self._parameters.values()]

    def _make_sums(self) -> Sums:
        """Where the bounded sums are kept: of the gradients, and of what the bound asks beside them."""
        contract = self._bound.contract(self._layout, self._state)
        if self.plan.mechanism.hardening == "exact":
            self._asked: list[str] = []
            return WholeSums(self._parameters, contract)
        like: dict[str, Tensor] = dict(self._parameters)
        first = next(iter(self._parameters.values()))
        more: dict[str, Tensor] = {}
        for block in asked(contract):
            size, rest = divmod(block.size, len(block.members))
            if rest:
                raise ConfigError(f"a question of size {block.size} has {len(block.members)} members of unequal size.")
            more.update({name: first.new_zeros(size) for name in block.members})
        self._asked = list(more)
        return FloatSums({name: t.detach() for name, t in (like | more).items()})

    # --- drawing -------------------------------------------------------------------------------------------------

    @property
    def released(self) -> int:
        """How many steps have been released."""
        return self._ledger.released

    @property
    def remaining(self) -> int:
        """How many of the plan's steps are left.

        Where a pass over the data was broken off, by a crash say, the rest of it is lost: a new pass counts anew.
        """
        left = max(0, self.plan.steps - self.released)
        allowed = self.plan.sampling.participations(self.plan.steps) - self._ledger.participations
        while left and self._participations(left) > allowed:
            left -= 1
        return left

    def _participations(self, steps: int) -> int:
        """How many more releases a unit can take part in, in the next `steps` steps."""
        count, done = self.plan.sampling.participations, self.released - self._begun
        return count(done + steps) - count(done)

    def batches(
        self,
        data: Any,
        *,
        steps: int | None = None,
        at_most: int | None = None,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> Iterator[Any]:
        """The plan's remaining steps (at most `steps` of them), one logical batch each, drawn by its sampler.

        `at_most` yields a logical batch in chunks of at most that many rows; the released gradient is the same. An
        empty draw yields one padding row, which contributes nothing. Loader options have torch's names.
        """
        self._check_attached()
        length = length_of(data)
        self.plan.sampling.check_length(length)
        chunks = self._draw(length, steps, at_most)
        handed: deque[_Chunk] = deque()

        def draws() -> Iterator[Draw]:
            for chunk, indices in chunks:
                handed.append(chunk)
                yield indices

        loaded = load(data, draws(), collate_fn=collate_fn, num_workers=num_workers, pin_memory=pin_memory)
        return self._hand_out(loaded, handed, self._begin())

    def batch_sampler(self, *, steps: int | None = None, ahead: int = 0) -> "BatchSampler":
        """A batch sampler for your own DataLoader; give the loader `collate_fn=private.collate(data)` with it.

        `ahead` is how many batches the loader draws before they are used: num_workers times prefetch_factor (2 unless
        you say otherwise). A batch that is skipped is noticed by it.
        """
        self._check_attached()
        return BatchSampler(self, steps, whole("ahead", ahead, least=0))

    def collate(self, data: Any, collate_fn: Collate | None = None) -> Collate:
        """A collate function for your own DataLoader, for which an empty draw is one padding row."""
        length = length_of(data)
        self.plan.sampling.check_length(length)
        self._length = length
        return PaddedCollate(collate_fn or torch.utils.data.default_collate, data[0])

    def _begin(self) -> int:
        """Forget whatever batch was open: one iteration at a time owns the logical batch."""
        self._iteration += 1
        self._chunks.clear()
        self._clear()
        return self._iteration

    def _clear(self) -> None:
        """Forget what has been summed."""
        self._sums.clear()
        if self._slots is not None:
            self._slots.clear()

    def _draw(self, length: int, steps: int | None, at_most: int | None) -> Iterator[tuple[_Chunk, Draw]]:
        steps = self.remaining if steps is None else min(self.remaining, whole("steps", steps, least=0))
        if at_most is not None:
            whole("at_most", at_most, least=1)
        first = self.released

        def draw() -> Iterator[tuple[_Chunk, Draw]]:
            for step in range(first, first + steps):
                self._check_attached()
                drawn = self.plan.sampling.draw(length, step, self._begun, partial(self._root.stream, "sampling"))
                indices = _checked_draw(drawn, length)
                size = max(1, len(indices)) if at_most is None else at_most
                starts = range(0, max(1, len(indices)), size)
                slots = self._assign(len(indices), step)
                for start in starts:
                    part = indices[start : start + size]
                    mine = None if slots is None else slots[start : start + size]
                    yield _Chunk(step, len(part), first=start == 0, last=start == starts[-1], slots=mine), part

        return draw()

    def _assign(self, units: int, step: int) -> Tensor | None:
        """A secret, uniformly random microbatch for each unit of a draw, each independently."""
        if self._slots is None:
            return None
        return torch.from_numpy(self._root.stream("microbatches", step).below(self._slots.count, units))

    def _hand_out(self, loaded: Iterator[Any], handed: deque[_Chunk], iteration: int) -> Iterator[Any]:
        for batch in loaded:
            if iteration != self._iteration:
                raise PrivacyError(
                    "this loop was given up: an error ended its batch, or it was replaced by a later call of batches()."
                )
            self._check_attached()
            self._check_modes()
            chunk = handed.popleft()
            chunk.since = now()
            self._chunks.clear()
            self._chunks.append(chunk)
            self._opened()
            yield batch
            if iteration == self._iteration and not chunk.done:
                self._begin()
                raise PrivacyError(
                    f"the batch of step {chunk.step} was handed out, but private.backward(losses) was not called for "
                    "it; call it for every batch, or break out of the loop."
                )

    def _opened(self) -> None:
        """A batch is handed out: whatever the model made before does not belong to it."""
        if self._gate is not None:
            self._gate.clear()
        if self._probes is not None:
            self._probes.arm()

    # --- releasing -----------------------------------------------------------------------------------------------

    def backward(self, losses: Tensor) -> bool:
        """Make the gradients of one loss per example private; True when the logical batch is released.

        Then `p.grad` is (bounded sum + noise) / batch_size for every trainable parameter. While a logical batch is
        incomplete, `p.grad` is None.
        """
        self._check_attached()
        chunk = self._current()
        self._check_losses(losses, chunk)
        versions = [p._version for p in self._parameters.values()]
        if not chunk.first and versions != self._versions:
            self._begin()
            raise PrivacyError(
                "the model's parameters changed between two chunks of one batch; step the optimizer only when "
                "private.backward(losses) returns True. Nothing was released."
            )
        if chunk.first:
            self._versions = versions
            self._clear()
            for parameter in self._parameters.values():
                parameter.grad = None
        if chunk.units:
            try:
                self._accumulate(losses, chunk)
            except BaseException:  # part of it may have been added: the whole batch is given up
                self._begin()
                raise
        chunk.done = True
        self._chunks.popleft()
        self._since = now()
        if chunk.last:
            if self._slots is not None:
                self._add(self._slots.gradients())
            self._release()
        return chunk.last

    def _current(self) -> _Chunk:
        if not self._chunks:
            raise PrivacyError(
                "there is no open batch: each batch takes one private.backward(losses), and batches come from "
                "private.batches(data)."
            )
        return self._chunks[0]

    def _check_losses(self, losses: Tensor, chunk: _Chunk) -> None:
        rows = max(1, chunk.units)
        if not isinstance(losses, Tensor) or losses.shape != (rows,) or not losses.is_floating_point():
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise PrivacyError(
                f"the losses have shape {shape}; one loss for each of the {rows} rows of the batch is needed, shape "
                f"({rows},). Use reduction='none', and sum or average over everything but the first dimension."
            )
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad or (parameter.dtype, parameter.device) != self._formats[name]:
                what = "moved to another dtype or device" if parameter.requires_grad else "frozen"
                raise PrivacyError(f"parameter {name!r} was {what} after attach; detach and attach again.")
        self._check_modes()

    def _accumulate(self, losses: Tensor, chunk: _Chunk) -> None:
        if self._gate is not None:
            self._accumulate_outputs(losses, chunk)
            return
        probe = chunk.first and self._probed(chunk.step)
        plain = None if self._probes is None else self._probes.plain(losses, self._parameters)
        gradients = self._engine.gradients(losses, chunk.units, since=max(chunk.since, self._since), probe=probe)
        if gradients.strangers:
            self._refuse_strangers(gradients.strangers)
        if self._probes is not None:
            self._probes.look(gradients, plain, chunk.units)
        if self._slots is None:
            self._add(gradients, losses.detach().isfinite())
            return
        assert chunk.slots is not None
        with torch.no_grad():
            finite = losses.detach().isfinite()
            for squared in gradients.norms().values():
                finite &= squared.isfinite()
            kept = finite.nonzero().squeeze(1)
            self._slots.add(gradients.select(kept), chunk.slots[kept.cpu()])

    def _accumulate_outputs(self, losses: Tensor, chunk: _Chunk) -> None:
        """The bound works inside the network: what comes out of the one backward pass is bounded already."""
        found = self._gate.sums(losses, chunk.units)
        if self._probes is not None:
            self._probes.look(None, None, chunk.units)
        assert isinstance(self._sums, FloatSums)
        self._sums.add(found)

    @torch.no_grad()
    def _add(self, gradients: UnitGradients, sound: Tensor | None = None) -> None:
        """Bound each gradient and add it to the sums; what is not finite contributes exactly zero."""
        if self._bound.needs == "elements":
            self._add_elements(gradients, sound)
            return
        norms = gradients.norms()
        finite = next(iter(norms.values())).new_ones(gradients.units, dtype=torch.bool) if sound is None else sound
        for squared in norms.values():
            finite = finite & squared.isfinite()
        if not finite.all():  # left out before any product
            if not finite.any():
                return
            gradients = gradients.select(finite.nonzero().squeeze(1))
            norms = gradients.norms()
        weights = self._bound.apply(norms, self._state)
        weights = {name: torch.where(w.isfinite(), w, 0.0) for name, w in weights.items()}
        if self._probes is not None and not self._probes.bounded:
            check_bound(gradients, weights, self._bound.contract(self._layout, self._state))
            self._probes.bounded = True
        self._sums.add_weighted(gradients, weights)
        if self._asked:
            self._add_answers(self._bound.ask(norms, self._state))

    def _add_answers(self, answers: Mapping[str, Tensor]) -> None:
        """Add what the bound asks of each unit, cut to the norm its contract gives."""
        assert isinstance(self._sums, FloatSums)
        for block in asked(self._bound.contract(self._layout, self._state)):
            rows = torch.cat([answers[name].reshape(len(answers[name]), -1) for name in block.members], 1)
            rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
            short = (block.norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True)).clamp(max=1.0)
            pieces = (rows * short).sum(0).split(block.size // len(block.members))
            self._sums.add(dict(zip(block.members, pieces, strict=True)))

    def _add_elements(self, gradients: UnitGradients, sound: Tensor | None) -> None:
        """Bound the gradients themselves, a few units at a time, and add them."""
        width = max(stop for _, stop in self._columns.values())
        for start, stop in parts(gradients.units, 8 * width):
            rows = gradients.rows(start, stop)
            finite = rows.sum(1).isfinite()  # a sum that is not finite leaves its unit out, and no other
            if sound is not None:
                finite &= sound[start:stop]
            if not finite.all():
                rows = torch.where(finite[:, None], rows, 0.0)
            bounded = self._bound.apply(rows, self._state)
            finite &= bounded.sum(1).isfinite()
            if not finite.all():
                bounded = torch.where(finite[:, None], bounded, 0.0)
            if self._probes is not None and not self._probes.bounded:
                check_rows(bounded, self._columns, self._bound.contract(self._layout, self._state))
                self._probes.bounded = True
            self._sums.add_rows(bounded, self._columns)

    def _notes(self) -> dict[str, bool]:
        """What a release's line says of how it was made, if there is anything to say."""
        replayed = self._probes is not None and self._probes.replayed
        return ({"seeded": True} if self._root.seeded else {}) | ({} if replayed else {"unprobed": True})

    def _refuse_strangers(self, strangers: Sequence[Tensor]) -> None:
        current = {id(p): name for name, p in self._model.named_parameters()}
        for tensor in strangers:
            if id(tensor) in current:
                raise PrivacyError(
                    f"parameter {current[id(tensor)]!r} was unfrozen, added or replaced after attach, so nothing "
                    "bounds its gradient; detach and attach again."
                )

    def _release(self) -> None:
        """Count the step, then add the noise, divide by the public batch size and assign the gradients."""
        if self.remaining == 0:
            raise BudgetExhausted(f"all {self.plan.steps:,} steps of the plan are spent; nothing was released.")
        factor = self.plan.noise_factor(self.released)
        stream = self._root.stream("noise", self.released)  # the count goes up before the noise is drawn: never twice
        self._ledger.spend(self._participations, **self._notes())
        mechanism = self.plan.mechanism
        contract = mechanism.contract(self._layout, self._state)
        scales: dict[str, float] = {}
        for block, scale in zip(contract.blocks, mechanism.scales(contract), strict=True):
            scales.update(dict.fromkeys(block.members, scale * factor))
        released = self._sums.release(mechanism.noise, scales, stream)
        answers = {name: released.pop(name) / self._divisor for name in self._asked}
        if mechanism.denoise is not None:
            law: Any = mechanism.noise.law
            added = Added(law, {name: scales[name] for name in released})
            denoised, self._denoised = mechanism.denoise.apply(released, added, self._denoised)
            if {n: t.shape for n, t in denoised.items()} != {n: t.shape for n, t in released.items()}:
                raise PrivacyError(f"{mechanism.denoise!r} returned other parameters or shapes than it was given.")
            released = dict(denoised)
        for name, gradient in released.items():
            parameter = self._parameters[name]
            share = gradient.mul_(1 / self._divisor) if mechanism.denoise is None else gradient / self._divisor
            parameter.grad = share.to(parameter.dtype)
        if answers:
            self._state = self._bound.learn(answers, self._state)
        self._clear()

    # --- what is proven ------------------------------------------------------------------------------------------

    def guarantee(self) -> Guarantee:
        """What is proven of this run.

        When the plan's steps are spent, that is the epsilon of what was released. Before, what is proven is the
        epsilon of the declared horizon; `so_far` stands beside it, on a condition.
        """
        spent, remaining = self._ledger.phases, self.remaining
        rest = self.plan.phases(self._layout, after=self.released)
        if not self.plan.noise_schedule:
            rest = [replace(rest[0], steps=self._participations(remaining))]
        proven = guarantee_of(self.plan, self._layout, [*spent, *rest, *self._ledger.queries])
        conditions = [
            *proven.conditions,
            *self._ledger.conditions,
            *self._isolation(),
            Condition(
                "the losses were computed from the rows that were handed out, each from its own row's outputs alone, "
                "also where no gradient shows it",
                "proven" if self._own_loop else "assumed",
            ),
        ]
        if self._root.seeded and SEEDED not in conditions:
            conditions.insert(0, SEEDED)
        made = [*spent, *self._ledger.queries]
        so_far = cost(made, self.plan.delta, self.plan.tuning).epsilon if remaining else None
        return replace(proven, conditions=tuple(conditions), released=self.released, so_far=so_far)

    @property
    def spent(self) -> float:
        """The epsilon of the releases made so far, for a progress line: what is proven is the guarantee."""
        return cost_for_search([*self._ledger.phases, *self._ledger.queries], self.plan.delta, self.plan.tuning).epsilon

    @property
    def learned(self) -> dict[str, Any]:
        """What an adaptive bound has learned from noisy answers: it has been released, and may be logged."""
        return {"bound": self._state} if self._asked else {}

    def _isolation(self) -> tuple[Condition, ...]:
        """What is known of examples not mixing."""
        seen = "no example's loss depends on another example, probed by reweighting the losses"
        earlier = self._ledger.unprobed
        if self._probes is not None and self._probes.replayed and not earlier:
            return (Condition(f"{seen} and by replaying the model with one row replaced", "checked"),)
        why = "preflight was turned off" if self._probes is None else "the model could not be replayed"
        if self._probes is not None and self._probes.replayed:
            why = "some steps were made without preflight"
        hidden = f"nothing that carries no gradient mixes examples or is kept from batch to batch ({why})"
        return Condition(seen, "checked"), Condition(hidden, "assumed")

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def anchor(self) -> str:
        """The hash of the ledger's last line: kept elsewhere, it shows whether the file was cut short or rewritten."""
        return self._ledger.head

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the model's and the optimizer's own state."""
        return {
            "format": "discreet-state/1",
            "plan": self.plan.to_dict(),
            "released": self.released,
            "participations": self._ledger.participations,
            "ledger": self._ledger.head if self._on_disk else "",
            "seeded": self._root.seeded or SEEDED in self._ledger.conditions,
            **({"bound": self._state} if self._asked else {}),
            **({} if self._denoised is None else {"denoise": self._denoised}),
        }

    def check_state_dict(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Raise unless a state may be loaded; its numbers of releases and participations. Changes nothing."""
        if state.get("format") != "discreet-state/1" or state.get("plan") != self.plan.to_dict():
            raise PrivacyError("the state belongs to another plan; attach the plan it was saved with.")
        released = whole("the state's number of releases", state.get("released", -1), least=0)
        taken = whole("the state's number of participations", state.get("participations", released), least=0)
        if not self.plan.sampling.participations(released) <= taken <= released <= self.plan.steps:
            raise PrivacyError(f"the state counts {released} releases and {taken} participations, which cannot be.")
        head = state.get("ledger")
        if self._on_disk and head and not self._ledger.knows(str(head)):
            raise PrivacyError(
                "the ledger lacks a line that the checkpoint knows of: it was cut short, replaced or is another run's. "
                "Attach with the ledger the checkpoint was made with."
            )
        fits = {
            "bound": _alike(state.get("bound"), self._state if self._asked else None),
            "denoise": self._fits(state.get("denoise"), self._denoised),
        }
        for key in (key for key, fine in fits.items() if not fine):
            raise PrivacyError(f"the state's {key!r} does not fit the plan's stage; load it as it was saved.")
        norms = [b.norm for b in self._bound.contract(self._layout, state["bound"]).blocks] if self._asked else []
        if not all(0 < norm < np.inf for norm in norms):
            raise PrivacyError("the state's 'bound' does not fit the plan's stage: a norm in it is not positive.")
        return released, taken

    def _fits(self, found: Any, own: Any) -> bool:
        """Whether a saved state can be a denoiser's: its keys, and tensors of the parameters' shapes by their names."""
        if not isinstance(own, dict):
            return found is None or own is not None
        if not isinstance(found, dict) or (own and found.keys() != own.keys()):
            return False
        shapes = {name: p.shape for name, p in self._parameters.items()}
        tables = [found, *(v for v in found.values() if isinstance(v, dict))]
        named = [(k, v) for table in tables for k, v in table.items() if k in shapes and isinstance(v, Tensor)]
        return all(tensor.shape == shapes[name] for name, tensor in named)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of the same plan.

        Releases that the state knows of and the ledger does not are counted now; those that the ledger knows of and
        the state does not (a crash after the checkpoint) stay spent. Nothing is ever repeated.
        """
        released, taken = self.check_state_dict(state)
        self._begin()
        self._ledger.restore(released, taken, **({"seeded": True} if state.get("seeded") else {}))
        self._begun = self._ledger.released
        if self._asked:
            self._state = state["bound"]
        self._denoised = state.get("denoise")

    def __reduce__(self) -> str:
        raise PrivacyError("a Private holds the secret key of its run and is not copied; save private.state_dict().")

    def detach(self) -> None:
        """Take the plan off the model: it is as it was. The guarantee of what was released can still be read."""
        if not self._attached:
            return
        self._attached = False
        self._begin()
        self._ledger.close()
        for guard in self._guards:
            guard.remove()
        if self._probes is not None:
            self._probes.remove()
        if self._gate is not None:
            self._gate.remove()
        for parameter in self._parameters.values():
            _ATTACHED.pop(id(parameter), None)

    def _check_attached(self) -> None:
        if os.getpid() != self._process:
            raise PrivacyError(
                "this process was forked from the one that attached the plan; two of them would spend the same budget. "
                "Attach in the process that trains."
            )
        if not self._attached:
            raise PrivacyError("the plan was detached from the model; attach it again to go on training.")

    def _check_modes(self) -> None:
        for name, module in self._norms:
            problem = _problem(module)
            if problem is not None:
                raise PrivacyError(f"module {name!r} ({type(module).__name__}) {problem}")

    def _probed(self, step: int) -> bool:
        """Whether isolation is probed again at a step: at 0, 1, 2, 4, 8, ... and at one in 64 others, in secret."""
        return step & (step - 1) == 0 or self._root.stream("probe", step).octets(1)[0] < 4

    def _check_contract(self) -> None:
        """Refuse a contract that leaves a parameter out or a noise that cannot be split, before anything is counted."""
        contract = self.plan.mechanism.contract(self._layout, self._state)
        self.plan.mechanism.scales(contract)
        bounded = [name for block in contract.blocks if not block.share for name in block.members]
        if sorted(bounded) != sorted(self._layout.names):
            odd = sorted(set(bounded) ^ set(self._layout.names)) or sorted(bounded)
            raise ConfigError(f"the contract of {self._bound!r} must have each parameter once; look at {odd[0]!r}.")

    def _check_noise(self) -> None:
        """Refuse noise that exact arithmetic could not draw, before anything is counted."""
        if not isinstance(self._sums, WholeSums):
            return
        scales = self.plan.mechanism.scales(self.plan.mechanism.contract(self._layout, self._state))
        least, most = (f(factor for _, factor in self.plan.stretches) for f in (min, max))
        for block, scale in zip(self._sums.blocks, scales, strict=True):
            if not 0 < least * scale / (block.norm * GRID) <= most * scale / (block.norm * GRID) <= LARGEST:
                raise ConfigError(
                    f"the noise of {', '.join(block.members)} is {scale:.3g} on a grid of {block.norm * GRID:.3g}: too "
                    "little or too much to be drawn exactly. Use another allocation or multiplier."
                )

    def _check_budget(self) -> None:
        limit = self.plan.epsilon
        if limit is None:
            return
        phases = [*self.plan.phases(self._layout), *self._ledger.queries]
        spent = cost(phases, self.plan.delta, self.plan.tuning).epsilon
        if spent > limit:
            raise BudgetExhausted(
                f"the plan's {self.plan.steps:,} steps would spend epsilon {spent:.4g}, more than its limit {limit:g}; "
                "use discreet.calibrate to solve for noise, steps or batch size."
            )


class _Probes:
    """The probes of the first batch (discreet.probes), each done once; the model has a hook only while it runs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._recorder = Recorder()
        self._handle: Any = None
        self.replayed, self.bounded, self._summed = False, False, False

    def arm(self) -> None:
        """A batch is handed out: keep the next call of the model."""
        self._recorder.calls = None
        if not self.replayed and self._handle is None:
            self._handle = self._model.register_forward_pre_hook(self._recorder, with_kwargs=True)

    def plain(self, losses: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor | None] | None:
        """Autograd's own gradients, to compare with, until that is done."""
        if self._summed or not losses.requires_grad:
            return None
        try:
            found = torch.autograd.grad(
                losses.sum(), list(parameters.values()), retain_graph=True, allow_unused=True, materialize_grads=False
            )
        except RuntimeError:  # graphs that allow no second pass
            return None
        return dict(zip(parameters, found, strict=True))

    @torch.no_grad()
    def look(self, gradients: UnitGradients | None, plain: Mapping[str, Tensor | None] | None, rows: int) -> None:
        """Compare the sums, and replay the call that was kept."""
        if plain is not None and gradients is not None:
            check_sums(gradients, plain)
            self._summed = True
        calls, self._recorder.calls = self._recorder.calls, None
        self.remove()
        if self.replayed or calls is None:
            return

        def run(model: nn.Module, arguments: Any) -> Any:
            with ExitStack() as stack:
                for device, dtype in calls.autocast:
                    stack.enter_context(torch.autocast(device, dtype))
                return [model(*args, **kwargs) for args, kwargs in arguments]

        self.replayed = replay(self._model, run, calls.arguments, rows, calls.random)

    def remove(self) -> None:
        """Take the hook off the model."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


class BatchSampler:
    """Lists of indices for torch's DataLoader, drawn by the plan's sampler: the remaining steps, once."""

    def __init__(self, private: Private, steps: int | None, ahead: int) -> None:
        self._private, self._steps, self._ahead = private, steps, ahead

    def __iter__(self) -> Iterator[list[int]]:
        private = self._private
        if private._length is None:
            raise ConfigError(
                "a draw may be empty, of which a DataLoader makes no batch; give it "
                "collate_fn=private.collate(dataset) beside batch_sampler=private.batch_sampler()."
            )
        iteration = private._begin()
        private._since = now()
        draws = private._draw(private._length, self._steps, None)
        while True:
            if iteration != private._iteration:
                raise PrivacyError("this loop was replaced by a later one; use the later one.")
            if len(private._chunks) > self._ahead:
                private._begin()
                raise PrivacyError(
                    "a batch was drawn, but private.backward(losses) was not called for it before the next was asked "
                    "for; call it for every batch. If the loader has workers that draw ahead, say how far: "
                    "private.batch_sampler(ahead=num_workers * prefetch_factor)."
                )
            try:
                chunk, indices = next(draws)
            except StopIteration:
                return
            chunk.since = private._since
            private._chunks.append(chunk)
            private._opened()
            yield [int(i) for i in indices]


def _alike(found: Any, own: Any) -> bool:
    """Whether a saved value has the form of one's own: the same keys, names and shapes, and finite numbers."""
    if isinstance(own, Mapping):
        return isinstance(found, Mapping) and set(found) == set(own) and all(_alike(found[k], own[k]) for k in own)
    if isinstance(own, (list, tuple)) and not own:
        return isinstance(found, (list, tuple))
    if isinstance(own, (list, tuple)):
        same = isinstance(found, (list, tuple)) and len(found) == len(own)
        return same and all(_alike(f, o) for f, o in zip(found, own, strict=True))
    if isinstance(own, Tensor):
        return isinstance(found, Tensor) and (found.shape, found.dtype) == (own.shape, own.dtype)
    if isinstance(own, (bool, str)) or own is None:
        return type(found) is type(own) and found == own
    return isinstance(found, (int, float)) and not isinstance(found, bool) and abs(found) < 1e300


def _columns(layout: Layout) -> dict[str, tuple[int, int]]:
    """Where each parameter is in a row that has all of them side by side."""
    found, start = {}, 0
    for name, size in zip(layout.names, layout.sizes, strict=True):
        found[name] = start, start + size
        start += size
    return found


def _checked_draw(drawn: Any, length: int) -> Draw:
    """A sampler's draw, if it is a set of the data's indices: one that came twice would count twice."""
    indices = np.asarray(drawn)
    if indices.ndim == 1 and len(indices) == 0:
        return np.empty(0, np.intp)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or indices.min() < 0 or indices.max() >= length:
        raise PrivacyError(f"the sampler drew {drawn!r}, which is no list of indices below {length}.")
    if len(np.unique(indices)) != len(indices):
        raise PrivacyError("the sampler drew an index twice in one step, which would count twice in the sum.")
    return indices.astype(np.intp)


def _refuse_plain(parameter: Tensor) -> None:
    """Runs when a gradient was accumulated by a plain backward pass: takes it away again, and says so."""
    parameter.grad = None
    raise PrivacyError(
        "loss.backward() was called on an attached model, which would train without privacy; use "
        "private.backward(losses) with one loss per example, or private.detach() first."
    )


def _check_model(model: nn.Module) -> None:
    """Refuse what cannot be made private, by name, before anything is touched."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{type(model).__name__} is not a torch.nn.Module.")
    for name, module in model.named_modules():
        where = f"module {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        problem = _problem(module)
        if problem is not None:
            raise PrivacyError(f"{where} {problem}")
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ConfigError("the model has no trainable parameters; set requires_grad on what is to be trained.")
    for name, parameter in trainable.items():
        if not parameter.is_floating_point():
            raise ConfigError(f"parameter {name!r} is {parameter.dtype}; only real floating point can be trained.")
        if _ATTACHED.get(id(parameter)) is parameter:
            raise PrivacyError(f"parameter {name!r} has a plan attached already; call detach() on that one first.")
        if bool(parameter._backward_hooks):
            raise PrivacyError(f"parameter {name!r} has a gradient hook, which would not see each example; remove it.")


def _problem(module: nn.Module) -> str | None:
    """What is wrong with a module, as the end of a sentence, or None."""
    if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None:
        return "is compiled, so its uses of parameters cannot be seen; attach the model it was compiled from."
    if isinstance(module, torch.jit.ScriptModule):
        return "is a TorchScript module, which cannot be taken apart by examples; attach the original module."
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "spreads a batch over devices, which is not supported; attach the module inside it."
    if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
        return (
            "uses statistics of the whole batch, which mixes examples, and keeps them; replace it by GroupNorm, "
            "or put it in eval mode."
        )
    if isinstance(module, _NormBase) and module.training and module.track_running_stats:
        return "keeps statistics of the data in its buffers, past any noise; set track_running_stats=False."
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        return "rewrites its weight in the forward pass (max_norm), past any noise; set max_norm=None."
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.scale_grad_by_freq:
        return "divides by counts over the whole batch (scale_grad_by_freq), which mixes examples; set it to False."
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module._parameters.values()):
        return "is not initialised yet (a lazy module); run it once on constants before attaching."
    return None


__all__ = ["BatchSampler", "Private", "attach"]
