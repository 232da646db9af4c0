"""A plan attached to a model: batches are drawn, losses become private gradients, spending is counted."""

import math
import re
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from discreet._check import check_int
from discreet.accounting.guarantee import Condition
from discreet.distributed.data_digest import SameRows
from discreet.distributed.fsdp import Sharding, sharding_of
from discreet.distributed.ranks import ALONE, Group, Ranks, Shares, facts, find, fingerprint
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients import Engine, UnitGradients
from discreet.gradients.engine import MEMORY
from discreet.gradients.forms import STORED, KnownNorms, squared_norms
from discreet.gradients.graph import now
from discreet.gradients.refusals import Inseparable
from discreet.ledger import Ledger, named
from discreet.release.batching import Collate, Draw, PaddedCollate, length_of, load, reader, tensors_of
from discreet.release.chunk_size import ran_out
from discreet.release.guards import ParameterGuard, ready, trainable
from discreet.release.microbatches import Microbatches
from discreet.release.preflight.evidence import Evidence
from discreet.release.preflight.isolation import Isolation, LossFn
from discreet.release.preflight.model_state import Snapshot, contents, differing, digests
from discreet.release.preflight.replay import Recorder, Sketch, check_sums, replay
from discreet.release.private_sum import PrivateSum, Session
from discreet.stages.plan import Plan


def attach(
    model: nn.Module,
    plan: Plan,
    ledger: str | Path | Ledger | None = None,
    *,
    preflight: bool = True,
    seed: int | None = None,
    audit: Mapping[str, Any] | None = None,
    memory: float = MEMORY,
    kernels: Mapping[str, str] | None = None,
    group: Group = None,
    noise_shares: bool = False,
    run: str | None = None,
) -> "Private":
    """Attach a plan to an unmodified model, and return the handle that draws batches and makes gradients private.

    `ledger` is a file that counts what is released (None: in memory), or a Ledger, which can cap a whole data set.
    `preflight` has the first batch probed for what would break the guarantee (discreet.preflight); it costs about two
    steps, once. `seed` makes noise and sampling reproducible; whoever knows it can take the noise off again, so the
    guarantee says that it is broken. `audit` is written down beside the plan, before anything is released: what will be
    tested, so that it cannot be chosen afterwards.

    `memory` is how much a step may take, as a multiple of what an ordinary step takes (math.inf: whatever is fastest);
    `kernels` pins how a parameter's gradients are made, by its name (`private.kernels` shows what was chosen). Neither
    changes what is released.

    Under torchrun, or where a process group has been begun, the ranks train together: every one of them calls attach,
    and then the same methods as often as the others (discreet.distributed). `group` is another group than the default
    one, or False for a process that is to be alone; with `noise_shares` no rank knows all of the noise.

    `run` names a run that is to be continued, or begun: `private.run` of an earlier handle. Without, a file of one run
    continues it, and in a data set's ledger a new run begins, unless a state is loaded before its first release.
    """
    ledger = named(ledger, run)
    ranks = find(group, noise_shares=noise_shares)
    with ranks.reported():
        plan = ready(model, plan)
        asked = {"seed": seed, "preflight": preflight, "audit": audit, "noise_shares": noise_shares}
        if not ranks.alone:
            ranks.agree("attach", facts(model, plan, **asked))
        sharding = sharding_of(model, ranks, plan.mechanism)
        parameters = None if sharding is None else sharding.parameters
        engine = Engine(model, memory=memory, kernels=kernels, parameters=parameters)
        if sharding is not None and sharding.passes is not None:
            engine.passes = sharding.passes
        private = Private(model, plan, ledger, preflight, seed, audit, engine, ranks, sharding)
    try:
        ranks.exchange("attached")
    except BaseException:
        private.detach()
        raise
    return private


@dataclass
class _Chunk:
    """A part of one logical batch that has been handed out."""

    step: int
    units: int
    first: bool
    last: bool
    slots: npt.NDArray[np.int64] | None = None  # which microbatch each unit belongs to, where there are any
    norms: Tensor | None = None  # squared norms of the rows' features, where they are fixed
    indices: Draw | None = None  # of its rows
    batch: tuple[Any, ...] | None = None  # what was handed out: its leaves, the versions of its tensors, and digests
    since: int = 0
    done: bool = False
    doubled: bool = False  # whether its only unit is there twice, and the second counts for nothing


