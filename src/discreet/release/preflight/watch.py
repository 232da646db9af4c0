"""What is tested of a run before its first release and while it goes on, and the evidence that this leaves."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from discreet.accounting.guarantee import Condition
from discreet.distributed.ranks import Ranks, fingerprint
from discreet.errors import PrivacyError
from discreet.gradients import Engine, UnitGradients
from discreet.release.batching import parts_of
from discreet.release.draws import Chunk, same_values
from discreet.release.loss_function import OWN, LossFn, LossOfRows, Rows
from discreet.release.preflight.evidence import Evidence
from discreet.release.preflight.first_batch import FirstBatch
from discreet.release.preflight.isolation import Isolation
from discreet.release.preflight.model_state import contents, differing, digests
from discreet.release.preflight.reachable import CACHED, MISSING, cached, plain_values, reachable
from discreet.release.preflight.step_start import StepStart
from discreet.stages.noise.random import KeyTree

# modules' hooks, which of them runs, and the mark of accelerate
_HOOKS = re.compile(r"\._(\w+_)?hooks(_\w+)?(\.|$)|^model\._(current_fx_name|is_accelerate_prepared)$")
_CACHE = re.compile(r".*\.cached(?=\d)")  # of functools, up to the number of what it holds
_READ_ROWS = 64  # of a batch that are read again for a test
_MOST_STRUCTURES = 64  # of graphs that are each tested once
_WHOLE = {16**k for k in range(1, 16)}  # steps at which a whole batch is compared
_IS_NESTED = attrgetter("is_nested")
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
        steps: how many there are at most.
    """

    def __init__(
        self, model: nn.Module, root: KeyTree, ranks: Ranks, *, on: bool, testable: bool, sharded: bool, steps: int
    ) -> None:
        self._model, self._root, self._ranks, self._steps = model, root, ranks, steps
        names = model.named_parameters(remove_duplicate=False)  # of tied ones all
        self._trained = {name for name, parameter in names if parameter.requires_grad}
        self.evidence = Evidence(probes=on)
        self.agreed = on and ranks.alone  # whether isolation was tested of all batches so far, on every rank
        self.first_batch = False  # whether something of the first batch is still to be probed in this step
        self._first = FirstBatch(model, sharded=sharded) if on else None
        self._isolation = Isolation(model) if on and testable else None
        self._at_attach = digests(contents({"model": model})) if on else {}
        # the last tested step, what the loss held on it, and the model's parts, which are none of its
        self._loss_held: tuple[int, dict[str, Any], list[Any]] | None = None
        self._sizes: dict[tuple[int, int], tuple[int, int]] = {}  # of batches so far: least and most, by dimension
        self._lent: set[str] = set()  # what the model held on tested steps that was not there at attach
        self._structures: set[int] = set()  # of graphs on which isolation was tested
        self._coins: tuple[int, npt.NDArray[np.bool_]] | None = None  # which steps of a stretch are tested again
        self._told: tuple[Evidence, Any, bool] | None = None  # what the ledger was last told of
        self.start = StepStart(model)

    # --- before and during a step ----------------------------------------------------------------------------------

    def handed_out(self, chunk: Chunk, batch: Any) -> None:
        """Note what is handed out, closely in a step that is probed; a call of the model may be run again later.

        Isolation is tested again at steps 0, 1, 2, 4, 8, ..., at the last and, in secret, at one in 128 others.
        """
        stretch, place = divmod(chunk.step, _STRETCH)
        if self._coins is None or self._coins[0] != stretch:
            self._coins = stretch, self._root.stream("probe", stretch).octets(_STRETCH) < 2
        chunk.probed = chunk.step & (chunk.step - 1) == 0 or bool(self._coins[1][place])
        if self._first is not None:
            sources = self.evidence.sources
            replays = not self._first.replayed and (not sources or "tensors" in sources)
            if replays:
                self._first.arm()
            self.first_batch = replays or not self._first.compared
        if batch is not None:
            chunk.note(batch, digest=chunk.probed and self._isolation is not None)

    def losses_came(self, chunk: Chunk) -> None:
        """Losses came as tensors: nobody knows what was computed."""
        if chunk.units:
            self._note(sources=self.evidence.sources | {"tensors"})
            self.first_batch = self._first is not None

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
            self._note(sources=self.evidence.sources | {source})
            if self._first is not None and "tensors" not in self.evidence.sources:
                self._first.remove()  # what the library can call it need not record
        odd = self._isolation is not None and self._of_new_size(batch, chunk)
        if not (chunk.holds(batch) if chunk.leaves is not None else self._as_handed_out(batch, chunk, rows)):
            self._note(altered=True)
        if self._isolation is None or chunk.indices is None or rows is None:
            return
        last = chunk.step + 1 == self._steps  # what has begun since the test before, and stayed
        if odd or (chunk.first and (chunk.probed or last or not self.evidence.whole)):
            self._compare(loss_fn, chunk, rows, clear, every=odd)
        elif chunk.first:  # between tests the loss's numbers and texts alone are compared
            assert self._loss_held is not None
            step, held, model = self._loss_held
            holds = plain_values({"loss": getattr(loss_fn, "given", loss_fn)}, [*model, *rows.data])
            for path, value in holds.items():
                was = held.get(path, MISSING)
                if type(was) is not type(value) or was != value:
                    some = {path: value for path, value in held.items() if path in holds}
                    self._note_undecided(self._in_words(differing(some, holds), some, holds, chunk.step - step))
                    break
        if chunk.first:
            roots = {"model": self._model, "loss": loss_fn}  # a forward pass makes no batches
            if not self.start.note(roots, rows.data, changing=self.evidence.compared):
                self._note_undecided("torch's random numbers were seeded anew between steps, it may be with the rows")

    def tested_now(self, loss: LossOfRows | None, chunk: Chunk, clear: Callable[[], None]) -> bool:
        """Whether isolation was tested in this step, or can be now, where rows turned out to be inseparable."""
        if loss is None or self._isolation is None or chunk.indices is None:
            return False
        if chunk.step:  # before, nobody looked: a backward pass may have mixed them as soon as a batch was large
            self._note_undecided("rows could be told apart on the first steps, but not on all")
        if chunk.step not in self.evidence.tested:
            self._compare(loss.loss_fn, chunk, loss.rows, clear)
        return chunk.step in self.evidence.tested

    def written(self, paths: set[str], loss: LossOfRows, chunk: Chunk, clear: Callable[[], None]) -> None:
        """A forward pass wrote to these parameters: test isolation, if none did so in a test."""
        if self._isolation is not None and chunk.indices is not None and paths - self.evidence.compared:
            self._compare_again(loss, chunk, clear)

    def test_structure(self, engine: Engine, loss: LossOfRows | None, chunk: Chunk, clear: Callable[[], None]) -> None:
        """Test isolation on a graph of a structure on which it never was: a branch that is taken now and then."""
        if loss is None or self._isolation is None or chunk.indices is None:
            return
        structure = hash(engine.structure)
        if structure in self._structures or len(self._structures) >= _MOST_STRUCTURES:
            return
        self._structures.add(structure)
        if chunk.step not in self.evidence.tested and self.evidence.tested:
            self._compare_again(loss, chunk, clear)

    def _compare_again(self, loss: LossOfRows, chunk: Chunk, clear: Callable[[], None]) -> None:
        """Test isolation after the step's forward pass, as it was before; what is refused may have left its trace."""
        try:
            with self.start.again():
                self._compare(loss.loss_fn, chunk, loss.rows, clear)
        except PrivacyError:
            self._note_undecided("a forward pass was refused after it had been made")
            raise

    def plain(self, losses: Tensor, engine: Engine) -> Mapping[str, Tensor | None] | None:
        """Sketches of autograd's own gradients, to compare sums with; nothing where a graph allows no second pass."""
        return None if self._first is None or self._first.compared else self._first.plain(losses, engine)

    def compare_sums(self, gradients: UnitGradients, plain: Mapping[str, Tensor | None]) -> None:
        """Compare the sums with autograd's own."""
        if self._first is not None:
            self._first.compare(gradients, plain)

    def replay(self, rows: int) -> None:
        """Run the model's recorded calls again: all that can be done with losses that are tensors."""
        if self._first is None:
            return
        if not self._first.replayed and "tensors" in self.evidence.sources:
            self._first.replay(rows)
            self._note(replayed=self._first.replayed)
        self.first_batch = False

    def several_passes(self) -> None:
        """A step takes several forward passes: how many, the number of rows decides."""
        if not self.evidence.several:
            self._note(several=True)

    def remove(self) -> None:
        """Take the hook off the model."""
        if self._first is not None:
            self._first.remove()

    def _as_handed_out(self, batch: Any, chunk: Chunk, rows: Rows | None) -> bool:
        """Whether a batch whose parts were not noted has the values of the rows that were handed out."""
        if rows is None or chunk.indices is None:
            return False
        if not chunk.probed and self.evidence.tested:
            return True
        return same_values(batch, rows.batch(chunk.indices))

    def _of_new_size(self, batch: Any, chunk: Chunk) -> bool:
        """Whether a batch is larger or smaller than all before, apart from how many rows it has: by one long row."""
        new, before = False, bool(self._sizes)
        plain = type(batch) is tuple and {*map(type, batch)} == {Tensor} and not any(map(_IS_NESTED, batch))
        for i, part in enumerate(batch if plain else parts_of(batch)):
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
        isolation = self._isolation
        assert isolation is not None
        assert chunk.indices is not None
        numbers, first, last = chunk.indices, not self.evidence.tested, chunk.step + 1 >= self._steps
        if self._loss_held is None and self._filled(loss_fn, rows):
            self._note_undecided("a cache of the loss held values before its first step; clear it before training")
        # the first test takes long: a whole batch has its turn in the next one, if there is one
        whole = chunk.step in _WHOLE if self.evidence.whole else not first or last
        with self._ranks.reported():
            self._lent |= self._changed(values=True)
            if len(numbers) > _READ_ROWS and not (whole or every):
                numbers = np.random.default_rng().choice(numbers, _READ_ROWS, replace=False)
            some = [rows.row(int(i)) for i in numbers]
            try:
                finding = isolation.test(loss_fn, some, rows.collate, first=first or last, whole=whole, data=rows.data)
            finally:
                clear()
        self._note_undecided(finding.undecided, self._changes(loss_fn, rows, chunk.step))
        before = self.evidence
        self._note(
            tested=(*before.tested, chunk.step) if finding.tested else before.tested,
            whole=before.whole or (finding.tested and whole),
            compared=before.compared | finding.compared,
            kept=before.kept | finding.kept,
        )

    def _beside_model(self, loss_fn: LossFn, rows: Rows) -> tuple[dict[str, Any], list[Any]]:
        """The loss and what makes batches, and what of theirs is no business of theirs: the model and the data."""
        held = {"loss": getattr(loss_fn, "given", loss_fn), "collate": rows.collate}
        return held, [*self._parts_of_model(), *rows.data]

    def _parts_of_model(self) -> list[Any]:
        return [*self._model.modules(), *self._model.parameters()]

    def _filled(self, loss_fn: LossFn, rows: Rows) -> bool:
        """Whether a cache of the loss's holds values already: of the model's it is known what they were at attach."""
        caches = [value for _, value in reachable(*self._beside_model(loss_fn, rows)) if isinstance(value, CACHED)]
        return any(map(_is_value, digests(contents({"": [cached(value) for value in caches]})).values()))

    def _changes(self, loss_fn: LossFn, rows: Rows, step: int) -> str:
        """What a loss holds beside the model and has changed since the last test: it may come from the batch."""
        holds = digests(contents(*self._beside_model(loss_fn, rows)))
        before, self._loss_held = self._loss_held, (step, holds, self._parts_of_model())
        self._note(once=before is None and any(map(_is_value, holds.values())))
        if before is not None:
            return self._in_words(differing(before[1], holds), before[1], holds, step - before[0])
        made = {path: value for path, value in holds.items() if path.startswith("collate")}
        calls = 3  # two for an empty draw's padding row, and one for the first batch
        return self._in_words(differing(rows.held, made), rows.held, made, calls)

    @staticmethod
    def _in_words(paths: set[str], was: Mapping[str, Any], holds: Mapping[str, Any], steps: int) -> str:
        """What changed in so many steps; a whole number that went up by one a step is a step's number.

        A cache that was empty at a test was tested as it was filled.
        """
        for path in sorted(paths):
            cache = _CACHE.match(path)
            if cache and not any(known.startswith(cache[0]) and _is_value(value) for known, value in was.items()):
                continue
            one, other = was.get(path), holds.get(path)
            counts = type(one) is int and type(other) is int and other - one == steps
            if not counts:
                whose = "collate" if path.startswith("collate") else "loss"
                return f"what the {whose} function holds changed between steps ({path.removeprefix('loss.')!r})"
        return ""

    def _note_undecided(self, *words: str) -> None:
        """Note why it is not known that examples do not mix, each reason once."""
        undecided = dict.fromkeys([*self.evidence.undecided, *filter(None, words)])
        if len(undecided) > len(self.evidence.undecided):
            self._note(undecided=tuple(undecided))

    # --- what it comes to --------------------------------------------------------------------------------------------

    def _note(self, **seen: Any) -> None:
        """Add to the evidence what was seen."""
        self.evidence = replace(self.evidence, **seen)
        if self._ranks.alone:
            self.agreed = self._tested

    @property
    def _tested(self) -> bool:
        """Whether isolation was tested; who has seen no batch yet has nothing to test."""
        return self.evidence.isolated or (self.evidence.probes and not self.evidence.sources)

    def agree(self, place: str, parameters: Mapping[str, nn.Parameter]) -> None:
        """Before anything is counted: all ranks have summed this step, with the same parameters; and what they tested.

        Args:
            place: where the ranks are.
            parameters: what they train together.
        """
        self.agreed = all(self._ranks.agree(place, {"parameters": fingerprint(parameters)}, self._tested))

    def conditions(self, *, earlier: bool, own: bool) -> list[Condition]:
        """What the guarantee rests on; `earlier` steps may have had less tested, or losses that are not the `own`."""
        changed = self._changed() | self._lent
        return self.evidence.conditions(agreed=self.agreed, earlier=earlier, own=own, changed=changed)

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
