import math

import pytest
import torch
from oracle import Tied, assert_equal, assert_exact, one_by_one, square_loss
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from discreet import PrivacyError
from discreet.gradients import Engine, OpContext, rule
from discreet.gradients.forms import base, convolution
from discreet.gradients.rules import registry

B = 5
R = torch.randn


def tokens(*shape, words=9):
    return torch.randint(words, shape)


class Apply(nn.Module):
    """A module made of parts and a function of them."""

    def __init__(self, function, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, *inputs):
        return self.function(self, *inputs)


def attention(**options):
    inner = nn.MultiheadAttention(4, 2, **options)
    if options.get("batch_first"):
        return Apply(lambda m, x, y: m.inner(x, y, y)[0], inner=inner)
    return Apply(
        lambda m, x, y: m.inner(x.transpose(0, 1), y.transpose(0, 1), y.transpose(0, 1))[0].transpose(0, 1), inner=inner
    )


def recurrent(kind, **options):
    return Apply(lambda m, x: m.inner(x)[0], inner=kind(3, 4, batch_first=True, **options))


class Standardised(nn.Conv2d):
    """A subclass that is not the convolution its base class is."""

    def forward(self, x):
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.var((1, 2, 3), keepdim=True) + 1e-5).sqrt()
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


def places():
    """A position table added by broadcast, a bare table, a token that is expanded."""

    def forward(m, x):
        length = x.shape[1]
        h = m.words(x) + m.table(torch.arange(length)) + m.bare[:, :length]
        return m.head(torch.tanh(torch.cat([m.first.expand(len(x), -1, -1), h], 1)))

    return Apply(
        forward,
        words=nn.Embedding(9, 3),
        table=nn.Embedding(8, 3),
        bare=nn.Parameter(R(1, 8, 3)),
        first=nn.Parameter(R(1, 1, 3)),
        head=nn.Linear(3, 3),
    )


def functional():
    """A weight also used through F.linear, a bare scale, an unused parameter, a frozen layer."""
    return Apply(
        lambda m, x: F.linear(m.frozen(torch.relu_(m.layer(x)) * m.scale), m.layer.weight) + m.layer(x),
        layer=nn.Linear(3, 3),
        scale=nn.Parameter(R(3)),
        unused=nn.Parameter(R(3)),
        frozen=nn.Linear(3, 3).requires_grad_(False),
    )


def residual(m, x):
    h = m.first(x)
    h += x
    return m.second(torch.relu_(h))


