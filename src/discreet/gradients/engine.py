"""Each unit's gradient from one backward pass, without making it: book-keeping on the autograd graph."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.utils.parametrize import ParametrizationList

from discreet.errors import PrivacyError
from discreet.gradients.graph import Edge, Graph, walk
from discreet.gradients.rules import RULES, SEVERAL_OUTPUTS, Call, OneByOne, as_use, read
from discreet.gradients.sites import REARRANGEMENTS, Analysis, Site, analyse, gradients_at
from discreet.gradients.uses import Materialised, OuterProducts, Use, Workspace, parts, squared_norms, sum_dtype

_MOST_KNOWN = 256  # structures remembered; models unrolled over time have one for each length


class Engine:
    """Takes the losses of a batch apart into each unit's gradient.

    Guarantee: `gradients(losses, units)` stands for exactly the gradients of each unit's loss for each parameter, and
    a unit's loss depended on no other unit through any differentiable path seen by the probe; or a PrivacyError.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._known: dict[tuple[Any, ...], Analysis] = {}
        self._workspace = Workspace()

    def gradients(self, losses: Tensor, units: int, *, since: int = 0, probe: bool = False) -> "UnitGradients":
        """The gradients of each unit's loss; unit i has rows i * k to (i + 1) * k of the losses.

        What is returned is valid until the next call. `since` is the oldest op that may take part. The isolation of
        units is probed wherever the graph has a new structure, and always if `probe`.
        """
        self._workspace.restart()
        graph = walk(losses, self._names, since)
        refuse_by_name(graph, units)
        if units == 1:
            return self._single(losses, graph)
        analysis, gradients = self._known.get(graph.signature), None
        if probe or analysis is None or not still_fits(graph, analysis, units):
            analysis, gradients = analyse(graph, losses, units, own_tensors(self._model))
            if analysis.evident:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[graph.signature] = analysis
        saved = read_saved(graph, analysis)
        if gradients is None:
            retain = any(may_run_again(graph, site) for site in analysis.sites)
            gradients = gradients_at(graph, losses, analysis.edges(), torch.ones_like(losses), retain=retain)
        uses: dict[str, list[Use]] = {name: [] for name in self.parameters}
        for site in analysis.sites:
            for name, use in self._uses(graph, analysis, site, gradients, saved, units):
                uses[name].append(use)
        combined = {name: use for name, found in uses.items() if (use := combine(found))}
        return UnitGradients(combined, units, self.parameters, graph.strangers)

    def _single(self, losses: Tensor, graph: Graph) -> "UnitGradients":
        """A batch of one unit: its gradient is the gradient."""
        found = torch.autograd.grad(losses.sum(), list(self.parameters.values()), allow_unused=True)
        pairs = zip(self.parameters, found, strict=True)
        uses: dict[str, Use] = {
            name: Materialised(g.detach()[None].to(sum_dtype(g.dtype))) for name, g in pairs if g is not None
        }
        return UnitGradients(uses, 1, self.parameters, graph.strangers)

    def _uses(
        self, graph: Graph, analysis: Analysis, site: Site, gradients: dict[Edge, Tensor], saved: "Saved", units: int
    ) -> list[tuple[str, Use]]:
        found: list[tuple[str, Use]] = []
        reached = {k: gradients[site.node, k] for k in site.outputs if (site.node, k) in gradients}
        for number in site.inputs if reached else ():
            edge = graph.inputs[site.node][number]
            assert edge is not None
            use = self._by_rule(graph, site, number, reached, saved, units)
            if use is None:
                if analysis.recomputes:
                    raise PrivacyError(
                        f"op {graph.name(site.node)} has no rule and its saved values are recomputed (checkpointing), "
                        f"so {' and '.join(map(repr, site.below[number]))} cannot be bounded; leave this part of the "
                        "model out of the checkpoint."
                    )
                rows = {k: m.rows for k, m in site.outputs.items()}
                made = graph.nodes[edge[0]]._input_metadata[edge[1]].dtype
                dtype = made if made.is_complex else self._dtype(site, number)
                use = OneByOne(graph.nodes[site.node], number, reached, rows, units, graph.shape(edge), dtype)
            found += [(n, prepared(graph, edge, n, self.parameters[n], use)) for n in site.below[number]]
        return found

    def _by_rule(
        self, graph: Graph, site: Site, number: int, reached: dict[int, Tensor], saved: "Saved", units: int
    ) -> Use | None:
        """The use by the op's rule, or None where there is no rule that covers this call."""
        name = graph.name(site.node)
        edge, rule = graph.inputs[site.node][number], RULES.get((name, number))
        if rule is None or edge is None or 0 not in reached or any(g.is_complex() for g in reached.values()):
            return None
        if len(reached) > 1 and name not in SEVERAL_OUTPUTS:
            return None
        others = {k: g for k, g in reached.items() if k}
        values, rows = saved[site.node, number], site.outputs[0].rows
        shape, dtype = graph.shape(edge), self._dtype(site, number)
        call = Call(units, rows, reached[0], others, number, shape, values, dtype, self._workspace)
        made = rule.make(call)
        return None if made is None else as_use(made)

    def _dtype(self, site: Site, number: int) -> torch.dtype:
        return sum_dtype(self.parameters[site.below[number][0]].dtype)


