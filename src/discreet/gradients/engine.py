"""Each unit's gradient from one backward pass, without making it: book-keeping on the autograd graph."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from discreet._check import check_positive
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients.forms import KEEP, TURNS, InTurns, Known, Materialised, Use, squared_norms, sum_dtype, turns
from discreet.gradients.graph import Edge, Graph, walk
from discreet.gradients.kernels import Peak, choose
from discreet.gradients.layout import VALUES, Members
from discreet.gradients.locate import Analysis, Inseparable, Site, analyse, inside, stand, visit
from discreet.gradients.passes import FreePasses, Passes
from discreet.gradients.reparametrized import Prepared, Several, Way, combine
from discreet.gradients.rules import RULES, SEVERAL_OUTPUTS, Call, OneByOne, Rule, read

MEMORY = 1.3  # times what the forward pass saved
_MOST_KNOWN = 256  # structures remembered; models unrolled over time have one for each length


class Engine:
    """Takes the losses of a batch apart into each unit's gradient.

    Guarantee: `gradients(losses, units)` stands for exactly the gradients of each unit's loss for each parameter, and
    a unit's loss depended on no other unit through any differentiable path seen by the probe; or a PrivacyError.

    `memory` is how much a backward pass may take, as a multiple of what the forward pass saved; `kernels` pins a
    parameter's kernel by its name ("*": of all that have it). Neither changes what the gradients are. `parameters` are
    those that will be trained, where the model has them only while it runs.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: float = MEMORY,
        kernels: Mapping[str, str] | None = None,
        parameters: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        self._model = model
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = trained if parameters is None else dict(parameters)
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._memory = math.inf if memory == math.inf else check_positive("memory", memory, zero=True)
        self._pins = dict(kernels or {})
        unknown = sorted(self._pins.keys() - self.parameters.keys() - {"*"})
        if unknown:
            raise ConfigError(
                f"kernels are pinned for {', '.join(map(repr, unknown))}, which is no trainable parameter."
            )
        self._known: dict[tuple[Any, ...], Structure] = {}
        self._plans: dict[tuple[Any, ...], dict[str, str]] = {}
        self.kernels: dict[str, str] = {}  # those of the last batch that was measured
        self.fresh, self.structure = False, ()  # whether the last graph's structure was new, and what it was
        self.passes: Passes = FreePasses()
        self.known: Known | None = None  # the batch, where its rows' norms are known
        self.endings: tuple[str, ...] = (KEEP, TURNS)  # of the kernels that may be chosen to keep what they make

    def gradients(
        self, losses: Tensor, units: int, *, since: int = 0, probe: bool = False, measure: bool = True
    ) -> "UnitGradients":
        """The gradients of each unit's loss; unit i has rows i * k to (i + 1) * k of the losses.

        `since` is the oldest op that may take part. The isolation of units is probed wherever the graph has a new
        structure, and always if `probe`. With `measure` the norms are taken during the backward pass, so that what
        gradients are made of can be freed as soon as they are made.
        """
        graph = walk(losses, self._names, since, self.passes)
        structure = self._known.get(graph.signature)
        self.fresh, self.structure = structure is None, graph.signature
        if structure is None or structure.suspect or units == 1:
            refuse_by_name(graph, units)
        if units == 1:
            return self._single(losses, graph)
        shapes = None if probe or structure is None else fitting(graph, structure.analysis, units)
        if structure is None or shapes is None:
            known = {} if structure is None else structure.analysis.preparations
            analysis = analyse(graph, losses, units, own_tensors(self._model), known)
            structure = Structure.of(graph, analysis, self.parameters, look=isinstance(self.passes, FreePasses))
            shapes = fitting(graph, analysis, units)
            self._known.pop(graph.signature, None)
            if analysis.evident:
                remember(self._known, graph.signature, structure)
        key = graph.signature, shapes
        plan = self._plans.get(key) if measure else None
        again = structure.analysis.recomputes
        peak = None
        if measure and plan is None and not again:
            peak = Peak(graph, [*here(self._model.parameters()), *self.parameters.values()])
        self.passes.last(reads=structure.reads)
        run = Pass(self, graph, structure, units, plan)
        uses = run.backward(losses)
        self.passes.taken(reads=lambda: any(map(reads_parameters, uses.values())))
        several = structure.analysis.several
        if plan is not None:
            for name in several & uses.keys():
                uses[name].kernel = plan.get(name)
        if measure and plan is None:
            plan = choose(uses, run.places, peak, self._memory, self._pins, several, self.endings)
            remember(self._plans, key, plan)
            for name in plan.keys() & self._pins.keys():  # the others' gradients are not kept beside what they are
                uses[name].kernel = plan[name]  # made of, all of which is held in this first pass
        found = UnitGradients(uses, units, self.parameters, graph.unmanaged_leaves, run.norms)
        if measure:
            self.kernels = plan or {}
            found.measure()
        return found

    def _single(self, losses: Tensor, graph: Graph) -> "UnitGradients":
        """A batch of one unit: its gradient is the gradient."""
        found = torch.autograd.grad(losses.sum(), list(self.parameters.values()), allow_unused=True)
        pairs = zip(self.parameters, found, strict=True)
        uses: dict[str, Use] = {
            name: Materialised(g.detach()[None].to(sum_dtype(g.dtype))) for name, g in pairs if g is not None
        }
        return UnitGradients(uses, 1, self.parameters, graph.unmanaged_leaves)


def remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value, and forget all others where there are too many."""
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = value


@dataclass(frozen=True)
class Take:
    """One input of a site, which depends on parameters alone: what is to be known of it before a pass."""

    number: int
    op: str
    rule: Rule | None
    edge: Edge
    dtype: torch.dtype
    ways: tuple[tuple[str, Way], ...]  # to each parameter below it


@dataclass(frozen=True)
class Structure:
    """What is known of all graphs that have one structure."""

    analysis: Analysis
    takes: Mapping[int, tuple[Take, ...]]  # of each site
    outputs: Mapping[int, tuple[int, ...]]
    may_run_again: bool
    reads: bool  # whether a rule or a preparation needs the values of parameters
    suspect: bool  # whether some op has to be looked at each time: what mixes examples in it is no part of a structure

    @classmethod
    def of(cls, graph: Graph, analysis: Analysis, parameters: Mapping[str, nn.Parameter], *, look: bool) -> "Structure":
        """What an analysis found; with a `look` at how parameters are prepared, for which their values must be here."""
        takes: dict[int, tuple[Take, ...]] = {}
        for site in analysis.sites:
            found = []
            for number in site.inputs:
                edge, names = graph.inputs[site.node][number], site.below[number]
                assert edge is not None
                dtype, op = sum_dtype(parameters[names[0]].dtype), graph.name(site.node)
                ways = tuple((name, Way.of(graph, edge, parameters[name], look=look)) for name in names)
                found.append(Take(number, op, RULES.get((op, number)), edge, dtype, ways))
            takes[site.node] = tuple(found)
        again = any(may_run_again(graph, site) for site in analysis.sites)
        reads = any(_reads(take) for found in takes.values() for take in found)
        outputs = {site.node: tuple(site.outputs) for site in analysis.sites}
        return cls(analysis, takes, outputs, again, reads, any(suspect(type(node)) for node in graph.nodes))


def _reads(take: Take) -> bool:
    """Whether taking gradients apart at an op's input reads the values of parameters."""
    rule = take.rule
    ways = all(way.direct or way.isometric for _, way in take.ways)
    return rule is None or not ways or any(name in ("saved_tensors", "weight0") for name in rule.saves)


def reads_parameters(use: Use) -> bool:
    """Whether a use asks autograd for something that needs the values of parameters."""
    if isinstance(use, Several):
        return any(map(reads_parameters, use.uses))
    if isinstance(use, Prepared):
        return not use.isometric or reads_parameters(use.use)
    return isinstance(use, OneByOne)


