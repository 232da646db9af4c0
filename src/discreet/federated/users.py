"""Examples by user: rows of tensors, and whose they are; and stated ways to deal rows out to made-up users."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.release.batching import length_of

Partition = Literal["iid", "shards", "dirichlet"]


@dataclass(frozen=True)
class Users(Sequence[tuple[Tensor, Tensor]]):
    """Users, each a pair of tensors: inputs and targets. `rows[k]` are user k's rows of `x` and `y`."""

    x: Tensor
    y: Tensor
    rows: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        length_of((self.x, self.y))
        if not self.rows:
            raise ConfigError("there are no users.")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, user: Any) -> Any:
        return self.x[self.rows[user]], self.y[self.rows[user]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self[user] for user in range(len(self)))

    @classmethod
    def of(cls, x: Tensor, y: Tensor, owners: Sequence[Any] | Tensor) -> "Users":
        """Users by name.

        Args:
            x: inputs, a row each.
            y: targets.
            owners: whose each row is. How many there are is public; their names are not kept.
        """
        names = owners.numpy() if isinstance(owners, Tensor) else np.asarray([str(owner) for owner in owners])
        if any(owner is None or owner != owner for owner in owners):
            raise ConfigError("some rows have no owner; leave them out.")
        if names.shape != (len(x),):
            raise ConfigError(f"there are {len(x)} rows and {names.shape} owners; each row has one.")
        _, numbers = np.unique(names, return_inverse=True)
        order = torch.from_numpy(np.argsort(numbers, kind="stable"))
        return cls(x, y, order.split(np.bincount(numbers).tolist()))

    @classmethod
    def dealt(
        cls,
        x: Tensor,
        y: Tensor,
        users: int,
        partition: Partition = "iid",
        *,
        shards: int = 2,
        alpha: float = 0.5,
        seed: int = 0,
    ) -> "Users":
        """Rows dealt out to made-up users, for data that has none.

        - "iid": at random, as equal in number as can be;
        - "shards": sorted by label, cut into `shards` pieces a user, dealt out at random (McMahan et al. 2017);
        - "dirichlet": each class goes to users in shares drawn with concentration `alpha`, so that users differ in size
          and in what they hold; some may hold nothing.

        Args:
            x: inputs, a row each.
            y: targets.
            users: how many.
            partition: "iid", "shards" or "dirichlet".
            shards: pieces a user.
            alpha: concentration of the shares.
            seed: of the draw.
        """
        check_int("users", users, least=1)
        generator = torch.Generator().manual_seed(check_int("seed", seed, least=0, most=2**63 - 1))
        count = len(x)
        if users > count:
            raise ConfigError(f"there are {count} rows for {users} users; have at most one user a row.")
        if partition == "iid":
            return cls(x, y, _cut(torch.randperm(count, generator=generator), users))
        if y.is_floating_point() or y.dim() != 1:
            raise ConfigError(f"the partition {partition!r} goes by classes, and the labels are none; use 'iid'.")
        if partition == "shards":
            pieces = users * check_int("shards", shards, least=1)
            if pieces > count:
                raise ConfigError(f"{count} rows cannot be cut into {pieces} shards; have fewer users or shards.")
            mixed = torch.randperm(count, generator=generator)
            cut = _cut(mixed[torch.argsort(y[mixed], stable=True)], pieces)
            order = torch.randperm(pieces, generator=generator).view(users, shards)
            return cls(x, y, tuple(torch.cat([cut[piece] for piece in own]) for own in order.tolist()))
        if partition != "dirichlet":
            raise ConfigError(f"the partition is {partition!r}; it must be one of {', '.join(get_args(Partition))}.")
        random = np.random.default_rng(seed)
        held: list[list[Tensor]] = [[] for _ in range(users)]
        for label in y.unique():
            own = torch.nonzero(y == label).flatten()
            own = own[torch.randperm(len(own), generator=generator)]
            shares = random.dirichlet(np.full(users, check_positive("alpha", alpha)))
            edges = np.round(np.cumsum(shares) * len(own)).astype(int)[:-1].tolist()
            for user, piece in enumerate(torch.tensor_split(own, edges)):
                held[user].append(piece)
        return cls(x, y, tuple(torch.cat(pieces) for pieces in held))


def _cut(order: Tensor, parts: int) -> tuple[Tensor, ...]:
    return torch.tensor_split(order, parts)
