"""Autograd's gradient of each loss, and how far norms and sums are from it."""

import torch
from zoo.neighbours import Scripted

import discreet
from by_hand.case import UNITS
from discreet.release.draws import Chunk


def difference(gradients, each, layout):
    """The largest error of norms and of a weighted sum, beside the whole gradient."""
    lengths = torch.zeros(len(each), dtype=torch.float64)
    for squared in gradients.norms().values():
        lengths += squared.double()
    true = each.norm(dim=1)
    weights = 1 / (1 + torch.arange(len(each))) / true.clamp(min=1e-30)
    sums = {name: torch.zeros_like(value) for name, value in layout.items()}
    gradients.add_weighted(dict.fromkeys(sums, weights.float()), sums)
    total = torch.cat([value.double().flatten() for value in sums.values()])
    expected = (weights[:, None] * each).sum(0)
    error = ((lengths.sqrt() - true).abs() / true.clamp(min=1e-30)).max()
    return float(max(error, (total - expected).norm() / expected.norm().clamp(min=1e-30)))


def gradient(model, loss, *, retain=False):
    """Autograd's gradient of one loss, as one vector."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=retain)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return torch.cat([real(part).double().flatten() for part in parts])


def real(tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def ragged(batch, units):
    """What the library finds of a batch that it has handed out."""
    chunk = Chunk(0, units, first=True, last=True)
    chunk.note(batch, digest=False)
    return chunk.ragged()


def released(model, rows, collate, loss, there, bound, *, preflight, bare=False):
    """The sum of one step in which some examples take part; `bare`: by losses that are tensors."""
    sampling = Scripted(examples=UNITS, batch_size=UNITS, script=(tuple(there),))
    mechanism = discreet.Mechanism(discreet.Clip(bound), discreet.Gaussian(1e-6))
    plan = discreet.Plan(sampling=sampling, mechanism=mechanism, steps=1, delta=1e-5)
    private = discreet.attach(model, plan, seed=1, preflight=preflight)
    for batch in private.batches(rows, collate_fn=collate):
        if bare:
            private.backward(loss(model, batch))
        else:
            private.backward(lambda given: loss(model, given), batch)
    return torch.cat([real(p.grad).flatten() for p in model.parameters() if p.requires_grad]) * UNITS
