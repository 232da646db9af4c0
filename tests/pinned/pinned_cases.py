"""Small seeded runs whose released gradients are kept: every model, bound, noise, denoiser, sampler and way to train.

Only public names are used, so that modules may move and internals be rewritten, while what is released stays the same.
"""

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import discreet
from discreet import (
    AdaptiveClip,
    AirySquared,
    AutomaticClip,
    BoundedNetwork,
    Cauchy,
    Clip,
    Encode,
    FixedBatches,
    FixedSize,
    Gaussian,
    JamesStein,
    Kalman,
    KolmogorovSmirnov,
    Laplace,
    Logistic,
    Mechanism,
    PerLayerClip,
    Plan,
    Poisson,
    RadialTanh,
    ScaledTanh,
    Score,
    Sech,
    Shuffled,
    StudentT,
    Tanh,
    VarianceGamma,
)
from discreet.federated import Local, Rounds, Users
from discreet.federated import fit as federated_fit

EXAMPLES, BATCH, STEPS, SEED = 24, 8, 3, 7
KEPT = 8  # values of each release that are kept as figures

# --- models: each makes losses of a batch (inputs, targets), one a row ------------------------------------------------


class WeightStandardised(nn.Conv2d):
    """A convolution whose weight is made zero-mean and of unit variance in each forward pass."""

    def forward(self, x):
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        std = self.weight.std((1, 2, 3), keepdim=True)
        return self._conv_forward(x, (self.weight - mean) / (std + 1e-5), self.bias)


class Recurrent(nn.Module):
    """A recurrent layer, and a linear one on its last output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Transformer(nn.Module):
    """Words and places, one block of attention, and a linear layer on the mean."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Parameter(0.1 * torch.randn(5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(self.words(x) + self.places).mean(1))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(11, 6), nn.Linear(6, 6)

    def forward(self, x):
        return F.linear(torch.tanh(self.mix(self.words(x))), self.words.weight)


class Adapter(nn.Module):
    """A frozen linear layer and what a product of two narrow ones adds to it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + 2.0 * self.up(self.down(x))


class Twice(nn.Module):
    """A layer that is used twice, a scale, and a bilinear form."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale, self.form = nn.Parameter(torch.ones(6)), nn.Bilinear(6, 6, 3)

    def forward(self, x):
        h = torch.tanh(self.again(torch.tanh(self.again(self.first(x))))) * self.scale
        return self.form(h, x)


class Products(nn.Module):
    """Parameters in einsum, matmul, a gather, and a sum over the records' places."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(0.5 * torch.randn(4, 6)), nn.Parameter(0.5 * torch.randn(6, 3))
        self.table = nn.Parameter(0.5 * torch.randn(11, 4))

    def forward(self, x):
        return (torch.einsum("bpi,io->bpo", self.table[x], self.a).relu() @ self.b).sum(1)


def per_row(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def next_words(outputs, x):
    return F.cross_entropy(outputs[:, :-1].transpose(1, 2), x[:, 1:], reduction="none").mean(1)


def squared(outputs, y):
    return (outputs[:, 0] - y.to(outputs.dtype)).square()


def logistic_loss(outputs, y):
    return F.binary_cross_entropy_with_logits(outputs[:, 0], (y > 0).to(outputs.dtype), reduction="none")


@dataclass(frozen=True)
class Model:
    """How a model is made, what one of its inputs looks like, and its loss."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    words: bool = False
    loss: Callable[..., torch.Tensor] = per_row


def _convolutional(first, *others):
    return lambda: nn.Sequential(first(), *(make() for make in others), nn.Flatten(), nn.LazyLinear(3))


def _materialised(model, shape):
    if any(isinstance(m, nn.LazyLinear) for m in model.modules()):
        with torch.no_grad():
            model(torch.zeros(1, *shape))
    return model


