"""model.json of a run's folder: how rows become inputs, what network takes them, and what its outputs are called.

It holds what was public before training (a schema, a shape, names) or was released by it. The ledger's closing line has
its hash.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from torch import nn

from discreet import __version__
from discreet._check import shown
from discreet._documents import parse_json
from discreet.data import Data
from discreet.data.inputs import described
from discreet.data.schema import rules_of
from discreet.errors import ConfigError
from discreet.features.pipeline import Pipeline
from discreet.ledger import storage
from discreet.models.networks import build
from discreet.runs.config import Config
from discreet.runs.schema import FeaturesSection

MANIFEST = "model.json"
_FORMAT = "discreet-model/1"


class _Network(msgspec.Struct, forbid_unknown_fields=True):
    """What `network` holds."""

    name: str
    settings: dict[str, Any]
    shape: list[Annotated[int, msgspec.Meta(ge=1)]]
    outputs: Annotated[int, msgspec.Meta(ge=1)]


class _Inputs(msgspec.Struct, forbid_unknown_fields=True):
    """What `inputs` holds: of a table its schema and label, of anything else a row's shape."""

    kind: Literal["table", "array"]
    shape: list[Annotated[int, msgspec.Meta(ge=1)]] = []
    schema: dict[str, Any] = {}
    label: str = ""


@dataclass(frozen=True)
class Manifest:
    """What a model was trained as.

    - `data`: what the data was called, without the folders above it;
    - `inputs`: how a row of a file becomes an input (discreet.data.inputs);
    - `network`: its name, settings, the shape that it takes, and how many outputs it has;
    - `classes`: what these are called, or None where a number is predicted;
    - `target`: that number's range, which -1 and 1 stand for, where it has one;
    - `features`: the config's [features], where the network takes features of images;
    - `versions`: what it was made with.
    """

    data: str
    inputs: Mapping[str, Any]
    network: Mapping[str, Any]
    classes: tuple[str, ...] | None
    target: tuple[float, float] | None
    features: Mapping[str, Any] | None
    versions: Mapping[str, str]

    @classmethod
    def of(cls, config: Config, data: Data, shape: tuple[int, ...]) -> "Manifest":
        """What a run trains; `shape` is what its network takes."""
        inputs = described(data)
        classes = None if data.classes is None else data.class_names or tuple(map(str, range(data.classes)))
        label = dict(inputs.get("schema", {})).get(inputs.get("label"), {})
        ends = (label.get("low"), label.get("high")) if classes is None else (None, None)
        return cls(
            data=Path(config.data.name).name,
            inputs=inputs,
            network={
                "name": config.model.name,
                "settings": config.model.settings,
                "shape": list(shape),
                "outputs": data.classes or 1,
            },
            classes=classes,
            target=None if ends[0] is None else (float(ends[0]), float(ends[1])),
            features=None if config.features is None else _said(config.features),
            versions={"discreet": __version__, "torch": version("torch"), "python": platform.python_version()},
        )

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """What a run's folder says."""
        path = folder / MANIFEST
        try:
            return cls.parse(parse_json(storage.read_text(path)))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{folder} has no {MANIFEST}, which says what its model takes: an earlier version made it. Train it "
                "again, or build its network yourself and load model.safetensors."
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "Manifest":
        """The manifest that `to_json` wrote; a ValueError for what it cannot have written."""
        if values["format"] != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT}")
        try:
            found = msgspec.convert(dict(values), cls)
            network, inputs = msgspec.convert(found.network, _Network), msgspec.convert(found.inputs, _Inputs)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        if found.classes is not None and len(found.classes) != network.outputs:
            raise ValueError(f"it has {len(found.classes):,} classes for {network.outputs:,} outputs")
        if found.classes is None and network.outputs != 1:
            raise ValueError(f"its network has {network.outputs:,} outputs without classes")
        shape = inputs.shape
        if inputs.kind == "table":
            rules = rules_of("its schema", inputs.schema)
            if inputs.label not in rules:
                raise ValueError(f"its schema has no label {shown(inputs.label)}")
            shape = [sum(rule.width for name, rule in rules.items() if name != inputs.label)]
        if found.features is None and shape != network.shape:
            raise ValueError(f"its network takes {shown(network.shape)}, and a row is {shown(shape)}")
        return found

    def to_json(self) -> str:
        """As the folder keeps it."""
        return json.dumps({"format": _FORMAT} | asdict(self), indent=1, sort_keys=True, ensure_ascii=False)

    def make(self) -> nn.Module:
        """The network, with first weights of no meaning."""
        settings = dict(self.network["settings"])
        return build(self.network["name"], tuple(self.network["shape"]), int(self.network["outputs"]), **settings)

    def pipeline(self) -> Pipeline | None:
        """What makes features of images, where the network takes features."""
        if self.features is None:
            return None
        try:
            return Pipeline.of(msgspec.convert(self.features, FeaturesSection))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{MANIFEST} describes features that cannot be: {error}") from error

    @property
    def task(self) -> str:
        """What it does, in the words that model hubs use."""
        kind = "tabular" if self.inputs["kind"] == "table" or len(self.inputs["shape"]) != 3 else "image"
        return f"{kind}-{'regression' if self.classes is None else 'classification'}"


def _said(features: FeaturesSection) -> dict[str, Any]:
    """All that is said, defaults included: the same of a config that was made and of one that was read again."""
    return {name: value for name, value in msgspec.structs.asdict(features).items() if value is not None}
