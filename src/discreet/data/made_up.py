"""Data that is made up by a stated law, so that the best possible accuracy is known: a table of people, and sentences.

A recipe can name them, as `name = "discreet.data.made_up:people"`. The same seed makes the same data.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet._check import check_int
from discreet.data.dataset import Data
from discreet.errors import ConfigError

JOBS = ("none", "farm", "factory", "office", "school", "own business")
REGIONS = ("north", "east", "south", "west", "islands")
_PAY = (-2.0, -1.0, 0.0, 0.6, 0.3, 0.5)  # what a job adds to the log-odds of a high income
_SCHOOL = (9.0, 9.0, 11.0, 14.0, 17.0, 13.0)  # years of school that lead to a job

WORDS = (
    "rain", "wind", "sea", "boat", "old", "new", "man", "girl", "sees", "hears", "finds", "loves", "a", "the", "in",
    "on", "house", "river", "song", "bird", "slow", "warm", "cold", "dark", "day", "night", "comes", "goes", "and",
    "but", "he", "she",
)  # fmt: skip
_LIKELY = (0.6, 0.2, 0.1, 0.1)  # how likely the four words are that may follow one
_FIRST, _SECOND = 0.7, 0.3  # how much the last word says of the next, and the one before it


@dataclass(frozen=True)
class MadeUp(Data):
    """Made-up data; `best` is the expected accuracy on the test part of whoever knows the law."""

    best: float = 1.0


def people(rows: int = 50_000, tested: int = 10_000, seed: int = 0) -> MadeUp:
    """A table as of a census: age, years of school, hours of work, marriage, job and region; is the income high?

    Numbers are scaled to -1 to 1 by ranges that the law states, and words are one value a category, as a schema would.
    The income is high with a probability that rises with school and hours, peaks at 50 years of age, depends on the
    job, and, for those with a business of their own, rises more steeply with hours.
    """
    random = _seeded(rows, tested, seed)
    count = rows + tested
    age = 18 + torch.randint(63, (count,), generator=random).float()
    school = (12 + 3 * torch.randn(count, generator=random)).round().clamp(6, 20)
    wishes = -(((school[:, None] - torch.tensor(_SCHOOL)) / 4) ** 2)
    job = _drawn(wishes.softmax(1), random)
    hours = torch.where(job == 0, 0.0, 38 + 10 * torch.randn(count, generator=random)).round().clamp(0, 80)
    married = (torch.rand(count, generator=random) < 0.25 + 0.3 * (age > 30)).float()
    region = torch.randint(len(REGIONS), (count,), generator=random)
    own = (job == JOBS.index("own business")).float()
    odds = 0.35 * (school - 12) + 0.06 * (hours - 38) - ((age - 50) / 16) ** 2 + 0.8 * married
    odds = 1.2 * (odds + torch.tensor(_PAY)[job] + 0.08 * own * (hours - 38)) - 0.2
    chance = odds.sigmoid()
    y = (torch.rand(count, generator=random) < chance).long()
    numbers = [(age - 49) / 31, (school - 13) / 7, (hours - 40) / 40, 2 * married - 1]
    words = [F.one_hot(job, len(JOBS)).float(), F.one_hot(region, len(REGIONS)).float()]
    x = torch.cat([torch.stack(numbers, 1), *words], 1)
    best = float(torch.maximum(chance, 1 - chance)[rows:].double().mean())
    return _parted("people", x, y, rows, seed, best, 2)


def sentences(rows: int = 50_000, tested: int = 10_000, seed: int = 0, length: int = 8) -> MadeUp:
    """Sentences by a Markov source over 32 words, as numbers of WORDS: which word comes next?

    Every word has four that may follow it and four that may follow the word after it, 60, 20, 10 and 10 in a hundred;
    the next word is drawn from the first with probability 0.7, from the second with 0.3. Which they are belongs to the
    law, and is the same for every seed. A row is a sentence of its own.
    """
    random = _seeded(rows, tested, seed)
    check_int("length", length, least=2)
    law, size, count = torch.Generator().manual_seed(1), len(WORDS), rows + tested
    after, later = (_followers(size, law) for _ in range(2))
    text = torch.randint(size, (count, 2), generator=random)
    chances = torch.empty(0)
    while text.shape[1] <= length:
        chances = _FIRST * after[text[:, -1]] + _SECOND * later[text[:, -2]]
        text = torch.cat([text, _drawn(chances, random)[:, None]], 1)
    best = float(chances.max(1).values[rows:].double().mean())
    return _parted("sentences", text[:, :-1].float(), text[:, -1], rows, seed, best, size)


def _followers(size: int, law: torch.Generator) -> Tensor:
    """For each word how likely every other is to follow."""
    chosen = torch.rand(size, size, generator=law).argsort(1)[:, : len(_LIKELY)]
    return torch.zeros(size, size).scatter_(1, chosen, torch.tensor(_LIKELY).expand(size, -1))


def _seeded(rows: int, tested: int, seed: int) -> torch.Generator:
    check_int("rows", rows, least=1)
    check_int("tested", tested, least=1)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed is {seed!r}; it must be a whole number >= 0.")
    return torch.Generator().manual_seed(seed)


def _drawn(shares: Tensor, random: torch.Generator) -> Tensor:
    """A class for each row of shares."""
    points = torch.rand(len(shares), 1, generator=random)
    return (shares.cumsum(1) < points).sum(1).clamp(max=shares.shape[1] - 1)


def _parted(name: str, x: Tensor, y: Tensor, rows: int, seed: int, best: float, classes: int) -> MadeUp:
    note = f"{name} are made up (discreet.data.made_up, seed {seed}); the best possible accuracy is {best:.1%}"
    return MadeUp(name, (x[:rows], y[:rows]), (x[rows:], y[rows:]), tuple(x.shape[1:]), classes, note, best=best)
