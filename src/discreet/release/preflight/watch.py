"""What is tested of a run before its first release and while it goes on, and the evidence that this leaves."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from discreet.accounting.guarantee import Condition
from discreet.distributed.ranks import Ranks, fingerprint
from discreet.gradients import Engine, UnitGradients
from discreet.release.draws import Chunk, parts_of, same_values
from discreet.release.guards import trainable
from discreet.release.loss_function import OWN, LossFn, LossOfRows, Rows
from discreet.release.preflight.evidence import Evidence
from discreet.release.preflight.first_batch import FirstBatch
from discreet.release.preflight.isolation import Isolation
from discreet.release.preflight.model_state import contents, differing, digests, plain_values
from discreet.stages.noise.random import KeyTree

_HOOKS = re.compile(r"\._(\w+_)?hooks(_\w+)?(\.|$)|^model\._current_fx_name$")  # modules' hooks, and which runs
_READ_ROWS = 64  # of a batch that are read again for a test
_MOST_STRUCTURES = 64  # of graphs that are each tested once
_STRETCH = 4096  # steps whose coins are drawn together


class Preflight:
    """Tests of one attached model, and the frozen record of what they found.

    Args:
        model: the model that a plan is attached to.
        root: what secret coins are drawn from: which steps are tested again.
        ranks: the processes that train together.
        on: whether anything is tested.
        testable: whether the library can run the model on batches of its own choice.
        sharded: whether the model's parameters are sharded over ranks.
    """

    def __init__(
        self, model: nn.Module, root: KeyTree, ranks: Ranks, *, on: bool, testable: bool, sharded: bool
    ) -> None:
        self._model, self._root, self._ranks = model, root, ranks
        self._trained = set(trainable(model))
        self.evidence = Evidence(probes=on)
        self.agreed = False  # whether isolation was tested, on every rank
        self._first = FirstBatch(model, sharded=sharded) if on else None
        self._isolation = Isolation(model) if on and testable else None
        self._at_attach = digests(contents({"model": model})) if on else {}
        self._loss_held: tuple[int, dict[str, Any]] | None = None  # what the loss held on the last tested step
        self._sizes: dict[tuple[int, int], tuple[int, int]] = {}  # of batches so far: least and most, by dimension
        self._lent: set[str] = set()  # what the model held on tested steps that was not there at attach
        self._structures: set[int] = set()  # of graphs on which isolation was tested
        self._coins: tuple[int, npt.NDArray[np.bool_]] | None = None  # which steps of a stretch are tested again
        self._told: tuple[Evidence, Any, bool] | None = None  # what the ledger was last told of

    # --- before and during a step ----------------------------------------------------------------------------------

    def probed(self, step: int) -> bool:
        """Whether isolation is tested again at a step: at 0, 1, 2, 4, 8, ... and at one in 128 others, in secret."""
        stretch, place = divmod(step, _STRETCH)
        if self._coins is None or self._coins[0] != stretch:
            self._coins = stretch, self._root.stream("probe", stretch).octets(_STRETCH) < 2
        return step & (step - 1) == 0 or bool(self._coins[1][place])

    def handed_out(self, chunk: Chunk, batch: Any) -> None:
        """Note what is handed out, closely in a step that is probed; a call of the model may be run again later."""
        chunk.probed = self.probed(chunk.step)
        if self._first is not None and (not self.evidence.sources or "tensors" in self.evidence.sources):
            self._first.arm()
        if batch is not None:
            chunk.note(batch, digest=chunk.probed and self._isolation is not None)

    def losses_came(self, chunk: Chunk) -> None:
        """Losses came as tensors: nobody knows what was computed."""
        if chunk.units:
            self.evidence = self.evidence.came("tensors")

    def test(self, loss_fn: LossFn, batch: Any, chunk: Chunk, rows: Rows | None, clear: Callable[[], None]) -> None:
        """Note where the losses come from, and test isolation if this step is probed.

        Args:
            loss_fn: the loss that the library can call.
            batch: what came back, to be compared with what was handed out.
            chunk: what was handed out.
            rows: how rows are read by their number, if that is known.
            clear: forgets what a test has left behind.
        """
        if not chunk.units:
            return
        source = "library" if getattr(loss_fn, "own", None) is OWN else "function"
        if source not in self.evidence.sources:
            self.evidence = self.evidence.came(source)
            if self._first is not None and "tensors" not in self.evidence.sources:
                self._first.remove()  # what the library can call it need not record
        if not self._as_handed_out(batch, chunk, rows):
            self.evidence = replace(self.evidence, altered=True)
        if self._isolation is None or chunk.indices is None or rows is None:
            return
        odd = self._of_new_size(batch, chunk)
        if odd or (chunk.first and (not self.evidence.tested or chunk.probed)):
            self._compare(loss_fn, chunk, rows, clear, every=odd)
        elif chunk.first and (changed := self._changes(loss_fn, chunk, numbers=True)):
            undecided = dict.fromkeys([*self.evidence.undecided, changed])
            self.evidence = replace(self.evidence, undecided=tuple(undecided))

    def tested_now(self, loss: LossOfRows | None, chunk: Chunk, clear: Callable[[], None]) -> bool:
        """Whether isolation was tested in this step, or can be now."""
        if loss is None or self._isolation is None or chunk.indices is None:
            return False
        if chunk.step not in self.evidence.tested:
            self._compare(loss.loss_fn, chunk, loss.rows, clear)
        return chunk.step in self.evidence.tested

    def test_structure(self, engine: Engine, loss: LossOfRows | None, chunk: Chunk, clear: Callable[[], None]) -> None:
        """Test isolation on a graph of a structure on which it never was: a branch that is taken now and then."""
        if loss is None or self._isolation is None or chunk.indices is None:
            return
        structure = hash(engine.structure)
        if structure in self._structures or len(self._structures) >= _MOST_STRUCTURES:
            return
        self._structures.add(structure)
        if chunk.step not in self.evidence.tested and self.evidence.tested:
            self._compare(loss.loss_fn, chunk, loss.rows, clear)

    @property
    def sums_are_due(self) -> bool:
        """Whether sums are still to be compared with autograd's own."""
        return self._first is not None and not self._first.compared

    def plain(self, losses: Tensor, engine: Engine) -> Mapping[str, Tensor | None] | None:
        """Sketches of autograd's own gradients, to compare sums with; nothing where a graph allows no second pass."""
        return None if self._first is None else self._first.plain(losses, engine)

    def compare_sums(self, gradients: UnitGradients, plain: Mapping[str, Tensor | None]) -> None:
        """Compare the sums with autograd's own."""
        if self._first is not None:
            self._first.compare(gradients, plain)

    @property
    def wants_replay(self) -> bool:
        """Whether the model's calls are still to be run again: all that can be done with losses that are tensors."""
        return self._first is not None and not self._first.replayed and "tensors" in self.evidence.sources

    def replay(self, rows: int) -> None:
        """Run the model's recorded calls again."""
        if self._first is not None:
            self._first.replay(rows)
            self.evidence = replace(self.evidence, replayed=self._first.replayed)

    def several_passes(self) -> None:
        """A step takes several forward passes: how many, the number of rows decides."""
        if not self.evidence.several:
            self.evidence = replace(self.evidence, several=True)

    def remove(self) -> None:
        """Take the hook off the model."""
        if self._first is not None:
            self._first.remove()

    def _as_handed_out(self, batch: Any, chunk: Chunk, rows: Rows | None) -> bool:
        """Whether a batch is the one that was handed out, or one of the same values."""
        if chunk.leaves is not None:
            return chunk.holds(batch)
        if rows is None or chunk.indices is None:
            return False
        if not chunk.probed and self.evidence.tested:
            return True
        return same_values(batch, rows.batch(chunk.indices))

    def _of_new_size(self, batch: Any, chunk: Chunk) -> bool:
        """Whether a batch is larger or smaller than all before, apart from how many rows it has: by one long row."""
        new, before = False, bool(self._sizes)
        for i, part in enumerate(parts_of(batch)):
            if not isinstance(part, Tensor):
                continue
            for dimension, size in enumerate(part.shape):
                if dimension == 0 or size == chunk.units:
                    continue
                least, most = self._sizes.get((i, dimension), (size, size))
                if (i, dimension) not in self._sizes or not least <= size <= most:
                    new = True
                    self._sizes[i, dimension] = min(least, size), max(most, size)
        return new and before

    def _compare(
        self, loss_fn: LossFn, chunk: Chunk, rows: Rows, clear: Callable[[], None], *, every: bool = False
    ) -> None:
        """Test isolation on rows of this chunk, all of which are read if `every` is said, and note what was found."""
        assert self._isolation is not None
        assert chunk.indices is not None
        numbers, first = chunk.indices, not self.evidence.tested
        whole = first or (chunk.step.bit_length() % 4 == 1 and chunk.step > 1)  # at 16, 256, ...
        with self._ranks.reported():
            self._lent |= self._changed(values=True)
            if len(numbers) > _READ_ROWS and not (whole or every):
                numbers = np.random.default_rng().choice(numbers, _READ_ROWS, replace=False)
            some = [rows.row(int(i)) for i in numbers]
            try:
                finding = self._isolation.test(loss_fn, some, rows.collate, first=first, whole=whole)
            finally:
                clear()
        undecided = list(filter(None, [finding.undecided, self._changes(loss_fn, chunk)]))
        before = self.evidence
        self.evidence = replace(
            before,
            tested=(*before.tested, chunk.step) if finding.tested else before.tested,
            undecided=tuple(dict.fromkeys([*before.undecided, *undecided])),
            compared=before.compared | finding.compared,
            kept=before.kept | finding.kept,
        )

    def _changes(self, loss_fn: LossFn, chunk: Chunk, *, numbers: bool = False) -> str:
        """What a loss holds beside the model, where that has changed since the last test: it may come from the batch.

        A whole number that went up by one a step is a step's number. Between tests only `numbers` are compared.
        """
        held = {"loss": getattr(loss_fn, "given", loss_fn)}
        without = [*self._model.modules(), *self._model.parameters()]
        if numbers:
            assert self._loss_held is not None
            holds = plain_values(held, without)
            before = self._loss_held[0], {path: value for path, value in self._loss_held[1].items() if path in holds}
        else:
            holds = digests(contents(held, without))
            before, self._loss_held = self._loss_held, (chunk.step, holds)
            self.evidence = replace(self.evidence, once=before is None and any(map(_is_value, holds.values())))
        if before is None:
            return ""
        steps, was = chunk.step - before[0], before[1]
        for path in sorted(differing(was, holds)):
            one, other = was.get(path), holds.get(path)
            counts = type(one) is int and type(other) is int and other - one == steps
            if not counts:
                return f"what the loss function holds changed between steps ({path.removeprefix('loss.')!r})"
        return ""

    # --- what it comes to --------------------------------------------------------------------------------------------

    def agree(self, place: str, parameters: Mapping[str, nn.Parameter]) -> None:
        """Before anything is counted: all ranks have summed this step, with the same parameters; and what they tested.

        A rank that has seen no batch yet has nothing to test.
        """
        mine = self.evidence.isolated or (self.evidence.probes and not self.evidence.sources)
        if self._ranks.alone:
            self.agreed = mine
        else:
            self.agreed = all(self._ranks.agree(place, {"parameters": fingerprint(parameters)}, mine))

    def conditions(self, *, earlier: bool) -> list[Condition]:
        """What the guarantee rests on; `earlier` steps may have had less tested."""
        return self.evidence.conditions(agreed=self.agreed, earlier=earlier, changed=self._changed() | self._lent)

    def has_news(self) -> bool:
        """Whether what was seen has changed since this was last asked; more tests do where they are twice as many."""
        if self._told is not None and self._told[0] is self.evidence and self._told[2] == self.agreed:
            return False
        tests = len(self.evidence.tested).bit_length()
        seen = replace(self.evidence, tested=()), tests, self.agreed
        told, self._told = self._told, (self.evidence, seen, self.agreed)
        return told is None or told[1] != seen

    def _changed(self, *, values: bool = False) -> set[str]:
        """What the model holds that is not as it was at attach, apart from what is trained and what modes say.

        Of `values` numbers and tensors alone.
        """
        if not self._at_attach:
            return set()
        now = digests(contents({"model": self._model}))
        return {
            path
            for path in differing(self._at_attach, now)
            if path.removeprefix("model.") not in self._trained and not path.endswith(".training")
            if not _HOOKS.search(path) and (not values or _is_value(now.get(path)))
        }


def _is_value(summary: Any) -> bool:
    """Whether a path leads to a number, a tensor or an array, of which the summary tells type, shape and content."""
    return isinstance(summary, (int, float, complex)) or (isinstance(summary, tuple) and len(summary) > 2)
