"""A trained model as ONNX: one graph from a table's columns, or a tensor, to a prediction and probabilities."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.data.files import needed
from discreet.data.schema import Range, Words
from discreet.runs.trained.export import Outputs, Run, feature_rules, refuse_features
from discreet.runs.trained.model import Predictor
from discreet.runs.trained.torchscript import Meaning

_OPSET, _OPSET_ML, _IR = 18, 3, 9


def write(predictor: Predictor, path: Path) -> None:
    """Write the graph: preprocessing, network, and the classes' names."""
    refuse_features(predictor, "onnx")
    onnx = needed("onnx", "an export to onnx", extra="onnx")
    example = torch.zeros(2, *predictor.manifest.network["shape"])
    torch.onnx.export(
        Meaning(predictor).eval(),
        (example,),
        str(path),
        dynamo=False,
        opset_version=_OPSET,
        input_names=["inputs"],
        output_names=["probabilities" if predictor.classes is not None else "prediction"],
        dynamic_axes={"inputs": {0: "rows"}},
    )
    model = onnx.load_from_string(path.read_bytes())
    graph = model.graph
    if predictor.manifest.inputs["kind"] == "table":
        nodes, takes = _columns(onnx.helper, onnx.TensorProto, feature_rules(predictor))
        del graph.input[:]
        graph.input.extend(takes)
        kept = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes, *kept])
    if predictor.classes is not None:
        h, names = onnx.helper, list(predictor.classes)
        graph.node.extend(
            [
                h.make_node("ArgMax", ["probabilities"], ["number"], axis=1, keepdims=0),
                h.make_node(
                    "LabelEncoder",
                    ["number"],
                    ["prediction"],
                    domain="ai.onnx.ml",
                    keys_int64s=list(range(len(names))),
                    values_strings=names,
                ),
            ]
        )
        graph.output.extend([h.make_tensor_value_info("prediction", onnx.TensorProto.STRING, ["rows"])])
    del model.opset_import[:]
    model.opset_import.extend([onnx.helper.make_opsetid("", _OPSET), onnx.helper.make_opsetid("ai.onnx.ml", _OPSET_ML)])
    model.ir_version = _IR
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _columns(h: Any, kinds: Any, rules: dict[str, Range | Words]) -> tuple[list[Any], list[Any]]:
    """Nodes from an input for each column to `inputs`, and these inputs: numbers as double, words as strings."""
    nodes, takes, parts = [], [], []

    def constant(name: str, kind: Any, shape: list[int], values: list[Any]) -> str:
        nodes.append(h.make_node("Constant", [], [name], value=h.make_tensor(name, kind, shape, values)))
        return name

    for i, (name, rule) in enumerate(rules.items()):
        out = f"part_{i}"
        parts.append(out)
        if isinstance(rule, Range):
            takes.append(h.make_tensor_value_info(name, kinds.DOUBLE, ["rows"]))
            low, high, width, two, one, zero = (
                constant(f"{out}_{word}", kinds.DOUBLE, [], [value])
                for word, value in (
                    *(("low", rule.low), ("high", rule.high), ("width", rule.high - rule.low)),
                    *(("two", 2.0), ("one", 1.0), ("zero", 0.0)),
                )
            )
            steps = [
                ("Max", [name, low]), ("Min", [f"{out}_0", high]), ("Sub", [f"{out}_1", low]),
                ("Div", [f"{out}_2", width]), ("Mul", [f"{out}_3", two]), ("Sub", [f"{out}_4", one]),
            ]  # fmt: skip
            nodes += [h.make_node(kind, given, [f"{out}_{n}"]) for n, (kind, given) in enumerate(steps)]
            nodes.append(h.make_node("IsNaN", [name], [f"{out}_missing"]))
            nodes.append(h.make_node("Where", [f"{out}_missing", zero, f"{out}_5"], [f"{out}_whole"]))
            nodes.append(h.make_node("Cast", [f"{out}_whole"], [f"{out}_cast"], to=kinds.FLOAT))
            axis = constant(f"{out}_axis", kinds.INT64, [1], [1])
            nodes.append(h.make_node("Unsqueeze", [f"{out}_cast", axis], [out]))
        else:
            takes.append(h.make_tensor_value_info(name, kinds.STRING, ["rows"]))
            count = len(rule.words)
            numbers = {"keys_strings": list(rule.words), "values_int64s": list(range(count)), "default_int64": count}
            nodes.append(h.make_node("LabelEncoder", [name], [f"{out}_number"], domain="ai.onnx.ml", **numbers))
            depth = constant(f"{out}_depth", kinds.INT64, [], [count])  # a word that is none of them is all zeros
            ends = constant(f"{out}_ends", kinds.FLOAT, [2], [0.0, 1.0])
            nodes.append(h.make_node("OneHot", [f"{out}_number", depth, ends], [out], axis=-1))
    nodes.append(h.make_node("Concat", parts, ["inputs"], axis=1))
    return nodes, takes


def read(path: Path) -> Run:
    """What a written file computes."""
    runtime = needed("onnxruntime", "an export to onnx", extra="onnx")
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    takes = {given.name: given.type for given in session.get_inputs()}
    output = next((o.name for o in session.get_outputs() if o.name == "probabilities"), "prediction")

    def run(rows: Any) -> Outputs:
        if isinstance(rows, np.ndarray):
            fed: dict[str, Any] = {"inputs": rows}
        else:
            fed = {name: _cells(cells, takes[name]) for name, cells in rows.items()}
        return session.run([output], fed)[0]

    return run


def _cells(cells: list[Any], kind: str) -> Any:
    if "string" in kind:
        return np.array(["" if cell is None else str(cell) for cell in cells], dtype=object)
    return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