CASES = {
    "linear": (nn.Linear(3, 4), R(B, 3)),
    "linear without bias": (nn.Linear(3, 4, bias=False), R(B, 3)),
    "linear on sequences": (nn.Linear(3, 4), R(B, 7, 3)),
    "linear on sequences without bias": (nn.Linear(3, 4, bias=False), R(B, 7, 3)),
    "linear on four dimensions": (nn.Linear(3, 4), R(B, 2, 7, 3)),
    "linear with many rows": (nn.Linear(30, 40), R(B, 70, 30)),
    "linear on transposed data": (Apply(lambda m, x: m.a(x.transpose(1, 2)), a=nn.Linear(7, 4)), R(B, 7, 3)),
    "sequence first": (Apply(lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1), a=nn.Linear(3, 4)), R(B, 7, 3)),
    "sequence first, batch == length": (
        Apply(lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1), a=nn.Linear(3, 4)), R(B, B, 3),
    ),
    "time folded into the batch": (
        Apply(lambda m, x: m.a(x.reshape(-1, 3)).view(len(x), -1), a=nn.Linear(3, 4)), R(B, 7, 3),
    ),
    "embedding": (nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 2)), tokens(B, 6)),
    "embedding of single tokens": (nn.Embedding(9, 3), tokens(B)),
    "embedding with padding": (nn.Embedding(9, 3, padding_idx=2), tokens(B, 12)),
    "layer norm": (nn.LayerNorm(3), R(B, 7, 3)),
    "layer norm over two dimensions": (nn.LayerNorm((7, 3)), R(B, 7, 3)),
    "layer norm without bias": (nn.LayerNorm(3, bias=False), R(B, 3)),
    "group norm": (nn.GroupNorm(2, 4), R(B, 4, 6, 6)),
    "group norm of vectors": (nn.GroupNorm(2, 4), R(B, 4)),
    "RMS norm": (nn.RMSNorm(3), R(B, 7, 3)),
    "instance norm": (nn.InstanceNorm2d(3, affine=True), R(B, 3, 7, 7)),
    "batch norm in eval mode": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval(), R(B, 3)),
    "self-attention": (
        Apply(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2, batch_first=True)), R(B, 6, 4),
    ),
    "cross-attention": (attention(batch_first=True), R(B, 6, 4), R(B, 7, 4)),
    "sequence-first attention": (attention(), R(B, 6, 4), R(B, 7, 4)),
    "attention with added keys": (attention(batch_first=True, add_bias_kv=True), R(B, 6, 4), R(B, 7, 4)),
    "attention with other widths": (attention(batch_first=True, kdim=3, vdim=3), R(B, 6, 4), R(B, 7, 3)),
    "transformer layer": (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), R(B, 6, 4)),
    "embedding bag": (nn.EmbeddingBag(9, 3), tokens(B, 6)),
    "bilinear": (Apply(lambda m, x, y: m.a(x, y), a=nn.Bilinear(3, 2, 4)), R(B, 3), R(B, 2)),
    "LSTM": (recurrent(nn.LSTM), R(B, 6, 3)),
    "deep bidirectional LSTM": (recurrent(nn.LSTM, num_layers=2, bidirectional=True), R(B, 6, 3)),
    "GRU": (recurrent(nn.GRU), R(B, 6, 3)),
    "RNN": (recurrent(nn.RNN), R(B, 6, 3)),
    "position tables": (places(), tokens(B, 7)),
    "position tables, batch == length": (places(), tokens(B, B)),
    "tied embedding": (Tied(), tokens(B, 7)),
    "a weight also used through F.linear": (functional(), R(B, 3)),
    "the same on sequences": (functional(), R(B, 4, 3)),
    "a layer called twice": (Apply(lambda m, x: m.a(torch.tanh(m.a(x))), a=nn.Linear(3, 3)), R(B, 3)),
    "a convolution called twice": (
        Apply(lambda m, x: m.a(torch.tanh(m.a(x))), a=nn.Conv2d(2, 2, 3, padding=1)), R(B, 2, 5, 5),
    ),
    "in-place activations": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), R(B, 3)),
    "residual in-place add": (Apply(residual, first=nn.Linear(3, 3), second=nn.Linear(3, 2)), R(B, 3)),
    "a frozen part": (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)), R(B, 3)),
    "a frozen weight with a free bias": (
        Apply(lambda m, x: F.linear(x, m.w, m.b), w=nn.Parameter(R(4, 3), requires_grad=False), b=nn.Parameter(R(4))),
        R(B, 3),
    ),
    "bare parameter on the root": (Apply(lambda m, x: x * m.scale + m.shift, scale=nn.Parameter(R(3)),
                                         shift=nn.Parameter(R(1, 3))), R(B, 3)),
    "scalar parameter": (Apply(lambda m, x: torch.tanh(x - m.shift), shift=nn.Parameter(R(()))), R(B, 3)),
    "matrix product from the left": (Apply(lambda m, x: (m.w @ x.t()).t(), w=nn.Parameter(R(4, 3))), R(B, 3)),
    "einsum": (Apply(lambda m, x: torch.einsum("bti,oi->bto", x, m.w), w=nn.Parameter(R(4, 3))), R(B, 7, 3)),
    "weight norm": (parametrizations.weight_norm(nn.Linear(3, 4)), R(B, 3)),
    "spectral norm": (parametrizations.spectral_norm(nn.Linear(3, 4)).eval(), R(B, 3)),
    "orthogonal weight": (parametrizations.orthogonal(nn.Linear(3, 4)), R(B, 3)),
    "standardised convolution": (Standardised(3, 4, 3, padding=1), R(B, 3, 6, 6)),
    "PReLU": (nn.Sequential(nn.Linear(3, 4), nn.PReLU(4)), R(B, 3)),
    "a parameter where a mask says so": (
        Apply(lambda m, x: torch.where(x > 0, m.p, x), p=nn.Parameter(R(3))), R(B, 3),
    ),
    "a parameter where a mask does not": (
        Apply(lambda m, x: torch.where(x > 0, x, m.p) * torch.where(x[:, :1] > 0, m.q, x), p=nn.Parameter(R(2, 1)),
              q=nn.Parameter(R(()))), R(B, 2, 3),
    ),
    "a parameter written into the data": (
        Apply(lambda m, x: torch.cat([m.p.expand(len(x), 1), x[:, 1:]], 1) ** 2, p=nn.Parameter(R(1))), R(B, 3),
    ),
    "quotients and powers": (
        Apply(lambda m, x: (x / m.p).abs() ** m.q, p=nn.Parameter(R(3) + 4), q=nn.Parameter(R(1).abs() + 1)), R(B, 3),
    ),
    "addcmul and lerp": (
        Apply(lambda m, x: torch.lerp(torch.addcmul(m.p, x, m.q), x, m.q), p=nn.Parameter(R(3)), q=nn.Parameter(R(3))),
        R(B, 3),
    ),
    "baddbmm": (
        Apply(lambda m, x: torch.baddbmm(m.p, x, m.q.expand(len(x), -1, -1)), p=nn.Parameter(R(1, 2, 4)),
              q=nn.Parameter(R(3, 4))), R(B, 2, 3),
    ),
    "matrix times vector": (Apply(lambda m, x: (x @ m.p)[:, None], p=nn.Parameter(R(3))), R(B, 3)),
    "Fourier transform": (
        Apply(lambda m, x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(m.p), n=6), p=nn.Parameter(R(6))),
        R(B, 6),
    ),
    "complex products": (
        Apply(lambda m, x: torch.view_as_real(torch.complex(x, x**2) @ torch.view_as_complex(m.p)),
              p=nn.Parameter(R(3, 4, 2))), R(B, 3),
    ),
    "relative positions": (
        Apply(lambda m, x: x + m.a(torch.arange(4)[:, None] - torch.arange(4) + 4).mean(2), a=nn.Embedding(9, 3)),
        R(B, 4, 4),
    ),
    "a mask on a weight": (
        Apply(lambda m, x: F.linear(x, m.p * torch.ones(3, 3).tril()), p=nn.Parameter(R(3, 3))), R(B, 3),
    ),
    "the second output of an op": (
        Apply(lambda m, x: torch.stack([m.a(x), -m.a(x)]).unbind(0)[1], a=nn.Linear(3, 4)), R(B, 3),
    ),
    "checkpointed": (
        Apply(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=False)),
              a=nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)), b=nn.Linear(4, 2)),
        R(B, 3),
    ),
}  # fmt: skip
for d, kind in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), 1):
    images = R(B, 4, *(7,) * d)
    CASES |= {
        f"conv{d}d": (kind(4, 6, 3), images),
        f"conv{d}d, stride and padding": (kind(4, 6, 3, stride=2, padding=1), images),
        f"conv{d}d, same padding, even kernel": (kind(4, 6, 4, padding="same"), images),
        f"conv{d}d, reflection": (kind(4, 6, 3, padding=2, padding_mode="reflect"), images),
        f"conv{d}d, circular": (kind(4, 6, 3, padding=1, padding_mode="circular"), images),
        f"conv{d}d, groups and dilation, no bias": (kind(4, 6, 3, groups=2, dilation=2, bias=False), images),
        f"conv{d}d, depthwise": (kind(4, 8, 3, groups=4), images),
    }