_IMAGE, _SEQUENCE = (1, 6, 6), (5, 4)
MODELS = {
    "logistic regression": Model(lambda: nn.Linear(6, 1), loss=logistic_loss),
    "linear regression": Model(lambda: nn.Linear(6, 1), loss=squared),
    "mlp": Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))),
    "without biases": Model(lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))),
    "cnn": Model(_convolutional(lambda: nn.Conv2d(1, 3, 3), nn.ReLU, lambda: nn.MaxPool2d(2)), _IMAGE),
    "group norm": Model(
        _convolutional(
            lambda: nn.Conv2d(1, 4, 3, padding=1),
            lambda: nn.GroupNorm(2, 4),
            nn.ReLU,
            lambda: nn.Conv2d(4, 2, 3, stride=2),
            nn.ReLU,
        ),
        _IMAGE,
    ),
    "weight standardisation": Model(_convolutional(lambda: WeightStandardised(1, 3, 3), nn.ReLU), _IMAGE),
    "torch's lstm": Model(lambda: Recurrent(nn.LSTM), _SEQUENCE),
    "lstm": Model(lambda: Recurrent(discreet.nn.LSTM), _SEQUENCE),
    "transformer": Model(Transformer, (5,), words=True),
    "tied head": Model(Tied, (5,), words=True, loss=next_words),
    "adapter": Model(lambda: nn.Sequential(Adapter(6, 5), nn.ReLU(), Adapter(5, 3))),
    "weight norm": Model(
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh(), parametrizations.weight_norm(nn.Linear(5, 3))
        )
    ),
    # the rest with few bounds
    "bounded": Model(lambda: nn.Sequential(nn.Linear(6, 5), discreet.nn.BELU(1.0, 2.0), nn.Linear(5, 3))),
    "bounded cnn": Model(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)), _IMAGE
    ),
    "gru": Model(lambda: Recurrent(discreet.nn.GRU), _SEQUENCE),
    "rnn": Model(lambda: Recurrent(discreet.nn.RNN), _SEQUENCE),
    "torch's gru": Model(lambda: Recurrent(nn.GRU), _SEQUENCE),
    "norms": Model(lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.ReLU(), nn.RMSNorm(4), nn.Linear(4, 3))),
    "other convolutions": Model(
        _convolutional(
            lambda: nn.Conv2d(1, 4, 3, padding=2, dilation=2),
            nn.ReLU,
            lambda: nn.Conv2d(4, 4, 3, padding=1, groups=2),
            lambda: nn.InstanceNorm2d(4, affine=True),
            lambda: nn.ConvTranspose2d(4, 2, 2, stride=2),
            nn.Tanh,
        ),
        _IMAGE,
    ),
    "convolution over time": Model(_convolutional(lambda: nn.Conv1d(5, 3, 2), nn.ReLU), _SEQUENCE),
    "twice": Model(Twice),
    "products": Model(Products, (5,), words=True),
}
WITH_ALL_BOUNDS = list(MODELS)[: list(MODELS).index("bounded")]

# --- cases ------------------------------------------------------------------------------------------------------------

