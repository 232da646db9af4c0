"""What the ranks of test_sharding.py do."""

from functools import partial

import rank_work
import torch
import torch.distributed as dist
from rank_work import EXAMPLES
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

from discreet import AdaptiveClip, BoundedNetwork, Encode, Gaussian, PerLayerClip, attach, save_checkpoint

plan = partial(rank_work.plan, steps=3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(7), nn.Linear(7, 9), nn.Linear(9, 7)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Tokens(nn.Module):
    """Embedding, blocks, and a head that is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 7)
        self.places = nn.Parameter(torch.randn(5, 7))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens():
    return torch.randint(11, (EXAMPLES, 6), generator=torch.Generator().manual_seed(2))


def network(sharded, **settings):
    torch.manual_seed(0)
    model = Tokens()
    if sharded:
        for block in model.blocks:
            fully_shard(block, **settings)
        fully_shard(model, **settings)
    return model


def losses(model, x):
    return F.cross_entropy(model(x[:, :5]).transpose(1, 2), x[:, 1:], reduction="none").mean(1)


def train(made, sharded, at_most=None):
    model = network(sharded)
    private = attach(model, made, seed=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    released = []
    for x in private.batches(tokens(), at_most=at_most):
        if private.backward(losses(model, x)):
            grads = [p.grad.full_tensor() if sharded else p.grad for p in model.parameters()]
            released.append(torch.cat([g.flatten() for g in grads]))
            optimizer.step()
    private.detach()
    return torch.stack(released)


PLANS = {
    "clip": plan,
    "empty shares": lambda: plan(batch_size=2),
    "per layer": lambda: plan(PerLayerClip(0.3)),
    "adaptive": lambda: plan(AdaptiveClip(0.3)),
    "elements": lambda: plan(Encode(0.2)),
    "microbatches": lambda: plan(microbatch=3),
    "noise": lambda: plan(noise=Gaussian(0.5)),
}


def sharded_or_not(rank):
    found = {name: (train(make(), sharded=False), train(make(), sharded=True)) for name, make in PLANS.items()}
    found["chunks"] = train(plan(), sharded=False, at_most=2), train(plan(), sharded=True, at_most=2)
    return found


def refused(rank, folder):
    """What cannot be made exact, or is not supported, by name."""
    found = []
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "shards"))
    part = network(False)
    fully_shard(part.blocks[0])
    bounded = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    fitted = plan(BoundedNetwork(2.0, 1.5)).fit_to(bounded)
    fully_shard(bounded)
    for model, made in (
        (network(True, mesh=mesh), plan()),
        (network(True, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)), plan()),
        (network(True, offload_policy=CPUOffloadPolicy(pin_memory=False)), plan()),
        (part, plan()),
        (bounded, fitted),
    ):
        try:
            attach(model, made)
        except (ValueError, RuntimeError) as error:
            found.append(str(error))
    model = network(True)
    private = attach(model, plan())
    for act in (
        lambda: save_checkpoint(folder / "checkpoint", model=model, private=private),
        lambda: losses(model, tokens()).mean().backward(),
    ):
        try:
            act()
        except (ValueError, RuntimeError) as error:
            found.append(str(error))
    return found, str(private.guarantee()), dist.get_rank()


def failing(rank):
    """One rank's losses are wrong in the first of several chunks: the others stop too."""
    model = network(True)
    private = attach(model, plan())
    for x in private.batches(tokens(), at_most=2):
        wrong = rank == 1 and private.released == 1
        private.backward(losses(model, x).sum() if wrong else losses(model, x))


def stepping_too_early(rank):
    """The optimizer is stepped between two chunks of one batch: by whatever gradients, the parameters change."""
    model = network(True)
    private = attach(model, plan())
    for x in private.batches(tokens(), at_most=2):
        private.backward(losses(model, x))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
