import copy
import json
import math
import pickle
import subprocess
import sys
import tomllib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet import ConfigError, PrivacyError
from discreet.accounting.events import Event
from discreet.accounting.serialization import build as built
from discreet.accounting.serialization import describe, to_toml
from discreet.nn import BELU
from discreet.stages.bounds.bounded_network import BoundedNetwork
from discreet.stages.bounds.certificate import belu_certificate
from discreet.stages.sensitivity import Layout, norm_of


def mlp():
    return nn.Sequential(nn.Linear(6, 5), BELU(1.0, 2.0), nn.Sequential(nn.Linear(5, 4), nn.Tanh()), nn.Linear(4, 3))


def squashed():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3), BELU(1.0, 1.0))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 3, 2, stride=1),
        BELU(1.0, 1.0),
        nn.Flatten(),
        nn.Linear(3, 3),
    )


NETWORKS = {
    "mlp": (mlp, BoundedNetwork(2.0, 1.5), (6,)),
    "mlp, frobenius": (mlp, BoundedNetwork(2.0, (0.5, 2.0), projection="frobenius"), (6,)),
    "squashed": (squashed, BoundedNetwork(1.0, 1.0, loss="belu squared"), (2, 3)),
    "convolutional": (convolutional, BoundedNetwork(1.0, 1.2, input_shape=(1, 4, 4)), (1, 4, 4)),
}
LOSSES = {
    "cross-entropy": lambda z, y: F.cross_entropy(z, y, reduction="none"),
    "a million times": lambda z, y: 1e6 * F.cross_entropy(z, y, reduction="none"),
    "exponential": lambda z, y: (9 * z).exp().sum(1),
    "roots of negative values": lambda z, y: z.sqrt().sum(1),
    "in place": lambda z, y: F.cross_entropy(z.mul_(2.0), y, reduction="none"),
}
ordinary = LOSSES["cross-entropy"]


def setting(name):
    """A network, its fitted bound, and a batch of eight rows that are short enough to be left as they are."""
    make, bound, shape = NETWORKS[name]
    torch.manual_seed(1)
    model = make()
    x = torch.randn(8, *shape)
    x *= 0.9 * bound.input_norm / x.flatten(1).norm(dim=1).view(-1, *[1] * len(shape))
    return model, bound.fit_to(model), x, torch.randint(3, (8,))


def step(model, bound, x, y, loss=ordinary):
    """The bounded sums of one batch."""
    gate = bound.install(model)
    try:
        return gate.sums(loss(model(x), y), len(x))
    finally:
        gate.remove()


def shares(one, other, contract):
    """How far two sums are apart, block by block, in units of what the contract allows."""
    return [
        math.sqrt(sum(float((one[n] - other[n]).double().square().sum()) for n in block.members)) / block.norm
        for block in contract.blocks
    ]


def plain(model, x, y, loss=ordinary):
    """Autograd, one example at a time, on a model without a gate."""
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for i in range(len(x)):
        losses = loss(model(x[i : i + 1]), y[i : i + 1])
        for n, g in zip(total, torch.autograd.grad(losses.sum(), list(model.parameters())), strict=True):
            total[n] += g
    return total


def assert_alike(one, other, tolerance=1e-5):
    assert list(one) == list(other)
    scale = max(float(g.abs().max()) for g in other.values())
    for name in one:
        assert float((one[name] - other[name]).abs().max()) <= tolerance * scale, name


# --- what one unit may change ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["as it is", "huge", "largest float", "nan", "one inf", "blown-up weights"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NETWORKS)
def test_neighbours_differ_by_at_most_the_certificate(name, loss, kind):
    model, bound, x, y = setting(name)
    if kind == "blown-up weights":
        for parameter in model.parameters():  # past version counters, as some optimizers do
            parameter.data.mul_(100)
    else:
        change = {"huge": 1e6, "largest float": 3e38, "nan": math.nan}.get(kind, 1.0)
        x[2] *= change
        if kind == "one inf":
            x[2].view(-1)[1] = math.inf
    others = torch.arange(8) != 2
    contract = bound.contract(bound.layout, bound.start(bound.layout))
    with_it = step(model, bound, x, y, LOSSES[loss])
    without = step(model, bound, x[others], y[others], LOSSES[loss])
    assert max(shares(with_it, without, contract)) <= 1 + 1e-5
    for gradient in with_it.values():
        assert bool(gradient.isfinite().all())


