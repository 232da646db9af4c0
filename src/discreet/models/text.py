"""A small transformer that says which word comes next."""

import torch
from torch import Tensor, nn

from discreet._check import check_int
from discreet.errors import ConfigError


class NextWord(nn.Module):
    """Words and their places, blocks of attention, and what the last place says: [texts, length] to [texts, outputs].

    Words are numbers below `words`, of any type. A recipe can name it as `name = "discreet.models.text:next_word"`.
    """

    def __init__(
        self, length: int, outputs: int, *, words: int, width: int = 32, heads: int = 2, layers: int = 1
    ) -> None:
        super().__init__()
        for name, size in (("words", words), ("width", width), ("heads", heads), ("layers", layers)):
            check_int(f"NextWord's {name}", size, least=1)
        if width % heads:
            raise ConfigError(f"NextWord's width is {width}, which {heads} heads do not divide.")
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(layers)
            )
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))

    def forward(self, texts: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(texts.long()) + self.places)[:, -1])


def next_word(shape: tuple[int, ...], outputs: int, **settings: int) -> NextWord:
    """A NextWord for texts of this shape, which is their length alone."""
    if len(shape) != 1:
        raise ConfigError(f"a text is a row of words, and an example's shape is {shape}; it must be (length,).")
    return NextWord(shape[0], outputs, **settings)
