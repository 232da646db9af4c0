"""Examples to train on and to test on: what is guaranteed of them, and how they are parted."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, default_collate

from discreet._check import check_int, check_share
from discreet.errors import ConfigError
from discreet.release.batching import length_of

Pair = tuple[Tensor, Tensor]
Part = Pair | Dataset[Any]


@dataclass(frozen=True)
class Data:
    """Examples to train on and to test on.

    Guarantee: inputs are float32 and finite, of `shape` each; labels are int64 from 0 to classes - 1, or finite
    float32 numbers where `classes` is None. Of tensors every row is checked, of a data set the first example.

    `note` is what a figure that was measured with this data must say beside it. `owners` are the users whose the
    training rows are, by number, where that is known. `class_names` are what the classes are called, by number, and
    `inputs` is how a row of a file becomes an input, in plain values (inputs.py): both go with a trained model.
    `weights` are public constants by class, by which a training row's loss is multiplied; there may be none. `groups`
    has the number of each test row's group, of those that `group_names` calls by name.
    """

    name: str
    train: Part
    test: Part | None
    shape: tuple[int, ...]
    classes: int | None
    note: str = ""
    owners: Tensor | None = None
    class_names: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    groups: Tensor | None = None
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.classes is not None:
            check_int(f"{self.name}: the number of classes", self.classes, least=2)
        if 0 in self.shape:
            raise ConfigError(f"{self.name}: examples of shape {self.shape} hold nothing to learn from.")
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigError(f"{self.name} has {self.classes} classes and names for {len(self.class_names)}.")
        self._check("training", self.train)
        if self.test is not None:
            self._check("test", self.test)
        if self.owners is not None and self.owners.shape != (length_of(self.train),):
            raise ConfigError(f"{self.name} has owners of shape {tuple(self.owners.shape)}; each training row has one.")

    def _check(self, which: str, part: Part) -> None:
        where = f"{self.name}: the {which} part"
        try:
            length_of(part)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        if isinstance(part, tuple) and len(part) != 2:
            raise ConfigError(f"{where} is {len(part)} tensors; it must be two, the inputs and the labels.")
        x, y = part if isinstance(part, tuple) else first_example(where, part)
        self._check_rows(where, x, y)

    def _check_rows(self, where: str, x: Tensor, y: Tensor) -> None:
        wanted = torch.float32 if self.classes is None else torch.int64
        if x.dtype != torch.float32 or y.dtype != wanted:
            raise ConfigError(f"{where} is of {x.dtype} and {y.dtype}; it must be of torch.float32 and {wanted}.")
        if tuple(x.shape[1:]) != self.shape or y.ndim != 1:
            raise ConfigError(
                f"{where} has examples of shape {tuple(x.shape[1:])} with labels of shape {tuple(y.shape[1:])}; they "
                f"must be of shape {self.shape} with one label each."
            )
        if not _finite(x):
            raise ConfigError(f"{where} has inputs that are not finite; replace them by a public constant.")
        if self.classes is None:
            if not _finite(y):
                raise ConfigError(f"{where} has labels that are not finite; leave their rows out.")
        elif int(y.min()) < 0 or int(y.max()) >= self.classes:
            raise ConfigError(f"{where} has labels out of range; they must be from 0 to {self.classes - 1}.")


@dataclass(frozen=True)
class Split:
    """Which rows are for testing: by position and seed, whatever the rows hold."""

    fraction: float
    seed: int

    def __post_init__(self) -> None:
        check_share("test_fraction", self.fraction)
        check_int("seed", self.seed, least=0, most=2**63 - 1)

    def order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))

    def parts(self, name: str, count: int) -> tuple[Tensor, Tensor]:
        """The rows for training, and those for testing."""
        tested = round(count * self.fraction)
        if tested >= count:
            raise ConfigError(
                f"{name} has {count} rows, of which test_fraction {self.fraction:g} leaves none to train on."
            )
        order = self.order(count)
        return order[: count - tested], order[count - tested :]

    def of_pair(self, name: str, x: Tensor, y: Tensor) -> tuple[Pair, Pair | None]:
        if len(x) == 0 or len(x) != len(y):
            raise ConfigError(f"{name} has {len(x)} inputs and {len(y)} labels; it must have as many, and some.")
        train, test = self.parts(name, len(x))
        return (x[train], y[train]), (x[test], y[test]) if len(test) else None

    def of_users(self, name: str, x: Tensor, y: Tensor, owners: Tensor) -> tuple[Pair, Pair | None, Tensor]:
        """Whole users are for testing, all their rows; and whose the training rows are, by new numbers."""
        train, test = self.parts(name, int(owners.max()) + 1)
        inside, held = torch.isin(owners, train), torch.isin(owners, test)
        _, numbers = owners[inside].unique(return_inverse=True)
        return (x[inside], y[inside]), (x[held], y[held]) if len(test) else None, numbers


def validated(data: Data, fraction: float) -> Data:
    """A part of the training examples in place of the test part: settings are chosen without looking at that.

    Whether an example is held out is decided by a hash of its own input, so that it depends on no other example.
    """
    check_share("validation", fraction)
    if not isinstance(data.train, tuple) or data.owners is not None:
        raise ConfigError(f"{data.name}: a validation part is taken of examples in memory that are nobody's but one's.")
    if data.groups is not None:
        raise ConfigError(f"{data.name}: groups are of the test part, and a validation part stands in its place.")
    x, y = data.train
    drawn = [int.from_bytes(hashlib.sha256(row.numpy().tobytes()).digest()[:8]) / 2**64 for row in x.contiguous()]
    held = torch.tensor(drawn) < fraction
    if held.all() or not held.any():
        raise ConfigError(f"{data.name}: validation {fraction:g} leaves one of the two parts empty; take another.")
    note = "tested on a part of the training examples, not on the test part"
    return replace(data, train=(x[~held], y[~held]), test=(x[held], y[held]), note=notes(data.note, note))


def limited(data: Data, limit: int) -> Data:
    """The first examples of each part."""

    def first(part: Part) -> Part:
        if isinstance(part, tuple):
            x, y = part
            return x[:limit].clone(), y[:limit].clone()
        return Subset(part, range(min(limit, length_of(part))))

    test = None if data.test is None else first(data.test)
    note = f"the first {limit:,} examples" if length_of(data.train) >= limit else ""
    owners = None if data.owners is None else data.owners[:limit].clone()
    groups = None if data.groups is None else data.groups[:limit].clone()
    return replace(data, train=first(data.train), test=test, note=notes(data.note, note), owners=owners, groups=groups)


def first_example(where: str, part: Dataset[Any]) -> Pair:
    """The first example of a data set, as a batch of one, or a ConfigError if it is not an input and a label."""
    example = part[0]
    try:
        x, y = default_collate([example])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where} has a first example that is not an input and a label; return such pairs."
        ) from error
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise ConfigError(f"{where} has a first example that is not a tensor and a number; return such pairs.")
    return x, y


def _finite(x: Tensor) -> bool:
    """Whether every value is finite, in one pass and without a mask of them all."""
    return x.numel() == 0 or all(bool(torch.isfinite(end)) for end in torch.aminmax(x))


def notes(*each: str) -> str:
    """Several notes as one; empty ones are left out."""
    return "; ".join(note for note in each if note)
