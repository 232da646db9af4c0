"""Canaries: examples and directions, and the data with them behind."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from discreet._check import check_int
from discreet.audit.guessing import Coins
from discreet.errors import ConfigError
from discreet.release.batching import length_of
from discreet.release.guards import trainable
from discreet.stages.plan import Plan
from discreet.stages.sampling import Poisson
from discreet.stages.sensitivity import Layout, norm_of
from discreet.training.options import Rows

DATA, EXCLUDED = -1, -2  # what stands in place of a canary's number


@dataclass(frozen=True, eq=False)
class Examples:
    """Canaries that are examples: inputs and targets of one's choice, with the usual loss."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise ConfigError(f"{len(self.inputs)} inputs and {len(self.targets)} targets; a canary is one of each.")

    @property
    def count(self) -> int:
        return len(self.inputs)

    def rows(self, like: Rows) -> tuple[Tensor, Tensor]:
        return self.inputs, self.targets


def mislabelled(inputs: Tensor, labels: Tensor, classes: int, *, seed: int = 0) -> Examples:
    """Real inputs, each with a wrong label drawn uniformly from the others: a model learns it only by heart.

    Args:
        inputs: examples of the data's kind, one row each.
        labels: the true class of each.
        classes: how many classes there are.
        seed: of the wrong labels.
    """
    check_int("classes", classes, least=2)
    shift = torch.randint(1, classes, labels.shape, generator=torch.Generator().manual_seed(seed))
    return Examples(inputs, (labels + shift) % classes)


def noise_images(shape: tuple[int, ...], count: int, classes: int, *, seed: int = 0) -> Examples:
    """Inputs of uniform noise in [0, 1) with random labels: unlike all data, and unlike each other.

    Args:
        shape: of one input.
        count: how many.
        classes: how many classes there are.
        seed: of inputs and labels.
    """
    check_int("count", count, least=1)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand((count, *shape), generator=generator)
    return Examples(inputs, torch.randint(classes, (count,), generator=generator))


