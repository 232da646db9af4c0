"""What server and users agree on: the model, the plan, and what a user does with its rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import discreet
from discreet import Clip, Gaussian, Mechanism, Plan, Poisson
from discreet.federated import Local

LOCAL = Local(optimizer="sgd", learning_rate=0.1, epochs=2, batch_size=8)
BOUND = Clip(0.5)


@dataclass(frozen=True)
class Settings:
    """A run's configuration; `seed` is for tests, as whoever knows it can take the noise off again."""

    users: int = 100
    cohort: int = 20
    rounds: int = 30
    noise: float = 1.0
    seed: int = -1
    out: str = "run"

    @classmethod
    def of(cls, config: Mapping[str, bool | float | int | str]) -> "Settings":
        """From Flower's run config."""
        return cls(**config)

    @property
    def plan(self) -> Plan:
        return Plan(
            sampling=Poisson(examples=self.users, batch_size=self.cohort, unit="user"),
            mechanism=Mechanism(bound=BOUND, noise=Gaussian(self.noise)),
            steps=self.rounds,
            delta=0.1 / self.users,
        )


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def rows_of(user: int, users: int) -> tuple[Tensor, Tensor]:
    """A user's own rows; elsewhere these would lie on the user's machine."""
    x, y = discreet.data.load("digits").train
    return x.flatten(1)[user::users], y[user::users]


def held_out() -> tuple[Tensor, Tensor]:
    """Public rows, to see how good the model is."""
    x, y = discreet.data.load("digits").test
    return x.flatten(1), y