BOUNDS = {
    "Clip": Clip(0.7),
    "PerLayerClip": PerLayerClip(0.4),
    "AutomaticClip": AutomaticClip(0.7),
    "AdaptiveClip": AdaptiveClip(0.7),
    "Tanh": Tanh(0.2, 1.5),
    "ScaledTanh": ScaledTanh(0.7, 2.0),
    "RadialTanh": RadialTanh(0.7),
    "Encode": Encode(0.7),
}
MORE_BOUNDS = {
    "AdaptiveClip, per layer": AdaptiveClip(0.7, per_layer=True),
    "AdaptiveClip, noisy": AdaptiveClip(0.7, speed=0.5, quantile=0.3, share=0.1),
    "AdaptiveClip, mean": AdaptiveClip(0.7, "mean", share=0.1),
    "AdaptiveClip, mean, per layer": AdaptiveClip(0.7, "mean", per_layer=True, share=0.1),
    "AutomaticClip, little stability": AutomaticClip(0.7, stability=1e-4),
    "Encode, nearest": Encode(0.7, "nearest", levels=6),
    "Encode, several envelopes": Encode(0.7, envelopes=5, levels=6, seed=3),
    "RadialTanh, steep": RadialTanh(0.7, 3.0),
    "Tanh, clipped": Tanh(0.2, 1.5, clip=0.5),
}
NOISES = {
    "none": Gaussian(0.0),
    "by its deviation": Gaussian(std=0.6),
    "StudentT": StudentT(5.0, 0.8),
    "Cauchy": Cauchy(0.8),
    "Laplace": Laplace(0.8),
    "VarianceGamma": VarianceGamma(0.8),
    "Sech": Sech(0.8),
    "Logistic": Logistic(0.8),
}
DENOISERS = {
    "KolmogorovSmirnov": KolmogorovSmirnov(),
    "KolmogorovSmirnov, rescaled": KolmogorovSmirnov(rescale=True),
    "Score": Score(),
    "JamesStein": JamesStein(),
    "JamesStein, all in one": JamesStein(each=False),
    "Kalman": Kalman(gain=0.4),
    "Kalman, stated drift": Kalman(drift=0.1),
}
SAMPLERS = {
    "Poisson, secret number": Poisson(rate=1 / 3, batch_size=BATCH),
    "Poisson, replacement": Poisson(examples=EXAMPLES, batch_size=BATCH, adjacency="replace"),
    "Poisson, capped": Poisson(examples=EXAMPLES, batch_size=BATCH, cap=9),
    "Poisson, hardly any": Poisson(examples=EXAMPLES, batch_size=1),
    "Poisson, all": Poisson(examples=EXAMPLES, batch_size=EXAMPLES),
    "FixedSize": FixedSize(EXAMPLES, BATCH),
    "Shuffled": Shuffled(EXAMPLES, BATCH),
    "FixedBatches": FixedBatches(EXAMPLES, BATCH),
}


@dataclass(frozen=True)
class Case:
    """One run: its model and plan, and how it is trained."""

    model: str = "mlp"
    bound: Any = BOUNDS["Clip"]
    noise: Any = Gaussian(0.8)  # noqa: RUF009
    sampling: Any = Poisson(examples=EXAMPLES, batch_size=BATCH)  # noqa: RUF009
    mechanism: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    attach: dict[str, Any] = field(default_factory=dict)
    batches: dict[str, Any] = field(default_factory=dict)
    how: str = "function"  # or "tensor", or "loader"
    dtype: torch.dtype = torch.float32
    odd: bool = False  # whether some examples are not finite
    changed: Callable[[nn.Module], Any] | None = None  # what is done to the model first

    def made_plan(self):
        return Plan(
            sampling=self.sampling,
            mechanism=Mechanism(self.bound, self.noise, **self.mechanism),
            **{"steps": STEPS, "delta": 1e-5} | self.plan,
        )