def long_inputs(model, x, y):
    """The same activations from inputs a million times as long."""
    next(model.parameters()).data.mul_(1e-6)
    return 1e6 * x, y, ordinary


def steep_losses(model, x, y):
    return x, y, LOSSES["a million times"]


def heavy_weights(model, x, y):
    """A last layer that is large, and labels that it gets wrong."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    last.weight.data.mul_(1e3)
    last.bias.data.zero_()
    with torch.no_grad():
        return x, model(x).argmin(1), ordinary


@pytest.mark.parametrize("attack", [long_inputs, steep_losses, heavy_weights])
@pytest.mark.parametrize("name", ["mlp", "mlp, frobenius", "convolutional"])
def test_each_premise_is_needed_and_kept(name, attack):
    """One example breaks the certificate where nothing enforces the premise, and does not with a gate."""
    model, bound, x, y = setting(name)
    contract = bound.contract(bound.layout, None)
    zeros = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    x, y, loss = attack(model, x[:1], y[:1])
    assert max(shares(plain(model, x, y, loss), zeros, contract)) > 1
    assert max(shares(step(model, bound, x, y, loss), zeros, contract)) <= 1 + 1e-5


def test_the_bound_of_the_last_layer_is_nearly_reached():
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    bound = BoundedNetwork(3.0).fit_to(model)
    found = step(model, bound, torch.tensor([[1e9, 0.0]]), torch.tensor([0]), LOSSES["a million times"])
    (block,) = bound.contract(bound.layout, None).blocks
    assert float(found["0.weight"].norm()) == pytest.approx(block.norm, rel=1e-5)
    assert block.norm == pytest.approx(3 * math.sqrt(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NETWORKS)
def test_where_nothing_is_cut_the_sums_are_autograds(name, dtype):
    model, bound, x, y = setting(name)
    model, x = model.to(dtype), x.to(dtype)
    bound.install(model).remove()
    first = step(model, bound, x, y)  # projects the weights
    assert_alike(first, plain(model, x, y), 1e-5 if dtype == torch.float32 else 1e-12)


def test_long_inputs_and_steep_losses_are_shortened_and_nothing_else():
    model, bound, x, y = setting("mlp")
    long = x.clone()
    long[3] *= 7
    expected = x.clone()
    expected[3] *= bound.input_norm / x[3].norm()
    found = step(model, bound, long, y)
    assert_alike(found, plain(model, expected, y), 1e-4)

    def steep(z, y):
        return ordinary(z, y) * torch.tensor([1e4] + [1.0] * 7)

    found = step(model, bound, x, y, steep)
    z = model(x[:1])
    (row,) = torch.autograd.grad(ordinary(z, y[:1]).sum(), z, retain_graph=True)
    cut = dict(
        zip(found, torch.autograd.grad(z, list(model.parameters()), row * math.sqrt(2) / row.norm()), strict=True)
    )
    rest = plain(model, x[1:], y[1:])
    assert_alike(found, {n: cut[n] + rest[n] for n in found}, 1e-4)


# --- what is not finite ----------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_contributes_nothing():
    for value in (math.nan, math.inf, -math.inf):
        model, bound, x, y = setting("mlp")
        factors = torch.ones(8)
        factors[5] = value
        others = torch.arange(8) != 5
        expected = step(model, bound, x[others], y[others])
        found = step(model, bound, x, y, lambda z, y, factors=factors: factors * ordinary(z, y))
        assert_alike(found, expected)
        found = step(
            model, bound, x, y, lambda z, y, factors=factors: factors + ordinary(z, y)
        )  # its gradient is finite
        assert_alike(found, expected)


def test_a_unit_whose_activations_are_not_finite_is_left_out_and_no_other():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3e38, -3e38], [1.0, 0.0], [0.0, 1.0]]))
    bound = BoundedNetwork(10.0).fit_to(model)
    x = torch.tensor([[0.1, 0.2], [5.0, 5.0], [0.3, 0.0]])  # inf - inf in the second
    y = torch.tensor([0, 1, 1])
    assert not model(x)[1].isfinite().any()
    found = step(model, bound, x, y)
    assert_alike(found, step(model, bound, x[[0, 2]], y[[0, 2]]))
    assert max(float(g.abs().max()) for g in found.values()) > 0
    nothing = step(model, bound, x[[1, 1]], y[[1, 1]])
    assert all(not g.any() for g in nothing.values())


def test_a_unit_that_is_not_finite_where_outputs_do_not_show_it_is_left_out():
    """A stride leaves out the place where a value is not finite, so the outputs are finite; the gradient is not."""
    model = nn.Sequential(
        nn.Conv1d(2, 1, 1), nn.Tanh(), nn.Conv1d(1, 1, 1, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(2, 2)
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([3e38, -3e38]).view(1, 2, 1))
    bound = BoundedNetwork(10.0, input_shape=(2, 3)).fit_to(model)
    x = torch.zeros(5, 2, 3)
    x[:, :, 0] = torch.rand(5, 2)
    x[1, :, 1] = x[4, :, 1] = 5.0
    y = torch.randint(2, (5,))
    assert model(x).isfinite().all()
    found = step(model, bound, x, y)
    assert_alike(found, step(model, bound, x[[0, 2, 3]], y[[0, 2, 3]]))


def test_a_diverged_weight_is_an_error():
    model, bound, x, y = setting("mlp")
    model[3].weight.data[0, 0] = math.nan
    with pytest.raises(PrivacyError, match=r"'3\.weight' is not finite"):
        step(model, bound, x, y)


# --- projection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("projection", ["spectral", "frobenius"])
@pytest.mark.parametrize("name", ["mlp", "convolutional"])
def test_weights_are_projected_before_every_pass_rounding_included(name, projection, dtype):
    make, bound, shape = NETWORKS[name]
    model = make().to(dtype)
    bound = BoundedNetwork(1.0, 0.3, projection=projection, input_shape=bound.input_shape).fit_to(model)
    gate = bound.install(model)
    first, *rest = [block.members[0] for block in bound.contract(bound.layout, None).blocks]
    kept = model.get_parameter(first).detach().clone()
    for scale in (1.0, 1e4):  # as an optimizer might, past the version counter
        for weight in rest:
            model.get_parameter(weight).data.mul_(scale)
        with torch.no_grad():
            model(torch.zeros(2, *shape, dtype=dtype))
        for weight in rest:
            matrix = model.get_parameter(weight).detach().double().flatten(1)
            norm = float(torch.linalg.matrix_norm(matrix, 2 if projection == "spectral" else "fro"))
            assert 0.27 < norm <= 0.3
    assert model.get_parameter(first).equal(kept)
    gate.remove()


def test_a_projection_clips_singular_values_and_keeps_what_is_short_enough():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    with torch.no_grad():
        model[2].weight.copy_(turn @ torch.diag(torch.tensor([5.0, 0.9, 0.1], dtype=torch.float64)))
    step(model, BoundedNetwork(1.0, 1.0).fit_to(model), torch.randn(2, 3), torch.tensor([0, 1]))
    expected = turn @ torch.diag(torch.tensor([1.0, 0.9, 0.1], dtype=torch.float64))
    assert torch.allclose(model[2].weight.double(), expected, atol=1e-5)
    before = model[2].weight.detach().clone()  # its sum of squares is above 1, its singular values are not
    step(model, BoundedNetwork(1.0, 1.0).fit_to(model), torch.randn(2, 3), torch.tensor([0, 1]))
    assert model[2].weight.equal(before)


# --- what the loss may do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda model, z, y: ordinary(z - z.mean(0), y), "mixes examples"),
        (lambda model, z, y: ordinary(z.flip(0), y), "mixes examples"),
        (lambda model, z, y: ordinary(z, y) + z.logsumexp((0, 1)), "mixes examples"),
        (lambda model, z, y: ordinary(z, y) + model[0].weight.square().sum(), r"parameter '0\.weight' past"),
        (lambda model, z, y: ordinary(z @ model[3].weight @ model[3].weight.T, y), r"parameter '3\.weight' past"),
        (lambda model, z, y: ordinary(model[3](torch.ones(8, 4)), y), r"parameter '3\.\w+' past"),
        (lambda model, z, y: torch.ones(8, requires_grad=True) * 2, "do not depend on the outputs"),
        (lambda model, z, y: ordinary(z, y).mean(), "losses or outputs for more or fewer rows"),
        (lambda model, z, y: ordinary(z, y)[:7], "losses or outputs for more or fewer rows"),
        (lambda model, z, y: ordinary(z + model(torch.ones(8, 6)), y), "called 2 times"),
    ],
)
def test_losses_that_break_the_certificate_are_refused(loss, match):
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    with pytest.raises(PrivacyError, match=match):
        gate.sums(loss(model, model(x), y), 8)
    gate.clear()
    assert gate.sums(ordinary(model(x), y), 8).keys() == dict(model.named_parameters()).keys()


def test_many_units_are_told_apart():
    """More of them than there are factors to reweight with."""
    model, bound, _, _ = setting("mlp")
    x, y = torch.randn(200, 6), torch.randint(3, (200,))
    order = torch.arange(200)
    step(model, bound, x, y)
    order[[3, 150]] = order[[150, 3]]
    with pytest.raises(PrivacyError, match="mixes examples"):
        step(model, bound, x, y, lambda z, y: ordinary(z[order], y))


def test_an_output_of_an_earlier_batch_is_refused():
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    earlier = model(x)
    gate.clear()
    with pytest.raises(PrivacyError, match="before this batch was drawn"):
        gate.sums(ordinary(model(x) + earlier, y), 8)


def test_losses_without_a_gradient_are_refused():
    model, bound, x, y = setting("mlp")
    with pytest.raises(PrivacyError, match="carry no gradient"):
        step(model, bound, x, y, lambda z, y: ordinary(z, y).detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_refused(dtype):
    """The batch is summed in the network's own dtype: there one unit could move every last digit of the sum."""
    with pytest.raises(ConfigError, match="summed and rounded"):
        BoundedNetwork(1.0).fit_to(mlp().to(dtype))


