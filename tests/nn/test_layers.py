"""discreet.nn's LSTM, GRU and RNN against torch's, against the oracle, and as stand-ins."""

import copy
import pickle

import pytest
import torch
from oracle import assert_exact, one_by_one, square_loss
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import discreet
from discreet import ConfigError, PrivacyError
from discreet.gradients import Engine, locate, rules
from discreet.gradients.forms.combined import Several
from discreet.nn import convert
from discreet.nn.rnn import Path, cells
from discreet.nn.rnn.rule import StepProducts

B, T, D, H = 5, 6, 3, 4
KINDS = {"LSTM": {}, "GRU": {}, "RNN": {}, "RNN relu": {"nonlinearity": "relu"}}
SHAPES = [
    {"num_layers": layers, "bidirectional": both, "bias": bias}
    for layers in (1, 2)
    for both in (False, True)
    for bias in (True, False)
]
kinds = pytest.mark.parametrize("kind", KINDS)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: " ".join(f"{k}={int(v)}" for k, v in s.items()))


def pair(kind, dtype=torch.float64, **settings):
    """torch's layer and ours, from one seed."""
    name, made = kind.split()[0], []
    for module in (nn, discreet.nn):
        torch.manual_seed(3)
        made.append(getattr(module, name)(D, H, dtype=dtype, **KINDS[kind], **settings))
    return made


def states_for(layer, *batch):
    shape = (layer.num_layers * (1 + layer.bidirectional), *batch, H)
    made = [torch.randn(shape, dtype=layer.weight_ih_l0.dtype, requires_grad=True) for _ in range(2)]
    return tuple(made) if "LSTM" in type(layer).__name__ else made[0]


def flat(result):
    """Outputs and states in one list."""
    if isinstance(result, PackedSequence):
        return [result.data]
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in flat(part)]
    return [] if result is None else [result]


def assert_same(theirs, ours, inputs, states, pack=lambda x: x, tolerance=1e-10):
    """Outputs, and the gradients of a loss of all of them for inputs, first states and parameters."""
    found = []
    for layer in (theirs, ours):
        results = flat(layer(pack(inputs), states))
        torch.manual_seed(4)
        loss = sum((result * torch.randn_like(result)).sum() for result in results)
        sources = [inputs, *flat(states), *layer.parameters()]
        found.append([*results, *torch.autograd.grad(loss, sources)])
    for expected, result in zip(*found, strict=True):
        assert expected.shape == result.shape
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def sequences(layer, *, dtype=torch.float64):
    shape = (B, T, D) if layer.batch_first else (T, B, D)
    return torch.randn(shape, dtype=dtype, requires_grad=True)


@kinds
@shapes
@pytest.mark.parametrize("batch_first", [False, True])
def test_outputs_and_gradients_are_those_of_torch(kind, shape, batch_first):
    theirs, ours = pair(kind, batch_first=batch_first, **shape)
    x = sequences(ours)
    assert_same(theirs, ours, x, states_for(theirs, B))
    assert_same(theirs, ours, x, None)
    alone = (x[0] if batch_first else x[:, 0]).detach().requires_grad_()
    assert_same(theirs, ours, alone, states_for(theirs))
    for lengths, ordered in (([6, 4, 4, 2, 1], True), ([2, 6, 1, 4, 4], False), ([3, 3, 3, 3, 3], True)):

        def pack(x, lengths=lengths, ordered=ordered):
            return pack_padded_sequence(x, lengths, batch_first, enforce_sorted=ordered)

        assert_same(theirs, ours, x, None if ordered else states_for(theirs, B), pack)
        expected, found = theirs(pack(x))[0], ours(pack(x))[0]
        for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            one, other = getattr(expected, field), getattr(found, field)
            assert (one is None and other is None) or torch.equal(one, other)


@kinds
def test_in_float32_they_differ_by_rounding_alone(kind):
    theirs, ours = pair(kind, torch.float32, num_layers=2, bidirectional=True)
    assert_same(theirs, ours, sequences(ours, dtype=torch.float32), None, tolerance=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, cells._FEW])  # by NumPy where it can be, and by torch