def cases():
    """All of them, by name."""
    found = {f"{m}, {name}": Case(m, bound) for m in WITH_ALL_BOUNDS for name, bound in BOUNDS.items()}
    others = [m for m in MODELS if m not in WITH_ALL_BOUNDS]
    found |= {f"{m}, {name}": Case(m, BOUNDS[name]) for m in others for name in ("Clip", "PerLayerClip", "ScaledTanh")}
    found |= {f"mlp, {name}": Case(bound=bound) for name, bound in MORE_BOUNDS.items()}
    networks = {
        "spectral": ("bounded", BoundedNetwork(2.0, 1.5)),
        "frobenius": ("bounded", BoundedNetwork(2.0, 1.5, projection="frobenius")),
        "tanh": ("mlp", BoundedNetwork(2.0, 1.5)),
        "convolutions": ("bounded cnn", BoundedNetwork(4.0, 1.2, input_shape=_IMAGE)),
    }
    found |= {f"BoundedNetwork, {name}": Case(model, bound) for name, (model, bound) in networks.items()}
    for model in ("mlp", "cnn"):
        found |= {f"{model}, noise {name}": Case(model, noise=noise) for name, noise in NOISES.items()}
    found |= {f"mlp, {name}": Case(mechanism={"denoise": denoise}) for name, denoise in DENOISERS.items()}
    for model in ("mlp", "cnn"):  # no Gaussian is proven to dominate it, so that every coordinate must be bounded
        found[f"{model}, Encode, AirySquared"] = Case(model, BOUNDS["Encode"], AirySquared(0.8))
    found["mlp, StudentT, Score"] = Case(noise=StudentT(5.0, 0.8), mechanism={"denoise": Score()})
    found["mlp, Laplace, JamesStein"] = Case(noise=Laplace(0.8), mechanism={"denoise": JamesStein()})
    found["mlp, Encode, StudentT, KolmogorovSmirnov"] = Case(
        bound=BOUNDS["Encode"], noise=StudentT(5.0, 0.8), mechanism={"denoise": KolmogorovSmirnov()}
    )
    for model in ("mlp", "tied head"):
        found |= {f"{model}, {name}": Case(model, sampling=sampler) for name, sampler in SAMPLERS.items()}
    for model in ("mlp", "cnn", "lstm"):
        for name in ("Clip", "PerLayerClip", "ScaledTanh", "AdaptiveClip"):
            found[f"{model}, {name}, microbatches"] = Case(model, BOUNDS[name], mechanism={"microbatch": 2})
    for model in ("mlp", "cnn", "transformer"):
        for name in ("Clip", "PerLayerClip", "AutomaticClip", "RadialTanh", "ScaledTanh", "Tanh"):
            found[f"{model}, {name}, exact"] = Case(model, BOUNDS[name], mechanism={"hardening": "exact"})
    for model in ("mlp", "cnn", "group norm", "transformer", "torch's lstm", "tied head"):
        found[f"{model}, chunks"] = Case(model, batches={"at_most": 3})
        found[f"{model}, a tensor of losses"] = Case(model, how="tensor")
        found[f"{model}, float64"] = Case(model, dtype=torch.float64)
    for name in ("AdaptiveClip", "Encode"):
        found[f"mlp, {name}, chunks"] = Case(bound=BOUNDS[name], batches={"at_most": 3})
    found["mlp, Shuffled, chunks, tensors"] = Case(
        sampling=Shuffled(EXAMPLES, BATCH), batches={"at_most": 5}, how="tensor"
    )
    found["BoundedNetwork, chunks"] = Case("bounded", BoundedNetwork(2.0, 1.5), batches={"at_most": 3})
    found["mlp, exact, chunks"] = Case(mechanism={"hardening": "exact"}, batches={"at_most": 3})
    found["mlp, microbatches, chunks"] = Case(mechanism={"microbatch": 2}, batches={"at_most": 3})
    for allocation in ("each", "power"):
        for name in ("PerLayerClip", "Clip", "AdaptiveClip, per layer"):
            bound = (BOUNDS | MORE_BOUNDS)[name]
            found[f"cnn, {name}, {allocation}"] = Case("cnn", bound, mechanism={"allocation": allocation})
    norms = {"0.weight": 0.5, "0.bias": 0.1, "2.weight": 0.4, "2.bias": 0.2}
    found["mlp, stated norms, power"] = Case(bound=PerLayerClip(norms), mechanism={"allocation": "power"})
    found["mlp, schedule of the noise"] = Case(plan={"noise_schedule": (1.5, 1.0, 0.5)})
    found["mlp, epsilon"] = Case(plan={"epsilon": 50.0})
    found["logistic regression, fixed"] = Case("logistic regression", batches={"fixed": True})
    every = Poisson(examples=EXAMPLES, batch_size=EXAMPLES)
    found["mlp, fixed, all"] = Case(sampling=every, batches={"fixed": True})
    found["mlp, a loader"] = Case(how="loader")
    found["mlp, not probed"] = Case(attach={"preflight": False})
    found["cnn, little memory"] = Case("cnn", attach={"memory": 1.0})
    found["cnn, much memory"] = Case("cnn", attach={"memory": float("inf")})
    found["mlp, not finite"] = Case(odd=True)
    found["cnn, PerLayerClip, not finite, chunks"] = Case(
        "cnn", BOUNDS["PerLayerClip"], odd=True, batches={"at_most": 4}
    )
    found["mlp, partly frozen"] = Case(changed=lambda model: model[0].weight.requires_grad_(False))
    return found


