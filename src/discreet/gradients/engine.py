"""Each unit's gradient from one backward pass, without making it: book-keeping on the autograd graph."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from discreet._check import check_positive
from discreet.errors import ConfigError, PrivacyError
from discreet.gradients.forms.base import CHUNKED, STORED, Kernel, KnownNorms, PerExampleGrad, sum_dtype
from discreet.gradients.forms.combined import combine
from discreet.gradients.forms.complex_parts import ComplexParts, real_parts
from discreet.gradients.forms.materialized import Materialised
from discreet.gradients.graph import FreePasses, Graph, Passes, visit, walk
from discreet.gradients.kernels import KernelPlan, Peak, choose
from discreet.gradients.locate import analyse
from discreet.gradients.refusals import Inseparable, refuse_by_name
from discreet.gradients.results import UnitGradients
from discreet.gradients.rules.fallback import OneByOne
from discreet.gradients.rules.registry import OpContext
from discreet.gradients.structure import PassPlan, PlannedInput, PlannedSplit, Structure, remember
from discreet.gradients.torch_internals import Node, detached, inside_backward

MEMORY = 1.3  # times what the forward pass saved


def _regular() -> bool:
    """Units have as many rows each, as far as is known."""
    return False


class Engine:
    """Takes the losses of a batch apart into each unit's gradient.

    Guarantee: `gradients(losses, units)` stands for exactly the gradients of each unit's loss for each parameter, and
    a unit's loss depended on no other unit through any differentiable path seen by the probe; or a PrivacyError.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: float = MEMORY,
        kernels: Mapping[str, str] | None = None,
        parameters: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        """Prepare for a model's trainable parameters. No option changes what the gradients are.

        Args:
            model: The model whose losses will be taken apart.
            memory: How much a backward pass may take, as a multiple of what the forward pass saved.
            kernels: Pins a parameter's kernel by its name ("*": of all that have it).
            parameters: Those that will be trained, where the model has them only while it runs.

        Raises:
            ConfigError: if a kernel is pinned for no trainable parameter, or `memory` is negative.
        """
        self._model = model
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = trained if parameters is None else dict(parameters)
        self.layout: Mapping[str, Tensor] = {n: real_parts(p) for n, p in self.parameters.items()}
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._memory = math.inf if memory == math.inf else check_positive("memory", memory, zero=True)
        self._pins = {name: Kernel.parse(text) for name, text in (kernels or {}).items()}
        unknown = sorted(self._pins.keys() - self.parameters.keys() - {"*"})
        if unknown:
            raise ConfigError(
                f"kernels are pinned for {', '.join(map(repr, unknown))}, which is no trainable parameter."
            )
        self._structures: dict[tuple[Any, ...], Structure] = {}
        self._kernel_plans: dict[tuple[Any, ...], KernelPlan] = {}
        self._kernels: Mapping[str, Kernel] = {}  # those of the last batch that was measured
        self.fresh, self.structure = False, ()  # whether the last graph's structure was new, and what it was
        self.passes: Passes = FreePasses()
        self.known_norms: KnownNorms | None = None  # the batch, where its rows' norms are known
        self.storage_modes: tuple[str, ...] = (STORED, CHUNKED)  # of the kernels that may be chosen to store gradients

    @property
    def kernels(self) -> dict[str, str]:
        """The kernels of the last batch that was measured, where there is a choice."""
        return {name: str(kernel) for name, kernel in self._kernels.items()}

    def gradients(
        self,
        losses: Tensor,
        units: int,
        *,
        since: int = 0,
        probe: bool = False,
        measure: bool = True,
        ragged: Callable[[], bool] = _regular,
    ) -> UnitGradients:
        """The gradients of each unit's loss.

        Args:
            losses: One or more a unit: unit i has rows i * k to (i + 1) * k.
            units: How many there are.
            since: The sequence number of the oldest op that may take part.
            probe: Whether to probe the isolation of units where the graph's structure is known, too.
            measure: Whether to take norms during the backward pass, so that what gradients are made of can be freed as
                soon as they are made.
            ragged: Tells whether the units may lie side by side, each with rows of its own number (sets, graphs, bags).

        Raises:
            PrivacyError: if the units cannot be told apart, or an older op takes part.
        """
        graph = walk(losses, self._names, since, self.passes)
        structure = self._structures.get(graph.signature)
        self.fresh, self.structure = structure is None, graph.signature
        if structure is None or structure.suspect or units == 1:
            refuse_by_name(graph, units)
        if units == 1:
            return self._single(losses, graph)
        plan = None if probe or structure is None else structure.plan(graph, units)
        if structure is None or plan is None:
            structure, plan = self._analysed(graph, losses, units, structure, ragged())
        key = graph.signature, plan.shapes
        kernels = self._kernel_plans.get(key) if measure else None
        peak = None
        if measure and kernels is None and not structure.analysis.recomputes:
            peak = Peak(graph, [*here(self._model.parameters()), *self.parameters.values()])
        if self.passes.waits:
            self.passes.last(reads=plan.reads)
        run = Pass(self, graph, structure, plan, units, kernels)
        forms = run.backward(losses)
        if self.passes.waits:
            self.passes.taken(reads=lambda: any(form.reads_parameters for form in forms.values()))
        several = structure.analysis.several
        if measure and kernels is None:
            kernels = choose(forms, run.places, peak, self._memory, self._pins, several, self.storage_modes)
            remember(self._kernel_plans, key, kernels)
            for name in kernels.of.keys() & self._pins.keys():  # others' gradients are not stored beside what they are
                forms[name].kernel = kernels.of[name]  # made of, all of which is held in this first pass
        elif kernels is not None and several:
            for name in several & forms.keys():
                forms[name].kernel = kernels.of.get(name)
        chunked = () if kernels is None else kernels.chunked
        gradients = UnitGradients(forms, units, self.layout, graph.unmanaged_leaves, chunked, run.norms)
        if measure:
            self._kernels = {} if kernels is None else kernels.of
            if len(run.norms) < len(forms):
                gradients.measure()
        return gradients

    def _analysed(
        self, graph: Graph, losses: Tensor, units: int, before: Structure | None, ragged: bool
    ) -> tuple[Structure, PassPlan]:
        """Probe the isolation of units in a graph: its structure, which is remembered if it holds for other data."""
        preparations = {} if before is None else before.analysis.preparations
        analysis = analyse(graph, losses, units, own_tensors(self._model), preparations, ragged=ragged)
        structure = before  # a probe that finds what was known leaves the plans for all batch sizes
        if structure is None or analysis != structure.analysis:
            structure = Structure.of(graph, analysis, self.parameters)
        self._structures.pop(graph.signature, None)
        if analysis.evident:
            remember(self._structures, graph.signature, structure)
        return structure, structure.planned(graph, units)

    def _single(self, losses: Tensor, graph: Graph) -> UnitGradients:
        """A batch of one unit: its gradient is the gradient."""
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()), allow_unused=True)
        forms: dict[str, PerExampleGrad] = {
            name: Materialised(real_parts(g.detach()[None].to(sum_dtype(g.dtype))))
            for name, g in zip(self.parameters, gradients, strict=True)
            if g is not None
        }
        return UnitGradients(forms, 1, self.layout, graph.unmanaged_leaves)