@dataclass
class UnitGradients:
    """Each unit's gradient: a use for each parameter that took part, zero for the others.

    `strangers` are other tensors that would get a gradient: not parameters the engine was made for.
    """

    uses: dict[str, Use]
    units: int
    parameters: Mapping[str, nn.Parameter]
    strangers: Sequence[Tensor] = ()
    _cancelling: dict[str, list[int]] = field(default_factory=dict)  # units whose terms nearly cancel

    def norms(self) -> dict[str, Tensor]:
        """Squared norms per unit, for each parameter."""
        found = {name: use.norms() for name, use in self.uses.items()}
        for name, squared in found.items():
            self._cancelling[name] = cancelling(self.uses[name], squared)
            for unit in self._cancelling[name]:
                squared[unit] = squared_norms(self.uses[name].each(unit, unit + 1))[0]
        for name, parameter in self.parameters.items():
            if name not in found:
                found[name] = parameter.new_zeros(self.units, dtype=sum_dtype(parameter.dtype))
        return found

    def add_weighted(self, weights: Mapping[str, Tensor], out: Mapping[str, Tensor]) -> None:
        """Add the sum over units of weight * gradient to `out`, parameter by parameter."""
        if not self.measured:
            self.norms()
        for name, use in self.uses.items():
            factors = weights[name].to(out[name].dtype)
            if self._cancelling[name]:
                factors = factors.clone()
            for unit in self._cancelling[name]:  # added as they were measured, and not by their terms
                out[name].add_(use.each(unit, unit + 1)[0].to(out[name].dtype) * factors[unit])
                factors[unit] = 0.0
            use.add_weighted(factors, out[name])

    @property
    def measured(self) -> bool:
        return len(self._cancelling) == len(self.uses)

    @property
    def cancels(self) -> bool:
        """Whether some unit's gradient is what is left of much longer terms."""
        if not self.measured:
            self.norms()
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
        return UnitGradients(uses, len(units), self.parameters, self.strangers)


_LEFT = 1e-3  # of the terms' lengths: less than that is left of units that nearly cancel


def cancelling(use: Use, squared: Tensor) -> list[int]:
    """The units of which so little is left of their terms that rounding would show."""
    lengths = use.lengths()
    if lengths is None:
        return []
    little = squared.double() < (_LEFT * lengths).square()
    return torch.nonzero(little & lengths.isfinite()).flatten().tolist()


def combine(uses: list[Use]) -> Use | None:
    """Several uses of one parameter as one: their gradients add up before a norm is taken."""
    if len(uses) < 2:
        return uses[0] if uses else None
    products = [u for u in uses if isinstance(u, OuterProducts)]
    if len(products) == len(uses):
        return products[0].joined(products[1:])
    made = [u.gradients for u in uses if isinstance(u, Materialised)]
    if len(made) == len(uses):
        return Materialised(torch.stack(made).sum(0))
    return Several(uses)


