"""What the ranks of test_sharding.py do."""

import gc
from dataclasses import dataclass
from functools import partial

import rank_work
import torch
import torch.distributed as dist
from rank_work import EXAMPLES
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from discreet import (
    AdaptiveClip,
    AutomaticClip,
    BoundedNetwork,
    Encode,
    Gaussian,
    PerLayerClip,
    attach,
    save_checkpoint,
)
from discreet.gradients.rules import RULES, Rule

plan = partial(rank_work.plan, steps=2)


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
        self.scale = nn.Parameter(torch.ones(1, 7))  # fewer rows than ranks
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head((x.states if isinstance(x, Hidden) else x) * self.scale)


def tokens():
    return torch.randint(11, (EXAMPLES, 6), generator=torch.Generator().manual_seed(2))


class Standardised(Block):
    """Weights that are made of parameters, so that their values are needed to take gradients apart."""

    def forward(self, x):
        weight = self.up.weight - self.up.weight.mean(1, keepdim=True)
        return x + self.down(torch.tanh(F.linear(self.norm(x), weight * weight.norm(), self.up.bias)))


class Unruly(Block):
    """An op without a rule."""

    def forward(self, x):
        return x + self.down(torch.cdist(self.norm(x), self.up.weight) + self.up.bias)


class Recomputed(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Frozen(Block):
    def __init__(self):
        super().__init__()
        self.up.weight.requires_grad_(False)


@dataclass
class Hidden:
    states: torch.Tensor


class Wrapped(Block):
    """A block that returns a data class."""

    def forward(self, x):
        return Hidden(super().forward(x.states if isinstance(x, Hidden) else x))


class Sliced(Block):
    """Parts of one weight, as attention has them: only rearranged, so that no values are needed."""

    def forward(self, x):
        one, two = self.up.weight.split((4, 5))
        hidden = torch.cat([F.linear(self.norm(x), one), F.linear(self.norm(x), two)], -1)
        return x + self.down(torch.tanh(hidden + self.up.bias))


def network(sharded, kind=Block, blocks=2, **settings):
    torch.manual_seed(0)
    model = Tokens()
    model.blocks = nn.ModuleList([kind() for _ in range(blocks)])
    if sharded:
        for block in model.blocks:
            fully_shard(block, **settings)
        fully_shard(model, **settings)
    return model


def losses(model, x):
    return F.cross_entropy(model(x[:, :5]).transpose(1, 2), x[:, 1:], reduction="none").mean(1)


def train(made, sharded, at_most=None, kind=Block, spoil=None):
    model = network(sharded, kind)
    private = attach(model, made, seed=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    released = []
    for x in private.batches(tokens(), at_most=at_most):
        found = losses(model, x)
        if spoil is not None:
            found = found / (1 - spoil(x).float())
        if private.backward(found):
            grads = [p.grad.full_tensor() if sharded else p.grad for p in model.parameters() if p.requires_grad]
            released.append(torch.cat([g.flatten() for g in grads]))
            optimizer.step()
    private.detach()
    return torch.stack(released)


PLANS = {
    "clip": plan,
    "empty shares": lambda: plan(batch_size=2),
    "per layer": lambda: plan(PerLayerClip(0.3)),
    "adaptive": lambda: plan(AdaptiveClip(0.3)),
    "adaptive, by layer": lambda: plan(AdaptiveClip(0.3, "mean", per_layer=True)),
    "automatic": lambda: plan(AutomaticClip()),
    "elements": lambda: plan(Encode(0.2)),
    "microbatches": lambda: plan(microbatch=3),
}
WAYS = {
    "chunks": {"at_most": 2},
    "chunks of one": {"at_most": 1},
    "some are not finite": {"spoil": lambda x: x[:, 0] < 4},
    "none is finite": {"spoil": lambda x: x[:, 0] >= 0},
    "slices": {"kind": Sliced},
    "frozen weights": {"kind": Frozen},
    "data classes": {"kind": Wrapped},
    "weights that are made": {"kind": Standardised},
    "an op without a rule": {"kind": Unruly},
    "checkpointing": {"kind": Recomputed},
}


FEW = ("empty shares", "per layer", "adaptive, by layer", "elements", "chunks", "none is finite")


def trained(rank, sharded, names=(*PLANS, *WAYS)):
    return {name: train(PLANS.get(name, plan)(), sharded, **WAYS.get(name, {})) for name in names}


class Gathered:
    """The most bytes of parameters that are whole at a time, seen whenever some become whole."""

    def __init__(self, model):
        states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
        self.groups = {id(g): g for state in states for g in state._fsdp_param_groups}
        self.most = 0
        for group in self.groups.values():
            group._to_unsharded = partial(self._look, group._to_unsharded)

    def _look(self, to_unsharded):
        to_unsharded()
        whole = [p._unsharded_param for g in self.groups.values() if g.is_unsharded for p in g.fsdp_params]
        self.most = max(self.most, sum(p.untyped_storage().nbytes() for p in whole))


def alive():
    """The bytes of all tensors that Python knows of."""
    storages = [t.untyped_storage() for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


class Summed:
    """The most bytes of tensors that are there while sums are added up over the ranks, above what was there before."""

    def __init__(self, ranks):
        self.ranks, self.before, self.most, self.calls = ranks, alive(), 0, 0

    def __call__(self, tensor):
        self.calls += 1
        if self.calls % 9 == 0:
            self.most = max(self.most, alive() - self.before)
        return type(self.ranks).scatter(self.ranks, tensor)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(280, 280)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


def memory(rank, whole):
    """Of a model of twenty equal blocks: parameters that are whole at a time, and what sums take, as parts of it.

    The first step is the one that is probed. Shares of noise take whole sums.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(Wide() for _ in range(20)))
    size = sum(p.nbytes for p in model.parameters())
    for block in model:
        fully_shard(block)
    fully_shard(model)
    gathered, sums = Gathered(model), []
    private = attach(model, plan(), noise_shares=whole)
    for x in private.batches(torch.randn(EXAMPLES, 280), steps=2):
        model.zero_grad()
        each = model(x).square().mean(1)
        private.ranks.scatter = Summed(private.ranks)
        private.backward(each)
        sums.append(private.ranks.scatter.most / size)
    return gathered.most / size, sums


def noise(rank, seed):
    """Releases with noise less those without, as parameters are sharded: one row for each step."""
    found = []
    for made in (plan(noise=Gaussian(0.0)), plan(noise=Gaussian(2.0))):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 300), nn.Linear(300, 1))
        fully_shard(model[0])
        fully_shard(model)
        private = attach(model, made, seed=seed)
        steps = []
        for x in private.batches(torch.zeros(EXAMPLES, 50)):
            private.backward(0 * model(x).sum(1))
            steps.append(torch.cat([p.grad.to_local().flatten() for p in model.parameters()]))
        found.append(torch.stack(steps))
    return (found[1] - found[0]) / (2.0 * 0.3 / 12)


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


def mixing(rank):
    """One rank's losses mix examples from the second step on, of which its passes tell."""
    model = network(True)
    private = attach(model, plan())
    for x in private.batches(tokens()):
        found = losses(model, x)
        private.backward(found - found.mean() if rank == 1 and private.released == 1 else found)


def failing_within_a_pass(rank):
    """A rule fails on one rank while all are in one backward pass."""
    model = network(True)
    private = attach(model, plan(), preflight=False)
    if rank == 1:
        for key in list(RULES):
            RULES[key] = Rule(lambda ctx: 1 / 0)
    for x in private.batches(tokens()):
        try:
            private.backward(losses(model, x))
        except ZeroDivisionError as error:
            raise ValueError("divided by zero") from error


def unfreezing(rank):
    """A frozen parameter is unfrozen after attach."""
    model = network(True)
    model.blocks[0].up.weight.requires_grad_(False)
    private = attach(model, plan())
    for x in private.batches(tokens()):
        model.blocks[0].up.weight.requires_grad_(True)
        private.backward(losses(model, x))


def stepping_too_early(rank):
    """The optimizer is stepped between two chunks of one batch: by whatever gradients, the parameters change."""
    model = network(True)
    private = attach(model, plan())
    for x in private.batches(tokens(), at_most=2):
        private.backward(losses(model, x))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