def pack(tensor):
    return tensor


def test_what_is_in_force_only_in_the_forward_pass_is_noticed():
    """Hooks for all modules, hooks on saved tensors, modules and methods swapped for the time of a pass."""
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)

    def refused(words, context=None):
        gate.clear()
        with pytest.raises(PrivacyError, match=words):
            gate.sums(ordinary(model(x), y), len(x))

    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 1000)
    refused("hooks for all modules")
    handle.remove()
    handle = nn.modules.module.register_module_full_backward_hook(lambda module, gi, go: None)
    refused("hooks for all modules")
    handle.remove()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 1000):
        refused("saved tensors are hooked")
    handle = model[1].register_forward_hook(lambda module, args, output: output * 1000)
    refused("has a hook")
    handle.remove()
    own, model[1] = model[1], nn.ReLU()
    refused("changed after attach")
    model[1] = own
    gate.clear()
    gate.sums(ordinary(model(x), y), len(x))
    gate.remove()


def test_a_pass_that_was_interrupted_does_not_open_the_gate():
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    gate.running = True  # as an interrupt in the middle of a pass leaves it
    gate.clear()
    with pytest.raises(PrivacyError, match="called 0 times"):
        gate.sums(ordinary(model[3](1000 * model[2](model[1](model[0](x)))), y), len(x))
    gate.remove()