def test_tanh_is_right_to_two_roundings(dtype, count):
    x = torch.cat([torch.linspace(-12, 12, 97), 10.0 ** -torch.arange(30), torch.tensor([0.0, torch.inf, -torch.inf])])
    values = x.to(dtype).repeat(2, count // len(x) + 2, 1)
    found, all_but_one = torch.zeros_like(values), values.shape[1] - 1
    path = Path((values.shape[1], all_but_one))
    cells._tanh(path, values, found)(1)
    exact = values.double().tanh().to(dtype)
    exact[0] = exact[1, all_but_one:] = 0.0  # another step, and a row that takes no part in this one
    torch.testing.assert_close(found, exact, rtol=2 * torch.finfo(dtype).eps, atol=0.0)
    cells._tanh(path, values, values)(1)
    assert torch.equal(values[1, :all_but_one], found[1, :all_but_one])
    assert torch.equal(values[0], x.to(dtype).expand_as(values[0]))


@kinds
@shapes
def test_the_first_values_and_the_state_dict_are_those_of_torch(kind, shape):
    theirs, ours = pair(kind, **shape)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    again = copy.deepcopy(theirs)
    again.load_state_dict(ours.state_dict())
    for one, other in zip(ours.all_weights, theirs.all_weights, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    ours.flatten_parameters()


@kinds
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_by_differences(kind, reverse):
    ours = pair(kind, bidirectional=reverse)[1]
    packed = pack_padded_sequence(torch.randn(4, 3, D, dtype=torch.float64), [1, 4, 3], enforce_sorted=False)
    states = states_for(ours, 3)
    names = [name for name, _ in ours.named_parameters()]

    def call(data, *rest):
        given = rest[: len(flat(states))]
        parameters = dict(zip(names, rest[len(given) :], strict=True))
        arguments = (packed._replace(data=data), given if len(given) > 1 else given[0])
        return tuple(flat(torch.func.functional_call(ours, parameters, arguments)))

    arguments = (packed.data.clone().requires_grad_(), *flat(states), *ours.parameters())
    assert torch.autograd.gradcheck(call, arguments, fast_mode=True)


def test_they_can_be_differentiated_once():
    ours = pair("LSTM")[1]
    x = sequences(ours)
    (first,) = torch.autograd.grad(ours(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@kinds
def test_what_is_changed_in_place_is_noticed(kind):
    ours = pair(kind)[1]
    outputs, _ = ours(sequences(ours))
    with pytest.raises(RuntimeError):
        outputs.mul_(2).sum().backward()
    outputs, _ = ours(sequences(ours))
    with torch.no_grad():
        ours.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@kinds
def test_dropout_is_between_layers_and_in_training_alone(kind):
    ours = pair(kind, num_layers=2, dropout=0.5)[1]
    x = sequences(ours)
    torch.manual_seed(0)
    one, other = ours(x)[0], ours(x)[0]
    assert not torch.equal(one, other)
    ours.eval()
    assert torch.equal(ours(x)[0], ours(x)[0])
    single = pair(kind, dropout=0.0)[1]
    assert torch.equal(single(x)[0], single(x)[0])
    everything = pair(kind, num_layers=2, dropout=1.0)[1]
    assert torch.equal(everything(x)[0], everything(x * 2)[0])


def test_under_autocast_the_dtype_is_that_of_the_parameters():
    theirs, ours = pair("LSTM", torch.float32)
    x = torch.randn(T, B, D)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = ours(x.bfloat16())
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs, theirs(x.bfloat16().float())[0])


def test_settings_are_shown_and_survive_copies():
    layer = discreet.nn.RNN(2, 3, 2, "relu", False, True, 0.5, True)
    shown = "2, 3, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True, nonlinearity=relu"
    assert repr(layer.eval()) == f"RNN({shown})"
    x = torch.randn(4, 5, 2)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: discreet.nn.LSTM(3, 4, proj_size=2), "proj_size is 2"),
        (lambda: discreet.nn.LSTM(0, 4), "LSTM's input_size is 0"),
        (lambda: discreet.nn.GRU(3, 1.5), "GRU's hidden_size is 1.5"),
        (lambda: discreet.nn.RNN(3, 4, 0), "num_layers is 0"),
        (lambda: discreet.nn.RNN(3, 4, nonlinearity="gelu"), "'gelu'; it must be 'tanh' or 'relu'"),
        (lambda: discreet.nn.GRU(3, 4, dropout=2), "dropout is 2; it must be a number from 0 to 1"),
        (lambda: discreet.nn.GRU(3, 4)(torch.zeros(2, 5, 4)), "GRU got .2, 5, 4.; it takes a PackedSequence or"),
        (lambda: discreet.nn.GRU(3, 4)(torch.zeros(0, 5, 3)), "nothing empty"),
        (lambda: discreet.nn.GRU(3, 4)([1]), "GRU got list"),
        (
            lambda: discreet.nn.GRU(3, 4)(pack_padded_sequence(torch.zeros(5, 1, 2), [5])),
            "PackedSequence of rows of size 2",
        ),
        (
            lambda: discreet.nn.GRU(3, 4)(torch.zeros(2, 5, 3), torch.zeros(1, 2, 4)),
            r"shapes \[\(1, 2, 4\)\]; it takes 1 of shape \(1, 5, 4\)",
        ),
        (lambda: discreet.nn.LSTM(3, 4)(torch.zeros(5, 3), (torch.zeros(1, 5),) * 2), r"2 of shape \(1, 4\)"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# --- each example's gradient --------------------------------------------------------------------------------------


class Model(nn.Module):
    """The recurrent layer alone, with outputs example by example; lengths pack it."""

    def __init__(self, layer, *, last=False):
        super().__init__()
        self.layer, self.last = layer, last

    def forward(self, x, *lengths):
        first = self.layer.batch_first
        x = x if first else x.transpose(0, 1)
        if lengths:
            x = pack_padded_sequence(x, lengths[0], first, enforce_sorted=False)
        outputs, states = self.layer(x)
        if lengths:
            outputs, _ = pad_packed_sequence(outputs, first, total_length=T)
        outputs = outputs if first else outputs.transpose(0, 1)
        if not self.last:
            return outputs
        return torch.cat([s.transpose(0, 1).flatten(1) for s in flat(states)], 1)


@kinds
@shapes
@pytest.mark.parametrize("batch_first", [False, True])
def test_each_gradient_is_exact(kind, shape, batch_first):
    layer, x = pair(kind, batch_first=batch_first, **shape)[1], torch.randn(B, T, D)
    assert_exact(Model(layer), x)
    assert_exact(Model(layer, last=True), x, torch.tensor([2, 6, 1, 4, 4]))


@kinds
@pytest.mark.parametrize("lengths", [[6, 4, 4, 2, 1], [2, 6, 1, 4, 4], [6, 6, 6, 6, 6]])
def test_each_gradient_of_packed_sequences_is_exact(kind, lengths):
    layer = pair(kind, bidirectional=True, num_layers=2)[1]
    assert_exact(Model(layer), torch.randn(B, T, D), torch.tensor(lengths))


@kinds
@pytest.mark.parametrize("length", [1, 2, 8, 40])
def test_of_any_length(kind, length):
    """Short ones by Gram matrices, long ones by products that are kept; the batch as long as the sequences, too."""
    layer = pair(kind)[1]
    assert_exact(Model(layer), torch.randn(B, length, D))
    assert_exact(Model(layer, last=True), torch.randn(length, min(length, 9), D))


class Text(nn.Module):
    """Words, packed by their number, to a class; the first state is learned."""

    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(9, D, padding_idx=0)
        self.layer = pair(kind, torch.float32, bidirectional=True)[1]
        self.first = nn.Parameter(torch.randn(2, 1, H))
        self.head = nn.Linear(2 * H, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        first = self.first.expand(-1, len(tokens), -1)
        _, states = self.layer(packed, (first, first) if isinstance(self.layer, discreet.nn.LSTM) else first)
        hidden = flat(states)[0]
        return self.head(torch.cat([hidden[0], hidden[1]], 1))


@kinds
def test_a_model_of_packed_text_is_exact(kind):
    tokens, lengths = torch.randint(1, 9, (B, T)), torch.tensor([2, 6, 1, 4, 4])
    tokens[torch.arange(T) >= lengths[:, None]] = 0
    assert_exact(Text(kind), tokens, lengths)


@kinds
def test_a_layer_used_twice_is_exact(kind):
    """Cross terms count; each example has two sequences, one after the other, or side by side in the batch."""
    layer = pair(kind, batch_first=True)[1]

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x[:, 0])[0] * self.layer(x[:, 1])[0]

    class Folded(Twice):
        def forward(self, x):
            return self.layer(x.flatten(0, 1))[0].unflatten(0, (len(x), 2))

    class Interleaved(Twice):
        def forward(self, x):
            return self.layer(x.transpose(0, 1).flatten(0, 1))[0].unflatten(0, (2, len(x))).transpose(0, 1)

    for model in (Twice(), Folded(), Interleaved()):
        assert_exact(model, torch.randn(B, 2, T, D))


def test_parametrised_and_tied_weights_are_exact():
    layer = pair("GRU", batch_first=True, num_layers=2)[1]
    parametrizations.weight_norm(layer, "weight_hh_l0")
    layer.weight_hh_l1 = nn.Parameter(torch.randn(3 * H, H).double())
    layer.weight_ih_l1 = layer.weight_hh_l1
    assert_exact(Model(layer), torch.randn(B, T, D))


def test_in_a_checkpoint_it_is_exact_or_refused():
    model = Model(pair("LSTM", batch_first=True)[1])

    class Saved(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return checkpoint(self.model, x, use_reentrant=False)

    assert_exact(Saved(), torch.randn(B, T, D))


@kinds
def test_the_rule_is_used_and_not_the_fallback(kind, monkeypatch):
    def refuse(*_):
        pytest.fail("the fallback was used")

    monkeypatch.setattr(rules.OneByOne, "_gradient", refuse)
    model = Model(pair(kind)[1])
    gradients = Engine(model).gradients(square_loss(model(torch.randn(B, T, D).double())), B)
    gradients.norms()
    assert isinstance(gradients.forms["layer.weight_ih_l0"], StepProducts)
    assert not any(isinstance(form, Several) for form in gradients.forms.values())


def test_steps_may_be_the_examples():
    """Where no state leads from step to step, with two sequences each: by the rule, as the graph is freed by then."""
    theirs, ours = pair("RNN")
    for layer in (theirs, ours):
        layer.weight_hh_l0.data.zero_()
    x, engine = torch.randn(T, 2, D).double(), Engine(ours)
    losses = theirs(x)[0].square().sum((1, 2))
    expected = [torch.autograd.grad(loss, list(theirs.parameters()), retain_graph=True) for loss in losses]
    for _ in range(2):  # probed, and by what is known
        found = engine.gradients(ours(x)[0].square().sum((1, 2)), T)
        squared, each = found.norms(), found.each(0, T)
        for k, (name, _) in enumerate(ours.named_parameters()):
            exact = torch.stack([gradients[k] for gradients in expected])
            torch.testing.assert_close(each[name], exact)
            torch.testing.assert_close(squared[name], exact.flatten(1).square().sum(1))


@kinds
def test_isolation_is_seen_by_fingerprints(kind, monkeypatch):
    """No gradient of the gates is kept for it, whichever dimension the layer's own inputs have the batch in."""

    def refuse(*_, **__):
        pytest.fail("gradients were kept")

    monkeypatch.setattr(locate, "Matching", refuse)
    layer = pair(kind, bidirectional=True)[1]
    gradients = Engine(layer).gradients(square_loss(layer(torch.randn(T, B, D).double())[0].transpose(0, 1)), B)
    assert gradients.norms()["weight_ih_l0"].shape == (B,)


@kinds
def test_no_example_touches_another(kind):
    """Bit for bit: one row replaced, also by one that is not finite, and the others' gradients are the same."""
    model = Model(pair(kind, torch.float32, num_layers=2, bidirectional=True)[1])
    x, lengths = torch.randn(B, T, D), torch.tensor([2, 6, 3, 4, 4])
    others = torch.tensor([0, 1, 3, 4])

    def gradients(x):
        found = Engine(model).gradients(square_loss(model(x, lengths)), B)
        squared = found.norms()
        return {name: (each[others], squared[name][others]) for name, each in found.each(0, B).items()}

    expected = gradients(x)
    for value in (-1.0, 1e30, torch.inf, torch.nan):
        changed = x.clone()
        changed[2] = value
        for name, found in gradients(changed).items():
            assert all(torch.equal(one, other) for one, other in zip(found, expected[name], strict=True)), name


def test_examples_that_are_not_finite_contribute_nothing():
    """The release is that of the others alone, as their noise is the same by the seed."""
    model = nn.Sequential(discreet.nn.GRU(D, H, batch_first=True))
    x = torch.randn(6, T, D)
    spoiled, silent = x.clone(), x.clone()
    spoiled[2], spoiled[4] = torch.nan, torch.inf
    silent[2], silent[4] = 0.0, 0.0
    factors = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    plan = discreet.methods.dp_sgd(examples=6, batch_size=6, steps=1, noise=1.0, delta=1e-5)
    released = []
    for data, weights in ((spoiled, torch.ones(6)), (silent, factors)):
        private = discreet.attach(model, plan, seed=1, preflight=False)
        for rows, weight in private.batches((data, weights)):
            private.backward(square_loss(model(rows)) * weight)
        released.append([p.grad.clone() for p in model.parameters()])
        private.detach()
    for one, other in zip(*released, strict=True):
        torch.testing.assert_close(one, other)


def test_a_layer_fed_with_examples_as_steps_is_refused():
    layer = discreet.nn.GRU(D, H)
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(layer).gradients(square_loss(layer(torch.randn(B, D))[0]), B)


@pytest.mark.parametrize("size", [1e-25, 1e-18, 1e-12, 1e12, 1e18])
def test_tiny_and_huge_factors_are_measured(size):
    """Inputs so many times as large, and losses as many times as small: the gradient of the first weight is neither."""
    layer = discreet.nn.RNN(D, H, nonlinearity="relu", bias=False)
    x = torch.randn(T, B, D).abs()
    with torch.no_grad():
        layer.weight_ih_l0.abs_()
        layer.weight_hh_l0.abs_()

    def losses(x, scale):
        return (layer(x)[0].transpose(0, 1).flatten(1) * scale).sum(1)

    expected = Engine(layer).gradients(losses(x, 1.0), B).norms()["weight_ih_l0"]
    scaled = Engine(layer).gradients(losses(x * size, 1 / size), B)
    torch.testing.assert_close(scaled.norms()["weight_ih_l0"], expected, rtol=1e-5, atol=0.0)
    sums = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    scaled.add_weighted(dict.fromkeys(sums, torch.eye(B)[0]), sums)
    assert sums["weight_ih_l0"].norm() == pytest.approx(expected[0].sqrt().item(), rel=1e-5)


def test_steps_that_cancel_are_measured_and_added_as_they_are():
    """Two outputs with opposite weights: what is left of their terms is a thousandth of a thousandth."""
    layer = discreet.nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1.0)
        layer.weight_hh_l0.fill_(0.0)
    x = torch.ones(2, B, 1)
    x[1, 0] = 1 + 2**-20

    def losses(x, layer):
        outputs, _ = layer(x)
        return outputs[1, :, 0] - outputs[0, :, 0]

    found = Engine(layer).gradients(losses(x, layer), B)
    squared = found.norms()["weight_ih_l0"]
    assert squared[0].sqrt().item() == 2**-20
    assert not squared[1:].any()
    assert found.cancels


@kinds
@pytest.mark.parametrize("every", [False, True])
def test_norms_in_float32_are_accurate(kind, every):
    """Of 64 steps, with a loss on the last or on every output."""
    torch.manual_seed(0)
    name = kind.split()[0]
    layer = getattr(discreet.nn, name)(16, 32, batch_first=True, **KINDS[kind])
    x = torch.randn(8, 64, 16)

    def losses(layer, x):
        outputs = layer(x)[0]
        return square_loss(outputs if every else outputs[:, -1])

    exact = copy.deepcopy(layer).double()
    expected = one_by_one(exact, [x.double()], lambda outputs: square_loss(outputs[0] if every else outputs[0][:, -1]))
    for name, squared in Engine(layer).gradients(losses(layer, x), 8).norms().items():
        error = squared.double().sqrt() / expected[name].flatten(1).norm(dim=1) - 1
        assert error.abs().max() < 2e-6, name


def test_a_private_run_is_that_of_the_unconverted_model():
    """The bounded sum is the same, up to rounding: the noise is the same by the seed."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer, self.head = nn.Embedding(9, D), nn.LSTM(D, H, batch_first=True), nn.Linear(H, 2)

        def forward(self, x):
            return self.head(self.layer(self.words(x))[0][:, -1])

    torch.manual_seed(0)
    model = Classifier()
    data = torch.randint(9, (20, T)), torch.randint(2, (20,))
    plan = discreet.methods.dp_sgd(examples=20, batch_size=10, steps=3, noise=0.5, delta=1e-5)
    found = []
    for run in (model, convert(model)):
        private = discreet.attach(run, plan, seed=1)
        for x, y in private.batches(data):
            private.backward(F.cross_entropy(run(x), y, reduction="none"))
            with torch.no_grad():
                for p in run.parameters():
                    p -= 0.1 * p.grad
        assert private.released == 3
        private.detach()
        found.append(run.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5)