class Pass:
    """One backward pass, in which each parameter's gradients are taken apart as soon as they can be."""

    def __init__(
        self, engine: Engine, graph: Graph, structure: Structure, units: int, plan: Mapping[str, str] | None
    ) -> None:
        self._parameters, self._graph, self._structure, self._units = engine.parameters, graph, structure, units
        self._analysis = structure.analysis
        self._known, self._plan = engine.known, plan
        self._saved = read_saved(graph, self._analysis) if self._analysis.recomputes else None
        self._uses: dict[str, list[Use]] = {}
        self._held: list[tuple[Tensor, int]] = []  # what gradients will be made of, and its versions
        self.norms: dict[str, Tensor] = {}
        self.places: dict[str, int] = {}  # the op at which a parameter's gradients are taken

    def backward(self, losses: Tensor) -> dict[str, Use]:
        """Run it; a use for each parameter that took part, measured where there is a plan."""
        known = self._structure
        weights = torch.ones_like(losses)
        visit(
            self._graph, losses, known.outputs, weights, self._visit,
            retain=known.may_run_again, last=known.analysis.last,
        )  # fmt: skip
        if any(tensor._version != version for tensor, version in self._held):
            raise PrivacyError("an op of the model changes a gradient in place while it is taken apart by examples.")
        self._held, self._saved = [], None  # from here on a use alone says how long it needs what it is made of
        return {name: use for name in self._parameters if (use := combine(self._uses.get(name, [])))}

    def _visit(self, node: int, reached: dict[int, Tensor]) -> None:
        """Take the gradients of an op's parameters apart."""
        if not reached:
            return
        shared: dict[str, Any] = {}
        ruled = 0 in reached and not any(map(torch.is_complex, reached.values()))
        for take in self._structure.takes[node]:
            use = self._by_rule(node, take, reached, shared) if ruled else None
            now = use is not None  # an op's own backward is not run inside the pass
            if use is None:
                use = self._one_by_one(node, take, reached)
            for name, way in take.ways:
                found = use if way.direct else way.back(self._graph, self._parameters[name], use)
                self._uses.setdefault(name, []).append(found)
                self.places[name] = node
                if now and self._plan is not None and self._analysis.uses[name] == 1:
                    found.kernel = kernel = self._plan.get(name)
                    if kernel is None or not kernel.endswith(TURNS):
                        self.norms[name] = found.norms()
                self._held += [(tensor, tensor._version) for tensor in found.held()]

    def _by_rule(self, node: int, take: Take, reached: dict[int, Tensor], shared: dict[str, Any]) -> Use | None:
        """The use by the op's rule, or None where there is no rule that covers this call."""
        rule, where = take.rule, self._analysis.rows[node]
        if rule is None or (len(reached) > 1 and take.op not in SEVERAL_OUTPUTS):
            return None
        if isinstance(where, Members) and (where.dim == VALUES or not rule.any_rows):
            return None
        graph, others = self._graph, {k: g for k, g in reached.items() if k} if len(reached) > 1 else {}
        values = read(graph.nodes[node], rule.saves) if self._saved is None else self._saved[node, take.number]
        gradient, number, edge, dtype = reached[0], take.number, take.edge, take.dtype
        call = Call(self._units, where, gradient, others, number, graph, edge, values, dtype, shared, self._known)
        made = rule.make(call)
        return Materialised(made) if isinstance(made, Tensor) else made

    def _one_by_one(self, node: int, take: Take, reached: dict[int, Tensor]) -> Use:
        """The fallback for an op without a rule."""
        graph, edge = self._graph, take.edge
        if self._analysis.recomputes:
            raise Inseparable(
                f"op {take.op} has no rule and its saved values are recomputed (checkpointing), so "
                f"{' and '.join(repr(name) for name, _ in take.ways)} cannot be bounded; leave this part of the "
                "model out of the checkpoint."
            )
        site = next(site for site in self._analysis.sites if site.node == node)
        rows = {k: m.rows for k, m in site.outputs.items()}
        made = graph.nodes[edge[0]]._input_metadata[edge[1]].dtype
        dtype = made if made.is_complex else take.dtype
        return OneByOne(graph.nodes[node], take.number, reached, rows, self._units, graph.shape(edge), dtype)


