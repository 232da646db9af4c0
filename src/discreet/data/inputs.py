"""Rows for a trained model, without labels: from a file or from values, as the training rows were made."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from discreet.data.archives import read_inputs
from discreet.data.columns import TABLES, column_names, read_columns
from discreet.data.dataset import Data
from discreet.data.files import Progress, reading
from discreet.data.images import IMAGES, Labelled, decoded, scaled
from discreet.data.tables import encode
from discreet.errors import ConfigError

_TAKES = (
    "a .csv or .parquet file for a table; a folder of images, an image, or an .npz file (x) or .npy file for others"
)


class Inputs(NamedTuple):
    """What a model takes, a row each; and what the rows are called, where they have names."""

    rows: Tensor
    names: tuple[str, ...] = ()


def described(data: Data) -> dict[str, Any]:
    """How a row of a file becomes an input, in plain values that `inputs` reads."""
    return dict(data.inputs) or {"kind": "array", "shape": list(data.shape)}


def inputs(source: Any, how: Mapping[str, Any], progress: Progress | None = None) -> Inputs:
    """The inputs that a source holds, in its order; labels need not be there, and are not looked at.

    Args:
        source: a file or folder; or values: a table's columns (a mapping, a data frame), or a tensor or array of rows.
        how: what `described` said of the data that the model was trained on.
        progress: called as progress(done, total) while images are decoded.

    Returns:
        The rows; images that were files have their names.

    Raises:
        ConfigError: the source cannot be read, or does not fit the model.
    """
    table = how.get("kind") == "table"
    if isinstance(source, (str, Path)):
        return _of_table(Path(source), how) if table else _of_file(Path(source), _shape(how), progress)
    if table:
        return Inputs(encode("the table", _columns(source), how["schema"], str(how["label"])))
    return Inputs(_fitting("the rows", _tensor("the rows", source), _shape(how)))


def _shape(how: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in how["shape"])


def _of_table(path: Path, how: Mapping[str, Any]) -> Inputs:
    if path.suffix.lower() not in TABLES:
        raise ConfigError(f"{path} is no table, and the model was trained on one; give a .csv or .parquet file.")
    wanted = [name for name in how["schema"] if name in set(column_names(path)) and name != how["label"]]
    return Inputs(encode(str(path), read_columns(path, wanted), how["schema"], str(how["label"])))


def _columns(source: Any) -> dict[str, Sequence[Any]]:
    """A table's cells by column, of a mapping or a data frame."""
    try:
        return {str(name): list(source[name]) for name in (source if isinstance(source, Mapping) else source.columns)}
    except (AttributeError, TypeError, KeyError) as error:
        kind = type(source).__name__
        raise ConfigError(
            f"rows of a table are a {kind}; give a file, a mapping of columns, or a data frame."
        ) from error


def _of_file(path: Path, shape: tuple[int, ...], progress: Progress | None) -> Inputs:
    ending = path.suffix.lower()
    if os.path.isdir(path) or ending in IMAGES:
        return _of_images(path, shape, progress)
    if ending not in (".npz", ".npy"):
        raise ConfigError(f"{path} is nothing that this model takes: {_TAKES}.")
    array = read_inputs(str(path))
    return Inputs(_fitting(str(path), _tensor(str(path), array), shape))


def _of_images(path: Path, shape: tuple[int, ...], progress: Progress | None) -> Inputs:
    """Images in a folder and below it, in the order of their names; or one image."""
    with reading(path):
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGES) if path.is_dir() else [path]
    files = [p for p in found if not p.name.startswith(".")]
    if not files:
        raise ConfigError(f"{path} has no images ({', '.join(IMAGES)}).")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ConfigError(f"{path} has images, and the model takes rows of shape {shape}; give an .npz file with x.")
    images: Labelled = [(str(file), file, 0) for file in files]
    x, _, _ = decoded(images, progress, channels=shape[0])
    names = tuple(str(file.relative_to(path)) if file != path else file.name for file in files)
    return Inputs(_fitting(str(path), scaled(x), shape), names)


def _tensor(where: str, values: Any) -> Tensor:
    """Values as float32; an array of whole numbers is refused, as training refused it: it may be of bytes."""
    kind = getattr(values, "dtype", None)
    if kind is not None and "float" not in str(kind):
        raise ConfigError(f"{where}: of {kind}; give real numbers, scaled by the constants that training used.")
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is found not to be finite later
            rows = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values, np.float32))
        return rows.detach().to("cpu", torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{where} are no numbers: {' '.join(str(error).split())}") from error


def _fitting(where: str, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    if rows.ndim == 0 or tuple(rows.shape[1:]) != shape:
        raise ConfigError(f"{where}: of shape {tuple(rows.shape)}; the model takes rows of shape {shape}.")
    if not bool(rows.isfinite().all()):
        raise ConfigError(f"{where}: some values are not finite; replace them by the constant that training used.")
    return rows
