"""A plan attached to a model: batches are drawn, losses become private gradients, spending is counted.

One step, from top to bottom: `batches` draws who takes part and hands their rows out; `backward` takes the losses;
`_step` makes each example's gradient, bounds and adds it, and, when the logical batch is complete, has the release
counted, the noise added and `p.grad` assigned. Everything else here is what a step is checked for.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from discreet._check import check_int
from discreet.accounting.guarantee import Condition
from discreet.distributed.fsdp import Sharding
from discreet.distributed.ranks import ALONE, Ranks
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients import Engine, UnitGradients
from discreet.gradients.forms import STORED
from discreet.gradients.refusals import Inseparable
from discreet.ledger import Ledger
from discreet.release.batching import Collate
from discreet.release.chunk_size import ran_out
from discreet.release.draws import Chunk
from discreet.release.guards import ParameterGuard, refuse_unmanaged, trainable
from discreet.release.loop import BatchSampler, Loop
from discreet.release.loss_function import LossFn, LossOfRows, autocast_on, check_losses, finite, without_autocast
from discreet.release.microbatches import Microbatches
from discreet.release.preflight.evidence import Evidence
from discreet.release.preflight.model_state import Snapshot
from discreet.release.preflight.watch import Preflight
from discreet.release.private_sum import PrivateSum
from discreet.release.session import Session
from discreet.stages.plan import Plan


class Private(Session):
    """What `attach` returns. One object owns the current logical batch; nothing of it is on the model."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        ledger: str | Path | Ledger | None,
        preflight: bool,
        seed: int | None,
        audit: Mapping[str, Any] | None = None,
        engine: Engine | None = None,
        ranks: Ranks = ALONE,
        sharding: Sharding | None = None,
    ) -> None:
        self._model, self._ranks, self._sharding = model, ranks, sharding
        self._passes = None if sharding is None else sharding.passes
        self._engine = Engine(model) if engine is None else engine
        self._parameters = trainable(model)
        self._devices = {"cpu", *(p.device.type for p in self._parameters.values())}
        used = self._engine.parameters  # the same, but where they are sharded
        self._microbatches, count = None, plan.sampling.batch_size
        size = plan.mechanism.microbatch
        if size > 1:
            count = max(1, round(plan.sampling.batch_size / size))
            self._microbatches = Microbatches(used, count, size)
        shards = None if sharding is None else sharding.shards
        settings: dict[str, Any] = {"probe": preflight, "seed": seed, "audit": audit, "ranks": ranks, "shards": shards}
        super().__init__(PrivateSum(used, plan, ledger, count=count, **settings))
        self._sharded_names = {} if sharding is None else {key: name for key, (_, name) in sharding.names.items()}
        self._measure = plan.mechanism.bound.needs == "norms"
        if self._microbatches is not None or not self._aggregate.takes_turns:
            self._engine.storage_modes = (STORED,)
        self._gate: Any = None
        try:
            if plan.mechanism.bound.needs == "outputs":
                self._gate = self._aggregate.bound.install(model)
        except BaseException:
            self._aggregate.close()
            raise
        self._fits: int | None = None  # rows that fit into memory, once more did not
        self._loss: LossOfRows | None = None  # of the open batch, where the library can call it
        self._singly = False  # whether rows are taken one at a time, as nothing tells them apart in a batch
        sharded = self._passes is not None
        testable = not sharded and self._gate is None
        self._preflight = Preflight(
            model, self._aggregate.root, ranks, on=preflight, testable=testable, sharded=sharded
        )
        self._guard = ParameterGuard(model, used)
        told: dict[str, Any] = {"check": self._check_attached, "opened": self._opened, "forget": self._clear}
        self._loop = Loop(self._aggregate, ranks, self._microbatches, self._engine, doubling=sharded, **told)
        if self._passes is not None:
            self._passes.watch(lambda: self._loop.is_open)

    # --- a step, from top to bottom ----------------------------------------------------------------------------------

    def batches(
        self,
        data: Any,
        *,
        steps: int | None = None,
        at_most: int | None = None,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        fixed: bool = False,
        sharded: bool = False,
    ) -> Iterator[Any]:
        """The plan's remaining steps, one logical batch each, drawn by its sampler.

        An empty draw yields one padding row, which contributes nothing. Where several ranks train together, each gets
        its share of every draw, and as many chunks as the others; it reads no other rows.

        Args:
            data: a map-style Dataset, a tensor or a tuple of tensors, one row an example.
            steps: at most so many steps.
            at_most: hand a logical batch out in chunks of at most so many rows; the released gradient is the same.
            collate_fn: as torch's DataLoader takes it, and so `num_workers` and `pin_memory`.
            num_workers: processes that read a data set's rows.
            pin_memory: whether batches are copied to pinned memory.
            fixed: says of tensors that nobody writes to them or to the batches, not even past autograd (`.data`,
                numpy): the norms of the first one's rows are then computed once, for a first layer that is linear in
                them, and a draw of all rows is not copied.
            sharded: says that `data` is this rank's own part; its share of a draw are those who are in it.
        """
        self._check_attached()
        options: dict[str, Any] = {"num_workers": num_workers, "pin_memory": pin_memory}
        return self._loop.batches(data, steps, at_most, collate_fn, fixed=fixed, sharded=sharded, **options)

    def backward(self, losses: Tensor | LossFn, batch: Any = None) -> bool:
        """Make the gradients of one loss per example private.

        Then `p.grad` is (bounded sum + noise) / batch_size for every trainable parameter. While a logical batch is
        incomplete, `p.grad` is None.

        Args:
            losses: a function, `loss_fn(batch) -> losses`: the library computes the losses, tests on some steps that no
                example's gradient depends on another, and takes what does not fit into memory in smaller pieces. It
                may be called more than once a step, on other batches too. Or a tensor, one loss for each row: then
                nobody can test it, and the guarantee says so.
            batch: what was handed out, where `losses` is a function.

        Returns:
            True when the logical batch is complete and released.
        """
        self._check_attached()
        chunk = self._loop.current()
        if isinstance(losses, Tensor) or not callable(losses):
            if batch is not None:
                raise ConfigError("the losses came as a tensor; leave the batch out, or give a function and the batch.")
            self._preflight.losses_came(chunk)
            return self._without_autocast(losses, chunk)
        if batch is None:
            raise ConfigError("private.backward(loss_fn, batch) needs the batch that was handed out.")
        return self._by_function(losses, batch, chunk)

    def _step(self, losses: Tensor | None, chunk: Chunk) -> bool:
        """Bound the gradients of a chunk's losses, add them, and release when all is there (None: rows one by one)."""
        if self._ranks.alone and self._sharding is None:
            self._take(losses, chunk)
        else:
            gathered = _NOTHING if self._sharding is None or losses is None else self._sharding.opened(losses)
            with self._ranks.reported(), gathered:  # sharded parameters, as they are needed
                self._take(losses, chunk)
        if not chunk.last:
            if self._sharding is not None:  # or a rank would wait in the next forward pass
                self._ranks.exchange(f"the next chunk of step {chunk.step}")
            return False
        try:
            self._preflight.agree(f"release of step {self.released} in loop {self._loop.count}", self._parameters)
        except BaseException:
            self._loop.begin()
            raise
        notes = {} if self._preflight.agreed else {"unprobed": True}
        released = self._aggregate.release(self._rests_on(), **notes)
        for name, gradient in released.items():
            self._assign(name, gradient)
        return True

    def _take(self, losses: Tensor | None, chunk: Chunk) -> None:
        """Check a chunk's losses and add its examples."""
        self._check_step(losses, chunk)
        if chunk.units:
            self._add(losses, chunk)
        elif self._passes is not None:
            self._passes.follow()
            self._aggregate.add_nothing()
        self._chunk_done(chunk)

    def _add_batch(self, losses: Tensor, chunk: Chunk) -> None:
        """Each example's gradient, taken apart, bounded and added."""
        probe = chunk.first and chunk.probed
        plain = self._preflight.plain(losses, self._engine) if self._preflight.sums_are_due else None
        since = max(chunk.since, self._loop.since)
        gradients = self._engine.gradients(losses, chunk.units, since=since, probe=probe, measure=self._measure)
        if gradients.unmanaged_leaves:
            refuse_unmanaged(gradients, self._model, self._sharded_names)
        if plain is not None:
            self._preflight.compare_sums(gradients, plain)
        if self._engine.fresh:
            self._preflight.test_structure(self._engine, self._loss, chunk, self._clear_gate)
        sound = finite(losses.detach())
        if chunk.doubled:
            sound = losses.detach().isfinite()
            sound[1] = False
        self._add_units(gradients, sound, chunk.microbatches)
        if self._preflight.wants_replay:
            del gradients, plain  # a replay needs room
            self._preflight.replay(chunk.units)

    # --- loops -------------------------------------------------------------------------------------------------------

    def batch_sampler(self, *, steps: int | None = None, ahead: int = 0) -> BatchSampler:
        """A batch sampler for your own DataLoader; give the loader `collate_fn=private.collate(data)` with it.

        Args:
            steps: at most so many steps.
            ahead: how many batches the loader draws before they are used: num_workers times prefetch_factor (2 unless
                you say otherwise). A batch that is skipped is noticed by it.
        """
        self._check_attached()
        return BatchSampler(self._loop, steps, check_int("ahead", ahead, least=0))

    def collate(self, data: Any, collate_fn: Collate | None = None) -> Collate:
        """A collate function for your own DataLoader, for which an empty draw is one padding row."""
        return self._loop.collate(data, collate_fn)

    def _clear(self) -> None:
        """Forget what has been summed, and how the first layer's rows were measured."""
        self._engine.known_norms = None
        if self._passes is not None:
            self._passes.forget()
        self._clear_sums()

    def _clear_sums(self) -> None:
        self._aggregate.clear()
        if self._microbatches is not None:
            self._microbatches.clear()

    def _opened(self, chunk: Chunk, batch: Any) -> None:
        """A batch is handed out: whatever the model made before does not belong to it."""
        self._guard.check_modes()
        if self._gate is not None:
            self._gate.clear()
        self._preflight.handed_out(chunk, batch)

    def backward_of(self, losses: Tensor, loss_fn: LossFn, batch: Any) -> bool:
        """`backward` where another loop has computed the losses of the batch already, with this function."""
        self._check_attached()
        chunk = self._loop.current()
        self._test(loss_fn, batch, chunk)
        try:
            return self._without_autocast(losses, chunk)
        finally:
            self._loss = None

    def _test(self, loss_fn: LossFn, batch: Any, chunk: Chunk) -> None:
        """Test isolation if this step is probed; from here on the loss can be had row by row."""
        try:
            self._preflight.test(loss_fn, batch, chunk, self._loop.rows, self._clear_gate)
        except PrivacyError:
            self._loop.begin()
            raise
        if self._loop.rows is not None and self._passes is None:
            self._loss = LossOfRows(loss_fn, self._loop.rows, autocast_on(self._devices))

    def _by_function(self, loss_fn: LossFn, batch: Any, chunk: Chunk) -> bool:
        """The losses of a batch, and their gradients; in pieces where it does not fit."""
        self._test(loss_fn, batch, chunk)
        size = chunk.units if self._fits is None else self._fits
        try:
            while True:
                try:
                    if size >= chunk.units or self._loop.rows is None or self._singly:
                        with self._ranks.reported():
                            losses = None if self._singly and chunk.units else loss_fn(batch)
                        return self._without_autocast(losses, chunk)
                    return self._in_pieces(loss_fn, chunk, size)
                except (RuntimeError, MemoryError) as error:
                    alone = self._ranks.alone and self._passes is None and self._loop.rows is not None
                    again = alone and chunk.first and chunk.indices is not None and self.released == chunk.step
                    if not ran_out(error) or not again or size == 1:  # what was counted is never counted again
                        raise
                    size = self._fits = max(1, min(size, chunk.units) // 2)
                    self._clear_sums()
                    self._loop.reopen(chunk)
        finally:
            self._loss = None

    def _in_pieces(self, loss_fn: LossFn, chunk: Chunk, size: int) -> bool:
        """A chunk a few rows at a time, each read again."""
        released = False
        for piece, batch in self._loop.pieces(chunk, size):
            released = self._without_autocast(loss_fn(batch), piece)
        return released

    def _without_autocast(self, losses: Tensor | None, chunk: Chunk) -> bool:
        """The step with norms and sums in full, wherever this is called."""
        on = autocast_on(self._devices)
        with without_autocast(on) if on else _NOTHING:
            return self._step(losses, chunk)

    def _add(self, losses: Tensor | None, chunk: Chunk) -> None:
        """Add a chunk's examples in the way its model allows; where that fails, the whole batch is given up."""
        if not (chunk.first and chunk.last):
            self._preflight.several_passes()
        try:
            if losses is None or self._singly:
                self._add_singly(chunk, forward=losses is not None)
            elif self._gate is not None:  # the bound works inside the network: what comes out is bounded already
                bounded = self._gate.sums(losses, chunk.units)
                self._preflight.replay(chunk.units)
                self._aggregate.add_bounded(bounded)
            else:
                self._add_batch_or_singly(losses, chunk)
        except BaseException as error:  # part of it may have been added
            if not ran_out(error):  # or it may be taken again, in smaller pieces
                self._loop.begin()
            raise

    def _add_batch_or_singly(self, losses: Tensor, chunk: Chunk) -> None:
        try:
            self._add_batch(losses, chunk)
        except Inseparable as error:
            if not self._preflight.tested_now(self._loss, chunk, self._clear_gate):
                raise
            self._singly = True
            warnings.warn(_SINGLY.format(error), stacklevel=2)
            self._add_singly(chunk, forward=True)

    def _add_singly(self, chunk: Chunk, *, forward: bool) -> None:
        """Each row in a batch of its own: exact for any model, and slow; after a `forward` pass of all rows or not."""
        assert self._loss is not None
        assert chunk.indices is not None
        # what a forward pass changes, it changes once a step, as ever
        changes = bool(self._preflight.evidence.compared)
        before = Snapshot({"model": self._model, "loss": self._loss.loss_fn}) if changes else None
        for place, number in enumerate(chunk.indices):
            if before is not None and place:
                before.restore()
            loss = self._loss.alone(int(number))
            check_losses(loss, 1)
            gradients = self._engine.gradients(loss, 1, since=chunk.since, measure=self._measure)
            if gradients.unmanaged_leaves:
                refuse_unmanaged(gradients, self._model, self._sharded_names)
            mine = None if chunk.microbatches is None else chunk.microbatches[place : place + 1]
            self._add_units(gradients, finite(loss.detach()), mine)
        if before is not None and forward:
            before.restore()

    def _add_units(
        self, gradients: UnitGradients, sound: Tensor | None, microbatches: npt.NDArray[np.int64] | None
    ) -> None:
        """Add the units' gradients to the sums, or to their microbatches."""
        if self._microbatches is None:
            self._aggregate.add(gradients, sound)
            return
        assert microbatches is not None
        self._microbatches.add_sound(gradients, sound, microbatches)

    def _chunk_done(self, chunk: Chunk) -> None:
        """A chunk's examples are added; of the last one, the microbatches' means, too."""
        self._loop.done(chunk)
        if chunk.last and self._microbatches is not None:
            means = self._microbatches.share(self._ranks.rank, self._ranks.size)
            if means is not None:
                self._aggregate.add(means)

    def _assign(self, name: str, gradient: Tensor) -> None:
        """Have a parameter's private gradient as its `grad`, in its own type."""
        parameter = self._parameters[name]
        gradient = gradient if gradient.dtype == parameter.dtype else gradient.to(parameter.dtype)
        parameter.grad = gradient if self._sharding is None else self._sharding.shard(name, gradient)

    # --- what a step is checked for ----------------------------------------------------------------------------------

    def _check_attached(self) -> None:
        self._aggregate.check_process()
        self._ranks.check()
        self._guard.check()

    def _check_step(self, losses: Tensor | None, chunk: Chunk) -> None:
        """Raise unless losses and model are as a step needs them; the first chunk begins the sums."""
        if losses is not None:
            check_losses(losses, max(1, chunk.units))
        self._guard.check_parameters()
        self._guard.check_modes()
        if chunk.first:
            self._guard.note_versions()
        elif self._guard.written_to():
            self._loop.begin()
            raise PrivacyError(
                "the model's parameters changed between two chunks of one batch; step the optimizer only when "
                "private.backward(losses) returns True. Nothing was released."
            )
        if chunk.first:
            self._clear_sums()
            for parameter in self._parameters.values():
                parameter.grad = None

    def _clear_gate(self) -> None:
        if self._gate is not None:
            self._gate.clear()

    # --- what is proven, and the end -----------------------------------------------------------------------------

    @property
    def kernels(self) -> dict[str, str]:
        """How each parameter's gradients were made in the last batch, where there is a choice; `attach` can pin it."""
        return dict(self._engine.kernels)

    @property
    def evidence(self) -> Evidence:
        """What was seen of this run: on which steps isolation was tested, and by whom the losses were computed."""
        return self._preflight.evidence

    def _conditions(self) -> list[Condition]:
        return self._preflight.conditions(earlier=self._aggregate.unprobed)

    def _rests_on(self) -> list[Condition] | None:
        """The conditions for the ledger, where what was seen has changed."""
        return self._conditions() if self._preflight.has_news() and self._aggregate.on_disk else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self._loop.begin()
        super().load_state_dict(state)

    def detach(self) -> None:
        """Take the plan off the model: it is as it was. The guarantee of what was released can still be read."""
        if not self._guard.held:
            return
        self._loop.begin()
        self._aggregate.close()
        self._guard.release()
        self._preflight.remove()
        if self._gate is not None:
            self._gate.remove()
        if self._sharding is not None:
            self._sharding.remove()


_NOTHING: AbstractContextManager[None] = nullcontext()
_SINGLY = (
    "each example is taken in a batch of its own from here on, which is exact, and as slow as that: {} Isolation was "
    "tested on this step, and no example was seen to depend on another."
)