@dataclass
class UnitGradients:
    """Each unit's gradient: a use for each parameter that took part, zero for the others.

    `strangers` are other tensors that would get a gradient: not parameters the engine was made for.
    """

    uses: dict[str, Use]
    units: int
    parameters: Mapping[str, nn.Parameter]
    unmanaged_leaves: Sequence[Tensor] = ()
    _norms: dict[str, Tensor] = field(default_factory=dict)  # those that were measured already
    _cancelling: dict[str, list[int]] = field(default_factory=dict)  # units whose terms nearly cancel

    def norms(self) -> dict[str, Tensor]:
        """Squared norms per unit, for each parameter."""
        self._measure(self.uses)
        for name, parameter in self.parameters.items():
            if name not in self._norms:
                self._norms[name] = parameter.new_zeros(self.units, dtype=sum_dtype(parameter.dtype))
        return {name: self._norms[name] for name in self.parameters}

    def measure(self) -> None:
        """Measure what waits for no turn, so that what it was made of can go."""
        waiting = self._waiting()
        self._measure([name for name in self.uses if name not in waiting])

    def _waiting(self) -> dict[str, InTurns]:
        """The uses that wait for their units' turns."""
        return {name: use for name, use in self.uses.items() if isinstance(use, InTurns) and use.turn}

    def in_turns(self) -> "Turns | None":
        """The same, in turns of a few units each, if any parameter waits for them."""
        waiting = self._waiting()
        if not waiting:
            return None
        self.measure()
        others = {name: use for name, use in self.uses.items() if name not in waiting}
        known = {name: norms for name, norms in self._norms.items() if name not in waiting}
        rest = UnitGradients(others, self.units, self.parameters, (), known, dict(self._cancelling))
        return Turns(waiting, rest, turns(self.units, sum(use.turn for use in waiting.values())))

    def _measure(self, names: Iterable[str]) -> None:
        for name in names:
            use = self.uses[name]
            if name in self._cancelling:
                continue
            squared = self._norms[name] if name in self._norms else use.norms()
            self._cancelling[name] = cancelling(use, squared)
            for unit in self._cancelling[name]:
                squared[unit] = squared_norms(use.each(unit, unit + 1))[0]
            self._norms[name] = squared

    def add_weighted(self, weights: Mapping[str, Tensor], out: Mapping[str, Tensor]) -> None:
        """Add the sum over units of weight * gradient to `out`, parameter by parameter."""
        self._measure(self.uses)
        for name, use in self.uses.items():
            self._add(name, use, weights[name], out[name])

    def add_one(self, name: str, factors: Tensor, out: Tensor) -> None:
        """The same for one parameter, to `out`."""
        if name in self.uses:
            self._measure([name])
            self._add(name, self.uses[name], factors, out)

    def _add(self, name: str, use: Use, factors: Tensor, out: Tensor) -> None:
        if factors.dtype != out.dtype:
            factors = factors.to(out.dtype)
        cancelling = self._cancelling[name]
        if cancelling:
            factors = factors.clone()
        for unit in cancelling:  # added as they were measured, and not by their terms
            out.add_(use.each(unit, unit + 1)[0].to(out.dtype) * factors[unit])
            factors[unit] = 0.0
        use.add_weighted(factors, out)

    @property
    def cancels(self) -> bool:
        """Whether some unit's gradient is what is left of much longer terms."""
        self._measure(self.uses)
        return any(self._cancelling.values())

    def each(self, start: int, stop: int) -> dict[str, Tensor]:
        """The gradients themselves of units start..stop."""
        return {name: use.each(start, stop) for name, use in self.uses.items()}

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of units start..stop as rows, all parameters side by side in order."""
        dtype = torch.float32
        if any(p.dtype == torch.float64 for p in self.parameters.values()):
            dtype = torch.float64
        first = next(iter(self.parameters.values()))
        found = first.new_empty(stop - start, sum(p.numel() for p in self.parameters.values()), dtype=dtype)
        pieces = found.split([p.numel() for p in self.parameters.values()], 1)
        for name, piece in zip(self.parameters, pieces, strict=True):
            if name in self.uses:
                piece.copy_(self.uses[name].each(start, stop).reshape(stop - start, -1))
            else:
                piece.zero_()
        return found

    def select(self, units: Tensor) -> "UnitGradients":
        """The same for some of the units."""
        uses = {name: use.select(units) for name, use in self.uses.items()}
        known = {name: norms[units] for name, norms in self._norms.items() if name not in uses}
        return UnitGradients(uses, len(units), self.parameters, self.unmanaged_leaves, known)


@dataclass(frozen=True)
class Turns:
    """Gradients that wait until their units have their turn, and the rest, which was measured.

    The gradients of the units of one turn are there all at once, for all parameters that wait: so they are made once,
    measured, weighed and added, and no more than a turn's units have to be kept.
    """

    waiting: Mapping[str, InTurns]
    rest: UnitGradients
    ranges: Sequence[tuple[int, int]]

    def __iter__(self) -> Iterator[UnitGradients]:
        """Turn by turn, the gradients that wait; the norms are all parameters'."""
        rest = self.rest
        known = rest.norms()
        for start, stop in self.ranges:
            uses = {name: use.narrow(start, stop) for name, use in self.waiting.items()}
            norms = {name: norms[start:stop] for name, norms in known.items() if name not in uses}
            yield UnitGradients(uses, stop - start, rest.parameters, (), norms)

    def totals(self) -> dict[str, Tensor]:
        """What was added up turn by turn, and is still to be added to the sum."""
        found = {name: use.total() for name, use in self.waiting.items()}
        return {name: total for name, total in found.items() if total is not None}


_LEFT = 1e-3  # of the terms' lengths: less than that is left of units that nearly cancel