def data_of(model, case):
    """Its examples: the same for all models of one shape."""
    draw = torch.Generator().manual_seed(11)
    y = torch.randint(3, (EXAMPLES,), generator=draw)
    if model.words:
        x = torch.randint(11, (EXAMPLES, *model.shape), generator=draw)
        return x, x if model.loss is next_words else y
    x = torch.randn(EXAMPLES, *model.shape, generator=draw)
    if case.odd:
        x[3], x[10, ..., 0] = float("nan"), float("inf")
    return x.to(case.dtype), y


def run(case):
    """The released gradients, one tensor a step."""
    model = MODELS[case.model]
    torch.manual_seed(5)
    module = _materialised(model.make(), model.shape).to(case.dtype)
    if case.changed is not None:
        case.changed(module)
    data = data_of(model, case)

    def loss_fn(batch):
        x, y = batch
        return model.loss(module(x), y)

    private = discreet.attach(module, case.made_plan(), seed=SEED, **case.attach)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    released = []
    try:
        for batch in _batches(private, data, case):
            done = private.backward(loss_fn(batch)) if case.how == "tensor" else private.backward(loss_fn, batch)
            if done:
                released.append(gradient(module))
                optimizer.step()
    finally:
        private.detach()
    return released


def _batches(private, data, case):
    if case.how != "loader":
        return private.batches(data, **case.batches)
    rows = torch.utils.data.TensorDataset(*data)
    return torch.utils.data.DataLoader(rows, batch_sampler=private.batch_sampler(), collate_fn=private.collate(rows))


def gradient(module):
    """All of p.grad, one after the other."""
    return torch.cat([p.grad.detach().flatten() for p in module.parameters() if p.requires_grad])


# --- other ways to train ----------------------------------------------------------------------------------------------


def _mlp():
    torch.manual_seed(5)
    return MODELS["mlp"].make()


def _weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def _users(bound=None, **more):
    return discreet.methods.dp_fedavg(
        users=8,
        users_per_round=4,
        rounds=STEPS,
        noise=0.5,
        delta=1e-3,
        **({} if bound is None else {"bound": bound}),
        **more,
    )


def _people():
    return Users.dealt(*data_of(MODELS["mlp"], Case()), 8, "iid", seed=2)


def _rounds(bound, weights=None, **more):
    """Federated rounds, whose updates are made by a loop over the users."""
    model, people, local = _mlp(), _people(), Local(learning_rate=0.3, epochs=2, batch_size=2)
    rounds = Rounds(model, _users(bound), seed=SEED, **more)
    optimizer, released = torch.optim.SGD(model.parameters(), lr=1.0), []
    while rounds.remaining:
        for user in rounds.draw():
            moved = local.update(model, people[user], in_round=rounds.released, user=user)
            shares = None if weights is None else [weights[user]]
            rounds.add([user], {name: change[None] for name, change in moved.items()}, shares)
        rounds.release()
        released.append(gradient(model))
        optimizer.step()
    rounds.detach()
    return released


def _federated(engine, **more):
    """A whole federated run; its weights at the end."""
    model = _mlp()
    local = Local(learning_rate=0.3, epochs=2, batch_size=2)
    federated_fit(model, _people(), _users(), local=local, engine=engine, seed=SEED, **more)
    return [_weights(model)]


def _continued():
    """A run that is given up after one step, and continued from its state by another handle."""
    model, data = _mlp(), data_of(MODELS["mlp"], Case())
    released, state = [], None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for steps in (1, STEPS - 1):
        plan = Case(bound=AdaptiveClip(0.7), mechanism={"denoise": Kalman(gain=0.4)}).made_plan()
        private = discreet.attach(model, plan, seed=SEED)
        if state is not None:
            private.load_state_dict(state)
        for x, y in private.batches(data, steps=steps):
            private.backward(per_row(model(x), y))
            released.append(gradient(model))
            optimizer.step()
        state = private.state_dict()
        private.detach()
    return released