_END = object()  # of the batches


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
        whole = self._engine.parameters  # the same, but where they are sharded
        self._slots, count = None, plan.sampling.batch_size
        size = plan.mechanism.microbatch
        if size > 1:
            count = max(1, round(plan.sampling.batch_size / size))
            self._slots = Microbatches(whole, count, size)
        shards = None if sharding is None else sharding.shards
        settings: dict[str, Any] = {"probe": preflight, "seed": seed, "audit": audit, "ranks": ranks, "shards": shards}
        aggregate = PrivateSum(whole, plan, ledger, count=count, **settings)
        super().__init__(aggregate)
        self._measure = plan.mechanism.bound.needs == "norms"
        if self._slots is not None or not aggregate.takes_turns:
            self._engine.storage_modes = (STORED,)
        self._gate: Any = None
        try:
            if plan.mechanism.bound.needs == "outputs":
                self._gate = self._aggregate.bound.install(model)
        except BaseException:
            self._aggregate.close()
            raise
        self._chunks: deque[_Chunk] = deque()
        self._iteration, self._loops = 0, 0
        self._evidence = Evidence(probes=preflight)
        self._isolated = False  # whether isolation was tested, on every rank
        self._told: tuple[Evidence, Any, bool] | None = None  # what the ledger was last told of
        self._read: tuple[Any, Callable[[list[Any]], Any]] | None = None  # rows by number, and batches of them
        self._fits: int | None = None  # rows that fit into memory, once more did not
        self._loss_fn: LossFn | None = None  # of the open batch, where the library can call it
        self._alone: Callable[[int], Tensor] | None = None  # the loss of one row in a batch of its own
        self._held: tuple[int, dict[str, Any]] | None = None  # what the loss held on the last tested step
        self._structures: set[Any] = set()  # of graphs on which isolation was tested
        self._singly = False  # whether rows are taken one at a time, as nothing tells them apart in a batch
        self._versions: list[int] = []  # of the parameters, when the open batch began
        self._since = now()
        self._source: Any = None  # the data a loader of one's own reads, once its collate is made
        self._same_rows = SameRows(ranks)
        self._probes = _Probes(model, sharded=self._passes is not None) if preflight else None
        testable = preflight and self._passes is None and self._gate is None
        self._isolation = Isolation(model) if testable else None
        self._state = digests(contents({"model": model})) if preflight else {}
        self._coins: tuple[int, npt.NDArray[np.bool_]] | None = None  # which steps of a stretch are probed again
        self._attachment = ParameterGuard(model, whole)
        if self._passes is not None:
            self._passes.watch(lambda: bool(self._chunks))

    # --- drawing -------------------------------------------------------------------------------------------------

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
        """The plan's remaining steps (at most `steps` of them), one logical batch each, drawn by its sampler.

        `at_most` yields a logical batch in chunks of at most that many rows; the released gradient is the same. An
        empty draw yields one padding row, which contributes nothing. Loader options have torch's names.

        `fixed` says of tensors that nobody writes to them or to the batches, not even past autograd (`.data`, numpy):
        the norms of the first one's rows are then computed once, for a first layer that is linear in them, and a draw
        of all rows is not copied.

        Where several ranks train together, each gets its share of every draw, and as many chunks as the others; it
        reads no other rows. With `sharded`, `data` is this rank's own part of the data, and its share of a draw are
        those who are in it.
        """
        self._check_attached()
        with self._ranks.reported():
            shares = self._shares(length_of(data), sharded)
            self.plan.sampling.check_length(shares.length)
        self._loop(shares.length, steps, at_most, None if sharded else data)
        chunks = self._draw(shares, steps, at_most)
        handed: deque[_Chunk] = deque()
        features = _Features(data, collate_fn) if fixed else None

        def draws() -> Iterator[Draw]:
            for chunk, indices in chunks:
                if features is not None:
                    chunk.norms = features.norms(indices)
                handed.append(chunk)
                yield indices

        self._read = reader(data, collate_fn)
        options = {"collate_fn": collate_fn, "num_workers": num_workers, "pin_memory": pin_memory, "fixed": fixed}
        loaded = load(data, draws(), **options)
        return self._hand_out(loaded, handed, self._begin())

    def batch_sampler(self, *, steps: int | None = None, ahead: int = 0) -> "BatchSampler":
        """A batch sampler for your own DataLoader; give the loader `collate_fn=private.collate(data)` with it.

        `ahead` is how many batches the loader draws before they are used: num_workers times prefetch_factor (2 unless
        you say otherwise). A batch that is skipped is noticed by it.
        """
        self._check_attached()
        return BatchSampler(self, steps, check_int("ahead", ahead, least=0))

    def collate(self, data: Any, collate_fn: Collate | None = None) -> Collate:
        """A collate function for your own DataLoader, for which an empty draw is one padding row."""
        self.plan.sampling.check_length(length_of(data))
        self._source = data
        self._read = reader(data, collate_fn)
        return PaddedCollate(collate_fn or torch.utils.data.default_collate, data[0])

    def _begin(self) -> int:
        """Forget whatever batch was open: one iteration at a time owns the logical batch."""
        self._engine.known_norms = None
        self._iteration += 1
        self._chunks.clear()
        if self._passes is not None:
            self._passes.forget()
        self._clear()
        return self._iteration

    def _clear(self) -> None:
        """Forget what has been summed."""
        self._aggregate.clear()
        if self._slots is not None:
            self._slots.clear()

    def _shares(self, length: int, sharded: bool) -> Shares:
        """How draws from data of this length (of this rank's own, if `sharded`) are split over the ranks."""
        if not sharded:
            return Shares(self._ranks.rank, self._ranks.size, length)
        if self._slots is not None:
            raise ConfigError(
                "microbatches are made of any examples, and with sharded=True an example stays with the rank that has "
                "it; leave one of the two out."
            )
        return Shares(self._ranks.rank, self._ranks.size, *self._ranks.exchange("counting the data", length))

    def _loop(self, length: int, steps: int | None, at_most: int | None, data: Any) -> None:
        """A loop over batches begins, on all ranks alike and from the same `data`; None: each has a part of its own."""
        self._loops += 1
        if not self._ranks.alone:
            counted = {"number of examples": length, "steps": steps, "at_most": at_most, "loop": self._loops}
            self._ranks.agree("private.batches", counted)
            self._aggregate.rows = "parts" if data is None else self._same_rows.compare(data)

    def _draw(self, shares: Shares, steps: int | None, at_most: int | None) -> Iterator[tuple[_Chunk, Draw]]:
        steps = self.remaining if steps is None else min(self.remaining, check_int("steps", steps, least=0))
        if at_most is not None:
            check_int("at_most", at_most, least=1)
        first = self.released

        def draw() -> Iterator[tuple[_Chunk, Draw]]:
            for step in range(first, first + steps):
                self._check_attached()
                indices = self._aggregate.draw(shares.length, step)
                slots = self._assign(len(indices), step)
                mine, most = shares.split(indices, slots)
                indices, slots = shares.rows(indices[mine]), None if slots is None else slots[mine]
                size = max(1, most) if at_most is None else at_most
                starts = range(0, max(1, most), size)  # as many as the rank with the largest share has
                for start in starts:
                    part = indices[start : start + size]
                    some = None if slots is None else slots[start : start + size]
                    chunk = _Chunk(step, len(part), first=start == 0, last=start == starts[-1], slots=some)
                    chunk.indices = part
                    if self._passes is not None and len(part) == 1:  # from one unit it cannot be seen where it stands
                        chunk.units, chunk.doubled, part = 2, True, part.repeat(2)
                    yield chunk, part

        return draw()

    def _assign(self, units: int, step: int) -> npt.NDArray[np.int64] | None:
        """A secret, uniformly random microbatch for each unit of a draw, each independently."""
        if self._slots is None:
            return None
        return self._aggregate.root.stream("microbatches", step).below(self._slots.count, units)

    def _hand_out(self, loaded: Iterator[Any], handed: deque[_Chunk], iteration: int) -> Iterator[Any]:
        while True:
            with self._ranks.reported():
                batch: Any = next(loaded, _END)
            if batch is _END:
                return
            if iteration != self._iteration:
                raise PrivacyError(
                    "this loop was given up: an error ended its batch, or it was replaced by a later call of batches()."
                )
            self._check_attached()
            self._attachment.check_modes()
            chunk = handed.popleft()
            chunk.since = now()
            self._chunks.clear()
            self._chunks.append(chunk)
            chunk.batch = _leaves(batch, digest=self._isolation is not None and self._probed(chunk.step))
            self._opened()
            if chunk.norms is not None:
                self._engine.known_norms = KnownNorms(batch if isinstance(batch, Tensor) else batch[0], chunk.norms)
            try:
                yield batch
            finally:
                self._engine.known_norms = None
            if iteration == self._iteration and not chunk.done:
                self._begin()
                with self._ranks.reported():
                    raise PrivacyError(
                        f"the batch of step {chunk.step} was handed out, but private.backward(losses) was not called "
                        "for it; call it for every batch, or break out of the loop."
                    )

    def _opened(self) -> None:
        """A batch is handed out: whatever the model made before does not belong to it."""
        if self._gate is not None:
            self._gate.clear()
        if self._probes is not None:
            self._probes.arm()

    # --- releasing -----------------------------------------------------------------------------------------------

    def backward(self, losses: Tensor | LossFn, batch: Any = None) -> bool:
        """Make the gradients of one loss per example private; True when the logical batch is released.

        - `losses` is a function, `loss_fn(batch) -> losses`, and `batch` is what was handed out: the library computes
          the losses, tests on some steps that no example's gradient depends on another, and takes a batch that does
          not fit into memory in smaller pieces. `loss_fn` may be called more than once a step, on other batches too;
        - or a tensor, one loss for each row: then nobody can test it, and the guarantee says so.

        Then `p.grad` is (bounded sum + noise) / batch_size for every trainable parameter. While a logical batch is
        incomplete, `p.grad` is None.
        """
        if isinstance(losses, Tensor) or not callable(losses):
            if batch is not None:
                raise ConfigError("the losses came as a tensor; leave the batch out, or give a function and the batch.")
            if self._chunks and self._chunks[0].units:
                self._evidence = self._evidence.came("tensors")
            return self._without_autocast(losses)
        if batch is None:
            raise ConfigError("private.backward(loss_fn, batch) needs the batch that was handed out.")
        self._check_attached()
        chunk = self._current()
        self._test(losses, batch, chunk)
        with self._computable(losses):
            return self._by_function(losses, batch, chunk)

    def backward_of(self, losses: Tensor, loss_fn: LossFn, batch: Any) -> bool:
        """The same where another loop has computed the losses of the batch already, with this function."""
        self._check_attached()
        self._test(loss_fn, batch, self._current())
        with self._computable(loss_fn):
            return self._without_autocast(losses)

    def _autocast(self) -> list[str]:
        """The devices on which autocast is on."""
        devices = {"cpu", *(p.device.type for p in self._parameters.values())}
        return [device for device in devices if torch.is_autocast_enabled(device)]

    def _without_autocast(self, losses: Tensor | None) -> bool:
        on = self._autocast()
        if not on:
            return self._backward(losses)
        with ExitStack() as stack:  # norms and sums are taken in full, wherever this is called
            for device in on:
                stack.enter_context(torch.autocast(device, enabled=False))
            return self._backward(losses)

    @contextmanager
    def _computable(self, loss_fn: LossFn) -> Generator[None]:
        """Within, the loss of one row can be had in a batch of its own, under the same autocast."""
        on = [(device, torch.get_autocast_dtype(device)) for device in self._autocast()]

        def alone(number: int) -> Tensor:
            assert self._read is not None
            (row, collate), one = self._read, number
            with ExitStack() as stack:
                for device, dtype in on:
                    stack.enter_context(torch.autocast(device, dtype))
                try:
                    return loss_fn(collate([row(one)]))
                except (RuntimeError, ValueError):  # a model that refuses a batch of one
                    return loss_fn(collate([row(one), row(one)]))[:1]

        if self._read is not None and self._passes is None:
            self._loss_fn, self._alone = loss_fn, alone
        try:
            yield
        finally:
            self._loss_fn = self._alone = None

    def _test(self, loss_fn: LossFn, batch: Any, chunk: _Chunk) -> None:
        """Note where the losses come from, and test isolation if this step is probed."""
        if not chunk.units:
            return
        self._evidence = self._evidence.came("library" if getattr(loss_fn, "own", None) is OWN else "function")
        if not self._as_handed_out(batch, chunk):
            self._evidence = replace(self._evidence, altered=True)
        if self._isolation is None or not chunk.first or chunk.indices is None or self._read is None:
            return
        if not self._evidence.tested or self._probed(chunk.step):
            self._compare(loss_fn, chunk)

    def _compare(self, loss_fn: LossFn, chunk: _Chunk) -> None:
        """Test isolation on rows of this chunk, and note what was found."""
        assert self._isolation is not None
        assert self._read is not None
        assert chunk.indices is not None
        (row, collate), numbers = self._read, chunk.indices
        whole = not self._evidence.tested or (chunk.step.bit_length() % 4 == 1 and chunk.step > 1)  # at 16, 256, ...
        with self._ranks.reported():
            if len(numbers) > _READ_ROWS and not whole:
                numbers = np.random.default_rng().choice(numbers, _READ_ROWS, replace=False)
            rows, first = [row(int(i)) for i in numbers], not self._evidence.tested
            try:
                found = self._isolation.test(loss_fn, rows, collate, first=first, whole=whole)
            except PrivacyError:
                self._begin()
                raise
            finally:
                if self._gate is not None:
                    self._gate.clear()
        known, undecided = self._evidence, list(filter(None, [found.undecided, self._changes(loss_fn, chunk)]))
        self._evidence = replace(
            known,
            tested=(*known.tested, chunk.step) if found.tested else known.tested,
            undecided=tuple(dict.fromkeys([*known.undecided, *undecided])),
            compared=known.compared | found.compared,
            kept=known.kept | found.kept,
        )

    def _changes(self, loss_fn: LossFn, chunk: _Chunk) -> str:
        """What a loss holds beside the model, where that has changed since the last test: it may come from the batch.

        A whole number that went up by one a step is a step's number.
        """
        holds = digests(contents({"loss": loss_fn}, without=[*self._model.modules(), *self._model.parameters()]))
        before, self._held = self._held, (chunk.step, holds)
        if before is None:
            return ""
        steps, was = chunk.step - before[0], before[1]
        for path in sorted(differing(was, holds)):
            one, other = was.get(path), holds.get(path)
            counts = type(one) is int and type(other) is int and other - one == steps
            if not (counts or isinstance(other, (str, bool)) or isinstance(one, (str, bool))):
                return f"what the loss function holds changed between steps ({path.removeprefix('loss.')!r})"
        return ""

    def _as_handed_out(self, batch: Any, chunk: _Chunk) -> bool:
        """Whether a batch is the one that was handed out, or one of the same values."""
        if chunk.batch is not None:
            leaves, known = _flat(batch), chunk.batch
            same = (_same_leaf(a, *b) for a, b in zip(leaves, known, strict=False))
            return len(leaves) == len(known) and all(same)
        if self._read is None or chunk.indices is None:
            return False
        if not self._probed(chunk.step) and self._evidence.tested:
            return True
        row, collate = self._read
        made = collate([row(int(i)) for i in chunk.indices])
        leaves, others = _flat(batch), _flat(made)
        return len(leaves) == len(others) and all(_equal_leaf(a, b) for a, b in zip(leaves, others, strict=True))

    def _by_function(self, loss_fn: LossFn, batch: Any, chunk: _Chunk) -> bool:
        """The losses of a batch, and their gradients; in pieces where it does not fit."""
        size = chunk.units if self._fits is None else self._fits
        while True:
            try:
                if size >= chunk.units or self._read is None or self._singly:
                    with self._ranks.reported():
                        losses = None if self._singly and chunk.units else loss_fn(batch)
                    return self._without_autocast(losses)
                return self._in_pieces(loss_fn, chunk, size)
            except (RuntimeError, MemoryError) as error:
                alone = self._ranks.alone and self._passes is None and self._read is not None
                again = alone and chunk.first and chunk.indices is not None and self.released == chunk.step
                if not ran_out(error) or not again or size == 1:  # what was counted is never counted again
                    raise
                size = self._fits = max(1, min(size, chunk.units) // 2)
                self._clear()
                self._chunks.clear()
                self._chunks.append(chunk)

    def _in_pieces(self, loss_fn: LossFn, chunk: _Chunk, size: int) -> bool:
        """A chunk a few rows at a time, each read again."""
        assert self._read is not None
        assert chunk.indices is not None
        (row, collate), released = self._read, False
        self._engine.known_norms = None
        self._chunks.clear()
        for start in range(0, chunk.units, size):
            part = slice(start, start + size)
            numbers = chunk.indices[part]
            first, last = chunk.first and start == 0, chunk.last and start + size >= chunk.units
            slots = None if chunk.slots is None else chunk.slots[part]
            piece = _Chunk(chunk.step, len(numbers), first, last, slots, since=chunk.since, indices=numbers)
            self._chunks.append(piece)
            self._opened()
            released = self._without_autocast(loss_fn(collate([row(int(i)) for i in numbers])))
        chunk.done = True
        return released

    def _backward(self, losses: Tensor | None) -> bool:
        self._check_attached()
        chunk = self._current()
        with self._ranks.reported(), self._opened_passes(losses):
            self._add(losses, chunk)
        if self._sharding is not None and not chunk.last:  # or a rank would wait in the next forward pass
            self._ranks.exchange(f"the next chunk of step {chunk.step}")
        if chunk.last:
            self._release()
        return chunk.last

    def _opened_passes(self, losses: Tensor | None) -> AbstractContextManager[None]:
        """Sharded parameters are gathered in here, as they are needed."""
        return nullcontext() if self._sharding is None or losses is None else self._sharding.opened(losses)

    def _add(self, losses: Tensor | None, chunk: _Chunk) -> None:
        """Bound the gradients of a chunk's losses (None: of its rows, one by one) and add them to the batch's sum."""
        if losses is not None:
            self._check_losses(losses, max(1, chunk.units))
        self._attachment.check_parameters()
        self._attachment.check_modes()
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
            except BaseException as error:  # part of it may have been added: the whole batch is given up
                if not ran_out(error):  # or it may be taken again, in smaller pieces
                    self._begin()
                raise
        elif self._passes is not None:
            self._passes.follow()
            self._aggregate.add_nothing()
        chunk.done = True
        self._chunks.popleft()
        self._since = now()
        if chunk.last and self._slots is not None:
            self._add_slots(self._slots)

    def _add_slots(self, slots: Microbatches) -> None:
        """Bound the microbatches' means and add them: of those that are this rank's."""
        mine, found = torch.arange(self._ranks.rank, slots.count, self._ranks.size), slots.gradients()
        if len(mine):
            self._aggregate.add(found if self._ranks.alone else found.select(mine))

    def _current(self) -> _Chunk:
        if not self._chunks:
            raise PrivacyError(
                "there is no open batch: each batch takes one private.backward(losses), and batches come from "
                "private.batches(data)."
            )
        return self._chunks[0]

    def _check_losses(self, losses: Tensor, rows: int) -> None:
        if not isinstance(losses, Tensor) or losses.shape != (rows,) or not losses.is_floating_point():
            raise PrivacyError(  # without the number of rows: how many were drawn is private
                f"the losses {_in_words(losses)}; one loss for each row of the batch is needed. Use reduction='none', "
                "and sum or average over everything but the first dimension."
            )

    def _accumulate(self, losses: Tensor | None, chunk: _Chunk) -> None:
        if not (chunk.first and chunk.last) and not self._evidence.several:
            self._evidence = replace(self._evidence, several=True)
        if losses is None or self._singly:
            self._accumulate_singly(chunk, forward=losses is not None)
        elif self._gate is not None:
            self._accumulate_outputs(losses, chunk)
        else:
            try:
                self._accumulate_batch(losses, chunk)
            except Inseparable as error:
                if not self._tested(chunk):
                    raise
                self._singly = True
                warnings.warn(_SINGLY.format(error), stacklevel=2)
                self._accumulate_singly(chunk, forward=True)

    def _tested(self, chunk: _Chunk) -> bool:
        """Whether isolation was tested in this step, or can be now."""
        if self._loss_fn is None or self._isolation is None or chunk.indices is None:
            return False
        if chunk.step not in self._evidence.tested:
            self._compare(self._loss_fn, chunk)
        return chunk.step in self._evidence.tested

    def _accumulate_singly(self, chunk: _Chunk, *, forward: bool) -> None:
        """Each row in a batch of its own: exact for any model, and slow; after a `forward` pass of all rows or not."""
        assert self._alone is not None
        assert chunk.indices is not None
        changes = bool(self._evidence.compared)  # what a forward pass changes, it changes once a step, as ever
        before = Snapshot({"model": self._model, "loss": self._loss_fn}) if changes else None
        for place, number in enumerate(chunk.indices):
            if before is not None and place:
                before.restore()
            loss = self._alone(int(number))
            self._check_losses(loss, 1)
            gradients = self._engine.gradients(loss, 1, since=chunk.since, measure=self._measure)
            if gradients.unmanaged_leaves:
                self._refuse_strangers(gradients)
            slots = None if chunk.slots is None else chunk.slots[place : place + 1]
            self._add_units(gradients, _finite(loss.detach()), slots)
        if before is not None and forward:
            before.restore()

    def _accumulate_batch(self, losses: Tensor, chunk: _Chunk) -> None:
        probe = chunk.first and self._probed(chunk.step)
        plain = None if self._probes is None else self._probes.plain(losses, self._engine)
        gradients = self._engine.gradients(
            losses, chunk.units, since=max(chunk.since, self._since), probe=probe, measure=self._measure
        )
        if gradients.unmanaged_leaves:
            self._refuse_strangers(gradients)
        if self._probes is not None and plain is not None:
            self._probes.compare(gradients, plain)
        self._look_at_structure(chunk)
        sound = _finite(losses.detach())
        if chunk.doubled:
            sound = losses.detach().isfinite()
            sound[1] = False
        self._add_units(gradients, sound, chunk.slots)
        if self._probes is not None and not self._probes.replayed and "tensors" in self._evidence.sources:
            del gradients, plain  # a replay needs room
            self._replay(chunk.units)

    def _look_at_structure(self, chunk: _Chunk) -> None:
        """Test isolation on a graph of a structure on which it never was: a branch that is taken now and then."""
        if not self._engine.fresh or self._loss_fn is None or self._isolation is None or chunk.indices is None:
            return
        structure = hash(self._engine.structure)
        if structure in self._structures or len(self._structures) >= _MOST_STRUCTURES:
            return
        self._structures.add(structure)
        if chunk.step not in self._evidence.tested and self._evidence.tested:
            self._compare(self._loss_fn, chunk)

    def _add_units(self, gradients: UnitGradients, sound: Tensor | None, slots: npt.NDArray[np.int64] | None) -> None:
        """Add the units' gradients to the sums, or to their microbatches."""
        if self._slots is None:
            self._aggregate.add(gradients, sound)
            return
        assert slots is not None
        with torch.no_grad():
            finite = torch.stack([squared.isfinite() for squared in gradients.norms().values()]).all(0)
            finite = finite if sound is None else finite & sound
            kept = finite.nonzero().squeeze(1)
            self._slots.add(gradients.select(kept), torch.from_numpy(slots)[kept.cpu()])

    def _accumulate_outputs(self, losses: Tensor, chunk: _Chunk) -> None:
        """The bound works inside the network: what comes out of the one backward pass is bounded already."""
        found = self._gate.sums(losses, chunk.units)
        self._replay(chunk.units)
        self._aggregate.add_bounded(found)

    def _replay(self, rows: int) -> None:
        """Replay the model's recorded calls: all that can be done with losses that came as tensors."""
        if self._probes is not None:
            self._probes.replay(rows)
            self._evidence = replace(self._evidence, replayed=self._probes.replayed)

    def _refuse_strangers(self, gradients: UnitGradients) -> None:
        current = {id(p): name for name, p in self._model.named_parameters()}
        if self._sharding is not None:
            current |= {key: name for key, (_, name) in self._sharding.names.items()}
        for tensor in gradients.unmanaged_leaves:
            if id(tensor) in current:
                raise PrivacyError(
                    f"parameter {current[id(tensor)]!r} was unfrozen, added or replaced after attach, so nothing "
                    "bounds its gradient; detach and attach again."
                )
        if not gradients.forms:
            raise PrivacyError(
                "the losses come from another model: nothing that the plan is attached to took part in them. Attach "
                "the model that is trained, and not a copy of it."
            )

    def _release(self) -> None:
        """Count the step, add the noise, and assign the gradients."""
        self._agree()
        released = self._aggregate.release(self._rests_on(), **({} if self._isolated else {"unprobed": True}))
        for name, gradient in released.items():
            dtype = self._parameters[name].dtype
            found = gradient if gradient.dtype == dtype else gradient.to(dtype)
            self._parameters[name].grad = found if self._sharding is None else self._sharding.shard(name, found)
        self._clear()

    def _agree(self) -> None:
        """Before anything is counted: all ranks have summed this step, with the same parameters."""
        mine = self._evidence.isolated or (self._evidence.probes and not self._evidence.sources)
        if self._ranks.alone:
            self._isolated = mine
            return
        try:
            place = f"release of step {self.released} in loop {self._loops}"
            said = self._ranks.agree(place, {"parameters": fingerprint(self._parameters)}, mine)
        except BaseException:
            self._begin()
            raise
        self._isolated = all(said)

    @property
    def kernels(self) -> dict[str, str]:
        """How each parameter's gradients were made in the last batch, where there is a choice; `attach` can pin it."""
        return dict(self._engine.kernels)

    # --- what is proven ------------------------------------------------------------------------------------------

    @property
    def evidence(self) -> Evidence:
        """What was seen of this run: on which steps isolation was tested, and by whom the losses were computed."""
        return self._evidence

    def _conditions(self) -> list[Condition]:
        earlier = self._aggregate.unprobed
        return self._evidence.conditions(agreed=self._isolated, earlier=earlier, changed=self._changed())

    def _rests_on(self) -> list[Condition] | None:
        """The conditions for the ledger where what was seen has changed; more tests when they are twice as many."""
        if self._told is not None and self._told[0] is self._evidence and self._told[2] == self._isolated:
            return None
        tests = len(self._evidence.tested).bit_length()
        seen = replace(self._evidence, tested=()), tests, self._isolated
        told, self._told = self._told, (self._evidence, seen, self._isolated)
        same = told is not None and told[1] == seen
        return None if same or not self._aggregate.on_disk else self._conditions()

    def _changed(self) -> set[str]:
        """What the model holds that is not as it was at attach, apart from what is trained and what modes say."""
        if not self._state:
            return set()
        trained = {f"model.{name}" for name in self._parameters}
        now = digests(contents({"model": self._model}))
        return {
            path
            for path in differing(self._state, now)
            if path not in trained and not path.endswith(".training") and not _HOOKS.search(path)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self._begin()
        super().load_state_dict(state)

    def detach(self) -> None:
        """Take the plan off the model: it is as it was. The guarantee of what was released can still be read."""
        if not self._attachment.held:
            return
        self._begin()
        self._aggregate.close()
        self._attachment.release()
        if self._probes is not None:
            self._probes.remove()
        if self._gate is not None:
            self._gate.remove()
        if self._sharding is not None:
            self._sharding.remove()

    def _check_attached(self) -> None:
        self._aggregate.check_process()
        self._ranks.check()
        self._attachment.check()

    def _probed(self, step: int) -> bool:
        """Whether isolation is probed again at a step: at 0, 1, 2, 4, 8, ... and at one in 128 others, in secret."""
        stretch, place = divmod(step, 4096)
        if self._coins is None or self._coins[0] != stretch:
            self._coins = stretch, self._aggregate.root.stream("probe", stretch).octets(4096) < 2
        return step & (step - 1) == 0 or bool(self._coins[1][place])


_HOOKS = re.compile(r"\._(\w+_)?hooks(_\w+)?(\.|$)")  # what torch's modules keep their hooks in
OWN = object()  # the mark of losses that the library's own loop computes
_READ_ROWS = 64  # of a batch that are read again for a test
_MOST_STRUCTURES = 64  # of graphs that are each tested once
_SINGLY = (
    "each example is taken in a batch of its own from here on, which is exact, and as slow as that: {} Isolation was "
    "tested on this step, and no example was seen to depend on another."
)


def _flat(batch: Any) -> list[Any]:
    """What a batch is made of, inside mappings and objects that torch's pytrees do not enter, too."""
    found: list[Any] = []
    for leaf in tree_flatten(batch)[0]:
        if isinstance(leaf, Mapping):
            found += [part for value in leaf.values() for part in _flat(value)]
        elif isinstance(inside := getattr(leaf, "__dict__", None), dict) and not isinstance(leaf, (Tensor, nn.Module)):
            found += [part for value in inside.values() for part in _flat(value)]
        else:
            found.append(leaf)
    return found


def _leaves(batch: Any, *, digest: bool) -> tuple[Any, ...]:
    """What a batch is made of, with the versions of its tensors, and digests of their values if they are asked for."""
    found = _flat(batch)
    said = digests(contents({str(i): leaf for i, leaf in enumerate(found)})) if digest else {}
    return tuple(
        (leaf, leaf._version if isinstance(leaf, Tensor) else 0, said.get(str(i))) for i, leaf in enumerate(found)
    )


def _same_leaf(given: Any, handed: Any, version: int, digest: Any) -> bool:
    """Whether a part of a batch is what was handed out and not written to since, or a copy of it elsewhere."""
    if isinstance(handed, Tensor) and handed._version != version:
        return False
    if digest is not None and digests(contents({"0": given})).get("0") != digest:
        return False
    return given is handed or _equal_leaf(given, handed)


def _equal_leaf(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        one, two = one.detach().cpu(), two.detach().cpu()
        return torch.equal(one, two) or bool(((one == two) | ((one != one) & (two != two))).all())
    try:
        return type(one) is type(two) and bool(np.all(one == two))
    except Exception:
        return False


def _in_words(losses: Any) -> str:
    """What is wrong with losses, without a size."""
    if not isinstance(losses, Tensor):
        return f"are {type(losses).__name__} and no tensor"
    if not losses.is_floating_point():
        return f"are {losses.dtype}"
    if losses.dim() == 1:
        return "have shape (n,), and n is not the number of rows"
    return f"have {losses.dim()} dimensions" if losses.dim() else "have shape ()"


def _finite(losses: Tensor) -> Tensor | None:
    """Which losses are finite, or None: all of them."""
    return None if math.isfinite(losses.sum().item()) else losses.isfinite()


class _Features:
    """Rows that stay as they are, and their squared norms; computed a block at a time, once."""

    def __init__(self, data: Any, collate_fn: Collate | None) -> None:
        tensors = tensors_of(data)
        if tensors is None or collate_fn is not None:
            raise ConfigError("fixed=True is for data in tensors, without a collate_fn; other batches are made anew.")
        self._rows, self._version = tensors[0], tensors[0]._version
        self._norms: Tensor | None = None
        if self._rows.is_floating_point():
            blocks = self._rows.detach().split(max(1, (1 << 24) // max(1, self._rows[0].numel())))
            self._norms = torch.cat([squared_norms(block) for block in blocks])

    def norms(self, indices: Draw) -> Tensor | None:
        """Those of some rows, if there are any, and rows have norms."""
        if self._rows._version != self._version:
            raise PrivacyError(
                "features that were said to be fixed have been written to, so their norms are no longer known; copy "
                "what is to be changed, or leave fixed=True out."
            )
        return self._norms[torch.from_numpy(indices)] if self._norms is not None and len(indices) else None


class _Probes:
    """The probes of the first batch (preflight/replay.py), each done once; the model has a hook only while it runs."""

    def __init__(self, model: nn.Module, *, sharded: bool = False) -> None:
        self._model, self._sharded, self._sketch = model, sharded, Sketch()
        self._recorder = Recorder()
        self._handle: Any = None
        self.replayed, self._summed = False, False

    def arm(self) -> None:
        """A batch is handed out: keep the next call of the model."""
        self._recorder.calls = None
        if not self.replayed and self._handle is None:
            self._handle = self._model.register_forward_pre_hook(self._recorder, with_kwargs=True)

    def plain(self, losses: Tensor, engine: Engine) -> Mapping[str, Tensor | None] | None:
        """Sketches of autograd's own gradients, to compare with, until that is done."""
        if self._summed or not losses.requires_grad:
            return None
        try:
            return self._sketch.gradients(losses, engine)
        except PrivacyError:
            raise
        except RuntimeError:  # graphs that allow no second pass
            if self._sharded:  # the others are in it
                raise
            return None

    @torch.no_grad()
    def compare(self, gradients: UnitGradients, plain: Mapping[str, Tensor | None]) -> None:
        """Compare the sums with autograd's own."""
        check_sums(gradients, plain, self._sketch)
        self._summed = True

    @torch.no_grad()
    def replay(self, rows: int) -> None:
        """Replay the call that was kept."""
        calls, self._recorder.calls = self._recorder.calls, None
        self.remove()
        if self.replayed or calls is None or self._sharded:  # FSDP2's modules cannot be copied
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
        if private._source is None:
            raise ConfigError(
                "a draw may be empty, of which a DataLoader makes no batch; give it "
                "collate_fn=private.collate(dataset) beside batch_sampler=private.batch_sampler()."
            )
        iteration = private._begin()
        private._since = now()
        shares = private._shares(length_of(private._source), sharded=False)
        private._loop(shares.length, self._steps, None, private._source)
        draws = private._draw(shares, self._steps, None)
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
            rows: list[int] = indices.tolist()
            yield rows


__all__ = ["BatchSampler", "Private", "attach"]
