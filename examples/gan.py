"""A GAN in which the discriminator alone sees private data, and so is all that needs a plan.

The generator learns from the discriminator, which is private already: what follows from a release costs nothing. Data
are made-up points on a ring, to be seen at once; python examples/gan.py takes some seconds.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

import discreet


def ring(count: int) -> torch.Tensor:
    """Points near a circle of radius 1: the private data."""
    angle = 2 * math.pi * torch.rand(count)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


def train(steps: int = 300, examples: int = 2000, batch_size: int = 200):
    """The generator, and what is proven of all of it."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    plan = discreet.methods.dp_sgd(examples=examples, batch_size=batch_size, steps=steps, epsilon=8, delta=1e-5)
    private = discreet.attach(discriminator, plan)
    learn_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3)
    learn_g = torch.optim.Adam(generator.parameters(), lr=2e-3)

    for (real,) in private.batches((ring(examples),)):
        with torch.no_grad():
            fake = generator(torch.randn(len(real), 4))  # each real point has a fake one of its own beside it
        losses = F.softplus(-discriminator(real))[:, 0] + F.softplus(discriminator(fake))[:, 0]
        private.backward(losses)
        learn_d.step()

        loss = F.softplus(-discriminator(generator(torch.randn(batch_size, 4)))).mean()
        learn_g.zero_grad()
        loss.backward(inputs=[*generator.parameters()])  # through the discriminator, and not into it
        learn_g.step()

    proven = private.guarantee()
    private.detach()
    return generator, proven


if __name__ == "__main__":
    generator, proven = train()
    with torch.no_grad():
        radius = generator(torch.randn(1000, 4)).norm(dim=1)
    print(f"radius {radius.mean():.2f} (1.00 is right), ε = {proven.epsilon:.2f}")
    print(proven)