class Pass:
    """One backward pass, in which each parameter's gradients are taken apart as soon as they can be."""

    def __init__(
        self, engine: Engine, graph: Graph, structure: Structure, plan: PassPlan, units: int, kernels: KernelPlan | None
    ) -> None:
        self._parameters, self._known_norms = engine.parameters, engine.known_norms
        self._graph, self._structure, self._plan, self._units, self._kernels = graph, structure, plan, units, kernels
        self._analysis = structure.analysis
        self._saved = read_saved(graph, plan) if self._analysis.recomputes else None
        self._forms: dict[str, list[PerExampleGrad]] = {}
        self._held: list[tuple[Tensor, int]] = []  # what gradients will be made of, and its versions
        self.norms: dict[str, Tensor] = {}
        self.places: dict[str, int] = {}  # the op at which a parameter's gradients are taken

    def backward(self, losses: Tensor) -> dict[str, PerExampleGrad]:
        """Run it; a form for each parameter that took part, measured where the kernels are planned."""
        weights, outputs, last = torch.ones_like(losses), self._structure.outputs, self._analysis.last
        visit(self._graph, losses, outputs, weights, self._visit, retain=self._plan.retain, last=last)
        for tensor, version in self._held:
            if tensor._version != version:
                raise PrivacyError(
                    "an op of the model changes a gradient in place while it is taken apart by examples."
                )
        self._held, self._saved = [], None  # from here on a form alone says how long it needs what it is made of
        forms = self._forms
        combined: dict[str, PerExampleGrad] = {}
        for name, parameter in self._parameters.items():
            if name in forms:
                form = forms[name][0] if len(forms[name]) == 1 else combine(forms[name])
                if parameter.is_complex():
                    form = ComplexParts(form, parameter.shape, sum_dtype(parameter.dtype))
                combined[name] = form
        return combined

    def _visit(self, node: int, reached: dict[int, Tensor]) -> None:
        """Take the gradients of an op's parameters apart."""
        if not reached:
            return
        shared: dict[str, Any] = {}
        split, kernels = self._plan.splits[node], self._kernels
        for planned in split.inputs:
            form = self._by_rule(node, split, planned, reached, shared)
            by_rule = form is not None  # an op's own backward is not run inside the pass
            if form is None:
                form = self._one_by_one(node, planned, reached)
            for name, path in planned.input.paths:
                own = form if path.direct else form.transposed() if path.transposes else None
                if own is None:
                    own = path.back(self._graph, self._parameters[name], form)
                self._forms.setdefault(name, []).append(own)
                self.places[name] = node
                if kernels is not None and by_rule and name not in self._analysis.several:
                    own.kernel = kernels.of.get(name)
                    if name not in kernels.chunked:
                        self.norms[name] = own.norms()
                for tensor in own.held():  # of gradients that were stored and measured, nothing that they were made of
                    self._held.append((tensor, tensor._version))

    def _by_rule(
        self, node: int, split: PlannedSplit, planned: PlannedInput, reached: dict[int, Tensor], shared: dict[str, Any]
    ) -> PerExampleGrad | None:
        """The gradients by the op's rule, or None where there is no rule that covers it."""
        of, rule, fields, shape = planned
        if rule is None or split.rows is None or 0 not in reached or (len(reached) > 1 and not rule.all_outputs):
            return None
        graph, others = self._graph, {k: g for k, g in reached.items() if k} if len(reached) > 1 else {}
        saved = read(graph.nodes[node], fields) if self._saved is None else self._saved[node, of.number]
        context = OpContext(
            self._units, split.rows, split.one_row, reached[0], others, of.number, graph, of.edge, shape, saved,
            of.dtype, shared, self._known_norms,
        )  # fmt: skip
        made = rule.make(context)
        if made is None and not rule.may_decline:
            raise ConfigError(
                f"the rule for input {of.number} of {of.op} returned None; declare it with may_decline=True, so that "
                "the graph is kept for the op's own backward."
            )
        return Materialised(made) if isinstance(made, Tensor) else made

    def _one_by_one(self, node: int, planned: PlannedInput, reached: dict[int, Tensor]) -> PerExampleGrad:
        """The fallback for an op without a rule."""
        graph, of = self._graph, planned.input
        if self._analysis.recomputes:
            raise Inseparable(
                f"op {of.op} has no rule and its saved values are recomputed (checkpointing), so "
                f"{' and '.join(repr(name) for name, _ in of.paths)} cannot be bounded; leave this part of the "
                "model out of the checkpoint."
            )
        rows = self._plan.splits[node].outputs
        return OneByOne(graph.nodes[node], of.number, reached, rows, self._units, planned.shape, of.dtype)