@dataclass(frozen=True, eq=False)
class Directions:
    """Canaries whose gradients are chosen: orthonormal directions in the space of a model's parameters.

    The loss of canary i is `length` * <parameters, direction i>, linear in the parameters, so its gradient is `length`
    times the direction, exactly and at every step. Each direction has `places` of its own, [canaries, width], with
    `signs` there and zero elsewhere, so that they are orthogonal without rounding.
    """

    places: Tensor
    signs: Tensor
    layout: Layout
    length: float
    _sizes: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", list(self.layout.sizes))

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def width(self) -> int:
        return self.places.shape[1]

    def rows(self, like: Rows) -> tuple[Tensor, Tensor]:
        """Constants in the data's shape: the model runs on them as on all rows, and nothing of that is used."""
        first = (like[0][0], like[1][0]) if isinstance(like, tuple) else like[0]
        inputs, targets = (torch.zeros_like(torch.as_tensor(value)) for value in first)
        return inputs.expand(self.count, *inputs.shape), targets.expand(self.count, *targets.shape)

    def matrix(self, numbers: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """These canaries' directions as rows of length 1; rows of zeros where the number is negative."""
        places, signs = (t.to(numbers.device)[numbers.clamp(min=0)] for t in (self.places, self.signs))
        values = signs.to(dtype) * (numbers >= 0)[:, None] / self.width**0.5
        return values.new_zeros(len(numbers), sum(self._sizes)).scatter_(1, places, values)

    def losses(self, model: nn.Module, numbers: Tensor) -> Tensor:
        """`length` * <parameters, direction> for each of these canaries, 0 where the number is negative."""
        parameters = list(trainable(model).values())
        pieces = self.matrix(numbers, parameters[0].dtype).split(self._sizes, 1)
        terms = [F.linear(d, p.reshape(1, -1).to(d.dtype)).squeeze(1) for d, p in zip(pieces, parameters, strict=True)]
        return self.length * torch.stack(terms).sum(0)

    def along(self, vector: Tensor) -> Tensor:
        """The product of each direction with a vector of all parameters side by side."""
        return (vector[self.places] * self.signs).sum(1) / self.width**0.5


def directions(model: nn.Module, plan: Plan, count: int, *, width: int | None = None, seed: int = 0) -> Directions:
    """So many orthonormal directions for a model, random places each, and long enough to be cut by the bound.

    Args:
        model: whose trainable parameters are meant.
        plan: its bound says how long a gradient has to be.
        count: how many directions.
        width: places of each; by default as many as the parameters allow, so that what real examples add is spread thin
            over each direction.
        seed: of places and signs, which are public.

    Returns:
        Canaries for `audit_run`.

    Raises:
        ConfigError: if so many do not fit into the parameters.
    """
    check_int("count", count, least=1)
    parameters = trainable(model)
    layout = Layout(tuple(parameters), tuple(tuple(p.shape) for p in parameters.values()))
    total = sum(layout.sizes)
    widest = total // count
    if widest < 1 or (width is not None and not 1 <= width <= widest):
        raise ConfigError(
            f"{count} directions with {width or 1} places each do not fit into {total} parameters; ask for fewer, or "
            "take a larger model."
        )
    generator = torch.Generator().manual_seed(seed)
    width = widest if width is None else width
    places = torch.randperm(total, generator=generator)[: count * width].view(count, width)
    signs = torch.randint(2, (count, width), generator=generator) * 2.0 - 1
    contract = plan.mechanism.contract_for(layout)
    norm = 1.0 if contract is None else norm_of(contract)
    return Directions(places, signs, layout, 1000 * norm)


def for_canaries(plan: Plan) -> Plan:
    """The same plan for data of any number of rows: same rate, noise and steps, and so the same epsilon (T1).

    A plan of N examples refuses data with canaries beside them; this takes them, and excluded ones are not there.
    """
    sampling = plan.sampling
    if not isinstance(sampling, Poisson) or sampling.cap is not None or sampling.adjacency == "replace":
        raise ConfigError(f"{sampling!r} needs its number of rows; make the plan for the data and canaries together.")
    secret = replace(sampling, examples=None, rate=float(sampling.exact_rate), adjacency=None)
    return replace(plan, sampling=secret)


def with_canaries(data: Rows, canaries: Examples | Directions, coins: Coins, *, keep_rows: bool) -> Any:
    """The data and the canaries, each row with its canary's number; excluded ones are empty rows, or left out.

    Args:
        data: the rows of a run.
        canaries: examples or directions.
        coins: which of them are in.
        keep_rows: keep excluded ones as empty rows, instead of leaving them out.

    Returns:
        The data with inputs, targets and numbers; DATA stands for a row that is no canary, EXCLUDED for one that is
        out.
    """
    numbers = torch.arange(canaries.count)
    included = torch.from_numpy(coins)
    if keep_rows:
        numbers = torch.where(included, numbers, EXCLUDED)
        chosen = torch.arange(canaries.count)
    else:
        numbers = chosen = numbers[included]
    inputs, targets = (t[chosen] for t in canaries.rows(data))
    own = torch.full((length_of(data),), DATA)
    if isinstance(data, tuple):
        return (
            torch.cat((data[0], inputs.to(data[0]))),
            torch.cat((data[1], targets.to(data[1]))),
            torch.cat((own, numbers)),
        )
    return _Joined(data, inputs, targets, numbers)


class _Joined(Dataset[Any]):
    """A data set with canaries behind it."""

    def __init__(self, data: Dataset[Any], inputs: Tensor, targets: Tensor, numbers: Tensor) -> None:
        self._data, self._rows, self._length = data, (inputs, targets, numbers), length_of(data)

    def __len__(self) -> int:
        return self._length + len(self._rows[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        if index < self._length:
            inputs, targets = self._data[index]
            return torch.as_tensor(inputs), torch.as_tensor(targets), torch.tensor(DATA)
        inputs, targets, number = (t[index - self._length] for t in self._rows)
        return inputs, targets, number