for d, kind in enumerate((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), 1):
    transposed = kind(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    CASES[f"transposed conv{d}d"] = (transposed, R(B, 4, *(5,) * d))


@pytest.mark.parametrize("name", CASES)
def test_norms_and_sums_equal_autograd_one_example_at_a_time(name):
    model, *inputs = CASES[name]
    # the gradient of an orthogonal weight goes through a matrix exponential, which amplifies rounding
    assert_exact(model, *inputs, slack=10.0 if name == "orthogonal weight" else 1.0)


def test_there_are_at_least_25_configurations():
    assert len(CASES) >= 25


KEPT = [f"{way}+{when}" for way in ("product", "unfold", "grouped") for when in ("keep", "chunked")]
KERNELS = ("product", "unfold", "grouped", "gram", *KEPT)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_kernel_is_exact_on_every_configuration(name, monkeypatch):
    monkeypatch.setattr(base, "PART_BYTES", 400)
    monkeypatch.setattr(base, "CHUNK_BYTES", 900)
    model, *inputs = CASES[name]
    slack = 10.0 if name == "orthogonal weight" else 1.0
    for kernel in KERNELS:
        engine = Engine(model, kernels={"*": kernel})
        engine.gradients(square_loss(model(*inputs)), len(inputs[0]))
        if kernel in engine.kernels.values():
            assert_exact(model, *inputs, slack=slack, kernels={"*": kernel})
    assert_exact(model, *inputs, slack=slack, memory=math.inf)


@pytest.mark.parametrize("kernel", ["product", "product+keep", "product+chunked", "gram"])
@pytest.mark.parametrize("rows", [1, 3, 90])
def test_every_kernel_for_products_is_exact(monkeypatch, kernel, rows):
    monkeypatch.setattr(base, "PART_BYTES", 4000)
    monkeypatch.setattr(base, "CHUNK_BYTES", 4000)
    assert_exact(nn.Linear(6, 8), R(B, rows, 6), kernels={"*": kernel})


@pytest.mark.parametrize("kernel", [k for k in KERNELS if not k.startswith("product")])
@pytest.mark.parametrize("window", [1, 1 << 40])
@pytest.mark.parametrize("channels", [1, 3, 16, 17])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}], ids=str)
def test_every_kernel_for_convolutions_is_exact(monkeypatch, kernel, window, channels, options):
    monkeypatch.setattr(convolution, "WINDOW_BYTES", window)
    monkeypatch.setattr(base, "PART_BYTES", 4000)
    monkeypatch.setattr(base, "CHUNK_BYTES", 4000)
    assert_exact(nn.Conv2d(channels, 5, 3, **options), R(B, channels, 8, 7), kernels={"weight": kernel})