def here(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that are not spread over processes."""
    return [tensor for tensor in tensors if not hasattr(tensor, "full_tensor")]


def own_tensors(model: nn.Module) -> list[Tensor]:
    """Tensors that are not data: the model's parameters and buffers, and what its parametrisations make of them."""
    own = here([*model.parameters(), *model.buffers()])

    def note(tensor: Tensor) -> Tensor:
        own.append(tensor)
        return tensor

    for module in model.modules():
        if isinstance(module, ParametrizationList):
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                copy.deepcopy(module)()
    return [t.detach() for t in own]


def read(node: Node, fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The saved values that a rule asked for, detached from the graph."""
    values: dict[str, Any] = {}
    for field, attribute in fields:
        value = getattr(node, attribute)
        if isinstance(value, Tensor):
            value = value.detach()
        elif isinstance(value, tuple):
            value = detached(value)
        values[field] = value
    return values


def read_saved(graph: Graph, plan: PassPlan) -> dict[tuple[int, int], dict[str, Any]]:
    """What the rules read from a graph whose saved values are recomputed (checkpointing), by op and input.

    They are read inside one backward pass, so that a stretch is recomputed once for all its values and not once for
    each.
    """
    values: dict[tuple[int, int], dict[str, Any]] = {}

    def collect() -> None:
        for node, split in plan.splits.items():
            for planned in split.inputs:
                if planned.rule is not None:
                    values[node, planned.input.number] = read(graph.nodes[node], planned.fields)

    inside_backward(collect)
    return values
