"""Does a unit's gradient depend on who else is in the batch? Tested on the gradients themselves.

What the guarantee needs is just that, so two tests ask just that, of a few units chosen in secret:

- *beside others*: the same place in a batch of the same size, the same random numbers, and the other rows replaced: by
  one another, by far ones, by copies of the unit. The unit's gradient must be the same, bit for bit;
- *alone*: in a batch of its own, with random numbers held constant, in float64: the same to 1e-9.

Where a difference may be rounding (other sizes are other kernels), batches of one, two and more copies of the unit
show how much rounding there is. What no test can decide is said to be undecided, and never refused. What a forward pass
writes into the model is compared between the same runs: it must not depend on the rows.
"""

import copy
import math
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from discreet.errors import PrivacyError
from discreet.gradients import Engine
from discreet.release.preflight.model_state import Random, Snapshot, differing, grown
from discreet.release.preflight.replay import Sketch, check_sums, replay

LossFn = Callable[[Any], Tensor]
Collate = Callable[[list[Any]], Any]

_EXACT = 1e-9  # of a gradient's length, in float64: what a different order of sums may change
_ROUNDING = 8.0  # times the rounding that copies show
_FEW_BITS = 1e-6  # the same in the model's own type
_AMPLIFIED = 1e-7  # the most that rounding in float64 may come to inside a network
_SURELY = 1e-4  # a difference in float64 that no rounding inside a network makes
_COARSE = 1e-2  # the same in the model's own type, where it cannot run in float64
_FAINT = 1e-4  # of the longest gradient seen: one that is shorter is measured against this
_FAR = 16.0
_FIRST_ROWS, _FIRST_UNITS = 16, 3
_TRIED = 12  # rows among which some with a gradient are looked for
_LATER_ROWS, _LATER_UNITS = 8, 1
_TOGETHER = 6  # rows whose gradients are taken one by one and together
_EXTREMES = (1e-6, 1 - 1e-6)  # where in what may be drawn a coin shows either side
_FAR_OUT = 8.0  # deviations, which chance does not exceed
_WAYS = ("others exchanged", "others far away", "others copies of it")


@dataclass(frozen=True)
class Finding:
    """What one test found where nothing is wrong."""

    tested: bool  # whether gradients were compared, and agreed
    undecided: str = ""  # what could not be told, and why
    compared: frozenset[str] = frozenset()  # state that changes in the same way whatever the rows
    kept: frozenset[str] = frozenset()  # state that depends on the rows, and that no gradient was seen to depend on


class _CannotRunError(Exception):
    """A batch that the model or the loss does not take."""


@dataclass
class _Run:
    """The gradients of some units in one batch, and what the model held afterwards."""

    gradients: list[Tensor]
    finite: bool  # whether all losses were
    state: dict[str, Any] = field(default_factory=dict)
    held: bool = True  # whether all random numbers were held constant
    random: Random | None = None  # where the generators stood afterwards
    together: Tensor | None = None  # the gradient of all losses' sum, if it was asked for


