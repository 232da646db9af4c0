"""What random numbers decide: a choice by chance that was seen on one side only is not vouched for.

Coins are random numbers, and what is made of them alone. Where they are compared, both answers must come up in some
run, or what the other answer does was never tested. A coin that is read as a number can be compared in Python, where
nobody sees it.
"""

import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from discreet.release.preflight.constant_draws import _EXTREMES, _named, _usual

_DROPPING = ("native_dropout", "attention")  # of numbers in a row: no choice
_ORDERED = {"lt", "le", "gt", "ge"}
_READING = {"tolist", "numpy", "__array__"}  # without an op
_INSIDE = {"torch", "discreet"}  # packages that are not where a choice is made


class Coins:
    """Watches some runs, and knows which choices by chance came out in one way only."""

    def __init__(self) -> None:
        self.draws = 0  # the most in one run
        self._read = False
        self._seen: dict[Any, set[bool]] = {}

    @property
    def unseen(self) -> str:
        """What no run has shown; nothing if all was."""
        if self._read:
            return "random numbers are read as numbers, which may decide what is computed"
        if any(len(answers) < 2 for answers in self._seen.values()):
            return "random numbers decide what is computed, and one of their answers was never seen"
        return ""

    def run(self) -> "_Run":
        """A context for one run."""
        return _Run(self)

    def answered(self, place: Any, answers: set[bool]) -> None:
        """These answers came up at a place in the code."""
        self._seen.setdefault(place, set()).update(answers)

    def read(self) -> None:
        """A number was read."""
        self._read = True


class _Run(TorchDispatchMode):
    """One run, whose coins are known by where their values are stored."""

    def __init__(self, coins: Coins) -> None:
        super().__init__()
        self._coins, self._reading = coins, _Reading(self)
        self._draws = 0
        self._drawn: dict[int, Tensor] = {}  # held, so that no place is used twice
        self._ends: dict[int, tuple[Tensor, Tensor]] = {}  # of what may be drawn
        self._masks: set[int] = set()  # numbers that are answers
        self._times: Counter[Any] = Counter()

    def __enter__(self) -> Any:
        self._reading.__enter__()
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._reading.__exit__(exc_type, exc_val, exc_tb)

    def is_coin(self, value: Any) -> bool:
        return isinstance(value, Tensor) and _place(value) in self._drawn

    def read(self) -> None:
        self._coins.read()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if torch._C._current_graph_task_id() != -1:  # a backward pass chooses nothing anew
            return found
        name = func.__name__.partition(".")[0]
        if torch.Tag.nondeterministic_seeded in func.tags:
            if isinstance(found, Tensor) and not any(word in name for word in _DROPPING):
                self._draws += 1
                self._coins.draws = max(self._coins.draws, self._draws)
                self._keep(found)
                self._ends.pop(_place(found) or 0, None)
                if (place := _place(found)) is not None and "randperm" not in name and found.numel():
                    given = _named(func, args, kwargs or {})
                    low, high = (_usual(func.__name__, given, found, end) for end in _EXTREMES)
                    self._ends[place] = low.to(found.dtype), high.to(found.dtype)
            return found
        given = [t for t in tree_flatten((args, kwargs or {}))[0] if isinstance(t, Tensor)]
        coins = [t for t in given if self.is_coin(t)]
        if coins:
            self._note(name, func, args, found, given, coins)
        return found

    def _note(self, name: str, func: Any, args: Any, found: Any, given: list[Tensor], coins: list[Tensor]) -> None:
        """An op of coins: an answer, a number that is read, or another coin."""
        if func._schema.is_mutable:  # no longer as they were drawn
            for coin in coins:
                self._ends.pop(_place(coin) or 0, None)
        if name == "_local_scalar_dense":
            if coins[0].dtype != torch.bool:
                self.read()
            return
        alone = all(self.is_coin(t) or (t.dim() == 0 and not t.requires_grad) for t in given)
        mask = name in ("mul", "_to_copy") and alone and all(_place(t) in self._masks for t in coins)
        for made in (t for t in tree_flatten(found)[0] if isinstance(t, Tensor)):
            answer = made.dtype == torch.bool
            if not (answer or alone):
                continue
            self._keep(made)
            if not (answer or mask):
                continue
            if (place := _place(made)) is not None:
                self._masks.add(place)
            if made.numel() and not self._settled(name, func, args):
                self._coins.answered(self._where(), {bool((made != 0).any()), bool((made != 0).all())})

    def _settled(self, name: str, func: Any, args: Any) -> bool:
        """Whether this answers nothing: a view, or a number as it was drawn against one that chance cannot pass."""
        if func.is_view:
            return True
        if name not in _ORDERED or isinstance(args[1], Tensor):
            return False
        ends = self._ends.get(_place(args[0]) or 0)
        if ends is None:
            return False
        low, high = (func(end, *args[1:]) for end in ends)
        return bool((low == high).all())

    def _keep(self, coin: Tensor) -> None:
        if (place := _place(coin)) is not None:
            self._drawn[place] = coin

    def _where(self) -> Any:
        """The place in the code that asks, and which time it does."""
        frame: Any = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
            frame = frame.f_back
        place = frame.f_code, frame.f_lasti
        self._times[place] += 1
        return *place, self._times[place]


class _Reading(TorchFunctionMode):
    """Sees coins that are read without an op."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READING and self._run.is_coin(args[0]):
            self._run.read()
        return func(*args, **(kwargs or {}))


def _place(value: Tensor) -> int | None:
    """Where a tensor's values are stored; nothing where it has no storage of its own."""
    try:
        return value.untyped_storage()._cdata
    except RuntimeError:
        return None
