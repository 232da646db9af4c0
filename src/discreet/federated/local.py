"""What a user does with the model before sending back how far its weights moved."""

import copy
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.release.guards import trainable
from discreet.training.evaluation import loss_for
from discreet.training.options import OPTIMIZERS, Loss

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Local:
    """Local training: `epochs` passes over the user's own records in batches of `batch_size` (None: all at once).

    Nothing here touches what is proven: a user's whole update is bounded, however it was made. The order of a user's
    records follows from `seed`, the round and the user's number, so that every engine makes the same update.
    """

    learning_rate: float = 0.1
    epochs: int = 1
    batch_size: int | None = 10
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("Local's learning_rate", self.learning_rate)
        check_int("Local's epochs", self.epochs, least=1)
        if self.batch_size is not None:
            check_int("Local's batch_size", self.batch_size, least=1)
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"Local's optimizer is {self.optimizer!r}; it must be one of {', '.join(OPTIMIZERS)}.")
        check_positive("Local's momentum", self.momentum, zero=True)
        check_positive("Local's weight_decay", self.weight_decay, zero=True)
        if self.momentum and self.optimizer not in ("sgd", "rmsprop"):
            raise ConfigError(f"Local's momentum is for sgd and rmsprop; {self.optimizer} has none to set.")
        check_int("Local's seed", self.seed, least=0)

    def make_optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The optimizer, on a user's own weights.

        Args:
            parameters: the user's weights.
        """
        settings = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.momentum:
            settings["momentum"] = self.momentum
        return OPTIMIZERS[self.optimizer](list(parameters), **settings)

    def size(self, records: int) -> int:
        """How many of a user's records make a batch.

        Args:
            records: how many the user has.
        """
        return max(1, records if self.batch_size is None else min(records, self.batch_size))

    def steps(self, records: int) -> int:
        """How many steps a user with so many records makes.

        Args:
            records: how many the user has.
        """
        return 0 if records == 0 else self.epochs * math.ceil(records / self.size(records))

    def orders(self, records: int, *, in_round: int, user: int) -> Tensor:
        """The order of a user's records in each epoch, [epochs, records].

        Args:
            records: how many the user has.
            in_round: which round it is.
            user: the user's number.
        """
        if self.size(records) >= records:
            return torch.arange(records).expand(self.epochs, records)
        words = hashlib.blake2b(f"{self.seed}:{in_round}:{user}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(words, "big") >> 1)
        return torch.rand(self.epochs, records, generator=generator).argsort(1)

    def update(
        self,
        model: nn.Module,
        data: Pair,
        *,
        in_round: int,
        user: int,
        loss: Loss | None = None,
    ) -> dict[str, Tensor]:
        """How far each trainable parameter moves when a copy of the model is trained on a user's records.

        Args:
            model: is not changed.
            data: the user's inputs and targets.
            in_round: which round it is; the order of records depends on it.
            user: the user's number.
            loss: `loss(outputs, targets)` is one value a row; a batch's mean is what is stepped along.
        """
        chosen = loss or loss_for(data)
        twin = copy.deepcopy(model)
        own = trainable(twin)
        start = {name: p.detach().clone() for name, p in own.items()}
        self.train(twin, own, data, chosen, in_round=in_round, user=user)
        return {name: p.detach() - start[name] for name, p in own.items()}

    def train(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        data: Pair,
        loss: Loss,
        *,
        in_round: int,
        user: int,
    ) -> None:
        """Train the model itself on a user's records.

        Args:
            model: what is trained.
            parameters: those that are trained, by name.
            data: the user's inputs and targets.
            loss: `loss(outputs, targets)` is one value a row.
            in_round: which round it is.
            user: the user's number.
        """
        inputs, targets = data
        device = next(iter(parameters.values())).device
        optimizer = self.make_optimizer(parameters.values())
        orders = self.orders(len(inputs), in_round=in_round, user=user)
        for rows in (rows for order in orders for rows in order.split(self.size(len(inputs))) if len(rows)):
            x, y = inputs[rows].to(device), targets[rows].to(device)
            optimizer.zero_grad()
            with torch.enable_grad():
                loss(model(x), y).mean().backward()
            optimizer.step()