class Isolation:
    """Tests of a model and a loss that the library can call. They leave the model as it was."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._longest = 0.0
        self._generator = torch.Generator()
        self._generator.seed()
        self._turn = 0

    def test(
        self, loss_fn: LossFn, rows: Sequence[Any], collate: Collate, *, first: bool, whole: bool = False
    ) -> Finding:
        """Compare the gradients of some of these rows. A PrivacyError says what mixes them, or what is kept of them.

        The `first` test does most. `whole` compares in a batch of all of them, too. Rows that spoil others' losses or
        gradients, as they are not finite, are left out.
        """
        trial = _Trial(self._model, loss_fn, collate)
        try:
            finite = [row for row in rows if _is_finite(row)]
            every = trial.with_finite_losses(list(rows)) if len(finite) < len(rows) else []
            if not any(map(_is_finite, every)):
                every = trial.with_finite_losses(finite)
            some = self._differing_most(every, _FIRST_ROWS if first else _LATER_ROWS)
            if not some:
                return Finding(tested=False)
            found = self._test(trial, some if len(some) > 1 else 2 * some, first)
            if not found.tested and not found.undecided and not all(map(_is_finite, some)):
                every = [row for row in every if _is_finite(row)]
                some = self._differing_most(every, len(some))
                found = self._test(trial, some if len(some) > 1 else 2 * some, first)
            if whole and len(every) > len(some) and found.tested:
                undecided = self._whole(trial, every)
                found = replace(found, tested=not undecided, undecided=undecided)
            if trial.whole:
                return found
            return replace(found, tested=False, undecided="the model holds more than can be looked at")
        except _CannotRunError:
            return Finding(tested=False, undecided="the loss could not be computed again")
        finally:
            trial.end()

    def _test(self, trial: "_Trial", rows: list[Any], first: bool) -> Finding:
        units = self._chosen(trial, rows, _FIRST_UNITS if first else _LATER_UNITS)
        if not units:
            return Finding(tested=False)
        base = trial.run(rows, units, state=True)
        if not all(bool(g.isfinite().all()) for g in base.gradients):
            return Finding(tested=False)
        self._longest = max(map(_length, base.gradients))
        ways = _WAYS if first else (_WAYS[self._turn % len(_WAYS)],)
        self._turn += 1
        compared, kept, undecided = set[str](), set[str](), ""
        tested = False
        for way in ways:
            for other, asked in _changed(rows, units, way):
                try:
                    found = trial.run(other, asked, state=True)
                except _CannotRunError:
                    continue  # values out of the range that it accepts
                if not found.finite or all(a is b for a, b in zip(rows, other, strict=True)):
                    continue
                mine = [base.gradients[units.index(unit)] for unit in asked]
                drawn = _drew_alike(base, found)
                for unit, one, two in zip(asked, mine, found.gradients, strict=True):
                    undecided = undecided or self._beside(trial, rows, other, unit, one, two, way, alike=drawn)
                tested = True
                alike, apart = trial.written(base.state, found.state)
                compared |= alike
                kept |= apart
        alike, apart = self._counted(trial, rows)
        compared, kept = compared | alike, kept | apart
        if kept:
            self._carried(trial, rows, kept)
        undecided = undecided or self._alone(trial, rows, units[:2]) or self._together(trial, rows[:_TOGETHER])
        if first:
            with trial.perturbed(self._generator):
                for other, asked in _changed(rows, units, _WAYS[0]):
                    undecided = undecided or self._opened(trial, rows, other, asked)
        for place in _EXTREMES if trial.drew(base) else ():
            with trial.constant(place):
                for other, asked in _changed(rows, units, _WAYS[0]):
                    undecided = undecided or self._opened(trial, rows, other, asked)
        return Finding(tested and not undecided, undecided, frozenset(compared), frozenset(kept))

    def _chosen(self, trial: "_Trial", rows: list[Any], count: int) -> list[int]:
        """The places of some rows, the last among them, with gradients that are not zero; none if there are none."""
        last = len(rows) - 1
        order = [last, *self._some(range(last), last)]
        found: list[int] = []
        for start in range(0, min(len(order), _TRIED), count):
            some = order[start : start + count]
            run = trial.run(rows, some)
            found += [unit for unit, g in zip(some, run.gradients, strict=True) if bool((g != 0).any())]
            if len(found) >= count:
                break
        return found[:count]

    def _whole(self, trial: "_Trial", rows: list[Any]) -> str:
        """Half of all rows, in differing shares, beside another other half: nothing, what is undecided, or an error."""
        half = torch.randperm(len(rows), generator=self._generator) < len(rows) // 2
        shares = torch.where(half, torch.rand(len(rows), generator=self._generator) + 0.5, 0.0)
        if not half.any():
            return ""
        kept = [i for i, mine in enumerate(half.tolist()) if mine]
        changed = (found for way in (_WAYS[1], _WAYS[0]) for found in _changed(rows, kept, way))
        for other in (batch for batch, staying in changed if staying == kept):
            if all(a is b for a, b in zip(rows, other, strict=True)):
                continue
            try:
                distance = self._halves(trial, rows, other, shares)
            except _CannotRunError:
                continue
            if distance is not None and distance > _EXACT:
                try:
                    with trial.constant(), trial.exact():
                        distance = self._halves(trial, rows, other, shares)
                    limit = _SURELY
                except _CannotRunError:
                    limit = _COARSE
                if distance is not None and distance > limit:
                    raise PrivacyError(
                        "the model or the loss mixes examples: in a batch of this size rows' gradients changed with "
                        "the rows beside it. Compute nothing over the batch, not even detached: no statistics, no "
                        "choice of rows, no capacity."
                    )
                if distance is not None and distance > (_EXACT if limit == _SURELY else _SURELY):
                    return "gradients in a whole batch changed a little with the others, as rounding may, or mixing"
        return self._half(trial, rows, kept, shares)

    def _half(self, trial: "_Trial", rows: list[Any], kept: list[int], shares: Tensor) -> str:
        """Half of all rows without the other half: nothing, what is undecided, or an error."""
        distance, exact = 0.0, False
        for exactly in (False, True):
            try:
                with trial.constant(), trial.exact() if exactly else _nothing():
                    one, two = trial.shared(rows, shares), trial.shared([rows[i] for i in kept], shares[kept])
            except _CannotRunError:
                break
            if one is None or two is None:
                return ""
            distance, exact = self._apart(one, two), exactly
            if distance <= (_EXACT if exact else _FEW_BITS):
                return ""
        faint = not exact and distance <= _SURELY
        return "" if faint else self._differs(trial, rows[kept[0]], len(rows), distance, exact)

    def _halves(self, trial: "_Trial", one: list[Any], two: list[Any], shares: Tensor) -> float | None:
        """How far two batches' gradients are from each other; None where a loss is not finite."""
        first, second = trial.shared(one, shares), trial.shared(two, shares)
        return None if first is None or second is None else self._apart(first, second)

    def _counted(self, trial: "_Trial", rows: list[Any]) -> tuple[set[str], set[str]]:
        """What is written alike, and not alike, where there is one row fewer."""
        try:
            with trial.constant():
                return trial.written(*(trial.run(some, [], state=True).state for some in (rows, rows[:-1])))
        except _CannotRunError:
            return set(), set()

    def _opened(self, trial: "_Trial", rows: list[Any], other: list[Any], units: list[int]) -> str:
        """The same with perturbed weights, or rare random numbers, which open paths that are closed else."""
        try:
            one, two = trial.run(rows, units), trial.run(other, units)
        except _CannotRunError:
            return ""
        if not (one.finite and two.finite and one.held and two.held):
            return ""
        alike = _drew_alike(one, two)
        for unit, a, b in zip(units, one.gradients, two.gradients, strict=True):
            if found := self._beside(trial, rows, other, unit, a, b, _WAYS[0], alike=alike):
                return found
        return ""

    def _beside(
        self,
        trial: "_Trial",
        rows: list[Any],
        other: list[Any],
        unit: int,
        one: Tensor,
        two: Tensor,
        way: str,
        *,
        alike: bool,
    ) -> str:
        """The first test, of one unit: nothing, what is undecided, or a PrivacyError.

        Where the two batches did not draw `alike` (the others decide how far it is padded, and so how many random
        numbers there are), or rows of other sizes stand before it, a unit may have got other random numbers, which says
        nothing: they are held constant then. Rows that only turned round leave a unit its own; if it changes with them,
        and not with constants, nobody can say why.
        """
        if _equal(one, two):
            return ""
        if not (alike and all(_sizes(a) == _sizes(b) for a, b in zip(rows, other, strict=True))):
            with trial.constant():
                first, second = trial.run(rows, [unit]), trial.run(other, [unit])
                if not (first.held and second.held):
                    return "random numbers are drawn in ways that cannot be held constant"
                a, b = first.gradients[0], second.gradients[0]
                if not _equal(a, b) and (found := self._differing(trial, rows, other, unit, a, b, way)):
                    return found
            turned = alike and sorted(map(id, rows)) == sorted(map(id, other))
            return (
                "a row's gradient changed with the order of the others, by random numbers or by mixing"
                if turned
                else ""
            )
        return self._differing(trial, rows, other, unit, one, two, way)

    def _differing(
        self, trial: "_Trial", rows: list[Any], other: list[Any], unit: int, one: Tensor, two: Tensor, way: str
    ) -> str:
        """Two gradients of a unit differ: by rounding, by mixing, or nobody can say."""
        distance = self._apart(one, two)
        spread = self._apart(one, trial.run(rows, [unit]).gradients[0])
        if spread > _SURELY:
            return "the same batch gave other gradients when it was run again"
        if distance <= 4 * spread:
            return ""
        rounding, exact = self._rounding(trial, rows[unit], len(rows))
        if exact:
            with trial.exact():
                distance = self._apart(*(trial.run(r, [unit]).gradients[0] for r in (rows, other)))
        if distance <= _EXACT + _ROUNDING * rounding and rounding <= (_AMPLIFIED if exact else _SURELY):
            return ""
        if distance > (_SURELY if exact else _COARSE) and distance > _ROUNDING * rounding:
            raise PrivacyError(
                f"{trial.culprit(rows, other, unit)} mixes examples: a row's gradient changed with the rows beside it "
                f"({way}). Compute nothing over the batch, not even detached: no statistics, no pairs of rows, no "
                "padding without a mask; or use statistics of public data."
            )
        return "a row's gradient changed a little with the rows beside it, as rounding may, or faint mixing"

    def _alone(self, trial: "_Trial", rows: list[Any], units: list[int]) -> str:
        """The second test: nothing, what is undecided, or a PrivacyError."""
        exact = True
        with trial.constant():
            try:
                with trial.exact():
                    beside = trial.run(rows, units)
            except _CannotRunError:
                exact = False
                beside = trial.run(rows, units)
            for unit, gradient in zip(units, beside.gradients, strict=True):
                with trial.exact() if exact else _nothing():
                    try:
                        alone = trial.run([rows[unit]], [0])
                    except _CannotRunError:  # a model that refuses a batch of one
                        alone = trial.run([rows[unit]] * 2, [0])
                if not (beside.held and alone.held):
                    return "random numbers are drawn in ways that cannot be held constant"
                distance = self._apart(gradient, alone.gradients[0])
                if distance > _EXACT and (found := self._differs(trial, rows[unit], len(rows), distance, exact)):
                    return found
        return ""

    def _together(self, trial: "_Trial", rows: list[Any]) -> str:
        """Whether one backward pass of all losses gives the sum of each one's gradient, as a derivative does."""
        distance, exact = self._surplus(trial, rows), False
        if distance > _EXACT:
            try:
                with trial.exact():
                    distance, exact = self._surplus(trial, rows), True
            except _CannotRunError:
                pass
        if distance > (_SURELY if exact else _COARSE):
            raise PrivacyError(
                "the model or the loss mixes examples in its backward pass: the gradient of all losses together is not "
                "the sum of their gradients. A backward of one's own, or a hook, must treat each row by itself."
            )
        return "" if distance <= _EXACT or not exact else "gradients do not quite add up, as rounding may, or mixing"

    def _surplus(self, trial: "_Trial", rows: list[Any]) -> float:
        run = trial.run(rows, list(range(len(rows))), together=True)
        assert run.together is not None
        if not all(bool(g.isfinite().all()) for g in (*run.gradients, run.together)):
            return 0.0  # it says nothing
        size = sum(map(_length, run.gradients))
        each = torch.stack([g.double() for g in run.gradients]).sum(0)
        return _length(run.together.double() - each) / size if size else 0.0

    def _differs(self, trial: "_Trial", row: Any, count: int, distance: float, exact: bool) -> str:
        """A gradient was another one alone: by rounding, by mixing, or nobody can say."""
        rounding, _ = self._rounding(trial, row, count)
        if distance <= _ROUNDING * min(rounding, _AMPLIFIED if exact else _SURELY):
            return ""
        if distance > _SURELY if exact else rounding <= _COARSE and distance > max(_COARSE, _ROUNDING * rounding):
            raise PrivacyError(
                "the model or the loss mixes examples: a row's gradient was another in a batch of its own. Whether an "
                "example takes part must change nothing for the others: use neither the number of rows, nor a row's "
                "place among them, nor a length that the longest row decides."
            )
        return "a row's gradient was a little different in a batch of its own, as rounding may make it, or faint mixing"

    def _rounding(self, trial: "_Trial", row: Any, count: int) -> tuple[float, bool]:
        """How far batches of one, two and more copies of a row differ, and whether that was in float64."""
        for exact in (True, False):
            try:
                with trial.constant(), trial.exact() if exact else _nothing():
                    runs = []
                    for size in (1, 2, count):
                        try:
                            runs.append(trial.run([row] * size, [0]).gradients[0])
                        except _CannotRunError:
                            if size > 1:
                                raise
                told = [g for g in runs if bool(g.isfinite().all())]  # a deviation of one row is none
                return max((self._apart(runs[-1], g) for g in told), default=math.inf), exact
            except _CannotRunError:
                continue
        return math.inf, False

    def _carried(self, trial: "_Trial", rows: list[Any], paths: set[str]) -> None:
        """What depends on the rows is kept: refuse it where it would be released, or where a gradient shows it."""
        saved = sorted(path for path in paths if trial.saved(path))
        if saved:
            name = saved[0].removeprefix("model.")
            where = f"module {name.rpartition('.')[0]!r}" if "." in name else "the model itself"
            raise PrivacyError(
                f"{where} carries something from one batch to the next: its {name!r} is "
                "written in the forward pass and depends on the data, past any noise. Keep no state of the data in it."
            )
        name = min(paths).removeprefix("model.")
        one, again = (trial.after(rows, rows) for _ in range(2))
        spread = self._apart(one, again)
        for before in (rows[::-1], rows[:1] * len(rows), [_far(row) for row in rows], rows[: len(rows) // 2]):
            try:
                distance = self._apart(one, trial.after(before, rows))
            except _CannotRunError:
                continue
            if distance > max(_ROUNDING * spread, 1e-6):
                raise PrivacyError(
                    f"{name!r} carries something from one batch to the next: the same batch gave other gradients after "
                    "another one had come before it. Keep no state of the data."
                )

    def _apart(self, one: Tensor, two: Tensor) -> float:
        """How far two gradients are from each other, of their length; a number and a NaN are infinitely far."""
        if _equal(one, two):
            return 0.0
        if not torch.equal(one.isnan(), two.isnan()):
            return math.inf
        one, two = one.nan_to_num(0), two.nan_to_num(0)
        size = max(_length(one), _length(two), _FAINT * self._longest)
        distance = _length(one.double() - two.double()) / size if size else 0.0
        return math.inf if math.isnan(distance) else distance

    def _differing_most(self, rows: Sequence[Any], count: int) -> list[Any]:
        """Some rows: the longest first and the shortest next, if there are any, and last one that has gaps."""
        some = self._some(rows, len(rows))
        sizes = [_extent(row) for row in some]
        if sizes and min(sizes) < max(sizes):
            ends = [sizes.index(max(sizes)), sizes.index(min(sizes))]
            some = [some[i] for i in ends] + [row for i, row in enumerate(some) if i not in ends]
        gaps = [i for i, row in enumerate(some) if not _is_finite(row)]
        if gaps:
            last = some.pop(gaps[-1])
            some = [*some[: count - 1], last]
        return some[:count]

    def _some(self, values: Sequence[Any], count: int) -> list[Any]:
        """At most so many of them, chosen in secret."""
        chosen = torch.randperm(len(values), generator=self._generator)[: max(0, count)].tolist()
        return [values[i] for i in chosen]


def _changed(rows: list[Any], units: list[int], way: str) -> Iterator[tuple[list[Any], list[int]]]:
    """Batches of the same size in which the units that are asked for stay, and every other row is replaced."""
    if way == "others exchanged":
        unit = units[0]  # rows before and after it turn round: as long as they were, so that as much is drawn
        before, after = rows[:unit], rows[unit + 1 :]
        yield [*before[1:], *before[:1], rows[unit], *after[1:], *after[:1]], [unit]
        moving = [i for i in range(len(rows)) if i not in units]
        if len(moving) > 1:
            other = list(rows)
            for place, i in enumerate(moving):  # every other place gets the row of the next one
                other[i] = rows[moving[(place + 1) % len(moving)]] if place % 2 else rows[moving[0]]
            yield other, units
        for unit in units:  # the units are others to each other, too
            yield [rows[unit] if i == unit else rows[(i + 1) % len(rows)] for i in range(len(rows))], [unit]
    elif way == "others far away":
        yield [row if i in units else _far(row) for i, row in enumerate(rows)], units
    else:
        for unit in units:
            yield [rows[unit]] * len(rows), [unit]


def _sizes(row: Any) -> list[Any]:
    """The shapes of what a row is made of."""
    return [tuple(leaf.shape) if isinstance(leaf, (Tensor, np.ndarray)) else () for leaf in tree_flatten(row)[0]]


def _extent(row: Any) -> int:
    """How much a row is made of."""
    leaves = tree_flatten(row)[0]
    sizes = (math.prod(leaf.shape) if isinstance(leaf, (Tensor, np.ndarray)) else 1 for leaf in leaves)
    return sum(sizes) + sum(len(leaf) for leaf in leaves if isinstance(leaf, (str, bytes)))


def _is_finite(row: Any) -> bool:
    """Whether all real values of a row are."""
    leaves = [leaf for leaf in tree_flatten(row)[0] if isinstance(leaf, (Tensor, np.ndarray, float))]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if (leaf.is_floating_point() or leaf.is_complex()) and not bool(leaf.isfinite().all()):
                return False
        elif (isinstance(leaf, float) or leaf.dtype.kind in "fc") and not bool(np.isfinite(leaf).all()):
            return False
    return True


def _far(row: Any) -> Any:
    """A row whose real values are many times as large."""

    def grow(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return _FAR * value
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value.dtype.type(_FAR) * value
        return _FAR * value if type(value) is float else value

    return tree_map(grow, row)


# --- running without a trace -----------------------------------------------------------------------------------------


class _Trial:
    """Runs of the model itself, each from the state that it had at first; at the end it has it again."""

    def __init__(self, model: nn.Module, loss_fn: LossFn, collate: Collate) -> None:
        self._model, self._loss_fn, self._collate = model, loss_fn, collate
        self._snapshot = Snapshot({"model": model, "loss": loss_fn})
        self._roots = {"model": model, "loss": loss_fn}
        self._random = Random()
        self._before: dict[str, Any] | None = None
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._change: Callable[[Tensor], Tensor] | None = None
        self._perturbed: dict[int, Tensor] = {}
        self._holding: float | None = None
        self._exact = False
        modules = list(model.modules())
        self._own: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (held, dict(held)) for m in modules for held in (m._parameters, m._buffers, vars(m))
        ]

    @property
    def whole(self) -> bool:
        """Whether everything that the model holds could be put back."""
        return self._snapshot.whole

    def end(self) -> None:
        self._restore()

    def drew(self, run: _Run) -> bool:
        """Whether random numbers were drawn in a run."""
        return run.random is None or not run.random.equals(self._random) or self._snapshot.drew()

    def _restore(self) -> None:
        """The model and the random numbers are as they were; its own weights, whatever else can be reached."""
        for held, values in self._own:
            if list(held) != list(values) or any(held[name] is not value for name, value in values.items()):
                held.clear()
                held.update(values)
        self._snapshot.restore()
        self._random.restore()

    def run(self, rows: list[Any], units: list[int], *, state: bool = False, together: bool = False) -> _Run:
        """The gradients of some units in a batch of these rows, and, if asked for, of all `together`."""
        self._restore()
        if state and self._before is None:
            self._before = self._snapshot.contents()
        return self._run(rows, units, state, together)

    def shared(self, rows: list[Any], shares: Tensor) -> Tensor | None:
        """The gradient of the losses' sum, each times its share; None where one is not finite."""
        self._restore()
        weights = self._swapped()
        holding = None if self._holding is None else _Constant(self._holding)
        try:
            with torch.enable_grad(), holding or _nothing():
                losses = self._losses(rows)
                if not bool(losses.isfinite().all()):
                    return None
                return self._gradient((losses * shares.to(losses)).sum(), weights)
        except Exception as error:
            raise _CannotRunError(type(error).__name__) from error

    def with_finite_losses(self, rows: list[Any]) -> list[Any]:
        """Those of some rows whose losses are finite."""
        if not rows:
            return []
        self._restore()
        try:
            with torch.no_grad():
                finite = self._losses(rows).isfinite().tolist()
        except Exception as error:
            raise _CannotRunError(type(error).__name__) from error
        return [row for row, good in zip(rows, finite, strict=True) if good]

    def after(self, before: list[Any], rows: list[Any]) -> Tensor:
        """The gradient of all losses, in differing shares, where another batch came before."""
        self._restore()
        self._run(before, [], False)
        self._random.restore()
        weights = self._swapped()
        try:
            with torch.enable_grad():
                losses = self._losses(rows)
                shares = torch.linspace(1, 2, len(losses), dtype=losses.dtype, device=losses.device)
                return self._gradient((losses * shares).sum(), weights)
        except Exception as error:
            raise _CannotRunError(type(error).__name__) from error

    def _run(self, rows: list[Any], units: list[int], state: bool, together: bool = False) -> _Run:
        weights = self._swapped()
        holding = None if self._holding is None else _Constant(self._holding)
        try:
            with torch.enable_grad(), holding or _nothing():
                losses = self._losses(rows)
                gradients = [self._gradient(losses[unit], weights) for unit in units]
                total = self._gradient(losses.sum(), weights) if together else None
        except PrivacyError as error:
            raise _CannotRunError(str(error)) from error
        except Exception as error:
            raise _CannotRunError(f"{type(error).__name__}") from error
        others = not self._random.same(torch_too=False) or self._snapshot.drew(torch_too=False)
        held = holding is None or (holding.all and not others)
        finite = bool(losses.detach().isfinite().all())
        return _Run(gradients, finite, self._snapshot.contents() if state else {}, held, Random(), total)

    def _losses(self, rows: list[Any]) -> Tensor:
        batch = self._collate(list(rows))
        if self._exact:
            batch = tree_map(_double, batch)
        losses = self._loss_fn(batch)
        if not isinstance(losses, Tensor) or losses.shape != (len(rows),):
            raise PrivacyError("one loss for each row is needed")
        return losses

    def _gradient(self, loss: Tensor, weights: list[Tensor]) -> Tensor:
        """Of one loss, as one vector."""
        found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        if all(g is None for g in found):
            raise PrivacyError("the losses lead to none of the model's parameters")
        flat = [
            (torch.zeros_like(w) if g is None else g.to_dense()).detach().reshape(-1)
            for w, g in zip(weights, found, strict=True)
        ]
        return torch.cat([v.double() if self._exact or len({f.dtype for f in flat}) > 1 else v for v in flat])

    # --- other weights -------------------------------------------------------------------------------------------

    @contextmanager
    def perturbed(self, generator: torch.Generator) -> Generator[None]:
        """The model has other weights: each moved by a tenth of their spread, or by a quarter if they are one value."""
        self._perturbed = {}
        for parameter in self._weights.values():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
            spread = float(parameter.detach().float().std()) if parameter.numel() > 1 else 0.0
            self._perturbed[id(parameter)] = parameter.detach() + noise * (0.1 * spread if spread else 0.25)
        try:
            yield
        finally:
            self._perturbed = {}

    @contextmanager
    def exact(self) -> Generator[None]:
        """The model and its batches are in float64."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False

    @contextmanager
    def constant(self, place: float | None = None) -> Generator[None]:
        """Random numbers are constants: at this place in what may be drawn, or as they were held, or in the middle."""
        before = self._holding
        self._holding = place if place is not None else 0.5 if before is None else before
        try:
            yield
        finally:
            self._holding = before

    def _swapped(self) -> list[Tensor]:
        """Put other weights in the place of the model's, where that is asked for; what gradients are taken of."""
        if not self._exact and not self._perturbed:
            return list(self._weights.values())
        made: dict[int, Any] = {}

        def other(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                value = self._perturbed.get(id(tensor), tensor.detach())
                value = value.double() if self._exact and value.is_floating_point() else value
                if isinstance(tensor, nn.Parameter):
                    made[id(tensor)] = nn.Parameter(value, requires_grad=tensor.requires_grad)
                else:
                    made[id(tensor)] = value
            return made[id(tensor)]

        for module in self._model.modules():
            parameters: Any = module._parameters
            for held in (parameters, module._buffers, vars(module)):
                for name, value in list(held.items()):
                    if isinstance(value, Tensor) and (id(value) in self._perturbed or self._exact):
                        held[name] = other(value)
            if isinstance(module, nn.RNNBase):
                names: Any = module._flat_weights_names
                module._flat_weights = [getattr(module, name) for name in names]
        return [made.get(id(p), p) for p in self._weights.values()]

    # --- what is kept --------------------------------------------------------------------------------------------

    def written(self, one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[set[str], set[str]]:
        """What two runs changed: alike, and depending on the rows."""
        before = self._before or {}
        changed = {*differing(before, one), *differing(before, two)}
        apart = {path for path in differing(one, two) if not grown(one.get(path), two.get(path))}
        tables = {path for path in differing(one, two) if path not in apart}
        return changed - apart - tables, apart

    def saved(self, path: str) -> bool:
        """Whether a state dict holds it."""
        return path.removeprefix("model.") in self._kept_names()

    def _kept_names(self) -> set[str]:
        return {*self._model.state_dict(), *dict(self._model.named_parameters())}

    # --- whose fault it is ---------------------------------------------------------------------------------------

    def culprit(self, rows: list[Any], other: list[Any], unit: int) -> str:
        """The first module whose output for a unit differs, though its inputs for it do not."""
        try:
            for (name, inputs, outputs), (_, others, changed) in zip(
                self._traced(rows, unit), self._traced(other, unit), strict=False
            ):
                if _alike(outputs, changed):
                    continue
                where = name if _alike(inputs, others) else name.rpartition(".")[0]
                return f"module {where!r}" if where else "the model itself"
        except _CannotRunError:
            pass
        return "the loss"

    def _traced(self, rows: list[Any], unit: int) -> list[tuple[str, list[Tensor], list[Tensor]]]:
        calls: list[tuple[str, list[Tensor], list[Tensor]]] = []
        count = len(rows)

        def own(value: Any) -> list[Tensor]:
            tensors = [t.detach() for t in tree_flatten(value)[0] if isinstance(t, Tensor)]
            return [t[unit].clone() if t.dim() and len(t) == count else t.clone() for t in tensors]

        self._restore()
        handles = []
        for name, module in self._model.named_modules():

            def note(module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                calls.append((name, own((args, kwargs)), own(output)))

            handles.append(module.register_forward_hook(note, with_kwargs=True))
        try:
            with torch.no_grad():
                self._losses(rows)
        except Exception as error:
            raise _CannotRunError from error
        finally:
            for handle in handles:
                handle.remove()
        return calls


def _drew_alike(one: _Run, two: _Run) -> bool:
    """Whether two runs, from the same random state on, drew as many random numbers."""
    return one.random is not None and two.random is not None and one.random.equals(two.random)


class _Constant(TorchDispatchMode):
    """Random numbers are constants, whatever the size that is drawn: at this place in what may be drawn."""

    def __init__(self, place: float = 0.5) -> None:
        super().__init__()
        self._place = place
        self.all = True  # whether all could be held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            if func.__name__.partition(".")[0] in _ORDERING and _one_value(args[0]):
                self.all = False  # ties of numbers that are held decide nothing
            return found
        if "attention" in func.__name__:  # which draws only if it is to drop something
            self.all = self.all and not _named(func, args, kwargs or {}).get("dropout_p", 0.0)
            return found
        name, given = func.__name__, _named(func, args, kwargs or {})
        if "native_dropout" in name:
            return args[0].clone(), torch.ones_like(found[1])
        if not isinstance(found, Tensor):
            self.all = False
            return found
        if "randperm" in name:  # every row for the next one, so that what is mixed by it shows
            return torch.arange(len(found), dtype=found.dtype, device=found.device).roll(1)
        return found.copy_(_usual(name, given, found, self._place))


_ORDERING = {"sort", "argsort", "topk"}


def _one_value(tensor: Tensor) -> bool:
    return tensor.numel() > 1 and bool((tensor == tensor.reshape(-1)[0]).all())


def _usual(name: str, given: Mapping[str, Any], drawn: Tensor, place: float) -> Tensor:
    """A value that may be drawn, as a function of the distribution alone: one for each place."""
    if "bernoulli" in name or "dropout" in name:
        chance = given.get("p", given.get("self"))
        return torch.as_tensor(chance if "p" in given or "bernoulli" in name else 1.0, device=drawn.device) > 0
    if "multinomial" in name:
        chances = given["self"]
        rare = torch.where(chances > 0, chances, math.inf).argmin(-1, keepdim=True)
        return chances.argmax(-1, keepdim=True) if place <= 0.5 else rare
    if "poisson" in name or "binomial" in name:
        return given.get("self", given.get("count")).round()
    if name.startswith("normal") and isinstance(given.get("mean"), Tensor):
        return given["mean"]
    if "exponential" in name:
        return torch.as_tensor(place if place <= 0.5 else _FAR_OUT, device=drawn.device)
    if "randn" in name or name.startswith("normal"):
        mean, spread = given.get("mean", 0.0), given.get("std", 1.0)
        return torch.as_tensor(mean + spread * (0.5 + 2 * _FAR_OUT * (place - 0.5)), device=drawn.device)
    low, high = given.get("low", given.get("from", 0)), given.get("to", given.get("high", 1))
    if high is None:
        return torch.as_tensor(low, device=drawn.device)
    if not drawn.is_floating_point():
        return torch.as_tensor(high - 1 if place > 0.5 else low, device=drawn.device)
    return torch.as_tensor(low + (high - low) * place, device=drawn.device)


def _named(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an op, by their names; those that were left out have their usual values."""
    declared = func._schema.arguments
    usual = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    return usual | dict(zip((argument.name for argument in declared), args, strict=False)) | dict(kwargs)


@contextmanager
def _nothing() -> Generator[None]:
    yield


def _double(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.float64)
    return value


def _equal(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one, two) or bool(((one == two) | (one.isnan() & two.isnan())).all())


def _alike(one: list[Tensor], two: list[Tensor]) -> bool:
    if len(one) != len(two):
        return False
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(one, two, strict=True)
    )


def _length(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient.nan_to_num(0), dtype=torch.float64))


# --- rows of a batch -------------------------------------------------------------------------------------------------


def rows_of(batch: Any, count: int) -> list[Any] | None:
    """The rows of a batch whose tensors all have one row an example, each as a batch has them; else None."""
    leaves, spec = tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not tensors or any(t.dim() == 0 or len(t) != count for t in tensors):
        return None

    def row(i: int) -> Any:
        return tree_unflatten([leaf[i : i + 1] if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)

    return [row(i) for i in range(count)]


def joined(rows: list[Any]) -> Any:
    """A batch of such rows."""
    flat = [tree_flatten(row) for row in rows]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    made = [torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in columns]
    return tree_unflatten(made, flat[0][1])


# --- for a user's own tests ------------------------------------------------------------------------------------------


def preflight(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], example: Any) -> None:
    """Try to falsify a model and a loss before any private data is touched; silent if nothing is found.

    A warning says what could not be decided.

    `loss(model, batch)` returns one loss for each row of the batch; `example` is a batch of public or made-up rows,
    best a handful of different ones. Compares rows' gradients beside other rows and alone; replays model and loss
    together; probes isolation by reweighting; and compares the engine's gradients with autograd's. Fit for a test of
    your own.
    """
    state = Random()
    twin = copy.deepcopy(model)
    losses = loss(twin, example)
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        raise PrivacyError("the loss must return one value for each row of the batch, shape (rows,).")
    engine, sketch = Engine(twin), Sketch()
    plain = sketch.gradients(losses, engine)
    gradients = engine.gradients(losses, len(losses), probe=True)
    with torch.no_grad():
        check_sums(gradients, plain, sketch)
    state.restore()
    rows, undecided = rows_of(example, len(losses)), ""
    if rows is not None and len(rows) > 1:
        found = Isolation(model).test(lambda batch: loss(model, batch), rows, joined, first=True)
        state.restore()
        if found.tested:
            return
        undecided = found.undecided
    if not replay(model, loss, example, len(losses), state, strict=True):
        raise PrivacyError(
            "the example batch cannot be replayed: give at least two rows that differ, a number of rows that no other "
            "dimension has, and a model that can be copied and is deterministic for given random numbers."
        )
    if undecided:
        warnings.warn(f"whether examples mix is not decided: {undecided}.", stacklevel=2)


__all__ = ["Finding", "Isolation", "LossFn", "joined", "preflight", "rows_of"]
