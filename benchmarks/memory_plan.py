"""What each rank of a sharded run would have in memory, planned on `meta`: nothing of the model's size is made.

    python benchmarks/memory_plan.py [--ranks 8 16 64] [--rows 4] [--tokens 512] [--layers 32] [--width 4096]
                                     [--inner 14336] [--words 128256] [--json]

The network is a decoder of the shape of an 8 B one, sharded block by block by FSDP2, in float32, with two optimizer
states a parameter. What the engine learns of a graph does not depend on widths: it is learned of a narrow network of
as many layers on the CPU, and then a batch of the wide one is taken apart on `meta`, so that each parameter's kernel
and the peak of a backward pass are those that the engine itself plans. Attention is written out, and saves its scores:
a fused one, whose op differs from device to device, saves less.
"""

import argparse
import json
import math
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from discreet.gradients import Engine
from discreet.gradients.engine import MEMORY
from discreet.gradients.forms import STORED
from discreet.gradients.kernels import choose

GIB = 1 << 30


class Block(nn.Module):
    """A layer of a decoder: attention with fewer heads for keys, and a gated product."""

    def __init__(self, width, inner, heads, groups):
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        h = self.before(x)
        query, key, value = (
            part(h).unflatten(2, (count, -1)).transpose(1, 2)
            for part, count in ((self.query, self.heads), (self.key, self.groups), (self.value, self.groups))
        )
        repeats, rows = self.heads // self.groups, len(x)
        key, value = (part.repeat_interleave(repeats, 1) for part in (key, value))
        # views and no reshapes: those are other ops on meta than on the CPU
        query, key, value = (part.contiguous().view(-1, *part.shape[2:]) for part in (query, key, value))
        scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.shape[2])
        future = torch.ones(scores.shape[1:], dtype=torch.bool, device=x.device).triu(1)
        mixed = torch.bmm(scores.masked_fill(future, -math.inf).softmax(2), value)
        x = x + self.out(mixed.view(rows, self.heads, *mixed.shape[1:]).transpose(1, 2).flatten(2))
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Words, blocks, a norm and a head; a loss for each text."""

    def __init__(self, words, width, inner, layers, heads, groups):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, inner, heads, groups) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        scores = self.head(self.norm(self.blocks(self.words(tokens))))
        each = F.cross_entropy(scores.view(-1, scores.shape[2]), tokens.view(-1), reduction="none")
        return each.view(tokens.shape).mean(1)


def planned(sizes, rows, tokens, device="meta", memory=MEMORY):
    """The model on a device, each parameter's kernel, and a backward pass's peak in bytes, ordinary and with these."""
    *_, layers, heads, groups = sizes
    narrow = Decoder(16, 2 * heads, 8, layers, heads, groups)
    learned = Engine(narrow)
    learned.gradients(narrow(torch.randint(16, (3, 5))), 3)
    with torch.device(device):
        wide = Decoder(*sizes)
        losses = wide(torch.zeros(rows, tokens, dtype=torch.int64))
    engine = Engine(wide, memory=memory)
    engine.storage_modes = (STORED,)  # sums are sharded: gradients wait for no chunks
    engine._structures.update(learned._structures)
    peaks = []

    def noted(forms, places, peak, *rest):
        kernels = choose(forms, places, peak, *rest)
        peaks.append((peak.ordinary, peak.of(kernels.of)))
        return kernels

    with patch("discreet.gradients.engine.choose", noted):
        engine.gradients(losses, rows)
    return wide, engine.kernels, *peaks[0]


def shares(model, ranks, peak):
    """What a rank has, in bytes: its shards, what is gathered, one whole sum, and the backward pass."""
    sizes = {name: 4 * p.numel() for name, p in model.named_parameters()}
    block = sum(4 * p.numel() for p in model.blocks[0].parameters())
    rest = sum(sizes.values()) - len(model.blocks) * block
    shard = sum(4 * math.ceil(p.shape[0] / ranks) * (p.numel() // p.shape[0]) for p in model.parameters())
    return {
        "parameters": shard,
        "optimizer": 2 * shard,
        "sums": shard,
        "gathered": rest + 2 * block,  # the root's own stay whole while blocks come and go, one ahead
        "one whole sum": 2 * max(sizes.values()),  # a rank's own, and room for what is sent
        "activations, gradients": peak,
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 64])
    for name, size in (("rows", 4), ("tokens", 512), ("layers", 32), ("width", 4096), ("inner", 14336)):
        arguments.add_argument(f"--{name}", type=int, default=size)
    arguments.add_argument("--words", type=int, default=128256)
    arguments.add_argument("--heads", type=int, default=32)
    arguments.add_argument("--groups", type=int, default=8)
    arguments.add_argument("--json", action="store_true")
    asked = arguments.parse_args()
    sizes = asked.words, asked.width, asked.inner, asked.layers, asked.heads, asked.groups
    model, kernels, ordinary, peak = planned(sizes, asked.rows, asked.tokens)
    of = {str(ranks): shares(model, ranks, peak) for ranks in asked.ranks}
    count = sum(p.numel() for p in model.parameters())
    if asked.json:
        print(json.dumps({"parameters": count, "kernels": kernels, "ordinary": ordinary, "ranks": of}))
        return
    kinds = sorted(set(kernels.values()))
    print(f"{count / 1e9:.2f} billion parameters, {asked.rows} texts of {asked.tokens} tokens a rank, float32;")
    print(f"torch {torch.__version__}; kernels: {', '.join(kinds)}; activations without privacy {ordinary / GIB:.1f}\n")
    print("| GiB a rank | " + " | ".join(f"{ranks} ranks" for ranks in of) + " |")
    print("| --- |" + " --- |" * len(of))
    for part in next(iter(of.values())):
        print(f"| {part} | " + " | ".join(f"{found[part] / GIB:.1f}" for found in of.values()) + " |")
    print("| together | " + " | ".join(f"{sum(found.values()) / GIB:.1f}" for found in of.values()) + " |")


if __name__ == "__main__":
    main()
