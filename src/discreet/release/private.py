"""A plan attached to a model: batches are drawn, losses become private gradients, spending is counted.

One step, from top to bottom: `batches` draws who takes part and hands their rows out; `backward` takes the losses;
`_step` makes each example's gradient, bounds and adds it, and, when the logical batch is complete, has the release
counted, the noise added and `p.grad` assigned. Everything else here is what a step is checked for.
"""

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discreet.accounting.guarantee import Condition
from discreet.distributed.fsdp import Sharding
from discreet.distributed.ranks import ALONE, Ranks
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients import Engine
from discreet.gradients.forms import STORED
from discreet.gradients.refusals import Inseparable
from discreet.ledger import Ledger
from discreet.release.batching import Collate
from discreet.release.chunk_size import ran_out
from discreet.release.draws import Chunk
from discreet.release.epochs import Looped
from discreet.release.guards import ParameterGuard, check_losses, refuse_unmanaged, refuse_written, trainable
from discreet.release.loop import NOTHING, Batches, Loop
from discreet.release.loss_function import LossFn, LossOfRows, autocast_on, without_autocast
from discreet.release.microbatches import Microbatches
from discreet.release.preflight.evidence import HANDED_OUT, Evidence
from discreet.release.preflight.model_state import Snapshot
from discreet.release.preflight.watch import Preflight
from discreet.release.private_sum import PrivateSum
from discreet.stages.plan import Plan


