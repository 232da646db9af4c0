"""What can be reached from a model or a loss, and be put back."""

import functools
import importlib
import itertools
from contextvars import ContextVar
from decimal import Decimal
from queue import SimpleQueue
from threading import Lock

import numpy as np
import pytest
import torch
from torch import nn

from discreet.release.preflight.model_state import Snapshot, contents
from discreet.release.preflight.reachable import is_opaque, is_own, reachable, sealed

total, history = 0, []


class Held:
    """Something of one's own, with what its class holds."""

    shared: list = []  # noqa: RUF012 (what is tested)

    def method(self):
        return history

    @functools.lru_cache  # noqa: B019 (what is tested)
    def kept(self):
        return total


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def paths(value):
    return {path for path, _ in reachable({"": value})}


def function(x, *, seen=[1.5]):  # noqa: B006 (what is tested)
    return x + len(seen)


def test_classes_of_ones_own_are_entered_with_the_globals_that_their_functions_name():
    found = paths(Held())
    assert {"Held.shared", "Held.method.history", "Held.kept.function.total"} <= found
    assert is_own(Held)
    assert not any(map(is_own, (nn.Linear, dict, functools.partial)))
    assert "Linear" not in paths(nn.Linear(1, 1))


def test_a_function_holds_its_keywords_and_attributes():
    function.mean = 2.5
    try:
        assert contents({"": function}) | {"keywords.seen.0": 1.5, "attributes.mean": 2.5} == contents({"": function})
    finally:
        del function.mean


def test_what_a_class_a_function_and_a_weight_were_given_is_taken_away_again():
    class Net(nn.Module):
        top = 1.0

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    net = Net()
    before = Snapshot({"model": net, "loss": function})
    Net.top, Net.more, function.mean, net.weight.range = 2.0, [1], 2.5, 3.0
    before.restore()
    assert before.whole
    assert Net.top == 1.0
    assert not any(hasattr(*of) for of in ((Net, "more"), (function, "mean"), (net.weight, "range")))


def test_an_empty_cache_is_emptied_again_and_a_filled_one_is_let_be():
    @functools.cache
    def cached(key):
        return key

    empty = Snapshot({"": cached})
    cached(1)
    empty.restore()
    assert cached.cache_info().currsize == 0
    cached(1)
    filled = Snapshot({"": cached})
    cached(2)
    filled.restore()
    assert cached.cache_info().currsize == 2


def sums():
    value = yield 0.0
    while True:
        value = yield value


def started():
    made = sums()
    next(made)
    return made


MOVING = {
    "a generator": (started, lambda it: it.send(1.0)),
    "a count": (itertools.count, next),
    "a list's iterator": (lambda: iter([1, 2]), next),
    "an iterator of iterators": (lambda: zip([1, 2], itertools.count(), strict=False), next),
    "a variable of a context": (lambda: ContextVar("mean"), lambda v: v.set(1.0)),
}


@pytest.mark.parametrize(("make", "move"), MOVING.values(), ids=MOVING)
def test_what_cannot_be_put_back_is_said_if_it_moved(make, move):
    value = make()
    before = Snapshot({"": [value]})
    before.restore()
    assert before.whole
    move(value)
    before.restore()
    assert not before.whole


def test_what_compiled_code_holds_is_told_by_its_pickle_or_not_at_all():
    assert is_opaque(Decimal(1))
    assert sealed(Decimal(1)) == sealed(Decimal("1")) != sealed(Decimal(2))
    queue = SimpleQueue()
    assert is_opaque(queue)
    assert sealed(queue) != sealed(queue)  # nobody knows
    assert not any(map(is_opaque, (1, [], {}, nn.ReLU(), Lock(), Slotted(1.0), lambda: 0, iter([]), Decimal)))


def test_a_module_of_ones_own_that_code_names_is_entered(tmp_path, monkeypatch):
    (tmp_path / "my_settings.py").write_text("rate = 0.5\ndef function(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = importlib.import_module("my_settings")
    code = {"settings": settings, "torch": torch, "__name__": "elsewhere"}
    exec("def loss(x):\n    return x * settings.rate + torch.ones(())", code)
    found = dict(reachable({"loss": code["loss"]}))
    assert found["loss.settings.rate"] == 0.5
    assert not any("function" in path or "torch" in path for path in found)


def test_a_compiled_class_that_has_no_module_of_its_own_is_not_entered():
    kind = type(np.random.rand)
    assert is_own(kind) is False
    assert dict(reachable({"": np.random.rand}))