def cancelling(use: Use, squared: Tensor) -> list[int]:
    """The units of which so little is left of their terms that rounding would show."""
    lengths = use.lengths()
    if lengths is None:
        return []
    little = squared.double() < (_LEFT * lengths).square()
    return torch.nonzero(little & lengths.isfinite()).flatten().tolist()


def refuse_by_name(graph: Graph, units: int) -> None:
    """Refuse ops that hide what is needed, or that mix examples by design."""
    for i, node in enumerate(graph.nodes):
        if suspect(type(node)):
            _refuse(graph, i, node, units)


@cache
def suspect(kind: type) -> bool:
    """Whether ops of a kind have to be looked at."""
    name = kind.__name__
    hidden = name in ("CheckpointFunctionBackward", "CompiledFunctionBackward") or "BatchNorm" in name
    return hidden or hasattr(kind, "_saved_scale_grad_by_freq")


def _refuse(graph: Graph, i: int, node: Any, units: int) -> None:
    name = type(node).__name__
    if name == "CheckpointFunctionBackward":
        raise PrivacyError(
            "re-entrant checkpointing hides its uses of parameters; use checkpoint(..., use_reentrant=False)."
        )
    if name == "CompiledFunctionBackward":
        raise PrivacyError("a compiled function hides its uses of parameters; use the one it was compiled from.")
    if getattr(node, "_saved_scale_grad_by_freq", False):
        raise PrivacyError(
            "an embedding with scale_grad_by_freq=True divides by counts over the whole batch, which mixes "
            "examples; set it to False."
        )
    if "BatchNorm" not in name or not getattr(node, "_saved_training", False) or units == 1:
        return
    if node._saved_input.shape[0] != 1:  # InstanceNorm uses it too, on one image of all channels
        names = [graph.leaves[e[0]] for e in graph.inputs[i] if e is not None and e[0] in graph.leaves]
        where = f" ({' and '.join(map(repr, names))})" if names else ""
        raise PrivacyError(
            f"batch normalisation{where} uses statistics of the whole batch, which mixes examples; replace it by "
            "GroupNorm, or put it in eval mode."
        )


Saved = dict[tuple[int, int], dict[str, Any]]


def here(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that are not spread over processes."""
    return [tensor for tensor in tensors if not hasattr(tensor, "full_tensor")]


def own_tensors(model: nn.Module) -> list[Tensor]:
    """Tensors that are not data: the model's parameters and buffers, and what its parametrisations make of them."""
    found = here([*model.parameters(), *model.buffers()])

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    for module in model.modules():
        if isinstance(module, ParametrizationList):
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                copy.deepcopy(module)()
    return [t.detach() for t in found]


def read_saved(graph: Graph, analysis: Analysis) -> Saved:
    """What the rules read from a graph whose saved values are recomputed (checkpointing).

    They are read inside one backward pass, so that a stretch is recomputed once for all its values and not once for
    each.
    """
    found: Saved = {}

    def collect() -> None:
        for site in analysis.sites:
            for number in site.inputs:
                rule = RULES.get((graph.name(site.node), number))
                if rule is not None:
                    found[site.node, number] = read(graph.nodes[site.node], rule.saves)

    inside(collect)
    return found


def may_run_again(graph: Graph, site: Site) -> bool:
    """Whether the op's own backward may be run again: it has no rule, or one that may fall back."""
    return any((graph.name(site.node), number) not in SURE for number in site.inputs) or len(site.outputs) > 1


SURE = {
    *(("ConvolutionBackward0", i) for i in (1, 2)),
    *(("NativeLayerNormBackward0", i) for i in (1, 2)),
    *(("NativeGroupNormBackward0", i) for i in (1, 2)),
    *(("RecurrentWeightsBackward", i) for i in range(4)),
    ("EmbeddingBackward0", 0),
    ("AddmmBackward0", 0),
    ("AddmmBackward0", 2),
}


def fitting(graph: Graph, analysis: Analysis, units: int) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of the ops' outputs, if a batch of other sizes is still explained; or None.

    It is if the ops above them tell that units stand there, and are folded only where folding was seen.
    """
    if analysis.route is None or not stand(graph, analysis.sites, analysis.route, units):
        return None
    found: list[tuple[int, ...]] = []
    for site in analysis.sites:
        for number, known in site.outputs.items():
            shape = graph.shape((site.node, number))
            rows = known.rows.per_unit(shape, units)
            if rows is None or (rows > 1 and not known.folded):
                return None
            found.append((*shape[: known.rows.dim], rows, *shape[known.rows.dim + 1 :]))
    return tuple(found)