class Several:
    """Uses of different kinds, with their cross terms: made unit by unit in parts, added, and then measured."""

    def __init__(self, uses: list[Use]) -> None:
        self.uses, self.units = uses, uses[0].units

    def each(self, start: int, stop: int) -> Tensor:
        first, *rest = self.uses
        total = first.each(start, stop).clone()
        for use in rest:
            total += use.each(start, stop)
        return total

    def norms(self) -> Tensor:
        size = self.each(0, 1).nbytes
        return torch.cat([squared_norms(self.each(i, j)) for i, j in parts(self.units, size)])

    def lengths(self) -> Tensor:
        found = [use.lengths() for use in self.uses]
        parts = [u.norms().double().sqrt() if f is None else f for u, f in zip(self.uses, found, strict=True)]
        return torch.stack(parts).sum(0)

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        for use in self.uses:
            use.add_weighted(weights, out)

    def select(self, units: Tensor) -> "Several":
        return Several([use.select(units) for use in self.uses])


class Prepared:
    """A use of something made of a parameter (a slice, a look-up, a normalised weight): pulled back to the parameter.

    `isometric`: the preparation only rearranges, so that norms stay. A preparation in less than float32 rounds what
    is pulled through it: then each unit is pulled on its own and measured afterwards, never their sum.
    """

    def __init__(self, use: Use, edge: GradientEdge, parameter: nn.Parameter, *, isometric: bool) -> None:
        self.use, self.edge, self.parameter, self.isometric = use, edge, parameter, isometric
        self.units = use.units
        self._made: Any = edge.node._input_metadata[edge.output_nr]  # shape and dtype of what was made
        self._coarse = torch.finfo(self._made.dtype).bits < 32 or torch.finfo(parameter.dtype).bits < 32
        self._norms: Tensor | None = None

    def _pull(self, gradients: Tensor, *, batched: bool) -> Tensor:
        found = torch.autograd.grad(
            [self.edge],
            [self.parameter],
            [gradients.to(self._made.dtype)],
            retain_graph=True, is_grads_batched=batched, allow_unused=True,
        )[0]  # fmt: skip
        if found is None:
            shape = (*gradients.shape[:1], *self.parameter.shape) if batched else self.parameter.shape
            return self.parameter.new_zeros(shape)
        return found.detach().to(sum_dtype(self.parameter.dtype))

    def each(self, start: int, stop: int) -> Tensor:
        gradients = self.use.each(start, stop)
        try:
            return self._pull(gradients, batched=True)
        except RuntimeError:  # an op without a batched form
            return torch.stack([self._pull(g, batched=False) for g in gradients])

    def _parts(self) -> list[tuple[int, int]]:
        return parts(self.units, self.parameter.numel() * 4)

    def norms(self) -> Tensor:
        if self.isometric and not self._coarse:
            return self.use.norms()
        if self._norms is None:
            self._norms = torch.cat([squared_norms(self.each(i, j)) for i, j in self._parts()])
        return self._norms.clone()

    def lengths(self) -> Tensor | None:
        """Of the terms after they are pulled: by how much that lengthens is taken from the unit it lengthens most."""
        if self._coarse:
            return None
        terms = self.use.lengths()
        if self.isometric:
            return terms
        terms = self.use.norms().double().sqrt() if terms is None else terms
        ratios = self.norms().double().sqrt() / terms
        return terms * ratios.where(terms > 0, 0.0).nan_to_num(0, 0, 0).max()

    def add_weighted(self, weights: Tensor, out: Tensor) -> None:
        if self._coarse:
            for i, j in self._parts():
                Materialised(self.each(i, j)).add_weighted(weights[i:j], out)
            return
        dtype = self._made.dtype if self._made.dtype.is_complex else out.dtype
        total = out.new_zeros(torch.Size(self._made.shape), dtype=dtype)
        self.use.add_weighted(weights, total)
        out.add_(self._pull(total, batched=False))

    def select(self, units: Tensor) -> "Prepared":
        return Prepared(self.use.select(units), self.edge, self.parameter, isometric=self.isometric)


