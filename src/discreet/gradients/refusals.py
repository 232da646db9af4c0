"""What cannot be taken apart by examples, and is refused by name."""

from functools import cache

from discreet.errors import PrivacyError
from discreet.gradients.graph import Graph, is_leaf
from discreet.gradients.torch_internals import Node, check_fields

for _op in ("Embedding", "EmbeddingBag"):  # fields that are read by name below
    check_fields(_op, ("scale_grad_by_freq",))
for _op in ("NativeBatchNorm", "NativeBatchNormLegit", "CudnnBatchNorm", "MiopenBatchNorm"):
    check_fields(_op, ("training", "input"))
check_fields("BatchNormWithUpdate", ("input",))


class Inseparable(PrivacyError):
    """The gradients of a batch cannot be taken apart by examples: these are mixed, or nothing tells them apart."""


def refuse_by_name(graph: Graph, units: int) -> None:
    """Refuse ops that hide what is needed, or that mix examples by design."""
    for i, node in enumerate(graph.nodes):
        if suspect(type(node)):
            _refuse(graph, i, node, units)
        if units > 1 and any(metadata.is_nested_tensor for metadata in getattr(node, "_input_metadata", ())):
            op = graph.name(i).removesuffix("Backward0")
            raise Inseparable(
                f"op {op} works on a nested tensor, whose rows autograd does not show one by one; "
                "work on its values() and add them up by its offsets(), or pad it under a mask."
            )


@cache
def suspect(kind: type) -> bool:
    """Whether ops of a kind have to be looked at."""
    name = kind.__name__
    hidden = name in ("CheckpointFunctionBackward", "CompiledFunctionBackward") or "BatchNorm" in name
    return hidden or hasattr(kind, "_saved_scale_grad_by_freq")


def _refuse(graph: Graph, i: int, node: Node, units: int) -> None:
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
    training = name == "BatchNormWithUpdateBackward0" or getattr(node, "_saved_training", False)
    if "BatchNorm" not in name or not training or units == 1:
        return
    if node._saved_input.shape[0] != 1:  # InstanceNorm uses it too, on one image of all channels
        names = [graph.leaves[e[0]] for e in graph.inputs[i] if e is not None and e[0] in graph.leaves]
        where = f" ({' and '.join(map(repr, names))})" if names else ""
        raise PrivacyError(
            f"batch normalisation{where} uses statistics of the whole batch, which mixes examples; replace it by "
            "GroupNorm, as discreet.nn.convert(model, batch_norm='group') does, or put it in eval mode."
        )


def refuse_mixing(graph: Graph, failed: list[int]) -> None:
    """Name the parameters whose use is nearest to the losses, where the examples can no longer be told apart."""
    nearest = min(failed)
    names = _direct_parameters(graph, nearest)
    op = graph.name(nearest).removesuffix("Backward0").removesuffix("Backward")
    raise Inseparable(
        f"the model or the loss mixes examples, or moves their rows about so that they cannot be told apart: from "
        f"{' and '.join(map(repr, names))} (op {op}) to the losses, no dimension belongs to one example each, so "
        "bounding each gradient would bound nothing. Look for batch statistics (replace BatchNorm by GroupNorm), sums, "
        "means or maxima over the batch, contrastive losses, a router's auxiliary loss or its experts' capacity over "
        "the batch (output_router_logits=False turns the former off), rows picked by data, or a constant tensor that "
        "is not a buffer of the model."
    )


def _direct_parameters(graph: Graph, n: int) -> list[str]:
    """The names of the parameters an op uses, itself or through other ops on parameters."""
    names: dict[str, None] = {}
    stack, seen = [n], {n}
    while stack:
        i = stack.pop(0)
        for edge in graph.inputs[i]:
            if edge is None or edge[0] in seen:
                continue
            seen.add(edge[0])
            if edge[0] in graph.leaves:
                names[graph.leaves[edge[0]]] = None
            elif not is_leaf(graph, edge[0]) and len(names) == 0:
                stack.append(edge[0])
    return list(names) or ["a parameter"]