def test_units_of_several_rows_fold_like_time():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(27, 2)).double()
    x = R(6, 2, 5, 5).double()
    rows = one_by_one(model, [x])
    expected = {name: each.unflatten(0, (3, 2)).sum(1) for name, each in rows.items()}
    assert_equal(Engine(model).gradients(square_loss(model(x)), units=3), expected, 1e-12)


def test_a_single_unit_is_plain_autograd():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)).double()
    x = R(1, 3).double()
    gradients = Engine(model).gradients(square_loss(model(x)), 1)
    expected = one_by_one(model, [x])
    for name, each in gradients.each(0, 1).items():
        torch.testing.assert_close(each, expected[name])


def test_what_was_learned_of_one_batch_holds_for_batches_of_other_sizes():
    model = places().double()
    engine = Engine(model)
    for units, length in [(4, 7), (7, 4), (5, 5), (2, 6), (6, 3), (3, 6), (8, 8), (2, 1), (2, 8)]:
        x = tokens(units, length)
        assert_equal(engine.gradients(square_loss(model(x)), units), one_by_one(model, [x]), 1e-12)


def test_one_step_sequences_first_and_longer_ones_later():
    model = Apply(lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1), a=nn.Linear(3, 4)).double()
    engine = Engine(model)
    for length in (1, 7, 4, 1):
        x = R(4, length, 3).double()
        assert_equal(engine.gradients(square_loss(model(x)), 4), one_by_one(model, [x]), 1e-12)


def test_an_l2_term_inside_the_loss_is_part_of_each_gradient():
    model = nn.Linear(3, 4)
    assert_exact(model, R(B, 3), loss=lambda o: square_loss(o) + 0.1)
    penalised = Apply(lambda m, x: square_loss(m.a(x)) + 0.1 * m.a.weight.square().sum(), a=nn.Linear(3, 4))
    assert_exact(penalised, R(B, 3), loss=lambda losses: losses)


def test_float32_norms_of_large_layers_stay_accurate():
    model = nn.Sequential(nn.Linear(500, 300), nn.ReLU(), nn.Linear(300, 10))
    assert_exact(model, R(4, 500), dtypes=(torch.float32,))
    assert_exact(nn.Conv2d(16, 32, 5), R(4, 16, 12, 12), dtypes=(torch.float32,))


def test_frozen_parameters_are_never_touched():
    model, x = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2)), R(B, 3)
    gradients = Engine(model).gradients(square_loss(model(x)), B)
    assert set(gradients.forms) == {"1.weight", "1.bias"}


def test_dropout_and_other_randomness_are_those_of_the_forward_pass():
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double(), R(B, 3).double()
    losses = square_loss(model(x))
    expected = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
    gradients = Engine(model).gradients(losses, B)
    for i, each in enumerate(gradients.each(0, B).values()):
        torch.testing.assert_close(each, torch.stack([e[i] for e in expected]))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


def test_an_op_of_your_own_falls_back_and_is_exact():
    assert ("ScaleBackward", 1) not in registry.RULES
    assert_exact(Apply(lambda m, x: Scale.apply(x, m.w), w=nn.Parameter(R(3))), R(B, 3))


def test_a_rule_is_added_with_one_decorator(monkeypatch):
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))
    monkeypatch.setattr("discreet.gradients.structure.RULES", registry.RULES)
    called = []

    @rule("ScaleBackward", 1, saves=("saved_tensors",))
    def scale(ctx: OpContext):
        called.append(ctx.units)
        return ctx.gradient * ctx.saved["saved_tensors"][0]

    assert_exact(Apply(lambda m, x: Scale.apply(x, m.w), w=nn.Parameter(R(3))), R(B, 3))
    assert called