def test_losses_may_have_parameters_of_their_own():
    model, bound, x, y = setting("mlp")
    temperature = torch.ones((), requires_grad=True)
    found = step(model, bound, x, y, lambda z, y: ordinary(z / temperature, y))
    assert_alike(found, step(model, bound, x, y))
    assert temperature.grad is None


def test_the_outputs_are_used_once():
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    losses = ordinary(model(x), y)
    gate.sums(losses, 8)
    with pytest.raises(PrivacyError, match="called 0 times"):
        gate.sums(losses, 8)
    with pytest.raises(PrivacyError, match="more or fewer rows than the batch has"):
        gate.sums(ordinary(model(x), y)[:7], 7)


def test_a_plain_backward_pass_is_refused_and_reaches_no_parameter():
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    with pytest.raises(PrivacyError, match=r"loss\.backward\(\) was called"):
        ordinary(model(x), y).mean().backward()
    assert all(p.grad is None for p in model.parameters())
    gate.remove()
    ordinary(model(x), y).mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_gradients_must_be_on():
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    losses = ordinary(model(x), y)
    with torch.no_grad(), pytest.raises(PrivacyError, match="gradients are off"):
        gate.sums(losses, 8)


# --- what may happen to the network ----------------------------------------------------------------------------------


def swap(model):
    model[1] = nn.ReLU()


