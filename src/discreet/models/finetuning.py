"""A public pretrained network to fine-tune privately: its head, its last blocks, adapters beside its layers, or all."""

import re
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from discreet._check import check_int
from discreet.errors import ConfigError
from discreet.models.pretrained import Body, public_network, sized

Trained = Literal["head", "last", "lora", "all"]


class FineTuned(nn.Module):
    """A public network's body with a new linear head: [examples, *shape] to [examples, outputs].

    The body stays in evaluation mode, also under `train()`: BatchNorm uses the statistics that it came with and its
    weights are frozen with them, and nothing is dropped. The head begins at zero, so that the first noise, which has no
    direction, is not made larger by chance weights.

    Args:
        body: the network, as models.pretrained loads it.
        width: of its features.
        outputs: of the head.
        train: what is trained: the "head" alone, the "last" blocks and the head, "lora" for low-rank adapters and the
            head, or "all".
        blocks: how many of the last blocks, with "last".
        rank: of the adapters, with "lora".
        side: of images as the network gets them; None for texts.
        assumes: what a guarantee assumes of the weights; a plan that is attached to the model says so.
    """

    def __init__(
        self,
        body: Body,
        width: int,
        outputs: int,
        *,
        train: Trained = "head",
        blocks: int = 1,
        rank: int = 8,
        side: int | None = None,
        assumes: str = "",
    ) -> None:
        super().__init__()
        if train not in get_args(Trained):
            raise ConfigError(f"train is {train!r}; it must be one of {', '.join(get_args(Trained))}.")
        self.side, self.assumes = side, assumes
        self.body = body.requires_grad_(train == "all")
        if train == "last":
            _free_last(body, blocks)
        elif train == "lora":
            _adapt(body, rank)
        for module in body.modules():
            if isinstance(module, _BatchNorm):
                module.requires_grad_(False)
        self.scale = nn.LayerNorm(width, elementwise_affine=False)  # so that no network's features are too long
        self.head = nn.Linear(width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, examples: Tensor) -> Tensor:
        taken = examples if self.side is None else sized(examples, self.side)
        return self.head(self.scale(self.body(taken)))


def fine_tuned(
    name: str, shape: tuple[int, ...], outputs: int, *, train: Any, blocks: Any, rank: Any, side: Any
) -> FineTuned:
    """The public network of this name with a new head, for examples of this shape."""
    public = public_network(name)
    images = public.takes == "images"
    if len(shape) != (3 if images else 1):
        what = "images of shape (channels, height, width)" if images else "texts of shape (length,)"
        raise ConfigError(f"{name} takes {what}, and an example's shape is {shape}.")
    if images and check_int(f"{name}'s side", side, least=32) % 32:
        raise ConfigError(f"{name}'s side is {side}; the network halves it five times: take a multiple of 32.")
    settings: Any = {"train": train, "blocks": blocks, "rank": rank, "assumes": public.assumption}
    return FineTuned(public.load(), public.width, outputs, side=side if images else None, **settings)


def _free_last(body: Body, blocks: int) -> None:
    """Train the last blocks."""
    parts = body.blocks
    if check_int("blocks", blocks, least=1) > len(parts):
        raise ConfigError(f"blocks is {blocks}, and the network has {len(parts)}; take fewer, or train = 'all'.")
    for part in parts[-blocks:]:
        part.requires_grad_(True)


class LowRank(nn.Module):
    """A frozen layer, and beside it a product of two narrow ones that is trained (Hu et al. 2021, LoRA).

    The second of them begins at zero, so that at first this is the layer itself. Takes linear layers, and convolutions
    of single pixels.
    """

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.layer = layer
        if isinstance(layer, nn.Linear):
            self.down: nn.Module = nn.Linear(layer.in_features, rank, bias=False)
            self.up: Any = nn.Linear(rank, layer.out_features, bias=False)
        elif isinstance(layer, nn.Conv2d) and set(layer.kernel_size) == set(layer.stride) == {1} and layer.groups == 1:
            self.down = nn.Conv2d(layer.in_channels, rank, 1, bias=False)
            self.up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        else:
            raise ConfigError(f"{layer} takes no adapter; it must be linear, or a convolution of single pixels.")
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def _adapt(body: Body, rank: int) -> None:
    """Put adapters beside layers; they alone are trained."""
    check_int("rank", rank, least=1)
    modules = dict(body.named_modules())
    for name, layer in modules.items():
        if re.fullmatch(body.adapted, name):
            parent, _, own = name.rpartition(".")
            setattr(modules[parent], own, LowRank(layer, rank))


__all__ = ["FineTuned", "LowRank", "fine_tuned"]
