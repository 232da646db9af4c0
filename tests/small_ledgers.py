"""Ledgers of a small plan, written without a model, and the data that a model of this layout can be trained on."""

import torch

from discreet import Clip, Gaussian, Ledger, Mechanism, Plan, Poisson
from discreet.ledger import RunLedger
from discreet.stages.sensitivity import Layout

LAYOUT = Layout(("w",), ((2, 3),))
DATA = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(20, dtype=torch.long)


def plan(steps=5, noise=None, sampling=None, bound=None):
    return Plan(
        sampling=sampling or Poisson(examples=20, batch_size=5),
        mechanism=Mechanism(bound or Clip(1.0), noise or Gaussian(2.0)),
        steps=steps,
        delta=1e-5,
    )


def counted(path, count=3, made=None, **settings):
    account = RunLedger(Ledger(path, **settings), made or plan(), LAYOUT)
    for _ in range(count):
        account.spend()
    account.close()
    return account


def capped(path, epsilon):
    return Ledger(path, dataset="patients", epsilon=epsilon, delta=1e-5)