def enlarge(model):
    model[1] = BELU(1.0, 50.0)


def grow(model):
    model[3].weight.data.mul_(1000)


def hook(model):
    model[1].register_forward_hook(lambda module, args, output: output * 1000)


def freeze(model):
    model[3].bias.requires_grad_(False)


def patch(model):
    model[1].forward = lambda x: 1000 * x


def replace_layer(model):
    model[3] = nn.Linear(4, 3)


@pytest.mark.parametrize("change", [swap, enlarge, grow, hook, freeze, patch, replace_layer])
def test_a_network_that_is_changed_between_the_passes_is_refused(change):
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    losses = ordinary(model(x), y)
    change(model)
    with pytest.raises(PrivacyError, match="changed"):
        gate.sums(losses, 8)


def test_inputs_that_are_overwritten_between_the_passes_change_nothing():
    model, bound, x, y = setting("mlp")
    expected = step(model, bound, x.clone(), y)
    gate = bound.install(model)
    losses = ordinary(model(x), y)
    x.data.mul_(1e6)
    assert_alike(gate.sums(losses, 8), expected)


def test_parts_of_the_network_lead_past_the_gate_and_are_refused():
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    model(x)
    with pytest.raises(PrivacyError, match=r"parameter '0\.bias' past"):
        gate.sums(ordinary(model[3](model[2](1000 * model[1](model[0](x)))), y), 8)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", (8, 2, 6)), ("mlp", (6,)), ("mlp", (8, 5)), ("convolutional", (8, 1, 5, 5)), ("squashed", (8, 7))],
)
def test_inputs_of_another_shape_are_refused(name, shape):
    model, bound, _, _ = setting(name)
    gate = bound.install(model)
    with pytest.raises(PrivacyError, match="the inputs have shape"):
        model(torch.zeros(shape))
    assert not gate.running


def test_inputs_come_by_position():
    model, bound, x, _ = setting("mlp")
    bound.install(model)
    with pytest.raises(PrivacyError, match="by position"):
        model(input=x)


def test_autocast_is_refused():
    model, bound, x, _ = setting("mlp")
    bound.install(model)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(PrivacyError, match="autocast"):
        model(x)


def test_a_hook_on_the_model_cannot_lengthen_the_inputs():
    model, bound, x, y = setting("mlp")
    expected = step(model, bound, bound.input_norm * x / x.norm(dim=1, keepdim=True), y)
    handle = model.register_forward_pre_hook(lambda module, args: (args[0] * 1e3,))
    assert_alike(step(model, bound, x, y), expected, 1e-4)
    gate = bound.install(model)
    handle.remove()
    model.register_forward_pre_hook(lambda module, args: (args[0] * 1e3,))
    assert_alike(gate.sums(ordinary(model(x), y), 8), expected, 1e-4)


# --- using a model with a gate ---------------------------------------------------------------------------------------


def test_without_gradients_outputs_are_those_of_the_network():
    model, bound, x, y = setting("mlp")
    step(model, bound, x, y)
    expected = model(x).detach()
    gate = bound.install(model)
    with torch.no_grad():
        assert model(x).equal(expected)
    with torch.inference_mode():
        assert model(x).equal(expected)
    assert model.eval()(x).detach().equal(expected)
    gate.clear()
    losses = ordinary(model(x), y)
    with torch.no_grad():
        model(2 * x)  # an evaluation between the passes is no second call
    assert_alike(gate.sums(losses, 8), plain(copy.deepcopy(model), x, y))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_cuts_and_projects_and_keeps_nothing(copied):
    model, bound, x, y = setting("mlp")
    gate = bound.install(model)
    losses = ordinary(model(x), y)
    twin = copied(model)
    twin[3].weight.data.mul_(100)
    outputs = twin(1e6 * x)
    assert float(torch.linalg.matrix_norm(twin[3].weight.detach().double(), 2)) <= 1.5
    assert outputs.grad_fn is not None
    outputs.sum().backward()  # its own parameters, as any model's
    assert all(p.grad is not None for p in twin.parameters())
    long = bound.input_norm * x / x.norm(dim=1, keepdim=True)
    assert torch.allclose(twin(long), outputs, atol=1e-5)
    gate.sums(losses, 8)


