"""Which kernel each parameter's gradients are made by: the fastest ones whose memory fits beside the activations."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from discreet.errors import ConfigError
from discreet.gradients.forms.base import CHUNKED, ROWS, STORED, Cost, Kernel, PerExampleGrad, chunks
from discreet.gradients.graph import Graph
from discreet.gradients.torch_internals import saved_tensors, sequence_number, storage_key

LEAST = 24 << 20  # bytes: what a step stores beside less than that is lost in what a process takes anyway


@dataclass(frozen=True)
class KernelPlan:
    """The kernel of each parameter that has a choice."""

    of: Mapping[str, Kernel]

    @cached_property
    def chunked(self) -> frozenset[str]:
        """The parameters whose gradients wait for chunks of units."""
        return frozenset(name for name, kernel in self.of.items() if kernel.storage == CHUNKED)


def choose(
    forms: Mapping[str, PerExampleGrad],
    places: Mapping[str, int],
    peak: "Peak | None",
    memory: float,
    pins: Mapping[str, Kernel],
    several: Collection[str] = (),
    storage_modes: Sequence[str] = (STORED, CHUNKED),
) -> KernelPlan:
    """A kernel for each parameter that has a choice: pinned, or the fastest that the memory allows.

    Args:
        forms: Each parameter's gradients.
        places: The ops at which they are taken.
        peak: The memory of a step; without it, nothing is stored.
        memory: How many times that of an ordinary step, or LEAST, the peak may be (0: nothing is stored).
        pins: Kernels by a parameter's name, or by "*".
        several: Parameters with several uses, which are measured when the pass is over.
        storage_modes: How gradients may be stored: in the way that takes less memory, or, without a limit, in the
            first, as it has fewer calls.

    Raises:
        ConfigError: if a kernel is pinned for a parameter that does not have it.
    """
    chosen: dict[str, Kernel] = {}
    options: dict[str, dict[Kernel, Cost]] = {}
    for name, form in forms.items():
        costs = form.kernels()
        if not costs:
            continue
        pinned = pins.get(name, pins.get("*"))
        if pinned in costs:
            chosen[name] = pinned
        elif name in pins:
            raise ConfigError(
                f"parameter {name!r} has no kernel '{pinned}'; it has {', '.join(sorted(map(str, costs)))}."
            )
        else:
            options[name] = costs
            possible = [k for k in costs if not costs[k].stored and (not k.storage or k.storage in storage_modes)]
            chosen[name] = min(possible, key=lambda k: costs[k].time)
    if peak is None:
        return KernelPlan(disable_row_chunking(chosen, pins))
    peak.expect(forms, places)
    better: list[tuple[float, str, str]] = []
    for name, costs in options.items():
        best = min(costs, key=lambda k: costs[k].time)
        gain = costs[chosen[name]].time - costs[best].time
        if costs[best].stored and gain > 0:
            better.append((gain / costs[best].stored, name, best.way))
    limit = memory * max(peak.ordinary, LEAST)
    if CHUNKED in storage_modes and limit < math.inf:  # together: a chunk is no larger for many parameters than for one
        all_of_them = chosen | {name: Kernel(way, CHUNKED) for _, name, way in better}
        for _, name, way in better:
            if name not in several:
                all_of_them = min(all_of_them, all_of_them | {name: Kernel(way, STORED)}, key=peak.sizes)
        if peak.of(all_of_them) <= limit:
            return KernelPlan(disable_row_chunking(all_of_them, pins))
    for _, name, way in 2 * sorted(better, reverse=True):  # twice, as storing frees what gradients are made of
        if options[name][chosen[name]].stored:
            continue
        modes = [mode for mode in storage_modes if mode != STORED or name not in several]
        trials = [chosen | {name: Kernel(way, mode)} for mode in modes]
        best = chosen if not trials else trials[0] if limit == math.inf else min(trials, key=peak.sizes)
        # what is past the limit without it may be so with it, if by no more
        if peak.of(best) <= (max(limit, peak.of(chosen)) if limit else limit):
            chosen = best
    return KernelPlan(disable_row_chunking(chosen, pins))


def disable_row_chunking(kernels: Mapping[str, Kernel], pins: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """The kernels, but for rows, which wait for chunks only where no gradients do: those chunks are of few units."""
    if not any(kernel.storage == CHUNKED and kernel.way != ROWS.way for kernel in kernels.values()):
        return dict(kernels)
    free = {name for name in kernels if name not in pins and pins.get("*") != kernels[name]}
    return {name: ROWS if kernel.way == ROWS.way and name in free else kernel for name, kernel in kernels.items()}


class Peak:
    """The most memory that a backward pass takes, in bytes, for a choice of kernels.

    As the pass goes from op to op, it takes the gradients of the op's outputs and inputs, frees what the op saved, and
    adds what is stored or held for it until the sum is taken. When it is over, there are the gradients of one chunk of
    units. `ordinary` is the peak where nothing is stored or held. It is made before the pass, which frees what
    it looks at; `own` tensors are the model's, which no step frees.
    """

    def __init__(self, graph: Graph, own: Iterable[Tensor]) -> None:
        order = sorted(range(len(graph.nodes)), key=lambda i: -sequence_number(graph.nodes[i]))
        self._place = {node: at for at, node in enumerate(order)}
        mine = {storage_key(t) for t in own}
        self._marks: list[StorageWeakRef] = []  # while they are there, no other storage is taken for one that has gone
        self._bytes: dict[int, int] = {}
        self._freed: dict[int, int] = {}  # the last op, in the order of the backward pass, that needs a tensor
        for i, node in enumerate(graph.nodes):
            for tensor in saved_tensors(node):
                if tensor.layout != torch.strided:
                    continue
                key = storage_key(tensor)
                if key not in mine:
                    self._marks.append(StorageWeakRef(tensor.untyped_storage()))
                    self._bytes[key] = tensor.untyped_storage().nbytes()
                    self._freed[key] = max(self._freed.get(key, 0), self._place[i])
        self._passing = [0] * len(order)  # gradients on their way through an op
        for i, node in enumerate(graph.nodes):
            made = [m.dtype.itemsize * math.prod(m.shape) for m in node._input_metadata if m.shape is not None]
            self._passing[self._place[i]] = 2 * sum(made) if graph.inputs[i] else 0
        self.ordinary, _ = self._highest([], (), 0)

    def expect(self, forms: Mapping[str, PerExampleGrad], places: Mapping[str, int]) -> None:
        """What will be taken apart, and at which ops."""
        self._forms = forms
        self._at = {name: self._place[places[name]] for name in forms}
        self._costs = {name: form.kernels() for name, form in forms.items()}
        self._held = {
            name: {storage_key(t): t.untyped_storage().nbytes() for t in form.held()} for name, form in forms.items()
        }

    def of(self, kernels: Mapping[str, Kernel]) -> int:
        """The peak with these kernels."""
        return self.sizes(kernels)[0]

    def sizes(self, kernels: Mapping[str, Kernel]) -> tuple[int, int]:
        """The peak with these kernels, and what there is when the pass is over."""
        added: list[tuple[int, int]] = []
        held: set[int] = set()
        chunk = units = 0
        for name, form in self._forms.items():
            kernel = kernels.get(name)
            storage = "" if kernel is None else kernel.storage
            size = self._costs[name][kernel].stored if kernel is not None and storage else 0
            if storage == STORED:
                added.append((self._at[name], form.units * size))
                continue
            if storage == CHUNKED:
                chunk, units = chunk + size, form.units
            for key, held_bytes in self._held[name].items():
                if key not in held and key not in self._bytes:
                    added.append((self._at[name], held_bytes))
                held.add(key)
        together = chunks(units, chunk)[0][1] if chunk else 0
        return self._highest(added, held, chunk * together)

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
