"""Which kernel each parameter's gradients are made by: the fastest ones whose memory fits beside the activations."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from discreet.errors import ConfigError
from discreet.gradients.forms import KEEP, ROWS, TURNS, Cost, Use, turns
from discreet.gradients.graph import Graph

LEAST = 24 << 20  # bytes: what a step keeps beside less than that is lost in what a process takes anyway


def choose(
    uses: Mapping[str, Use],
    places: Mapping[str, int],
    peak: "Peak | None",
    memory: float,
    pins: Mapping[str, str],
    several: Collection[str] = (),
    endings: Sequence[str] = (KEEP, TURNS),
) -> dict[str, str]:
    """A kernel for each parameter that has a choice: pinned, or the fastest that the memory allows (0: none is kept).

    `places` are the ops at which the parameters' gradients are taken; those with `several` uses are measured when the
    pass is over. The `peak` of a step may be `memory` times that of an ordinary one, or of LEAST; without one, nothing
    is kept. What is kept is so by kernels with one of the `endings`: by the one that takes less memory, or, if there is
    no limit, by the first, as it has fewer calls.
    """
    found: dict[str, str] = {}
    options: dict[str, dict[str, Cost]] = {}
    for name, use in uses.items():
        costs = use.kernels()
        if not costs:
            continue
        pinned = pins.get(name, pins.get("*"))
        if pinned in costs:
            found[name] = pinned
        elif name in pins:
            raise ConfigError(f"parameter {name!r} has no kernel {pinned!r}; it has {', '.join(sorted(costs))}.")
        else:
            options[name] = costs
            possible = [k for k in costs if not costs[k].kept and (TURNS in endings or not k.endswith(TURNS))]
            found[name] = min(possible, key=lambda k: costs[k].time)
    if peak is None:
        return apart(found, pins)
    peak.expect(uses, places)
    better: list[tuple[float, str, str]] = []
    for name, costs in options.items():
        best = min(costs, key=lambda k: costs[k].time)
        gain = costs[found[name]].time - costs[best].time
        if costs[best].kept and gain > 0:
            better.append((gain / costs[best].kept, name, best.partition("+")[0]))
    limit = memory * max(peak.ordinary, LEAST)
    if TURNS in endings and limit < math.inf:  # together: a turn is no larger for many parameters than for one
        all_of_them = found | {name: way + TURNS for _, name, way in better}
        for _, name, way in better:
            if name not in several:
                all_of_them = min(all_of_them, all_of_them | {name: way + KEEP}, key=peak.sizes)
        if peak.of(all_of_them) <= limit:
            return apart(all_of_them, pins)
    for _, name, way in 2 * sorted(better, reverse=True):  # twice, as keeping frees what gradients are made of
        if options[name][found[name]].kept:
            continue
        trials = [found | {name: way + ending} for ending in endings if ending != KEEP or name not in several]
        best = found if not trials else trials[0] if limit == math.inf else min(trials, key=peak.sizes)
        # what is past the limit without it may be so with it, if by no more
        if peak.of(best) <= (max(limit, peak.of(found)) if limit else limit):
            found = best
    return apart(found, pins)


def apart(found: Mapping[str, str], pins: Mapping[str, str]) -> dict[str, str]:
    """The same, but that rows have their turn only where no gradients have theirs: few units at a time, for those."""
    if not any(kernel.endswith(TURNS) and not kernel.startswith(ROWS) for kernel in found.values()):
        return dict(found)
    chosen = {name for name in found if name not in pins and pins.get("*") != found[name]}
    return {name: ROWS if kernel == ROWS + TURNS and name in chosen else kernel for name, kernel in found.items()}


class Peak:
    """The most memory that a backward pass takes, in bytes, for a choice of kernels.

    As the pass goes from op to op, it takes the gradients of the op's outputs and inputs, frees what the op saved, and
    adds what is kept or held for it until the sum is taken. When it is over, there are the gradients of the units that
    have their turn. `ordinary` is the peak where nothing is kept or held. It is made before the pass, which frees what
    it looks at; `own` tensors are the model's, which no step frees.
    """

    def __init__(self, graph: Graph, own: Iterable[Tensor]) -> None:
        order = sorted(range(len(graph.nodes)), key=lambda i: -graph.nodes[i]._sequence_nr())
        self._place = {node: at for at, node in enumerate(order)}
        mine = {storage(t) for t in own}
        self._marks: list[StorageWeakRef] = []  # while they are there, no other storage is taken for one that has gone
        self._bytes: dict[int, int] = {}
        self._freed: dict[int, int] = {}  # the last op, in the order of the backward pass, that needs a tensor
        for i, node in enumerate(graph.nodes):
            for tensor in saved_tensors(node):
                key = storage(tensor)
                if key not in mine:
                    self._marks.append(StorageWeakRef(tensor.untyped_storage()))
                    self._bytes[key] = tensor.untyped_storage().nbytes()
                    self._freed[key] = max(self._freed.get(key, 0), self._place[i])
        self._passing = [0] * len(order)  # gradients on their way through an op
        for i, node in enumerate(graph.nodes):
            made = [m.dtype.itemsize * math.prod(m.shape) for m in node._input_metadata if m.shape is not None]
            self._passing[self._place[i]] = 2 * sum(made) if graph.inputs[i] else 0
        self.ordinary, _ = self._highest([], (), 0)

    def expect(self, uses: Mapping[str, Use], places: Mapping[str, int]) -> None:
        """What will be taken apart, and at which ops."""
        self._uses = uses
        self._at = {name: self._place[places[name]] for name in uses}
        self._costs = {name: use.kernels() for name, use in uses.items()}
        self._held = {
            name: {storage(t): t.untyped_storage().nbytes() for t in use.held()} for name, use in uses.items()
        }

    def of(self, kernels: Mapping[str, str]) -> int:
        """The peak with these kernels."""
        return self.sizes(kernels)[0]

    def sizes(self, kernels: Mapping[str, str]) -> tuple[int, int]:
        """The peak with these kernels, and what there is when the pass is over."""
        added: list[tuple[int, int]] = []
        held: set[int] = set()
        turn = units = 0
        for name, use in self._uses.items():
            kernel = kernels.get(name, "")
            if kernel.endswith(KEEP):
                added.append((self._at[name], use.units * self._costs[name][kernel].kept))
                continue
            if kernel.endswith(TURNS):
                turn, units = turn + self._costs[name][kernel].kept, use.units
            for key, size in self._held[name].items():
                if key not in held and key not in self._bytes:
                    added.append((self._at[name], size))
                held.add(key)
        together = turns(units, turn)[0][1] if turn else 0
        return self._highest(added, held, turn * together)

    def _highest(self, added: list[tuple[int, int]], held: Collection[int], after: int) -> tuple[int, int]:
        change = [0] * (len(self._place) + 1)
        for place, size in added:
            change[place] += size
        for key, size in self._bytes.items():
            if key not in held:
                change[self._freed[key] + 1] -= size
        now = peak = sum(self._bytes.values())
        for passing, difference in zip([*self._passing, 0], change, strict=True):
            now += difference
            peak = max(peak, now + passing)
        return max(peak, now + after), now + after


def storage(tensor: Tensor) -> int:
    """What a tensor's memory is known by: not its address, at which there may be another's later."""
    return tensor.untyped_storage()._cdata


def saved_tensors(node: Any) -> list[Tensor]:
    """What an op keeps for its backward pass."""
    found: list[Any] = list(getattr(node, "saved_tensors", ()))
    for name in dir(type(node)):
        if name.startswith("_saved_"):
            value = getattr(node, name)
            found += value if isinstance(value, tuple) else (value,)
    return [v for v in found if isinstance(v, Tensor) and v.layout == torch.strided]
