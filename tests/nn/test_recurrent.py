import copy
import importlib.util
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import ConfigError
from discreet.gradients import Engine
from discreet.nn import FilteredRNN, GradientFilter, filter_gradient

EXAMPLE = Path(__file__).parents[2] / "examples" / "exploding_gradients.py"
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def filtered(gradient, **settings):
    x = torch.zeros_like(gradient, requires_grad=True)
    filter_gradient(x, **settings).backward(gradient)
    return x.grad


def test_forward_is_the_identity():
    x = torch.tensor([-math.inf, -1.5, 0.0, 3.0, math.inf], requires_grad=True)
    assert torch.equal(filter_gradient(x), x)
    assert torch.equal(GradientFilter(2.0, 3.0)(x), x)


def test_backward_is_a_tanh_of_width_k_and_height_c():
    gradient = torch.linspace(-20, 20, 81, dtype=torch.float64)
    torch.testing.assert_close(filtered(gradient), gradient.tanh())
    torch.testing.assert_close(filtered(gradient, c=2.0, k=5.0), 2 * (gradient / 5).tanh())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_gradient_is_too_wild(dtype):
    largest = torch.finfo(dtype).max
    wild = torch.tensor([math.nan, math.inf, -math.inf, largest, -largest, 0.0], dtype=dtype)
    found = filtered(wild, c=0.5, k=4.0)
    assert found.dtype == dtype
    assert found.tolist() == [0.0, 0.5, -0.5, 0.5, -0.5, 0.0]


def test_small_gradients_pass_unchanged():
    gradient = torch.tensor([1e-9, -1e-9], dtype=torch.float64)
    torch.testing.assert_close(filtered(gradient, c=3.0, k=3.0), gradient, rtol=1e-14, atol=0.0)


def test_the_filter_can_be_differentiated_again():
    x, weight = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64, requires_grad=True)
    x.requires_grad_()
    (first,) = torch.autograd.grad((weight * filter_gradient(x, 2.0, 3.0)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    torch.testing.assert_close(second, 2 / 3 / torch.cosh(weight.detach() / 3) ** 2)


def test_the_filter_works_for_many_examples_at_once():
    x, weight = torch.randn(5, 3), torch.randn(3)
    each = torch.func.vmap(torch.func.grad(lambda row: (weight * filter_gradient(row)).sum()))(x)
    torch.testing.assert_close(each, weight.tanh().expand(5, 3))


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, "1"])
def test_settings_of_the_filter_that_make_no_sense(bad):
    for make in (
        lambda: filter_gradient(torch.zeros(1), c=bad),
        lambda: filter_gradient(torch.zeros(1), k=bad),
        lambda: GradientFilter(c=bad),
        lambda: GradientFilter(k=bad),
        lambda: FilteredRNN(2, 3, c=bad),
        lambda: FilteredRNN(2, 3, k=bad),
    ):
        with pytest.raises(ConfigError, match="it must be a finite number > 0"):
            make()


def test_settings_of_the_network_that_make_no_sense():
    for make, message in (
        (lambda: FilteredRNN(0, 3), "input_size is 0"),
        (lambda: FilteredRNN(2, 1.5), "hidden_size is 1.5"),
        (lambda: FilteredRNN(2, 3, num_layers=0), "num_layers is 0"),
        (lambda: FilteredRNN(2, 3, nonlinearity="gelu"), "'gelu'; it must be 'tanh' or 'relu'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


def pair(**settings):
    torch.manual_seed(1)
    ours = FilteredRNN(3, 5, **settings)
    torch.manual_seed(1)
    return ours, nn.RNN(3, 5, **settings)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("batch_first", [False, True])
def test_outputs_are_those_of_torch(nonlinearity, num_layers, batch_first):
    """Also the first values for one seed, with and without a first state, in batches and alone."""
    ours, theirs = pair(nonlinearity=nonlinearity, num_layers=num_layers, batch_first=batch_first)
    sequence, state = torch.randn(4, 6, 3), torch.randn(num_layers, 4 if batch_first else 6, 5)
    for arguments in ((sequence,), (sequence, state), (sequence[0],), (sequence[0], state[:, 0])):
        for found, expected in zip(ours(*arguments), theirs(*arguments), strict=True):
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected)


def test_state_dicts_load_both_ways():
    ours, theirs = FilteredRNN(3, 5, num_layers=2), nn.RNN(3, 5, num_layers=2)
    x = torch.randn(4, 6, 3)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert not torch.allclose(ours(x)[0], theirs(x)[0])
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])
    another = nn.RNN(3, 5, num_layers=2)
    another.load_state_dict(ours.state_dict())
    assert torch.equal(another(x)[0], theirs(x)[0])


def gradients(network, x):
    output, _ = network(x)
    return torch.autograd.grad((output[-1] ** 2).sum(), list(network.parameters()))


