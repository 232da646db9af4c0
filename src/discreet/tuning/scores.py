"""How good a trial is: by its right answers on the training rows, with noise; or on held-out rows, without."""

import math
from pathlib import Path

import torch
from torch import Tensor

from discreet.data import Data
from discreet.errors import ConfigError
from discreet.release.batching import as_tensors
from discreet.runs.build import read_data
from discreet.runs.config import Config
from discreet.runs.folder import FOUND, located
from discreet.runs.outcome import read_end
from discreet.runs.schema import TuneSection
from discreet.runs.tables import with_schema
from discreet.runs.trained.model import load
from discreet.runs.tuned import score_noise
from discreet.stages.noise.random import KeyTree
from discreet.tuning.draws import Trial


def score_of(trial: Trial, folder: Path, config: Config, tune: TuneSection) -> float:
    """The score of a trial that has finished; the larger the better.

    Guarantee: a noisy score is one Gaussian query. A row counts from 0 to 1 in one sum over the training rows, of which
    there is a public number; its noise follows from the trial's key, so that after a crash the same answer is given
    again, and no other one. The trial's plan has counted it.

    Args:
        trial: with the key of its noise.
        folder: its run.
        config: its config.
        tune: by what it is scored.

    Returns:
        A share of right answers; of numbers one minus the mean squared error in units of the squared range. A model
        that is no number any more has the least.
    """
    if tune.score == "held-out":
        ended = read_end(folder)
        found = None if ended is None else _figure(ended.accuracy, ended.merit)
        return -math.inf if found is None or math.isnan(found) else found
    x, y = as_tensors(_data(folder, config).train)
    trained = load(folder)
    pipeline = trained.manifest.pipeline()
    if pipeline is not None and trained.fitted is not None:
        x = pipeline.rows(pipeline.extract(x, None), trained.fitted)
    right = points(trained.outputs(x), y)
    noise = (
        KeyTree(None, trial.key)
        .stream("score", 0)
        .fill_normal(torch.empty(1, dtype=torch.float64), score_noise(config, tune))
    )
    return float((right.sum() + float(noise)) / len(right))


def points(outputs: Tensor, targets: Tensor) -> Tensor:
    """What each row adds to a score, from 0 to 1: nothing where the model's answer is no number."""
    if not targets.is_floating_point():
        if outputs.dim() != 2 or targets.dim() != 1:
            raise ConfigError("a noisy score needs one label a row; say score = 'held-out' in [tune].")
        known = outputs.isfinite().all(1)
        return ((outputs.argmax(1) == targets) & known).double()
    apart = outputs.double().reshape(len(targets), -1).clamp(-1, 1) - targets.double().reshape(len(targets), -1)
    return (1 - (apart / 2).square().mean(1)).nan_to_num(nan=0.0).clamp(0, 1)


def _data(folder: Path, config: Config) -> Data:
    """The data as the trial's model was trained on it: with what was found of its table."""
    known = located(config, folder)
    return read_data(with_schema(known, folder / FOUND) if (folder / FOUND).is_file() else known)


def _figure(accuracy: float | None, merit: object) -> float | None:
    """Accuracy, or of numbers the error that is to be small."""
    if accuracy is not None or not isinstance(merit, dict):
        return accuracy
    return -float(merit["rmse"])