def test_removal_leaves_the_model_as_it_was():
    model, bound, x, y = setting("mlp")
    step(model, bound, x, y)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    names = {name: set(vars(module)) for name, module in model.named_modules()}
    gate = bound.install(model)
    gate.sums(ordinary(model(x), y), 8)
    gate.remove()
    gate.remove()
    for name, module in model.named_modules():
        assert set(vars(module)) == names[name]
        for hooks in [
            v for k, v in vars(module).items() if k.endswith(("hooks", "hooks_with_kwargs", "always_called"))
        ]:
            assert not hooks
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(after[n].equal(v) for n, v in before.items())
    assert model(x).grad_fn is not None


# --- what can be bounded ---------------------------------------------------------------------------------------------


class Own(nn.Sequential):
    def forward(self, x):
        return super().forward(1000 * x)


class Renamed(nn.Linear):
    pass


Renamed.__name__ = Renamed.__qualname__ = "Linear"
Renamed.__module__ = nn.Linear.__module__


def hooked():
    model = mlp()
    model[0].register_forward_hook(lambda module, args, output: 1000 * output)
    return model


def hooked_inside():
    model = mlp()
    model[2].register_full_backward_hook(lambda module, inputs, outputs: None)
    return model


def gradient_hooked():
    model = mlp()
    model[0].weight.register_hook(lambda gradient: 1000 * gradient)
    return model


def parametrised():
    model = mlp()
    nn.utils.parametrizations.orthogonal(model[0])
    return model


def frozen():
    model = mlp()
    model[0].bias.requires_grad_(False)
    return model


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def with_another_parameter():
    model = mlp()
    model.register_parameter("scale", nn.Parameter(torch.ones(())))
    return model


def patched():
    model = mlp()
    model.forward = lambda x: x
    return model


def between(module):
    return nn.Sequential(nn.Linear(4, 4), module, nn.Linear(4, 2))


def first(module):
    return nn.Sequential(module, nn.Tanh(), nn.Flatten(), nn.LazyLinear(2))


