"""The oracle of every engine test: autograd, one example at a time.

With DISCREET_DEVICE set, the engine runs on the device of elsewhere.py, and autograd too.
"""

import copy
import os

import torch
from torch import nn

from discreet.gradients import Engine

if "DISCREET_DEVICE" in os.environ:
    from elsewhere import there
else:

    def there(value):
        """Where the engine runs."""
        return value


TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def square_loss(output):
    """One loss per row, with a gradient that is different everywhere."""
    output = output[0] if isinstance(output, tuple) else output
    return (output.flatten(1) ** 2).sum(1) + output.flatten(1).sum(1)


def one_by_one(model, inputs, loss=square_loss):
    """Each example's gradient, [examples, *shape] for each parameter."""
    parameters = trainable(model)
    found = {name: [] for name in parameters}
    for i in range(len(inputs[0])):
        with torch.device(inputs[0].device):  # models may make positions and masks
            losses = loss(model(*(x[i : i + 1] for x in inputs)))
        gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        for (name, p), g in zip(parameters.items(), gradients, strict=True):
            found[name].append(torch.zeros_like(p) if g is None else g)
    return {name: torch.stack(each) for name, each in found.items()}


def cast(inputs, dtype):
    return [x.to(dtype) if x.is_floating_point() else x for x in inputs]


def assert_exact(
    model, *inputs, loss=square_loss, dtypes=(torch.float64, torch.float32), slack=1.0, engine=None, **options
):
    """The engine's norms, weighted sums and gradients equal the oracle's; twice, as the second time is cached."""
    for dtype in dtypes[:1] if "DISCREET_DEVICE" in os.environ else dtypes:
        tolerance = TOLERANCE[dtype] * slack
        cased, data = copy.deepcopy(model).to(dtype), cast(inputs, dtype)
        cased, data = there(cased), [there(x) for x in data]
        expected = {name: each.cpu() for name, each in one_by_one(cased, data, loss).items()}
        made = Engine(cased, **options) if engine is None else engine
        for _ in range(2):
            with torch.device(data[0].device):
                losses = loss(cased(*data))
            assert_equal(made.gradients(losses, len(data[0])), expected, tolerance)


def assert_equal(gradients, expected, tolerance):
    units = gradients.units
    _assert_chunks_equal(gradients, expected, tolerance)
    for name, squared in gradients.norms().items():
        _close(f"norm of {name}", squared.sqrt(), norms(expected[name]), tolerance, each=True)
    device = next(iter(gradients.parameters.values())).device
    weights = torch.linspace(0.1, 1, units, dtype=next(iter(expected.values())).dtype)
    sums = {name: torch.zeros(e.shape[1:], dtype=e.dtype, device=device) for name, e in expected.items()}
    gradients.add_weighted(dict.fromkeys(expected, weights.to(device)), sums)
    for name, total in sums.items():
        _close(f"sum of {name}", total, torch.einsum("u,u...->...", weights, expected[name]), tolerance)
    for name, each in gradients.each(0, units).items():
        _close(f"gradients of {name}", each, expected[name], tolerance)
    chosen = torch.tensor([0, units - 1])
    for name, squared in gradients.select(chosen.to(device)).norms().items():
        _close(f"selection of {name}", squared.sqrt(), norms(expected[name][chosen]), tolerance)


def _assert_chunks_equal(gradients, expected, tolerance):
    """The same for chunks of units, if any parameter waits for them: norms, a selection, and the sum."""
    chunks = gradients.in_chunks()
    if chunks is None:
        return
    device = next(iter(gradients.parameters.values())).device
    weights = torch.linspace(1, 0.1, gradients.units, dtype=next(iter(expected.values())).dtype)
    sums = {name: torch.zeros(e.shape[1:], dtype=e.dtype, device=device) for name, e in expected.items()}
    for (start, stop), some in zip(chunks.ranges, chunks, strict=True):
        last = some.select(torch.tensor([stop - start - 1]).to(device))
        for name, each in expected.items():
            _close(
                f"norm of {name} in a chunk", some.norms()[name].sqrt(), norms(each[start:stop]), tolerance, each=True
            )
            _close(f"the last of {name} in a chunk", last.norms()[name].sqrt(), norms(each[stop - 1 : stop]), tolerance)
        for name, each in some.each(0, stop - start).items():
            _close(f"gradients of {name} in a chunk", each, expected[name][start:stop], tolerance)
        some.add_weighted(dict.fromkeys(expected, weights[start:stop].to(device)), sums)
    for name, total in chunks.totals().items():
        sums[name] += total
    chunks.rest.add_weighted(dict.fromkeys(expected, weights.to(device)), sums)
    for name, total in sums.items():
        _close(f"sum of {name} by chunks", total, torch.einsum("u,u...->...", weights, expected[name]), tolerance)


def norms(each):
    return each.reshape(len(each), -1).norm(dim=1)


def _close(what, found, expected, tolerance, *, each=False):
    assert found.shape == expected.shape, what
    found = found.cpu()
    error = (found - expected).abs() if each else (found - expected).norm()
    size = expected.abs() if each else expected.norm()
    worst = (error / size.clamp(min=1e-30)).max().item() if size.max() > 0 else error.max().item()
    assert worst < tolerance, f"{what}: relative error {worst:.2e}, allowed {tolerance:.0e}"


class Tied(nn.Module):
    """An embedding whose table is also the output layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 3)
        self.head = nn.Linear(3, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.words(tokens)))


def each_loss(model, losses):
    """Autograd's gradient of each loss."""
    parameters = trainable(model)
    found = {name: [] for name in parameters}
    for loss in losses:
        gradients = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        for (name, p), g in zip(parameters.items(), gradients, strict=True):
            found[name].append(torch.zeros_like(p) if g is None else g)
    return {name: torch.stack(each) for name, each in found.items()}


def assert_units(model, losses, engine=None, tolerance=1e-9, **options):
    made, expected = Engine(model) if engine is None else engine, each_loss(model, losses)
    assert_equal(made.gradients(losses, len(losses), **options), expected, tolerance)


class Net(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def two_layers(width=3):
    return Net(inner=nn.Linear(width, 4), norm=nn.LayerNorm(4), outer=nn.Linear(4, 2)).double()
