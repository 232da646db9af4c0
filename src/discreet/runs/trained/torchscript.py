"""A trained model as TorchScript: a module that takes a tensor, or of a table a dictionary of columns of texts."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.data.columns import MISSING
from discreet.data.schema import Range
from discreet.runs.trained.export import Outputs, Run, feature_rules, refuse_features
from discreet.runs.trained.model import Predictor


class Meaning(nn.Module):
    """A network whose outputs are what they mean: probabilities, or a number within its declared range."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.network = predictor.model
        self.classify = predictor.classes is not None
        self.bounded = predictor.manifest.target is not None
        self.low, self.high = predictor.manifest.target or (0.0, 1.0)

    def forward(self, rows: Tensor) -> Tensor:
        """Probabilities [rows, classes], or numbers [rows]."""
        outputs = self.network(rows)
        if self.classify:
            return torch.softmax(outputs.double(), 1)
        values = outputs.double().reshape(-1)
        if self.bounded:
            return self.low + (values.clamp(-1.0, 1.0) + 1.0) / 2.0 * (self.high - self.low)
        return values


class Table(nn.Module):
    """Columns of texts, as a .csv has them, as inputs for a network."""

    names: list[str]
    low: list[float]
    high: list[float]
    words: list[list[str]]
    wordy: list[bool]
    missing: list[str]

    def __init__(self, predictor: Predictor, network: Any) -> None:
        super().__init__()
        rules = feature_rules(predictor)
        ranges = [(r.low, r.high) if isinstance(r, Range) else (0.0, 0.0) for r in rules.values()]
        words = [() if isinstance(r, Range) else r.words for r in rules.values()]
        self.names = list(rules)
        self.low = [float(low) for low, _ in ranges]
        self.high = [float(high) for _, high in ranges]
        self.words = [[str(word) for word in each] or [""] for each in words]
        self.wordy = [bool(each) for each in words]
        self.missing = list(MISSING)
        self.network = network

    def forward(self, columns: dict[str, list[str]]) -> Tensor:
        """What the network makes of the rows."""
        parts: list[Tensor] = []
        for i in range(len(self.names)):
            cells = columns[self.names[i]]
            if self.wordy[i]:
                part = torch.zeros(len(cells), len(self.words[i]))
                for row in range(len(cells)):
                    cell = cells[row].strip()
                    for number in range(len(self.words[i])):
                        if cell == self.words[i][number]:
                            part[row, number] = 1.0
            else:
                values = torch.zeros(len(cells), dtype=torch.float64)
                for row in range(len(cells)):
                    cell = cells[row].strip()
                    if cell.lower() in self.missing:
                        values[row] = math.nan
                    else:
                        values[row] = float(cell)
                low, high = self.low[i], self.high[i]
                scaled = 2.0 * ((values.clamp(low, high) - low) / (high - low)) - 1.0
                part = torch.where(values.isnan(), torch.zeros_like(scaled), scaled).to(torch.float32)[:, None]
            parts.append(part)
        return self.network(torch.cat(parts, 1))


def write(predictor: Predictor, path: Path) -> None:
    """Compile the model and write it."""
    refuse_features(predictor, "torchscript")
    example = torch.zeros(2, *predictor.manifest.network["shape"])
    network = torch.jit.trace(Meaning(predictor).eval(), example, check_trace=False)
    made: Any = network
    if predictor.manifest.inputs["kind"] == "table":
        made = torch.jit.script(Table(predictor, network).eval())
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    with path.open("wb") as file:
        torch.jit.save(made, file, _extra_files={"classes.txt": "\n".join(predictor.classes or ())})


def read(path: Path) -> Run:
    """What a written file computes."""
    module = torch.jit.load(str(path))

    def run(rows: Any) -> Outputs:
        if not isinstance(rows, np.ndarray):
            rows = {name: ["" if cell is None else str(cell) for cell in cells] for name, cells in rows.items()}
        else:
            rows = torch.from_numpy(rows)
        with torch.no_grad():
            return module(rows).numpy()

    return run
