"""From images to rows for a model: public features, whitened by private statistics; as a config describes it."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from discreet._check import check_int, within
from discreet.accounting.events import Adjacency, Event
from discreet.accounting.serialization import build
from discreet.data.files import Progress
from discreet.errors import ConfigError
from discreet.features.backbone import Backbone
from discreet.features.deskew import Upright
from discreet.features.extraction import Extracted, Extractor, extract
from discreet.features.patches import Patches
from discreet.features.public_whitening import Rehearsed
from discreet.features.scattering import Scattering
from discreet.features.statistics import Whitened, Whitening
from discreet.ledger import Ledger
from discreet.runs.schema import FeaturesSection

_KINDS = {"patches": Patches, "scattering": Scattering, "backbone": Backbone}
_AROUND = {"upright": Upright, "rehearsed": Rehearsed}  # tables beside an extractor's settings, the inner one first
_TABLES = {"upright": "{spread = 0.5}", "rehearsed": "{power = 0.25}"}
_ROWS = 1024  # whitened at a time
_PARTS = ("mean", "by_channel", "by_place")

Features = Mapping[str, Extracted]  # by the extractors' names
FitResult = Mapping[str, Whitened]


@dataclass(frozen=True)
class Pipeline:
    """Extractors by name, and how the features of each are whitened; their rows are put one behind the other."""

    extractors: Mapping[str, Extractor]
    whitening: Whitening
    workers: int | None = None
    keep: bool = True
    leading: int | None = None

    def __post_init__(self) -> None:
        if self.leading is None:
            return
        check_int("[features] leading", self.leading, least=1)
        for name, extractor in self.extractors.items():
            if not isinstance(extractor, Rehearsed):
                raise ConfigError(
                    f"[features] leading is of rehearsed directions, of which [features.extractors.{name}] has none; "
                    "leave it out, or say rehearsed = {power = 0.25} there."
                )

    @classmethod
    def of(cls, section: FeaturesSection) -> "Pipeline":
        """The pipeline that a config describes."""
        if not section.extractors:
            raise ConfigError("[features] has no extractors; say one, as [features.extractors.fine] kind = 'patches'.")
        count = len(section.extractors)
        within("extractors", count, f"[features] has {count:,} extractors")
        settings = {name: getattr(section, name) for name in Whitening.__dataclass_fields__}
        extractors = {name: _extractor(name, values) for name, values in section.extractors.items()}
        return cls(extractors, Whitening(**settings), section.workers, section.cache, section.leading)

    def spending(self, mu: float) -> "Pipeline":
        """The same with noises in proportion, such that all statistics together are as N(0, 1) and N(mu, 1)."""
        factor = math.sqrt(len(self.extractors)) / (mu * self.whitening.multiplier)
        noises = {
            name: factor * getattr(self.whitening, name) for name in ("mean_noise", "channel_noise", "place_noise")
        }
        return replace(self, whitening=replace(self.whitening, **noises))

    def width(self, image: tuple[int, ...]) -> int:
        """How many values a row of the features of an image of this shape has."""
        shapes = [extractor.shape(image) for extractor in self.extractors.values()]
        return sum(places * min(channels, self.leading or channels) for places, channels in shapes)

    def cost(self, adjacency: Adjacency) -> list[Event]:
        """What the statistics cost."""
        return [self.whitening.cost(adjacency) for _ in self.extractors]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a guarantee assumes of the extractors: what public networks were trained on."""
        return tuple(dict.fromkeys(e.assumption for e in self.extractors.values() if isinstance(e, Backbone)))

    def extract(self, images: Tensor, progress: Progress | None = None) -> Features:
        """The public features of images."""
        settings: dict[str, Any] = {"workers": self.workers, "keep": self.keep, "progress": progress}
        extracted = {name: extract(extractor, images, **settings) for name, extractor in self.extractors.items()}
        if self.leading is None:
            return extracted
        # the largest last
        return {name: Extracted(each.values[:, :, -self.leading :]) for name, each in extracted.items()}

    def fit(self, features: Features, ledger: Ledger, *, size: int, adjacency: Adjacency, key: bytes) -> FitResult:
        """What whitens them: each kind's statistics counted, then computed.

        `key` is 32 secret bytes that all noise is drawn from: with them, the same features have the same statistics.
        """
        return {
            name: self.whitening.fit(found, ledger, size=size, adjacency=adjacency, key=_key_of(name, key))
            for name, found in features.items()
        }

    def rows(self, features: Features, fitted: FitResult) -> Tensor:
        """Rows for a model, float32, each of the whitening's length."""
        count = len(next(iter(features.values())))
        widths = [math.prod(found.shape[1:]) for found in features.values()]
        rows = torch.empty(count, sum(widths))
        share = 1 / math.sqrt(len(widths))
        for start in range(0, count, _ROWS):
            part = slice(start, start + _ROWS)
            made = [fitted[name](found[part]) * share for name, found in features.items()]
            torch.cat(made, 1, out=rows[part])
        return rows


def _key_of(name: str, key: bytes) -> bytes:
    return hashlib.blake2b(name.encode(), key=key, digest_size=32).digest()


def _extractor(name: str, values: Any) -> Extractor:
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if kind not in _KINDS:
        raise ConfigError(f"[features.extractors.{name}] kind is {kind!r}; it must be one of {', '.join(_KINDS)}.")
    chosen = _KINDS[kind]
    settings = {key: value for key, value in values.items() if key not in ("kind", *_AROUND)}
    for key, example in _TABLES.items():
        if not isinstance(values.get(key), Mapping | None):
            raise ConfigError(f"[features.extractors.{name}] {key} is {values[key]!r}; it is a table, as {example}.")
    try:
        extractor = build({"type": chosen.__name__, **settings}, [chosen])
        for key, around in _AROUND.items():
            if values.get(key) is not None:
                extractor = build({"type": around.__name__, "extractor": extractor, **values[key]}, [around])
        return extractor
    except ConfigError as error:
        raise ConfigError(f"[features.extractors.{name}]: {error}") from error


def save(fitted: FitResult, path: Path) -> None:
    """Write what whitens: it has been released, and goes with the model."""
    save_file({f"{name}.{part}": getattr(w, part).contiguous() for name, w in fitted.items() for part in _PARTS}, path)


def load(pipeline: Pipeline, path: Path) -> FitResult:
    """Read it again."""
    try:
        state = load_file(path)
        return {
            name: Whitened(*(state[f"{name}.{part}"] for part in _PARTS), pipeline.whitening.length)
            for name in pipeline.extractors
        }
    except (OSError, SafetensorError, KeyError) as error:
        raise ConfigError(f"{path} is not what whitens the run's features: {error}") from error