def test_a_wide_filter_changes_no_gradient():
    theirs = nn.RNN(3, 5, num_layers=2).double()
    ours = FilteredRNN(3, 5, num_layers=2, c=1e6, k=1e6).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    for found, expected in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_filter_acts_at_every_step():
    """One unit without nonlinearity in reach: the gradient at each input is known in closed form."""
    network = FilteredRNN(1, 1, nonlinearity="relu", c=0.5, k=2.0).double()
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), (1.0, 3.0, 0.0, 0.0), strict=True):
            parameter.fill_(value)
    x = torch.ones(4, 1, 1, dtype=torch.float64, requires_grad=True)
    network(x)[0][-1].sum().backward()
    expected = [1.0]
    for _ in range(3):
        expected.insert(0, 0.5 * math.tanh(3 * expected[0] / 2))
    torch.testing.assert_close(x.grad.flatten(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("num_layers", "bound"), [(1, 4.0), (2, 20.0)])
def test_gradients_do_not_grow_with_the_length(num_layers, bound):
    """8 units with weights 1/2: a layer passes at most 4 times what it gets, to which the next step adds at most 1."""
    ours, theirs = FilteredRNN(2, 8, num_layers, nonlinearity="relu"), nn.RNN(2, 8, num_layers, nonlinearity="relu")
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.fill_(0.5 if "weight" in name else 0.0)
    theirs.load_state_dict(ours.state_dict())
    largest = {}
    for network in (ours, theirs):
        x = torch.full((80, 3, 2), 1e-30, requires_grad=True)
        network(x)[0][-1].sum().backward()
        largest[network] = float(x.grad.abs().max())
    assert largest[ours] <= bound
    assert not largest[theirs] < 1e20


@pytest.mark.parametrize(
    ("x", "state", "message"),
    [
        (torch.zeros(4, 6, 2), None, "shape"),
        (torch.zeros(3), None, "shape"),
        (torch.zeros(0, 6, 3), None, "nothing empty"),
        (nn.utils.rnn.pack_sequence([torch.zeros(4, 3)]), None, "got PackedSequence.*pad sequences"),
        (torch.zeros(4, 6, 3), torch.zeros(1, 1, 5), r"has shape \(1, 1, 5\); it must be \(1, 6, 5\)"),
        (torch.zeros(4, 3), torch.zeros(1, 1, 4), r"it must be \(1, 1, 5\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x, state, message):
    with pytest.raises(ConfigError, match=message):
        FilteredRNN(3, 5)(x, state)


def test_settings_are_shown_and_survive_copies():
    network = FilteredRNN(2, 3, 2, "relu", True, c=0.5, k=2.0)
    assert repr(network) == "FilteredRNN(2, 3, num_layers=2, nonlinearity=relu, batch_first=True, c=0.5, k=2)"
    assert repr(GradientFilter(0.5, 2.0)) == "GradientFilter(c=0.5, k=2)"
    x = torch.randn(4, 5, 2)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(other(x)[0], network(x)[0])


class LastStep(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.recurrent = FilteredRNN(2, 4, batch_first=True, **settings)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])


def test_the_engine_takes_a_batch_apart_though_filtered_gradients_do_not_scale_with_the_loss():
    model, x = LastStep(), torch.randn(4, 5, 2)
    found = Engine(model).gradients(model(x)[:, 0], 4).each(0, 4)
    for i, row in enumerate(x.split(1)):
        expected = torch.autograd.grad(model(row).sum(), list(model.parameters()))
        for one, gradient in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(one[i], gradient)


def test_an_attached_model_learns_one_example_at_a_time():
    mechanism = discreet.Mechanism(bound=discreet.Clip(1.0), noise=discreet.Gaussian(1.0))
    sampling = discreet.Poisson(examples=6, batch_size=6)
    plan = discreet.Plan(sampling=sampling, mechanism=mechanism, steps=2, delta=1e-5)
    model, data = LastStep(), (torch.randn(6, 5, 2), torch.randn(6, 1))
    private = discreet.attach(model, plan)
    released = 0
    for x, y in private.batches(data, at_most=1):
        released += private.backward(F.mse_loss(model(x), y, reduction="none")[:, 0])
    assert released == 2
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    private.detach()


def test_the_example_diverges_without_the_filter_and_learns_with_it():
    """Same seed, data and learning rate; an answer of 0 to everything has loss 1."""
    spec = importlib.util.spec_from_file_location("exploding_gradients", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    plain = example.run(filtered=False, steps=60, length=60)
    assert not max(plain) < 1e6
    learned = example.run(filtered=True, steps=60, length=60)
    assert learned[0] == pytest.approx(plain[0], rel=1e-5)
    assert len(learned) == 60
    assert max(learned) < 3
    assert sum(learned[-10:]) / 10 < 0.75