class Private(Looped):
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
        used = self._engine.layout  # the same, but where they are sharded or complex
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
            model, self._aggregate.root, ranks, on=preflight, testable=testable, sharded=sharded, steps=plan.steps
        )
        self._own = self._aggregate.told(HANDED_OUT)
        self._guard = ParameterGuard(model, self._engine.parameters, ranks)
        self._versions: list[int] = []  # of the parameters, when the open batch began
        self._alone = ranks.alone and sharding is None
        self._special = sharded or self._gate is not None or self._microbatches is not None
        opened = self._preflight.handed_out if self._gate is None else self._opened
        told: dict[str, Any] = {"check": self._guard.check, "opened": opened, "forget": self._clear}
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
    ) -> Batches:
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
        self._guard.check()
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
        chunk = self._loop.open[0] if self._loop.open else self._loop.current()
        if isinstance(losses, Tensor) or not callable(losses):
            self._guard.check()
            if batch is not None:
                raise ConfigError("the losses came as a tensor; leave the batch out, or give a function and the batch.")
            if "tensors" not in self._preflight.evidence.sources:
                self._preflight.losses_came(chunk)
            return self._step(losses, chunk)
        if batch is None:
            raise ConfigError("private.backward(loss_fn, batch) needs the batch that was handed out.")
        return self._by_function(losses, batch, chunk)

    def _step(self, losses: Tensor | None, chunk: Chunk) -> bool:
        """Add a chunk's examples, and release when the logical batch is complete; None: the rows come one by one."""
        if any(map(torch.is_autocast_enabled, self._devices)):  # norms and sums are taken in full
            with without_autocast(autocast_on(self._devices)):
                return self._step(losses, chunk)
        with NOTHING if self._alone else self._together(losses):
            self._take(losses, chunk)
        if not chunk.last:
            return self._wait(chunk)
        if not self._ranks.alone:
            self._agree()
        notes = {} if self._preflight.agreed else {"unprobed": True}
        # the conditions for the ledger, where what was seen has changed
        rests_on = self.rests_on if self._aggregate.on_disk and self._preflight.has_news() else None
        released = self._aggregate.release(rests_on, **notes)  # counted in the ledger, and only then noised
        for name, gradient in released.items():
            parameter = self._parameters[name]
            if gradient.dtype != parameter.dtype:
                parts = torch.view_as_complex(gradient.contiguous()) if parameter.is_complex() else gradient
                gradient = parts.to(parameter.dtype)
            parameter.grad = gradient if self._sharding is None else self._sharding.shard(name, gradient)
        return True

    def _take(self, losses: Tensor | None, chunk: Chunk) -> None:
        """Check that losses and model are as a step needs them, and add the chunk's examples."""
        sound = None if losses is None else check_losses(losses, max(1, chunk.units))
        versions = self._guard.check_model()
        if losses is not None and self._loss is not None and chunk.first and chunk.units:
            written = self._preflight.start.passed()
            if written:
                self._preflight.written(written, self._loss, chunk, self._clear_gate)
        if chunk.first:
            self._versions = versions
            self._aggregate.clear()
            for parameter in self._parameters.values():
                parameter.grad = None
        elif versions != self._versions:
            self._loop.begin()
            refuse_written()
        try:
            if losses is None or self._special or self._singly or not (chunk.units and chunk.first and chunk.last):
                self._add_specially(losses, sound, chunk)
            else:
                self._add(losses, sound, chunk)
        except BaseException as error:
            if not self._recovered(error, losses, chunk):
                raise
        self._loop.done(chunk)

    def _add(self, losses: Tensor, sound: Tensor | None, chunk: Chunk) -> None:
        """Each example's gradient, taken apart, bounded and added."""
        plain = self._preflight.plain(losses, self._engine) if self._preflight.first_batch else None
        probe, since = chunk.first and chunk.probed, max(chunk.since, self._loop.since)
        options: dict[str, Any] = {"since": since, "probe": probe, "ragged": chunk.ragged}
        gradients = self._engine.gradients(losses, chunk.units, measure=self._measure, **options)
        if gradients.unmanaged_leaves:
            refuse_unmanaged(gradients, self._model, self._sharded_names)
        if plain is not None:
            self._preflight.compare_sums(gradients, plain)
        if self._engine.fresh:
            self._preflight.test_structure(self._engine, self._loss, chunk, self._clear_gate)
        if chunk.microbatches is None or self._microbatches is None:
            self._aggregate.add(gradients, sound)
        else:
            self._microbatches.add_sound(gradients, sound, chunk.microbatches)
        if self._preflight.first_batch:
            del gradients, plain  # a replay needs room
            self._preflight.replay(0 if chunk.side_by_side() else chunk.units)  # whose rows are not told by sizes

    # --- loops -------------------------------------------------------------------------------------------------------

    def backward_of(self, losses: Tensor, loss_fn: LossFn, batch: Any) -> bool:
        """`backward` where another loop has computed the losses of the batch already, with this function.

        Args:
            losses: one for each row.
            loss_fn: what computed them.
            batch: of this batch.
        """
        chunk = self._loop.current()
        self._test(loss_fn, batch, chunk)
        try:
            return self._step(losses, chunk)
        finally:
            self._loss = None

    def _test(self, loss_fn: LossFn, batch: Any, chunk: Chunk) -> None:
        """Test isolation if this step is probed; from here on the loss can be had row by row."""
        self._guard.check()
        try:
            self._preflight.test(loss_fn, batch, chunk, self._loop.rows, self._clear_gate)
        except PrivacyError:
            self._loop.begin()
            raise
        if self._loop.rows is not None and self._passes is None:
            on = autocast_on(self._devices) if any(map(torch.is_autocast_enabled, self._devices)) else ()
            self._loss = LossOfRows(loss_fn, self._loop.rows, on)

    def _by_function(self, loss_fn: LossFn, batch: Any, chunk: Chunk) -> bool:
        """The losses of a batch, and their gradients; in pieces where it does not fit."""
        self._test(loss_fn, batch, chunk)
        size = chunk.units if self._fits is None else self._fits
        try:
            while True:
                try:
                    if size >= chunk.units or self._loop.rows is None or self._singly:
                        with NOTHING if self._alone else self._ranks.reported():
                            losses = None if self._singly and chunk.units else loss_fn(batch)
                        return self._step(losses, chunk)
                    return self._in_pieces(loss_fn, chunk, size)
                except (RuntimeError, MemoryError) as error:
                    alone = self._ranks.alone and self._passes is None and self._loop.rows is not None
                    again = alone and chunk.first and chunk.indices is not None and self.released == chunk.step
                    if not ran_out(error) or not again or size == 1:  # what was counted is never counted again
                        raise
                    size = self._fits = max(1, min(size, chunk.units) // 2)
                    self._clear()
                    self._loop.reopen(chunk)
        finally:
            self._loss = None

    def _in_pieces(self, loss_fn: LossFn, chunk: Chunk, size: int) -> bool:
        """A chunk a few rows at a time, each read again."""
        released = False
        for piece, batch in self._loop.pieces(chunk, size):
            released = self._step(loss_fn(batch), piece)
        return released

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
            sound = check_losses(loss, 1)
            gradients = self._engine.gradients(loss, 1, since=chunk.since, measure=self._measure)
            if gradients.unmanaged_leaves:
                refuse_unmanaged(gradients, self._model, self._sharded_names)
            if self._microbatches is None:
                self._aggregate.add(gradients, sound)
            elif chunk.microbatches is not None:
                self._microbatches.add_sound(gradients, sound, chunk.microbatches[place : place + 1])
        if before is not None and forward:
            before.restore()

    # --- what only some runs have: several ranks, shards, microbatches, a bound inside the network --------------------

    def _add_specially(self, losses: Tensor | None, sound: Tensor | None, chunk: Chunk) -> None:
        """Add a chunk's examples where there is more to it than taking their gradients apart."""
        if self._microbatches is not None and chunk.first:
            self._microbatches.clear()
        if not (chunk.first and chunk.last) and chunk.units:
            self._preflight.several_passes()
        if not chunk.units:
            if self._passes is not None:
                self._passes.follow()
                self._aggregate.add_nothing()
        elif losses is None or self._singly:
            self._add_singly(chunk, forward=losses is not None)
        elif self._gate is not None:  # the bound works inside the network: what comes out is bounded already
            bounded = self._gate.sums(losses, chunk.units)
            self._preflight.replay(0 if chunk.side_by_side() else chunk.units)  # whose rows are not told by sizes
            self._aggregate.add_bounded(bounded)
        else:
            if chunk.doubled:
                sound = losses.detach().isfinite()
                sound[1] = False
            self._add(losses, sound, chunk)
        if chunk.last and self._microbatches is not None:
            means = self._microbatches.share(self._ranks.rank, self._ranks.size)
            if means is not None:
                self._aggregate.add(means)

    def _recovered(self, error: BaseException, losses: Tensor | None, chunk: Chunk) -> bool:
        """Whether a chunk that failed could be added row by row after all; if not, the whole batch is given up."""
        together = losses is not None and not self._singly and self._gate is None
        try:
            inseparable = isinstance(error, Inseparable) and together
            if inseparable and self._preflight.tested_now(self._loss, chunk, self._clear_gate):
                self._singly = True
                warnings.warn(_SINGLY.format(error), stacklevel=2)
                self._add_singly(chunk, forward=True)
                return True
        except BaseException:
            self._loop.begin()
            raise
        if not ran_out(error):  # part of it may have been added; or it may be taken again, in smaller pieces
            self._loop.begin()
        return False

    @contextmanager
    def _together(self, losses: Tensor | None) -> Generator[None]:
        """Within, what fails on one rank fails on all, and sharded parameters are there as they are needed."""
        gathered = NOTHING if self._sharding is None or losses is None else self._sharding.opened(losses)
        with self._ranks.reported(), gathered:
            yield

    def _wait(self, chunk: Chunk) -> bool:
        """More of the logical batch is to come: ranks with shards go on together, or one would wait in a pass."""
        if self._sharding is not None:
            self._ranks.exchange(f"the next chunk of step {chunk.step}")
        return False

    def _agree(self) -> None:
        """Have all ranks say that this step is summed, and whether isolation was tested."""
        place = f"release of step {self.released} in loop {self._loop.count}"
        try:
            self._preflight.agree(place, self._parameters)
        except BaseException:
            self._loop.begin()
            raise

    def _clear(self) -> None:
        """Forget what has been summed, and how the first layer's rows were measured."""
        self._engine.known_norms = None
        if self._passes is not None:
            self._passes.forget()
        self._aggregate.clear()
        if self._microbatches is not None:
            self._microbatches.clear()

    def _opened(self, chunk: Chunk, batch: Any) -> None:
        """A batch is handed out: whatever the model made before does not belong to it."""
        self._clear_gate()
        self._preflight.handed_out(chunk, batch)

    def _clear_gate(self) -> None:
        if self._gate is not None:
            self._gate.clear()

    def check_attached(self) -> None:
        """Raise a PrivacyError unless the plan is attached still, and in this process."""
        self._guard.check()

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
        return self._preflight.conditions(earlier=self._aggregate.unprobed, own=self._own)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self._loop.begin()
        super().load_state_dict(state)
        self._own &= self._aggregate.told(HANDED_OUT)

    def detach(self) -> None:
        """Take the plan off the model: it is as it was. The guarantee of what was released can still be read."""
        if not self._guard.held:
            return
        self._loop.begin()
        self._aggregate.close()
        self._guard.detach()
        self._preflight.remove()
        if self._gate is not None:
            self._gate.remove()
        if self._sharding is not None:
            self._sharding.remove()


_SINGLY = (
    "each example is taken in a batch of its own from here on, which is exact, and as slow as that: {} Isolation was "
    "tested on this step, and no example was seen to depend on another."
)
