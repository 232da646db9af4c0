"""Does a unit's gradient depend on who else is in the batch? Tested on the gradients themselves.

What the guarantee needs is just that, so two tests ask just that, of a few units chosen in secret:

- *beside others*: the same place in a batch of the same size, the same random numbers, and the other rows replaced: by
  one another, by far ones, by copies of the unit. The unit's gradient must be the same, bit for bit;
- *alone*: in a batch of its own, with random numbers held constant, in float64: the same to 1e-9.

Where a difference may be rounding (other sizes are other kernels), batches of one, two and more copies of the unit
show how much rounding there is. What no test can decide is said to be undecided, and never refused. What a forward pass
writes into the model is compared between the same runs: it must not depend on the rows.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import PrivacyError
from discreet.release.batching import Collate
from discreet.release.loss_function import LossFn
from discreet.release.preflight.batches import _far, exchanged, extent, is_finite, sizes
from discreet.release.preflight.constant_draws import _EXTREMES
from discreet.release.preflight.trial import CannotRunError, Trial, TrialRun, equal

_EXACT = 1e-9  # of a gradient's length, in float64: what a different order of sums may change
_ROUNDING = 8.0  # times the rounding that copies show
_FEW_BITS = 1e-6  # the same in the model's own type
_AMPLIFIED = 1e-7  # the most that rounding in float64 may come to inside a network
_SURELY = 1e-4  # a difference in float64 that no rounding inside a network makes
_COARSE = 1e-2  # the same in the model's own type, where it cannot run in float64
_FAINT = 1e-4  # of the longest gradient seen: one that is shorter is measured against this
_FIRST_ROWS, _FIRST_UNITS = 16, 3
_TRIED = 12  # rows among which some with a gradient are looked for
_LATER_ROWS, _LATER_UNITS = 8, 1
_BITS = 3  # of the numbers of draws: eight of them are told apart
_TOGETHER = 6  # rows whose gradients are taken one by one and together
_WAYS = ("others exchanged", "others far away", "others copies of it")


@dataclass(frozen=True)
class Finding:
    """What one test found where nothing is wrong."""

    tested: bool  # whether gradients were compared, and agreed
    undecided: str = ""  # what could not be told, and why
    compared: frozenset[str] = frozenset()  # state that changes in the same way whatever the rows
    kept: frozenset[str] = frozenset()  # state that depends on the rows, and that no gradient was seen to depend on


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
        trial = Trial(self._model, loss_fn, collate)
        try:
            finite = [row for row in rows if is_finite(row)]
            every = trial.with_finite_losses(list(rows)) if len(finite) < len(rows) else []
            if not any(map(is_finite, every)):
                every = trial.with_finite_losses(finite)
            some = self._differing_most(every, _FIRST_ROWS if first else _LATER_ROWS)
            if not some:
                return Finding(tested=False)
            found = self._test(trial, some if len(some) > 1 else 2 * some, first)
            if not found.tested and not found.undecided and not all(map(is_finite, some)):
                every = [row for row in every if is_finite(row)]
                some = self._differing_most(every, len(some))
                found = self._test(trial, some if len(some) > 1 else 2 * some, first)
            if whole and len(every) > len(some) and found.tested:
                undecided = self._whole(trial, every)
                found = replace(found, tested=not undecided, undecided=undecided)
            if trial.whole:
                return found
            return replace(found, tested=False, undecided="the model holds more than can be looked at")
        except CannotRunError:
            return Finding(tested=False, undecided="the loss could not be computed again")
        finally:
            trial.end()

    def _test(self, trial: Trial, rows: list[Any], first: bool) -> Finding:
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
            for other, asked in exchanged(rows, units, way):
                try:
                    found = trial.run(other, asked, state=True)
                except CannotRunError:
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
                for other, asked in exchanged(rows, units, _WAYS[0]):
                    undecided = undecided or self._opened(trial, rows, other, asked)
        if trial.drew(base):
            undecided = self._by_chance(trial, rows, units, undecided)
        if base.asked and not undecided:
            undecided = "the model or the loss asks the clock, or the system for random numbers, which no test can hold"
        return Finding(tested and not undecided, undecided, frozenset(compared), frozenset(kept))

    def _by_chance(self, trial: Trial, rows: list[Any], units: list[int], undecided: str) -> str:
        """The first test with rare random numbers: all at one end of what may be drawn, or some at the other.

        Two coins differ in some bit of their numbers, so that all four of their answers come up together.
        """
        with trial.watched() as coins:
            trial.run(rows, units[:1])
            batches = list(exchanged(rows, units, _WAYS[0]))
            for bit, place in product((None, *range(_BITS)), _EXTREMES):
                if bit is not None and coins.draws <= 1 << bit:
                    break
                with trial.constant(place, bit):
                    for other, asked in batches if bit is None else batches[-1:]:
                        undecided = undecided or self._opened(trial, rows, other, asked)
        return undecided or coins.unseen

    def _chosen(self, trial: Trial, rows: list[Any], count: int) -> list[int]:
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

    def _whole(self, trial: Trial, rows: list[Any]) -> str:
        """Half of all rows, in differing shares, beside another other half: nothing, what is undecided, or an error."""
        half = torch.randperm(len(rows), generator=self._generator) < len(rows) // 2
        shares = torch.where(half, torch.rand(len(rows), generator=self._generator) + 0.5, 0.0)
        if not half.any():
            return ""
        kept = [i for i, mine in enumerate(half.tolist()) if mine]
        changed = (found for way in (_WAYS[1], _WAYS[0]) for found in exchanged(rows, kept, way))
        for other in (batch for batch, staying in changed if staying == kept):
            if all(a is b for a, b in zip(rows, other, strict=True)):
                continue
            try:
                distance = self._halves(trial, rows, other, shares)
            except CannotRunError:
                continue
            if distance is not None and distance > _EXACT:
                try:
                    with trial.constant(), trial.exact():
                        distance = self._halves(trial, rows, other, shares)
                    limit = _SURELY
                except CannotRunError:
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

    def _half(self, trial: Trial, rows: list[Any], kept: list[int], shares: Tensor) -> str:
        """Half of all rows without the other half: nothing, what is undecided, or an error."""
        distance, exact = 0.0, False
        for exactly in (False, True):
            try:
                with trial.constant(), trial.exact() if exactly else nullcontext():
                    one, two = trial.shared(rows, shares), trial.shared([rows[i] for i in kept], shares[kept])
            except CannotRunError:
                break
            if one is None or two is None:
                return ""
            distance, exact = self._apart(one, two), exactly
            if distance <= (_EXACT if exact else _FEW_BITS):
                return ""
        faint = not exact and distance <= _SURELY
        return "" if faint else self._differs(trial, rows[kept[0]], len(rows), distance, exact)

    def _halves(self, trial: Trial, one: list[Any], two: list[Any], shares: Tensor) -> float | None:
        """How far two batches' gradients are from each other; None where a loss is not finite."""
        first, second = trial.shared(one, shares), trial.shared(two, shares)
        return None if first is None or second is None else self._apart(first, second)

    def _counted(self, trial: Trial, rows: list[Any]) -> tuple[set[str], set[str]]:
        """What is written alike, and not alike, where there is one row fewer."""
        try:
            with trial.constant():
                return trial.written(*(trial.run(some, [], state=True).state for some in (rows, rows[:-1])))
        except CannotRunError:
            return set(), set()

    def _opened(self, trial: Trial, rows: list[Any], other: list[Any], units: list[int]) -> str:
        """The same with perturbed weights, or rare random numbers, which open paths that are closed else."""
        try:
            one, two = trial.run(rows, units), trial.run(other, units)
        except CannotRunError:
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
        trial: Trial,
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
        if equal(one, two):
            return ""
        if not (alike and all(sizes(a) == sizes(b) for a, b in zip(rows, other, strict=True))):
            with trial.constant():
                first, second = trial.run(rows, [unit]), trial.run(other, [unit])
                if not (first.held and second.held):
                    return "random numbers are drawn in ways that cannot be held constant"
                a, b = first.gradients[0], second.gradients[0]
                if not equal(a, b) and (found := self._differing(trial, rows, other, unit, a, b, way)):
                    return found
            turned = alike and sorted(map(id, rows)) == sorted(map(id, other))
            return (
                "a row's gradient changed with the order of the others, by random numbers or by mixing"
                if turned
                else ""
            )
        return self._differing(trial, rows, other, unit, one, two, way)

    def _differing(
        self, trial: Trial, rows: list[Any], other: list[Any], unit: int, one: Tensor, two: Tensor, way: str
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

    def _alone(self, trial: Trial, rows: list[Any], units: list[int]) -> str:
        """The second test: nothing, what is undecided, or a PrivacyError."""
        exact = True
        with trial.constant():
            try:
                with trial.exact():
                    beside = trial.run(rows, units)
            except CannotRunError:
                exact = False
                beside = trial.run(rows, units)
            for unit, gradient in zip(units, beside.gradients, strict=True):
                with trial.exact() if exact else nullcontext():
                    try:
                        alone = trial.run([rows[unit]], [0])
                    except CannotRunError:  # a model that refuses a batch of one
                        alone = trial.run([rows[unit]] * 2, [0])
                if not (beside.held and alone.held):
                    return "random numbers are drawn in ways that cannot be held constant"
                distance = self._apart(gradient, alone.gradients[0])
                if distance > _EXACT and (found := self._differs(trial, rows[unit], len(rows), distance, exact)):
                    return found
        return ""

    def _together(self, trial: Trial, rows: list[Any]) -> str:
        """Whether one backward pass of all losses gives the sum of each one's gradient, as a derivative does."""
        distance, exact = self._surplus(trial, rows), False
        if distance > _EXACT:
            try:
                with trial.exact():
                    distance, exact = self._surplus(trial, rows), True
            except CannotRunError:
                pass
        if distance > (_SURELY if exact else _COARSE):
            raise PrivacyError(
                "the model or the loss mixes examples in its backward pass: the gradient of all losses together is not "
                "the sum of their gradients. A backward of one's own, or a hook, must treat each row by itself."
            )
        return "" if distance <= _EXACT or not exact else "gradients do not quite add up, as rounding may, or mixing"

    def _surplus(self, trial: Trial, rows: list[Any]) -> float:
        run = trial.run(rows, list(range(len(rows))), together=True)
        assert run.together is not None
        if not all(bool(g.isfinite().all()) for g in (*run.gradients, run.together)):
            return 0.0  # it says nothing
        size = sum(map(_length, run.gradients))
        each = torch.stack([g.double() for g in run.gradients]).sum(0)
        return _length(run.together.double() - each) / size if size else 0.0

    def _differs(self, trial: Trial, row: Any, count: int, distance: float, exact: bool) -> str:
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

    def _rounding(self, trial: Trial, row: Any, count: int) -> tuple[float, bool]:
        """How far batches of one, two and more copies of a row differ, and whether that was in float64."""
        for exact in (True, False):
            try:
                with trial.constant(), trial.exact() if exact else nullcontext():
                    runs = []
                    for size in (1, 2, count):
                        try:
                            runs.append(trial.run([row] * size, [0]).gradients[0])
                        except CannotRunError:
                            if size > 1:
                                raise
                told = [g for g in runs if bool(g.isfinite().all())]  # a deviation of one row is none
                return max((self._apart(runs[-1], g) for g in told), default=math.inf), exact
            except CannotRunError:
                continue
        return math.inf, False

    def _carried(self, trial: Trial, rows: list[Any], paths: set[str]) -> None:
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
            except CannotRunError:
                continue
            if distance > max(_ROUNDING * spread, 1e-6):
                raise PrivacyError(
                    f"{name!r} carries something from one batch to the next: the same batch gave other gradients after "
                    "another one had come before it. Keep no state of the data."
                )

    def _apart(self, one: Tensor, two: Tensor) -> float:
        """How far two gradients are from each other, of their length; a number and a NaN are infinitely far."""
        if equal(one, two):
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
        sizes = [extent(row) for row in some]
        if sizes and min(sizes) < max(sizes):
            ends = [sizes.index(max(sizes)), sizes.index(min(sizes))]
            some = [some[i] for i in ends] + [row for i, row in enumerate(some) if i not in ends]
        gaps = [i for i, row in enumerate(some) if not is_finite(row)]
        if gaps:
            last = some.pop(gaps[-1])
            some = [*some[: count - 1], last]
        return some[:count]

    def _some(self, values: Sequence[Any], count: int) -> list[Any]:
        """At most so many of them, chosen in secret."""
        chosen = torch.randperm(len(values), generator=self._generator)[: max(0, count)].tolist()
        return [values[i] for i in chosen]


def _drew_alike(one: TrialRun, two: TrialRun) -> bool:
    """Whether two runs, from the same random state on, drew as many random numbers."""
    return one.random is not None and two.random is not None and one.random.equals(two.random)


def _length(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient.nan_to_num(0), dtype=torch.float64))


__all__ = ["Finding", "Isolation"]
