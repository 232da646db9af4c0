"""Does a unit's gradient depend on who else is in the batch? Tested on the gradients themselves.

What the guarantee needs is just that, so two tests ask just that, of a few units chosen in secret:

- *beside others*: the same place in a batch of the same size, the same random numbers, and the other rows replaced: by
  one another, by far ones, by copies of the unit. The unit's gradient must be the same, bit for bit;
- *alone*: in a batch of its own, with random numbers held constant, in float64: the same to 1e-9.

Where a difference may be rounding (other sizes are other kernels), batches of one, two and more copies of the unit
show how much rounding there is. What no test can decide is said to be undecided, and never refused. What a forward pass
writes into the model is compared between the same runs: it must not depend on the rows.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import PrivacyError
from discreet.release.batching import Collate
from discreet.release.loss_function import LossFn
from discreet.release.preflight.batches import _far, are_finite, exchanged, extent, is_finite, sharing, sizes
from discreet.release.preflight.constant_draws import _EXTREMES
from discreet.release.preflight.differences import COARSE, EXACT, FEW_BITS, ROUNDING, SURELY, Differences, length
from discreet.release.preflight.trial import CannotRunError, Trial, TrialRun, equal, seeded_apart

_FIRST_ROWS, _FIRST_UNITS = 12, 3
_LATER_ROWS, _LATER_UNITS = 8, 1
_KEPT = 4  # one in so many rows of a whole batch stays when the others are exchanged
_TRIED = 12  # rows among which some with a gradient are looked for
_BITS = 3  # of the numbers of draws: eight of them are told apart
_TOGETHER = 6, 3  # rows whose gradients are taken one by one and together, at first and later
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
        self._differences = Differences()
        self._generator = torch.Generator()
        self._generator.seed()
        self._turn, self._wholes = 0, 0

    def test(
        self,
        loss_fn: LossFn,
        rows: Sequence[Any],
        collate: Collate,
        *,
        first: bool,
        whole: bool = False,
        data: Sequence[Any] = (),
    ) -> Finding:
        """Compare the gradients of some of these rows. A PrivacyError says what mixes them, or what is kept of them.

        The `first` test does most. `whole` compares in a batch of all of them, too. Rows that spoil others' losses or
        gradients, as they are not finite, are left out. `data` is the data set, which a collate function may lead to.
        """
        trial = Trial(self._model, loss_fn, collate, data)
        try:
            all_finite, most = are_finite(rows), _FIRST_ROWS if first else _LATER_ROWS
            every: list[Any] = []
            if alike := all_finite and len({extent(row) for row in rows}) == 1:  # there is nothing to choose them by
                every = trial.with_finite_losses(self._some(rows, most))
            if len(every) < min(most, len(rows)):
                alike = False
                every = [] if all_finite else trial.with_finite_losses(list(rows))
                if not any(map(is_finite, every)):
                    every = trial.with_finite_losses([row for row in rows if all_finite or is_finite(row)])
            some = self._differing_most(every, most, all_finite=all_finite)
            if not some:
                return Finding(tested=False)
            found = self._test(trial, some if len(some) > 1 else 2 * some, first)
            if not found.tested and not found.undecided and not all(map(is_finite, some)):
                every = [row for row in every if is_finite(row)]
                some = self._differing_most(every, len(some), all_finite=True)
                found = self._test(trial, some if len(some) > 1 else 2 * some, first)
            every = list(rows) if alike else every
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
        units, base = self._chosen(trial, rows, _FIRST_UNITS if first else _LATER_UNITS)
        if base is None:
            return Finding(tested=False)
        if not all(bool(g.isfinite().all()) for g in base.gradients):
            return Finding(tested=False)
        self._differences.longest = max(map(length, base.gradients))
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
                drawn = _drew_alike(trial, base, found)
                undecided = undecided or seeded_apart(base, found)
                for unit, one, two in zip(asked, mine, found.gradients, strict=True):
                    undecided = undecided or self._beside(trial, rows, other, unit, one, two, way, alike=drawn)
                tested = True
                alike, apart = trial.written(base.state, found.state)
                compared |= alike
                kept |= apart
        if _WAYS[-1] in ways:
            undecided = undecided or self._shares(trial, rows, units[0], base.gradients[0])
        alike, apart, seeded = self._counted(trial, rows, None if trial.drew(base) else base)
        compared, kept, undecided = compared | alike, kept | apart, undecided or seeded
        if kept:
            self._carried(trial, rows, kept)
        undecided = (
            undecided or self._alone(trial, rows, units[:2]) or self._together(trial, rows[: _TOGETHER[not first]])
        )
        if first:
            with trial.perturbed(self._generator):
                undecided = undecided or self._opened(trial, rows, units, exchanged(rows, units, _WAYS[0]))
        if trial.drew(base):
            undecided = self._by_chance(trial, rows, units, undecided)
        if base.asked and not undecided:
            undecided = "the model or the loss asks the clock, or the system for random numbers, which no test can hold"
        return Finding(tested and not undecided, undecided, frozenset(compared), frozenset(kept))

    def _shares(self, trial: Trial, rows: list[Any], unit: int, one: Tensor) -> str:
        """Whether a row's gradient changes where rows of other sizes share a part with it: a user, or a class."""
        other = sharing(rows, unit)
        if other is None:
            return ""
        try:
            found = trial.run(other, [unit])
            if not found.finite:
                return ""
            return self._beside(trial, rows, other, unit, one, found.gradients[0], _WAYS[-1], alike=False)
        except CannotRunError:
            return ""
        except PrivacyError:
            return "a row's gradient changed with rows of other sizes that have a part in common with it"

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
                    some = batches if bit is None else batches[-1:]
                    undecided = undecided or self._opened(trial, rows, units, some)
        return undecided or coins.unseen

    def _chosen(self, trial: Trial, rows: list[Any], count: int) -> tuple[list[int], TrialRun | None]:
        """The places of some rows, the last among them, with gradients that are not zero, and the run that gave them.

        None if there are no such rows. One whose gradient is zero is added, if one was met: others may have made it so.
        """
        last = len(rows) - 1
        order = [last, *self._some(range(last), last)]
        found: list[int] = []
        zero: list[int] = []
        for start in range(0, min(len(order), _TRIED), count):
            some = order[start : start + count]
            run = trial.run(rows, some, state=True)
            with_gradient = [unit for unit, g in zip(some, run.gradients, strict=True) if bool((g != 0).any())]
            if with_gradient == some and not found:
                return some, run
            found += with_gradient
            zero += [unit for unit in some if unit not in with_gradient]
            if len(found) >= count:
                break
        found = found[:count] and [*found[:count], *zero[:1]]
        return found, trial.run(rows, found, state=True) if found else None

    def _whole(self, trial: Trial, rows: list[Any]) -> str:
        """Some of all rows, in differing shares, beside others and alone: nothing, what is undecided, or an error.

        The others are exchanged, and far away; after the first time one of these, in turn.
        """
        kept = sorted(self._some(range(len(rows)), max(len(rows) // _KEPT, min(2, len(rows) - 1))))
        if not kept:
            return ""
        shares = torch.zeros(len(rows))
        shares[kept] = torch.rand(len(kept), generator=self._generator) + 0.5
        base, drew = trial.shared(rows, shares), trial.drew_since()
        if base is None and len(finite := trial.with_finite_losses(rows)) < len(rows):
            return self._whole(trial, finite)
        ways = _WAYS[:2] if self._wholes == 0 else (_WAYS[self._wholes % 2],)
        self._wholes += 1
        for other in (found for way in ways for found, staying in exchanged(rows, kept, way) if staying == kept):
            if all(a is b for a, b in zip(rows, other, strict=True)):
                continue
            try:
                distance = self._from(base, trial.shared(other, shares))
            except CannotRunError:
                continue
            if (
                distance is not None
                and distance > EXACT
                and (undecided := self._differing_whole(trial, rows, other, shares))
            ):
                return undecided
        return self._few(trial, rows, kept, shares, None if drew else base)

    def _differing_whole(self, trial: Trial, rows: list[Any], other: list[Any], shares: Tensor) -> str:
        """Gradients in a whole batch differ: by rounding, by mixing, or nobody can say."""
        try:
            with trial.constant(), trial.exact():
                distance, exact = self._from(trial.shared(rows, shares), trial.shared(other, shares)), True
        except CannotRunError:
            distance, exact = self._from(trial.shared(rows, shares), trial.shared(other, shares)), False
        if distance is not None and distance > (SURELY if exact else COARSE):
            raise PrivacyError(
                "the model or the loss mixes examples: in a batch of this size rows' gradients changed with "
                "the rows beside it. Compute nothing over the batch, not even detached: no statistics, no "
                "choice of rows, no capacity."
            )
        if distance is not None and distance > (EXACT if exact else SURELY):
            return "gradients in a whole batch changed a little with the others, as rounding may, or mixing"
        return ""

    def _few(self, trial: Trial, rows: list[Any], kept: list[int], shares: Tensor, base: Tensor | None) -> str:
        """Some rows of a whole batch without the others: nothing, what is undecided, or an error.

        `base` is the gradient with the others where no random number was drawn, which need not be held then.
        """
        distance, exact = 0.0, False
        for exactly in (False, True):
            try:
                with trial.constant(), trial.exact() if exactly else nullcontext():
                    one = base if base is not None and not exactly else trial.shared(rows, shares)
                    two = trial.shared([rows[i] for i in kept], shares[kept])
            except CannotRunError:
                break
            if one is None or two is None:
                return ""
            distance, exact = self._differences.apart(one, two), exactly
            if distance <= (EXACT if exact else FEW_BITS):
                return ""
        faint = not exact and distance <= SURELY
        return "" if faint else self._differences.alone(trial, rows[kept[0]], len(rows), distance, exact)

    def _from(self, one: Tensor | None, two: Tensor | None) -> float | None:
        """How far two batches' gradients are from each other; None where a loss is not finite."""
        return None if one is None or two is None else self._differences.apart(one, two)

    def _counted(self, trial: Trial, rows: list[Any], base: TrialRun | None) -> tuple[set[str], set[str], str]:
        """What is written alike, and not alike, where there is one row fewer; and what that leaves undecided.

        `base` is the run of all rows where no random number was drawn, which need not be held then.
        """
        try:
            with trial.constant():
                one = base or trial.run(rows, [], state=True)
                fewer = trial.run(rows[:-1], [], state=True)
                return *trial.written(one.state, fewer.state), seeded_apart(one, fewer)
        except CannotRunError:
            return set(), set(), ""

    def _opened(
        self, trial: Trial, rows: list[Any], units: list[int], batches: Iterable[tuple[list[Any], list[int]]]
    ) -> str:
        """The same with perturbed weights, or rare random numbers, which open paths that are closed else."""
        one: TrialRun | None = None
        for other, asked in batches:
            try:
                one = one or trial.run(rows, units)
                two = trial.run(other, asked)
            except CannotRunError:
                continue
            if not (one.finite and two.finite and one.held and two.held):
                continue
            alike = _drew_alike(trial, one, two)
            mine = [one.gradients[units.index(unit)] for unit in asked]
            for unit, a, b in zip(asked, mine, two.gradients, strict=True):
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
        alike: bool | None,
    ) -> str:
        """The first test, of one unit: nothing, what is undecided, or a PrivacyError.

        Where the two batches did not draw `alike` (the others decide how far it is padded, and so how many random
        numbers there are), or rows of other sizes stand before it, a unit may have got other random numbers, which says
        nothing: they are held constant then. Rows that only turned round leave a unit its own; if it changes with them,
        and not with constants, nobody can say why, unless nothing was drawn (`alike` is None): then it was rounding.
        """
        if equal(one, two):
            return ""
        if alike is False or not all(sizes(a) == sizes(b) for a, b in zip(rows, other, strict=True)):
            with trial.constant():
                first, second = trial.run(rows, [unit]), trial.run(other, [unit])
                if not (first.held and second.held):
                    return "random numbers are drawn in ways that cannot be held constant"
                a, b = first.gradients[0], second.gradients[0]
                if not equal(a, b) and (found := self._differences.beside(trial, rows, other, unit, a, b, way)):
                    return found
            turned = alike is True and sorted(map(id, rows)) == sorted(map(id, other))
            return (
                "a row's gradient changed with the order of the others, by random numbers or by mixing"
                if turned
                else ""
            )
        return self._differences.beside(trial, rows, other, unit, one, two, way)

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
                distance = self._differences.apart(gradient, alone.gradients[0])
                if distance > EXACT and (
                    found := self._differences.alone(trial, rows[unit], len(rows), distance, exact)
                ):
                    return found
        return ""

    def _together(self, trial: Trial, rows: list[Any]) -> str:
        """Whether one backward pass of all losses gives the sum of each one's gradient, as a derivative does."""
        try:
            with trial.exact():
                distance, exact = self._surplus(trial, rows), True
        except CannotRunError:
            distance, exact = self._surplus(trial, rows), False
        if distance > (SURELY if exact else COARSE):
            raise PrivacyError(
                "the model or the loss mixes examples in its backward pass: the gradient of all losses together is not "
                "the sum of their gradients. A backward of one's own, or a hook, must treat each row by itself."
            )
        return "" if distance <= EXACT or not exact else "gradients do not quite add up, as rounding may, or mixing"

    def _surplus(self, trial: Trial, rows: list[Any]) -> float:
        run = trial.run(rows, list(range(len(rows))), together=True)
        assert run.together is not None
        if not all(bool(g.isfinite().all()) for g in (*run.gradients, run.together)):
            return 0.0  # it says nothing
        size = sum(map(length, run.gradients))
        each = torch.stack([g.double() for g in run.gradients]).sum(0)
        return length(run.together.double() - each) / size if size else 0.0

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
        spread = self._differences.apart(one, again)
        for before in (rows[::-1], rows[:1] * len(rows), [_far(row) for row in rows], rows[: len(rows) // 2]):
            try:
                distance = self._differences.apart(one, trial.after(before, rows))
            except CannotRunError:
                continue
            if distance > max(ROUNDING * spread, 1e-6):
                raise PrivacyError(
                    f"{name!r} carries something from one batch to the next: the same batch gave other gradients after "
                    "another one had come before it. Keep no state of the data."
                )

    def _differing_most(self, rows: Sequence[Any], count: int, *, all_finite: bool) -> list[Any]:
        """Some rows: the longest first and the shortest next, if there are any, and last one that has gaps."""
        some = self._some(rows, len(rows))
        sizes = [extent(row) for row in some]
        if sizes and min(sizes) < max(sizes):
            ends = [sizes.index(max(sizes)), sizes.index(min(sizes))]
            some = [some[i] for i in ends] + [row for i, row in enumerate(some) if i not in ends]
        gaps = [] if all_finite else [i for i, row in enumerate(some) if not is_finite(row)]
        if gaps:
            last = some.pop(gaps[-1])
            some = [*some[: count - 1], last]
        return some[:count]

    def _some(self, values: Sequence[Any], count: int) -> list[Any]:
        """At most so many of them, chosen in secret."""
        chosen = torch.randperm(len(values), generator=self._generator)[: max(0, count)].tolist()
        return [values[i] for i in chosen]


def _drew_alike(trial: Trial, one: TrialRun, two: TrialRun) -> bool | None:
    """Whether two runs, from the same random state on, drew as many random numbers; None where they drew none."""
    if not (trial.drew(one) or trial.drew(two)):
        return None
    return one.random is not None and two.random is not None and one.random.equals(two.random)


__all__ = ["Finding", "Isolation"]
