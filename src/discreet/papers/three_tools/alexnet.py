"""003's network and images: the small AlexNet of Zhang et al. 2017, and the middle of CIFAR-10's images."""

from functools import lru_cache

import torch
from torch import Tensor, nn

from discreet.models import build
from discreet.papers.train_case import Pair, pairs

SIDE, TESTED = 28, 2_500


class ChannelNormalisation(nn.Module):
    """What nn.LocalResponseNorm computes with beta = 0.75, as one product with a band matrix: faster on a CPU."""

    def __init__(self, size: int, alpha: float, k: float) -> None:
        super().__init__()
        self.size, self.alpha, self.k = size, alpha, k

    def forward(self, x: Tensor) -> Tensor:
        """x / (k + alpha * mean of squares over neighbouring channels) ** 0.75."""
        channels = torch.arange(x.shape[1], device=x.device)
        near = (channels[:, None] - channels[None, :]).abs() <= self.size // 2
        band = near.to(x.dtype) * (self.alpha / self.size)
        root = (torch.einsum("oc,nchw->nohw", band, x * x) + self.k).rsqrt()
        return x * root * root.sqrt()


def alexnet() -> nn.Module:
    """Ten tensors, 1,387,786 parameters."""
    model = build("alexnet", (3, SIDE, SIDE), 10)
    assert isinstance(model, nn.Sequential)
    for i, layer in enumerate(model):
        if isinstance(layer, nn.LocalResponseNorm):
            model[i] = ChannelNormalisation(layer.size, layer.alpha, layer.k)
    return model


@lru_cache(maxsize=2)
def images(examples: int, held_out: int = 0) -> tuple[Pair, Pair]:
    """CIFAR-10, the middle 28 x 28 pixels, each with mean 0 and deviation 1; tested is on a quarter, or on all.

    Where so many are held out, the last training images are tested on instead.
    """
    (x, y), (test_x, test_y) = pairs("cifar10")
    if held_out:
        test_x, test_y = x[-held_out:], y[-held_out:]
        examples = min(examples, len(x) - held_out)
    tested = len(test_x) if held_out or examples == len(x) else TESTED
    return (_prepared(x[:examples]), y[:examples]), (_prepared(test_x[:tested]), test_y[:tested])


def _prepared(x: Tensor) -> Tensor:
    cut = (x.shape[-1] - SIDE) // 2
    middle = x[..., cut : cut + SIDE, cut : cut + SIDE]
    mean, deviation = middle.mean((1, 2, 3), keepdim=True), middle.std((1, 2, 3), keepdim=True)
    return (middle - mean) / deviation.clamp(min=0.02)  # each image by itself


def random_noise(examples: int, seed: int) -> Pair:
    """Images of noise with labels that say nothing of them."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 3, SIDE, SIDE, generator=random)
    return x, torch.randint(10, (examples,), generator=random)