REFUSED = {
    "not a Sequential": (lambda: nn.Linear(4, 2), "the model is a Linear"),
    "a forward of its own": (lambda: Own(nn.Linear(4, 2)), "the model is a Own"),
    "one inside": (lambda: nn.Sequential(Own(nn.Linear(4, 2))), r"module '0' \(Own\)"),
    "a patched forward": (patched, "forward pass of its own"),
    "a subclass": (lambda: nn.Sequential(Renamed(4, 2)), r"module '0' \(Linear\) cannot be part"),
    "an unbounded activation": (lambda: between(nn.ReLU()), r"module '1' \(ReLU\) cannot be part"),
    "dropout": (lambda: between(nn.Dropout()), r"module '1' \(Dropout\) cannot be part"),
    "normalisation": (lambda: between(nn.LayerNorm(4)), r"module '1' \(LayerNorm\) cannot be part"),
    "no activation": (lambda: between(nn.Sequential()), "layer '2' follows another one with no bounded activation"),
    "no layer": (lambda: nn.Sequential(nn.Flatten()), "no Linear or convolutional layer"),
    "nothing": (nn.Sequential, "no Linear or convolutional layer"),
    "an activation first": (lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 2)), "begins with an activation"),
    "a bounded output": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "Tanh follows the last layer"),
    "a hook": (hooked, r"module '0' \(Linear\) has a hook"),
    "a hook inside": (hooked_inside, r"module '2' \(Sequential\) has a hook"),
    "a gradient hook": (gradient_hooked, "has a gradient hook"),
    "a parametrisation": (parametrised, "module '0'"),
    "a frozen parameter": (frozen, r"parameter '0\.bias' is frozen"),
    "a shared layer": (shared, r"parameter '2\.weight' is shared"),
    "a tied weight": (tied, r"parameter '2\.weight' is shared"),
    "another parameter": (with_another_parameter, "parameter 'scale' belongs to no"),
    "groups": (lambda: first(nn.Conv2d(2, 2, 3, groups=2)), "groups, dilation or a padding"),
    "dilation": (lambda: first(nn.Conv2d(2, 2, 3, dilation=2)), "groups, dilation or a padding"),
    "circular padding": (lambda: first(nn.Conv1d(2, 2, 3, padding_mode="circular")), "groups, dilation or a padding"),
    "overlapping windows": (lambda: first(nn.MaxPool2d(3, stride=2)), r"module '0' \(MaxPool2d\).*overlap"),
    "padded pooling": (lambda: first(nn.AvgPool2d(2, padding=1)), "nothing is proven"),
    "pooling with a divisor": (lambda: first(nn.AvgPool2d(2, divisor_override=1)), "nothing is proven"),
    "dilated pooling": (lambda: first(nn.MaxPool1d(2, dilation=2)), "nothing is proven"),
    "partial flattening": (lambda: first(nn.Flatten(2)), r"use nn\.Flatten\(\)"),
    "no input shape": (convolutional, "give input_shape"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_bounded_is_named(name):
    make, match = REFUSED[name]
    with pytest.raises(ConfigError, match=match):
        BoundedNetwork(1.0).fit_to(make())


def test_an_input_shape_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="takes 1 channels"):
        BoundedNetwork(1.0, input_shape=(3, 4, 4)).fit_to(convolutional())
    with pytest.raises(ConfigError, match="takes 3 flat values, but gets the shape"):
        BoundedNetwork(1.0, input_shape=(1, 9, 9)).fit_to(convolutional())
    with pytest.raises(ConfigError, match="3 layers need 2 weight norms"):
        BoundedNetwork(1.0, (1.0, 1.0, 1.0)).fit_to(mlp())


# --- a value like any other ------------------------------------------------------------------------------------------


def test_the_layout_is_the_models():
    for name in NETWORKS:
        model, bound, _, _ = setting(name)
        expected = {n: tuple(p.shape) for n, p in model.named_parameters()}
        assert bound.layout == Layout(tuple(expected), tuple(expected.values()))
        blocks = bound.contract(bound.layout, None).blocks
        assert [n for b in blocks for n in b.members] == list(expected)
        assert [b.size for b in blocks] == [sum(math.prod(expected[n]) for n in b.members) for b in blocks]


def test_of_widths_is_the_network_of_the_paper():
    bound = BoundedNetwork.of_widths((1024, 32, 10), 1.0, 2.0, input_norm=28.0, weight_norm=1.96)
    model = nn.Sequential(nn.Linear(1024, 32), BELU(1.0, 2.0), nn.Linear(32, 10))
    assert bound == BoundedNetwork(28.0, 1.96).fit_to(model)
    expected = belu_certificate([1024, 32, 10], alpha=1.0, beta=2.0, input_norm=28.0, weight_norms=[1.96])
    found = bound.contract(bound.layout, None)
    assert [b.norm for b in found.blocks] == [b.norm for b in expected.blocks]
    assert [b.members for b in found.blocks] == [("0.weight", "0.bias"), ("2.weight", "2.bias")]
    assert found.premises == expected.premises


@pytest.mark.parametrize("loss", ["belu cross-entropy", "belu squared"])
def test_of_widths_with_bounded_outputs(loss):
    bound = BoundedNetwork.of_widths((4, 3, 2), 0.5, 2.0, input_norm=1.0, weight_norm=0.7, loss=loss)
    model = nn.Sequential(nn.Linear(4, 3), BELU(0.5, 2.0), nn.Linear(3, 2), BELU(0.5, 2.0))
    assert bound == BoundedNetwork(1.0, 0.7, loss=loss).fit_to(model)
    expected = belu_certificate([4, 3, 2], alpha=0.5, beta=2.0, input_norm=1.0, weight_norms=[0.7], head=loss)
    found = bound.contract(bound.layout, None)
    assert [b.norm for b in found.blocks] == pytest.approx([b.norm for b in expected.blocks])


