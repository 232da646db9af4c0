"""A run's model as it is used: preprocessing, network, class names and guarantee, from its folder alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from discreet.accounting.guarantee import Guarantee
from discreet.data.inputs import Inputs, inputs
from discreet.errors import ConfigError
from discreet.features.pipeline import FitResult
from discreet.features.pipeline import load as load_statistics
from discreet.ledger.verification import Verified, verify_folder
from discreet.runs.folder import STATISTICS, check_files
from discreet.runs.trained.manifest import MANIFEST, Manifest

WEIGHTS = "model.safetensors"
_ROWS = 1000  # at a time

Progress = Callable[[int, int], None]


class Predictor:
    """A network with its preprocessing and its outputs' names: what predicts, wherever it came from."""

    def __init__(self, manifest: Manifest, model: nn.Module, fitted: FitResult | None = None) -> None:
        self.manifest, self.model, self.fitted = manifest, model, fitted
        self.classes = manifest.classes
        self._pipeline = manifest.pipeline()

    def inputs(self, data: Any, progress: Progress | None = None) -> Inputs:
        """What the network takes of some data, preprocessed as its training data was; labels need not be there.

        Args:
            data: a file or folder of the kind it was trained on; or values: a table's columns (a mapping, a data
                frame), a tensor or an array of rows.
            progress: called as progress(done, total) while images are read.

        Returns:
            Rows in the data's order, and the files' names where they are images.
        """
        found = inputs(data, self.manifest.inputs, progress)
        if self._pipeline is None or self.fitted is None or not len(found.rows):
            return found
        pipeline = replace(self._pipeline, keep=False)
        return found._replace(rows=pipeline.rows(pipeline.extract(found.rows, progress), self.fitted))

    def outputs(self, rows: Tensor, progress: Progress | None = None) -> Tensor:
        """The network's own outputs for preprocessed rows: one for each class, or a number."""
        return torch.cat([rows.new_zeros(0, int(self.manifest.network["outputs"])), *self._parts(rows, progress)])

    def _parts(self, rows: Tensor, progress: Progress | None) -> Iterator[Tensor]:
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            with torch.no_grad():
                outputs = self.model(part)
            yield _flat(outputs, len(part), int(self.manifest.network["outputs"]))
            if progress is not None:
                progress(min(start + _ROWS, len(rows)), len(rows))

    def probabilities(self, outputs: Tensor) -> npt.NDArray[np.float64]:
        """Outputs as probabilities of classes."""
        if self.classes is None:
            raise ConfigError("the model predicts a number, and no class has a probability; use predict.")
        return torch.softmax(outputs.double(), 1).numpy()

    def named(self, outputs: Tensor) -> npt.NDArray[Any]:
        """Outputs as what they mean: the most probable class's name, or a number in its own unit."""
        if self.classes is not None:
            return np.asarray(self.classes, dtype=object)[outputs.argmax(1).numpy()]
        values = outputs[:, 0].double().numpy()
        if self.manifest.target is None:
            return values
        low, high = self.manifest.target
        return low + (np.clip(values, -1, 1) + 1) / 2 * (high - low)

    def predict(self, data: Any) -> npt.NDArray[Any]:
        """The most probable class of each row, by name; or the number that is predicted, within its declared range."""
        return self.named(self.outputs(self.inputs(data).rows))

    def predict_proba(self, data: Any) -> npt.NDArray[np.float64]:
        """The probability of each class for each row, in the order of `classes`."""
        return self.probabilities(self.outputs(self.inputs(data).rows))


class Trained(Predictor):
    """What `discreet.load` returns.

    - `model`: the network, in eval mode;
    - `classes`: the classes' names in the order of its outputs, or None where it predicts a number;
    - `guarantee`: what is proven of it, derived from its ledger;
    - `verified`: all that the ledger says;
    - `manifest`: what it takes and how it was made.
    """

    def __init__(self, folder: Path, verified: Verified, manifest: Manifest, model: nn.Module) -> None:
        pipeline = manifest.pipeline()
        super().__init__(manifest, model, None if pipeline is None else load_statistics(pipeline, folder / STATISTICS))
        self.folder, self.verified = folder, verified

    @property
    def guarantee(self) -> Guarantee:
        """What is proven of the model."""
        return self.verified.run_of(self.folder).guarantee

    def __repr__(self) -> str:
        what = "a number" if self.classes is None else f"{len(self.classes)} classes"
        proven = self.guarantee
        return (
            f"<{self.manifest.network['name']} of {self.folder}: predicts {what}; "
            f"ε = {proven.epsilon:.4g}, δ = {proven.delta:g}>"
        )


def load(run: str | Path, *, stages: Sequence[type[Any]] = ()) -> Trained:
    """A finished run's model, ready to use: from the run's folder alone, wherever that was moved.

    The ledger is verified, and the model and what describes it are compared with the hashes in its closing line.

    A folder whose network is `module:function` has that module imported and that function called, as whoever loads it:
    of folders from others, read model.json first.

    Args:
        run: the folder.
        stages: your own bounds, noises and samplers that its plan names, by class.

    Returns:
        The model with its preprocessing, class names and guarantee.

    Raises:
        ConfigError: it is no run's folder, it has not finished, or something of it is missing.
        PrivacyError: its ledger does not hold, or a file is not what the run left.
    """
    place = Path(run)
    check_files(place)
    verified, own = verify_folder(place, stages)
    if not own.ended:
        raise ConfigError(f"{run} has not finished: it has no model yet. Go on with: discreet resume {run}")
    manifest = Manifest.read(place)
    unknown = [name for name in (MANIFEST, WEIGHTS) if name not in (own.files or {}) or name in verified.absent]
    if unknown:
        raise ConfigError(f"{run} lacks {unknown[0]}, or its ledger knows nothing of it; put back what the run left.")
    model = manifest.make()
    try:
        model.load_state_dict(load_file(place / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(
            f"{place / WEIGHTS} does not fit the network {manifest.network['name']!r}, which may have changed since "
            f"(it was made with discreet {manifest.versions.get('discreet', '?')}): {' '.join(str(error).split())}"
        ) from error
    if not all(bool(value.isfinite().all()) for value in model.state_dict().values()):
        raise ConfigError(f"{place / WEIGHTS} has weights that are not finite, and predicts nothing.")
    return Trained(place, verified, manifest, model.eval())


def _flat(outputs: Any, rows: int, width: int) -> Tensor:
    """Outputs as [rows, width]."""
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or shape not in ((rows, width), (rows,) if width == 1 else (rows, width)):
        raise ConfigError(f"of {rows} rows the model makes {shape}, and {(rows, width)} is needed; use its `model`.")
    return outputs.detach().float().reshape(rows, width)
