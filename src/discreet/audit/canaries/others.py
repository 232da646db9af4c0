"""What everybody but the canaries adds to a release, for an attacker who knows the data and who was drawn."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from discreet.audit.canaries.units import DATA
from discreet.release.attachment import attach
from discreet.release.guards import trainable
from discreet.stages.noise import Gaussian
from discreet.stages.plan import Plan
from discreet.stages.sampling import Poisson
from discreet.training.options import Loss


def gradient_of(model: nn.Module) -> Tensor:
    """What was released, all parameters side by side."""
    gradients = [p.grad for p in trainable(model).values() if p.grad is not None]
    return torch.cat([g.detach().double().flatten().cpu() for g in gradients])


class Others:
    """What the data's own rows of a batch add to its release: their bounded sum without noise, by a twin of the model.

    A canary takes part by a coin of its own or by its place, whoever else does, so what is proven holds against an
    attacker who is told that sum: it is others' contribution, as the definition of privacy grants it.
    """

    def __init__(self, model: nn.Module, plan: Plan, loss: Loss) -> None:
        self._model, self._twin, self._loss = model, copy.deepcopy(model), loss
        mechanism = replace(plan.mechanism, noise=Gaussian(0.0), allocation="joint", hardening="idealised")
        everybody = Poisson(rate=1.0, batch_size=1)
        plain = replace(plan, sampling=everybody, mechanism=mechanism, epsilon=None, tuning=None, noise_schedule=())
        self._private = attach(self._twin, plain, preflight=False)
        self._rows: list[tuple[Tensor, Tensor]] = []

    def note(self, inputs: Tensor, targets: Tensor, who: Tensor) -> None:
        """Rows that are about to be used; of `who` only those that are no canaries count."""
        own, device = who == DATA, next(self._model.parameters()).device
        self._rows.append((inputs[own].to(device), targets[own].to(device)))

    def forget(self) -> None:
        """The batch was given up, and will be taken again."""
        self._rows.clear()

    def sum(self) -> Tensor:
        """Of the rows since the last time, at the model's parameters now, in chunks of the sizes that they came in."""
        rows, self._rows = self._rows, []
        largest = max((len(x) for x, _ in rows), default=0)
        if largest == 0:
            return torch.zeros(sum(p.numel() for p in self._twin.parameters() if p.requires_grad)).double()
        with torch.no_grad():
            for own, other in zip(self._twin.parameters(), self._model.parameters(), strict=True):
                own.copy_(other)
        data = tuple(torch.cat(pieces) for pieces in zip(*rows, strict=True))
        for inputs, targets in self._private.batches(data, steps=1, at_most=largest):
            self._private.backward(self._loss(self._twin(inputs), targets))
        return gradient_of(self._twin)