def prepared(graph: Graph, edge: Edge, name: str, parameter: nn.Parameter, use: Use) -> Use:
    """The use of a parameter at an op's input, whatever was done to the parameter on the way."""
    while graph.name(edge[0]) == "ToCopyBackward0":  # a cast (autocast): sums are taken in float32, above and below it
        cast = graph.inputs[edge[0]][0]
        assert cast is not None
        edge = cast
    if edge[0] in graph.leaves:
        return use
    path: list[str] = []
    i = edge[0]
    while i not in graph.leaves and graph.name(i) in REARRANGEMENTS:
        path.append(graph.name(i))
        below = [e[0] for e in graph.inputs[i] if e is not None]
        if len(below) != 1:
            break
        i = below[0]
    only_rearranged = i in graph.leaves
    if (
        only_rearranged
        and isinstance(use, OuterProducts)
        and [op for op in path if op != "ToCopyBackward0"] == ["TBackward0"]
    ):
        return use.transposed()
    return Prepared(use, GradientEdge(graph.nodes[edge[0]], edge[1]), parameter, isometric=only_rearranged)


def refuse_by_name(graph: Graph, units: int) -> None:
    """Refuse ops that hide what is needed, or that mix examples by design."""
    for i, node in enumerate(graph.nodes):
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
            continue
        if node._saved_input.shape[0] != 1:  # InstanceNorm uses it too, on one image of all channels
            names = [graph.leaves[e[0]] for e in graph.inputs[i] if e is not None and e[0] in graph.leaves]
            where = f" ({' and '.join(map(repr, names))})" if names else ""
            raise PrivacyError(
                f"batch normalisation{where} uses statistics of the whole batch, which mixes examples; replace it by "
                "GroupNorm, or put it in eval mode."
            )


Saved = dict[tuple[int, int], dict[str, Any]]


def own_tensors(model: nn.Module) -> list[Tensor]:
    """Tensors that are not data: the model's parameters and buffers, and what its parametrisations make of them."""
    found: list[Tensor] = [*model.parameters(), *model.buffers()]

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    for module in model.modules():
        if isinstance(module, ParametrizationList):
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                copy.deepcopy(module)()
    return [t.detach() for t in found]


class _Inside(torch.autograd.Function):
    """Runs a function inside a backward pass."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, function: Callable[[], None]) -> Tensor:
        ctx.function = function
        return start.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.function()
        return gradients[0], None


def read_saved(graph: Graph, analysis: Analysis) -> Saved:
    """What the rules read from the graph, before the backward pass frees it.

    Where saved values are recomputed (checkpointing), they are read inside one backward pass, so that a stretch is
    recomputed once for all its values and not once for each.
    """
    found: Saved = {}

    def collect() -> None:
        for site in analysis.sites:
            for number in site.inputs:
                rule = RULES.get((graph.name(site.node), number))
                if rule is not None:
                    found[site.node, number] = read(graph.nodes[site.node], rule.saves)

    if analysis.recomputes:
        start = torch.zeros((), requires_grad=True)
        torch.autograd.grad(_Inside.apply(start, collect), start)
    else:
        collect()
    return found


def may_run_again(graph: Graph, site: Site) -> bool:
    """Whether the op's own backward may be run again: it has no rule, or one that may fall back."""
    return any((graph.name(site.node), number) not in SURE for number in site.inputs) or len(site.outputs) > 1


SURE = {
    *(("ConvolutionBackward0", i) for i in (1, 2)),
    *(("NativeLayerNormBackward0", i) for i in (1, 2)),
    *(("NativeGroupNormBackward0", i) for i in (1, 2)),
    ("EmbeddingBackward0", 0),
    ("AddmmBackward0", 0),
    ("AddmmBackward0", 2),
}


def still_fits(graph: Graph, analysis: Analysis, units: int) -> bool:
    """Whether a batch of other sizes is still explained: divisible, and folded only where folding was seen."""
    for site in analysis.sites:
        for number, known in site.outputs.items():
            rows = known.rows.per_unit(graph.shape((site.node, number)), units)
            if rows is None or (rows > 1 and not known.folded):
                return False
    return True