def test_the_test_vector():
    """THEORY section 10."""
    bound = BoundedNetwork.of_widths((6, 5, 4, 3), 1.0, 2.0, input_norm=2.0, weight_norm=1.5)
    found = bound.contract(bound.layout, None)
    assert [b.norm for b in found.blocks] == pytest.approx([7.115, 14.387, 8.602], abs=6e-4)
    assert norm_of(found) == pytest.approx(18.211, abs=6e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_survives_being_written_down(name):
    _, bound, _, _ = setting(name)
    values = describe(bound)
    assert built(json.loads(json.dumps(values)), [BoundedNetwork]) == bound
    assert built(tomllib.loads(to_toml(values)), [BoundedNetwork]) == bound
    assert hash(bound) == hash(built(json.loads(json.dumps(values)), [BoundedNetwork]))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"input_norm": 0.0}, "input_norm is 0.0"),
        ({"weight_norm": (1.0, -1.0)}, "weight_norm is -1.0"),
        ({"loss": "hinge"}, "loss is 'hinge'"),
        ({"projection": "none"}, "projection is 'none'"),
        ({"input_shape": (1, 0)}, "input_shape"),
        ({"input_shape": 3}, "are lists"),
        ({"stages": "linear"}, "are lists"),
        ({"stages": [["linear", "0", 2]]}, "no stage of a network"),
        ({"stages": [["cubic", "0", 2, 2, True]]}, "no stage of a network"),
        ({"stages": [[["linear"], "0", 2, 2, True]]}, "no stage of a network"),
        ({"stages": [[]]}, "no stage of a network"),
        ({"stages": [["linear", "0", 2.5, 2, True]]}, "whole number"),
        ({"stages": [["linear", "0", 2, 2, 1]]}, "true or false"),
        ({"stages": [["flatten"]]}, "no Linear or convolutional layer"),
        ({"stages": [["activation", "Tanh", "low", 1.0, 1.0], ["linear", "0", 2, 2, True]]}, "finite number"),
        ({"stages": [["linear", "0", 2, 2, True], ["linear", "1", 2, 2, True]]}, "no bounded activation"),
        ({"stages": [["linear", "0", 2, 2, True]], "weight_norm": (1.0,)}, "1 layers need 0 weight norms"),
    ],
)
def test_nonsense_is_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        BoundedNetwork(**({"input_norm": 1.0} | settings))


def test_a_bound_is_for_the_network_it_was_fitted_to():
    model, bound, _, _ = setting("mlp")
    assert BoundedNetwork(1.0).layout is None
    with pytest.raises(ConfigError, match="does not know its network"):
        BoundedNetwork(1.0).contract(bound.layout, None)
    with pytest.raises(ConfigError, match="other parameters"):
        bound.contract(Layout(("a",), ((1,),)), None)
    with pytest.raises(ConfigError, match="not fitted to this network"):
        BoundedNetwork(1.0).install(model)
    with pytest.raises(ConfigError, match="not fitted to this network"):
        bound.install(nn.Sequential(nn.Linear(6, 3)))


def test_the_papers_claim_is_told_and_is_false():
    bound = BoundedNetwork.of_widths((1024, 32, 10), 1.0, 2.0, input_norm=28.0, weight_norm=1.96)
    contract = bound.contract(bound.layout, None)
    event = Event(rate=0.01, multiplier=0.5, steps=10)
    scale = 0.5 * norm_of(contract)
    (claim,) = bound.claims(event, contract, (scale, scale))
    assert claim.verdict == "false"
    assert claim.events[0].multiplier == pytest.approx(scale / 3)
    assert (claim.events[0].rate, claim.events[0].steps) == (0.01, 10)
    assert f"{norm_of(contract):.4g}" in claim.reason
    assert "alpha + beta = 3" in claim.reason
    _, other, _, _ = setting("mlp")  # not all its activations are BELU
    assert other.claims(event, other.contract(other.layout, None), (1.0,)) == ()


def test_planning_needs_no_torch():
    code = (
        "import sys\n"
        "from discreet.bounds.bounded_network import BoundedNetwork\n"
        "bound = BoundedNetwork.of_widths((4, 3, 2), 1.0, 2.0, input_norm=1.0)\n"
        "bound.contract(bound.layout, bound.start(bound.layout))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