def _two_at_once():
    """Two models that are trained at once do not share a stream's place."""
    data, plan = data_of(MODELS["mlp"], Case()), Case().made_plan()
    models = [_mlp(), _mlp()]
    handles = [discreet.attach(model, plan, seed=seed) for model, seed in zip(models, (1, 2), strict=True)]
    released = []
    for batches in zip(*(handle.batches(data) for handle in handles), strict=True):
        for model, handle, (x, y) in zip(models, handles, batches, strict=True):
            handle.backward(per_row(model(x), y))
            released.append(gradient(model))
    return released


OTHERS = {
    "federated rounds, flat": lambda: _rounds(None),
    "federated rounds, per layer": lambda: _rounds(PerLayerClip(0.3)),
    "federated rounds, adaptive": lambda: _rounds(AdaptiveClip(0.3)),
    "federated rounds, weights": lambda: _rounds(None, [0.1 * (k + 1) for k in range(8)], denominator=2.0),
    "federated run, loop": lambda: _federated("loop"),
    "federated run, vectorised": lambda: _federated("vectorised"),
    "federated run, denominator": lambda: _federated("loop", denominator=3.0),
    "a run that is continued": _continued,
    "two runs at once": _two_at_once,
}
CASES: dict[str, Callable[[], list[torch.Tensor]]] = {
    **{name: (lambda case=case: run(case)) for name, case in cases().items()},
    **OTHERS,
}
# Where a weight is standardised in the forward pass, norms follow from a form that is found by secret random pulls, so
# that last bits are others in each process: these are compared closely.
UNREPEATABLE = {
    f"weight standardisation, {name}"
    for name in ("Clip", "PerLayerClip", "AutomaticClip", "AdaptiveClip", "RadialTanh")
}

# --- what is kept of a run, and of the machine ------------------------------------------------------------------------


def digest(*tensors):
    """Of their values, bit for bit."""
    made = hashlib.sha256()
    for tensor in tensors:
        made.update(tensor.detach().contiguous().numpy().tobytes())
    return made.hexdigest()


def kept(released):
    """Of each release its hash, its first values and its norm."""
    return [
        [digest(values), [float(f"{v:.6g}") for v in (*values[:KEPT].tolist(), float(values.double().norm()))]]
        for values in released
    ]


def fingerprint():
    """The versions of what computes, and a hash of plain operations: where both agree, so must every bit."""
    draw = torch.Generator().manual_seed(3)
    made = []
    for dtype in (torch.float32, torch.float64):
        a, b = (torch.randn(n, m, generator=draw, dtype=torch.float64).to(dtype) for n, m in ((37, 29), (29, 41)))
        made += [a @ b, a[:8, :6] @ b[:6, :5], a[0] @ a[1], torch.einsum("bi,bj->bij", a, a).sum(0)]
        made += [torch.bmm(a[:, :24].reshape(37, 4, 6), a[:, :24].reshape(37, 6, 4)), (a * a).sum(1).sqrt(), a.sum()]
        made += [a.exp(), a.tanh(), a.sigmoid(), a.abs().log(), a.cos(), torch.erfinv(a.tanh()), F.softmax(a, 1)]
        made += [F.layer_norm(a, (29,)), F.gelu(a), a.std(1), a.norm(), torch.linalg.vector_norm(a, dim=1), a.cumsum(0)]
        image = a[:36].reshape(4, 1, 9, 29).repeat(1, 2, 1, 1)
        for groups in (1, 2):
            x, w = image.clone().requires_grad_(), b.flatten()[: 72 // groups].reshape(4, 2 // groups, 3, 3)
            w = w.clone().requires_grad_()
            out = F.conv2d(x, w, padding=1, groups=groups)
            made += [out, *torch.autograd.grad(out.square().sum(), [x, w])]
        values = a.numpy()
        more = [
            np.exp(values),
            np.log(np.abs(values)),
            np.tan(values),
            np.cosh(values),
            np.arctanh(np.tanh(values / 4)),
        ]
        more += [
            scipy.special.erf(values),
            scipy.special.ndtri(np.abs(np.tanh(values))),
            values.sum(0),
            values @ values.T,
        ]
        made += [torch.from_numpy(np.ascontiguousarray(v)) for v in more]
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
        "operations": digest(*made),
    }