def test_a_checkpointed_stretch_is_recomputed_once_for_all_its_values():
    runs = []

    def forward(m, x):
        runs.append(1)
        return m.layers(x)

    layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model = Apply(lambda m, x: checkpoint(forward, m, x, use_reentrant=False), layers=layers)
    engine, x = Engine(model), R(B, 3)
    engine.gradients(square_loss(model(x)), B)
    runs.clear()
    engine.gradients(square_loss(model(x)), B)
    assert len(runs) == 3  # the forward pass, the saved values, the backward pass


def test_re_entrant_checkpointing_is_refused_by_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = R(B, 3, requires_grad=True)
    with pytest.raises(PrivacyError, match="use_reentrant=False"):
        Engine(model).gradients(square_loss(checkpoint(model, x, use_reentrant=True)), B)


def test_losses_without_a_graph_are_refused():
    with pytest.raises(PrivacyError, match="do not depend on the model"):
        Engine(nn.Linear(3, 2)).gradients(torch.zeros(B), B)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_rows_that_nearly_cancel(dtype):
    """Two rows of an example whose products almost cancel: the Gram matrices alone would lose the norm."""
    layer, x = nn.Linear(64, 64, bias=False).to(dtype), R(8, 64).to(dtype) * 100
    pairs = torch.stack([x, x * (1 + 1e-3)], 1)
    losses = (layer(pairs)[:, 0] - layer(pairs)[:, 1]).sum(1) * 10
    squared = Engine(layer).gradients(losses, 8).norms()["weight"]
    exact = (x.double() - pairs[:, 1].double()).norm(dim=1) * 8 * 10
    assert (squared > 0).all()
    torch.testing.assert_close(squared.sqrt().double(), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "name",
    ["LSTM", "deep bidirectional LSTM", "bilinear", "matrix times vector", "PReLU", "matrix product from the left"],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_that_is_not_finite_spoils_no_other(name, bad):
    model, *inputs = CASES[name]
    clean = Engine(model).gradients(square_loss(model(*inputs)), B).norms()
    spoiled = [x.clone() for x in inputs]
    spoiled[0][2] = bad
    found = Engine(model).gradients(square_loss(model(*spoiled)), B).norms()
    others = [0, 1, 3, 4]
    for parameter, squared in found.items():
        torch.testing.assert_close(squared[others], clean[parameter][others], rtol=1e-4, atol=1e-8)


def test_a_random_backward_is_bounded_by_what_is_summed():
    class Random(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * w

        @staticmethod
        def backward(ctx, g):
            return g, (g * torch.randn(1).exp() * 10).sum(0)

    gradients = Engine(model := Apply(lambda m, x: Random.apply(x, m.w), w=nn.Parameter(R(3)))).gradients(
        square_loss(model(R(B, 3))), B
    )
    norms = gradients.norms()["w"].sqrt()
    for i in range(B):
        alone = torch.zeros(3)
        gradients.add_weighted({"w": torch.eye(B)[i]}, {"w": alone})
        torch.testing.assert_close(alone.norm(), norms[i])


def test_rows_that_data_moves_are_attributed_anew_in_every_batch():
    """A head on the tokens a mask picks: which example a row belongs to may differ although no shape does."""
    model = Apply(lambda m, x: x, head=nn.Linear(3, 2)).double()
    engine, x = Engine(model), R(4, 4, 3).double()

    def losses(mask):
        owner = mask.nonzero()[:, 0]
        return torch.zeros(4).double().index_add(0, owner, square_loss(model.head(x[mask])))

    for mask in (torch.eye(4, dtype=torch.bool), torch.eye(4, dtype=torch.bool)[[0] * 4].t().flip(1)):
        found, each = engine.gradients(losses(mask), 4).each(0, 4), losses(mask)
        for i in range(4):
            expected = torch.autograd.grad(each[i], model.head.weight, retain_graph=True)[0]
            torch.testing.assert_close(found["head.weight"][i], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_are_summed_in_float32(dtype):
    model, x = attention(batch_first=True).to(dtype), R(B, 6, 4).to(dtype)
    gradients = Engine(model).gradients(square_loss(model(x, x)).float(), B)
    assert all(squared.dtype == torch.float32 for squared in gradients.norms().values())
    sums = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    gradients.add_weighted(dict.fromkeys(sums, torch.full((B,), 1 / 3)), sums)
    for name, expected in one_by_one(model.double(), [x.double(), x.double()]).items():
        error = (sums[name] - expected.sum(0) / 3).norm()
        assert error <= 0.1 * expected.flatten(1).norm(dim=1).sum()
        assert not torch.equal(sums[name], sums[name].to(dtype).float())  # not rounded to the short float
