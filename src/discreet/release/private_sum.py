"""The sum over a step's units: bounded, counted, noised and divided. What central and federated runs share."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.accounting import cost, cost_for_search
from discreet.accounting.guarantee import Condition, Guarantee, weakest
from discreet.distributed.ranks import ALONE, Ranks
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.gradients import UnitGradients
from discreet.gradients.forms import parts
from discreet.gradients.results import Chunks
from discreet.ledger import SEEDED, Ledger, RunLedger
from discreet.release.batching import Draw, checked_draw
from discreet.release.plan_checks import check_budget, check_contract, check_exact_noise, check_shares
from discreet.release.preflight.exactness import check_bound, check_rows
from discreet.release.saved_state import check_counts, check_stages
from discreet.release.sums import (
    Drawing,
    FloatSums,
    ShardedSums,
    Sums,
    WholeSums,
    each_once,
    float_sums,
    joined,
    total,
    without_nan,
)
from discreet.stages.attendance import Attendance
from discreet.stages.conditions import guarantee_of
from discreet.stages.denoise import Added
from discreet.stages.noise.random import KeyTree
from discreet.stages.plan import Plan
from discreet.stages.sensitivity import Layout, asked


class PrivateSum:
    """A plan's mechanism at work on some parameters, and the account of what it has released.

    Guarantee: whatever is added, one unit changes what `release` returns by at most the bound's contract before the
    noise; values that are not finite contribute exactly zero; and the release is counted before it exists. `count` is
    the public number that sums are divided by; `audit` is what the ledger's first line of the run declares. Where a
    rank has only its own part of every sum, `shards` are its parts of the parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        plan: Plan,
        ledger: str | Path | Ledger | None,
        *,
        count: float,
        probe: bool,
        seed: int | None,
        audit: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
        shards: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._shards = shards
        self.plan, self._parameters, self._count, self.ranks = plan, parameters, count, ranks
        self.layout = Layout(tuple(parameters), tuple(tuple(p.shape) for p in parameters.values()))
        self._columns = self.layout.columns
        self.bound: Any = plan.mechanism.bound
        self.state = self.bound.start(self.layout)
        changed = plan.mechanism.hardening == "exact" or plan.mechanism.microbatch > 1
        self._contract_now = plan.mechanism.contract if changed else self.bound.contract  # what one unit may change
        self._memory = plan.mechanism.start_noise()
        self._denoised = None if plan.mechanism.denoise is None else plan.mechanism.denoise.start(self.layout)
        self.root = self._own = KeyTree(seed)  # of what all ranks draw alike, and of this one's noise
        if not ranks.alone:
            self.root = KeyTree(seed, ranks.lead("drawing a key", lambda: os.urandom(32)))
        self.rows = "none"  # how far ranks' rows were compared when the loop began (discreet.distributed.data_digest)
        self.on_disk = ledger is not None
        book = Ledger(ledger) if isinstance(ledger, (str, Path)) else ledger
        self._ledger: RunLedger = ranks.lead(
            "opening the ledger", lambda: RunLedger(book, plan, self.layout, audit), RunLedger.followed
        )
        self._scaled_for: list[Any] = []  # what the scales of the last release were computed from
        self._scales: dict[str, float] = {}
        # the step at which this process took over; 0 where steps are those of the ledger
        self.origin_step = 0 if plan.continues else self._ledger.released
        attend = getattr(plan.sampling, "attend", None)
        self._attendance: Attendance | None = None if attend is None else attend(self._ledger.released)
        self._elsewhere = not any(p.is_cpu for p in parameters.values())
        self._checked = not probe  # whether contributions were held against the contract, one by one
        try:
            contract = self.bound.contract(self.layout, self.state)
            self._asked: list[str] = []
            if plan.mechanism.hardening == "exact":
                self._sums: Sums = WholeSums(parameters, contract)
            else:
                self._sums, self._asked = float_sums(parameters, contract, shards, ranks)
            self.clear: Callable[[], None] = self._sums.clear  # forgets what has been added
            # whether units can be added a few at a time, with only some of their parameters' gradients
            self.takes_turns = isinstance(self._sums, FloatSums)
            check_budget(plan, self.layout, self._ledger.queries)
            check_contract(plan, self.layout, self.state)
            if isinstance(self._sums, WholeSums):
                check_exact_noise(plan, self.layout, self.state, self._sums.blocks)
            if ranks.noise_shares:
                check_shares(plan)
        except BaseException:
            self._ledger.close()
            raise

    # --- steps ---------------------------------------------------------------------------------------------------

    @property
    def released(self) -> int:
        """How many steps have been released."""
        return self._ledger.released

    @property
    def remaining(self) -> int:
        """How many of the plan's steps are left.

        Where a pass over the data was broken off, by a crash say, the rest of it is lost: a new pass counts anew.
        """
        left = max(0, self.plan.steps - self._ledger.released)
        if self.plan.charges_each_step:
            return left
        allowed = self.plan.charges(self.plan.steps) - self._ledger.participations
        while left and self.plan.charges(left, after=self.released - self.origin_step) > allowed:
            left -= 1
        return left

    def draw(self, length: int, step: int, available: Sequence[int] | None = None) -> Draw:
        """Who takes part in a step, of `length` units (of those that are `available`, if the sampler asks): secret."""
        if self._attendance is not None:
            drawn: Any = self._attendance.draw(length, step, self.root.stream("sampling", step), available)
        elif available is not None:
            raise ConfigError(f"{self.plan.sampling!r} says who takes part, not who is there; use MinSeparation.")
        else:
            drawn = self.plan.sampling.draw(length, step, self.origin_step, partial(self.root.stream, "sampling"))
        return checked_draw(drawn, length)

    # --- adding --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, gradients: UnitGradients, sound: Tensor | None = None, shares: Tensor | None = None) -> None:
        """Bound each unit's gradient and add it; what is not finite, or not `sound`, contributes exactly zero.

        `shares`, from 0 to 1, are what each unit's bounded gradient is multiplied by.
        """
        if self.bound.needs == "elements":
            self._add_elements(gradients, sound, shares)
            return
        turns = gradients.in_chunks() if gradients.chunked and self._checked and self.takes_turns else None
        if turns is None:
            self._add_some(gradients, sound, shares)
            return
        assert isinstance(self._sums, FloatSums)
        if self._elsewhere and self._sums.empty:  # a device is asked once, afterwards, and seldom for nothing
            if self._add_turns(turns, sound, shares, trust=True):
                return
            self._sums.clear()
            turns.totals()
        self._add_turns(turns, sound, shares, trust=False)

    def _add_turns(self, turns: Chunks, sound: Tensor | None, shares: Tensor | None, *, trust: bool) -> bool:
        """Bound and add gradients chunk by chunk; with `trust`, False if some turned out not to be finite and sound."""
        assert isinstance(self._sums, FloatSums)
        weights: list[Mapping[str, Tensor]] = []
        kept: list[Tensor] = []
        squared: list[Tensor] = []
        pending, turns.rest.pending = turns.rest.pending, {} if trust else turns.rest.pending
        for (start, stop), some in zip(turns.ranges, turns, strict=True):
            mine = [None if given is None else given[start:stop] for given in (sound, shares)]
            if trust:
                squared.append(total(some.norms()))
            added = self._add_some(some, *mine, trust=trust)
            if added is not None:
                by, whose = added
                weights.append(by)
                kept.append(torch.arange(start, stop) if whose is None else whose.cpu() + start)
        if trust:
            finite = torch.cat(squared).isfinite()
            fine = [(finite if sound is None else finite & sound).all()]
            if not torch.stack([*fine, *(~near.any().to(finite.device) for near in pending.values())]).all():
                turns.rest.pending = pending
                return False
        self._sums.add(turns.totals())
        if weights:
            units, rest = torch.cat(kept), turns.rest
            rest = rest if len(units) == rest.units else rest.select(units)
            self._sums.add_weighted(rest, joined(weights))
        return True

    def _add_some(
        self, gradients: UnitGradients, sound: Tensor | None, shares: Tensor | None, *, trust: bool = False
    ) -> tuple[Mapping[str, Tensor], Tensor | None] | None:
        """Bound and add some units' gradients; the weights by which that was done, if any, and whose (None: all's)."""
        kept = None
        finite = trust or gradients.all_finite(sound)
        norms = gradients.norms()
        if not finite:  # some may be left out, before any product
            squared = total(norms)
            finite = squared.isfinite() if sound is None else squared.isfinite() & sound
            if not finite.any():
                self.add_nothing()
                return None
            kept = finite.nonzero().squeeze(1)
            gradients, shares = gradients.select(kept), None if shares is None else shares[kept]
            norms = gradients.norms()
        weights = self.bound.apply(norms, self.state)
        weights = each_once(weights, without_nan)
        if shares is not None:
            weights = each_once(weights, lambda w: w * shares.to(w))
        if not self._checked:
            check_bound(gradients, weights, self.bound.contract(self.layout, self.state))
            self._checked = True
        self._sums.add_weighted(gradients, weights)
        if self._asked:
            self._add_answers(self.bound.ask(norms, self.state))
        return weights, kept

    def add_nothing(self) -> None:
        """Take part in an addition with no unit, where ranks add together."""
        if isinstance(self._sums, ShardedSums):
            self._sums.add_nothing()

    def _add_answers(self, answers: Mapping[str, Tensor]) -> None:
        """Add what the bound asks of each unit, cut to the norm its contract gives."""
        assert isinstance(self._sums, (FloatSums, ShardedSums))
        for block in asked(self.bound.contract(self.layout, self.state)):
            rows = torch.cat([answers[name].reshape(len(answers[name]), -1) for name in block.members], 1)
            rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
            short = (block.norm / torch.linalg.vector_norm(rows, dim=1, keepdim=True)).clamp(max=1.0)
            pieces = (rows * short).sum(0).split(block.size // len(block.members))
            self._sums.add(dict(zip(block.members, pieces, strict=True)))

    def _add_elements(self, gradients: UnitGradients, sound: Tensor | None, shares: Tensor | None) -> None:
        """Bound the gradients themselves, a few units at a time, and add them."""
        width = max(stop for _, stop in self._columns.values())
        for start, stop in parts(gradients.units, 8 * width):
            rows = gradients.rows(start, stop)
            finite = rows.sum(1).isfinite()  # a sum that is not finite leaves its unit out, and no other
            if sound is not None:
                finite &= sound[start:stop]
            if not finite.all():
                rows = torch.where(finite[:, None], rows, 0.0)
            bounded = self.bound.apply(rows, self.state)
            finite &= bounded.sum(1).isfinite()
            if not finite.all():
                bounded = torch.where(finite[:, None], bounded, 0.0)
            if shares is not None:
                bounded = bounded * shares[start:stop, None].to(bounded)
            if not self._checked:
                check_rows(bounded, self._columns, self.bound.contract(self.layout, self.state))
                self._checked = True
            self._sums.add_rows(bounded, self._columns)

    def add_bounded(self, totals: Mapping[str, Tensor]) -> None:
        """Add sums over units that were bounded already, inside the network."""
        assert isinstance(self._sums, FloatSums)
        self._sums.add(totals)

    # --- releasing -----------------------------------------------------------------------------------------------

    def release(self, rests_on: Sequence[Condition] | None = None, **notes: bool) -> dict[str, Tensor]:
        """Count the step, then add the noise: (sum + noise) / count for each parameter, and the sums are cleared.

        `rests_on` is what is known by now of how releases are made, and `notes` what the step's line in the ledger says
        of this one.
        """
        if self.remaining == 0:
            raise BudgetExhausted(f"all {self.plan.steps:,} steps of the plan are spent; nothing was released.")
        step, ranks = self._ledger.released, self.ranks
        factor = self.plan.noise_factor(step) if self.plan.noise_schedule else 1.0
        purpose = f"noise of rank {ranks.rank}" if ranks.noise_shares else "noise"
        if self._shards is not None:
            purpose = f"noise of shard {ranks.rank} of {ranks.size}"
        stream = self._own.stream(purpose, step)  # the count goes up before the noise is drawn: never twice
        if self.root.seeded:
            notes["seeded"] = True
        if ranks.alone:
            self._ledger.spend(step - self.origin_step, rests_on, **notes)
        else:
            self._spend_together(step - self.origin_step, rests_on, notes)
        mechanism, part = self.plan.mechanism, 1.0 if ranks.alone or self._shards is not None else ranks.noise_part
        contract, over = self._contract_now(self.layout, self.state), 1 / self._count
        key: list[Any] = [factor]  # what scales are computed from: anew when it has changed
        for block in contract.blocks:
            key += block.members, block.norm, block.size, block.share
        if key != self._scaled_for:
            self._scaled_for, self._scales = key, mechanism.scale_of_each(contract, factor)
        scales = self._scales
        try:
            drawing = Drawing(
                mechanism.noise,
                scales if part == 1 else {name: part * scale for name, scale in scales.items()},
                stream if part else None,
                over if mechanism.denoise is None else 1.0,
                None if ranks.alone else ranks.total,
                self._memory,
            )
            released = self._sums.noised(drawing)
        except BaseException:
            self._memory = mechanism.start_noise()  # half a step's noise is no past: later noise is independent of it
            ranks.leave()
            raise
        if self._memory is not None:
            self._memory.advance()
        answers = {name: released.pop(name) for name in self._asked} if self._asked else {}
        if mechanism.denoise is not None:
            law: Any = mechanism.noise.law
            added = Added(law, {name: scales[name] for name in released})
            denoised, self._denoised = mechanism.denoise.apply(released, added, self._denoised)
            if {n: t.shape for n, t in denoised.items()} != {n: t.shape for n, t in released.items()}:
                raise PrivacyError(f"{mechanism.denoise!r} returned other parameters or shapes than it was given.")
            released = {name: t * over for name, t in denoised.items()}  # what it keeps stays its own
            answers = {name: t * over for name, t in answers.items()}
        if answers:
            self.state = self.bound.learn(answers, self.state)
        return released

    def _spend_together(self, after: int, rests_on: Sequence[Condition] | None, notes: Mapping[str, Any]) -> None:
        """Have rank 0 count a step that all ranks have a part in."""
        together = {"ranks": self.ranks.size, "rows": self.rows, **notes}
        if self.ranks.noise_shares:
            together["noise_shares"] = True
        self._write(lambda: self._ledger.spend(after, rests_on, **together))

    def _write(self, write: Callable[[], Any]) -> None:
        """Have something written in the ledger: by rank 0, and the others take note of it."""
        unsent_lines = self.ranks.lead("writing the ledger", write, lambda _: self._ledger.unsent_lines())
        if not self.ranks.first:
            self._ledger.follow(unsent_lines)

    # --- what is proven ------------------------------------------------------------------------------------------

    def guarantee(self, conditions: Sequence[Condition]) -> Guarantee:
        """What is proven of this run, on these conditions beside those of its stages and its ledger."""
        spent, remaining = self._ledger.events, self.remaining
        rest = self.plan.events(self.layout, after=self.released)
        if not self.plan.noise_schedule:
            rest = [replace(rest[0], steps=self.plan.charges(remaining, after=self.released - self.origin_step))]
        same = self._ledger.same_rows(self.ranks.size)
        proven = guarantee_of(self.plan, self.layout, [*spent, *rest, *self._ledger.queries], taking_part=weakest(same))
        rests_on = [*proven.conditions, *self._ledger.conditions, *conditions]
        rests_on += [*same, *self._ledger.together(self.ranks.size, self.ranks.noise_shares)]
        if self.root.seeded and SEEDED not in rests_on:
            rests_on.insert(0, SEEDED)
        made = [*spent, *self._ledger.queries]
        so_far = cost(made, self.plan.delta, self.plan.tuning).epsilon if remaining else None
        return replace(proven, conditions=tuple(rests_on), released=self.released, so_far=so_far)

    @property
    def spent(self) -> float:
        """The epsilon of the releases made so far, for a progress line: what is proven is the guarantee."""
        return cost_for_search([*self._ledger.events, *self._ledger.queries], self.plan.delta, self.plan.tuning).epsilon

    @property
    def learned(self) -> dict[str, Any]:
        """What an adaptive bound has learned from noisy answers: it has been released, and may be logged."""
        return {"bound": self.state} if self._asked else {}

    @property
    def unprobed(self) -> bool:
        """Whether some release of this run was made before anything was probed."""
        return self._ledger.unprobed

    def told(self, condition: Condition) -> bool:
        """Whether the ledger says of all releases that were made before that they rest on this condition."""
        return not self.released or condition in (self._ledger.rests_on or ())

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The run's own random name, which every line of its ledger has."""
        return self._ledger.name

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
            "ledger": self._ledger.head if self.on_disk else "",
            "run": self._ledger.name,
            "seeded": self.root.seeded or SEEDED in self._ledger.conditions,
            **({"bound": self.state} if self._asked else {}),
            **({} if self._denoised is None else {"denoise": self._denoised}),
            **({} if self._attendance is None else {"attendance": self._attendance.state_dict()}),
            **({"together": made} if (made := self._ledger.made_by) else {}),
        }

    def check_state_dict(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Raise unless a state may be loaded; its numbers of releases and participations. Changes nothing."""
        released, participations = check_counts(state, self.plan)
        if self._attendance is not None:
            self._attendance.check_state_dict(state.get("attendance"))
        head = state.get("ledger")
        if self.on_disk and head and not self._ledger.knows(str(head)):
            raise PrivacyError(
                "the ledger lacks a line that the checkpoint knows of: it was cut short, replaced or is another run's. "
                "Attach with the ledger the checkpoint was made with."
            )
        self._ledger.check_adoption(state)
        bound = self.state if self._asked else None
        check_stages(state, bound, self._denoised, {name: p.shape for name, p in self._parameters.items()})
        norms = [b.norm for b in self.bound.contract(self.layout, state["bound"]).blocks] if self._asked else []
        if not all(0 < norm < np.inf for norm in norms):
            raise PrivacyError("the state's 'bound' does not fit the plan's stage: a norm in it is not positive.")
        return released, participations

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of the same plan.

        Releases that the state knows of and the ledger does not are counted now; those that the ledger knows of and
        the state does not (a crash after the checkpoint) stay spent. Nothing is ever repeated.
        """
        with self.ranks.reported():
            released, taken = self.check_state_dict(state)
        if not self.ranks.alone:  # or one of them would bound by another norm than the noise is for
            told: dict[str, Any] = {"state's releases": (released, taken), "state's bound": repr(state.get("bound"))}
            if self._attendance is not None:  # or draw others
                told["state's attendance"] = self._attendance.digest(state["attendance"])
            self.ranks.agree("loading a state", told)
        self.clear()
        known = {**({"seeded": True} if state.get("seeded") else {}), **state.get("together", {})}
        self._write(lambda: (self._ledger.adopt(state), self._ledger.restore(released, taken, **known)))
        self.origin_step = 0 if self.plan.continues else self._ledger.released
        if self._attendance is not None:
            self._attendance.load_state_dict(state["attendance"], released, self._ledger.released)
        self._memory = self.plan.mechanism.start_noise()
        if self._asked:
            self.state = state["bound"]
        self._denoised = state.get("denoise")

    def close(self) -> None:
        """Let others open the ledger. The guarantee of what was released can still be read."""
        self._ledger.close()
