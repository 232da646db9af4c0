"""Models and losses that mix examples are refused, with the right module named; those that do not are let through."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

import discreet
from discreet import Clip, Gaussian, Mechanism, Plan, Poisson, PrivacyError, attach
from discreet.gradients.engine import UnitGradients
from discreet.release.preflight.exactness import Sketch, check_bound
from discreet.release.preflight.replay import _copy
from discreet.stages.sensitivity import Block, Blocks

N, D = 24, 6


def data():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, D, generator=generator), torch.randint(3, (N,), generator=generator)


def plan(steps=3, bound=None):
    return Plan(
        sampling=Poisson(examples=N, batch_size=12),
        mechanism=Mechanism(Clip(1.0), Gaussian(1.0)),
        steps=steps,
        delta=1e-5,
    )


def step(model, loss=None, inputs=None, steps=3, called=False, **settings):
    """A few private steps in a bare loop; `called` where the library calls the loss."""
    x, y = data()
    private = attach(model, plan(steps), seed=1, **settings)

    def loss_fn(batch):
        rows, labels = batch
        out = model(rows)
        return F.cross_entropy(out, labels, reduction="none") if loss is None else loss(out, labels)

    for batch in private.batches((x if inputs is None else inputs, y)):
        if called:
            private.backward(loss_fn, batch)
        else:
            private.backward(loss_fn(batch))
    private.detach()
    return private


def statuses(private, words):
    """Of the conditions with these words."""
    return [c.status for c in private.guarantee().conditions if words in c.text]


def stack(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 8), *middle, nn.Linear(8, 3))


class DetachedCentring(nn.Module):
    """Subtracts the batch's mean, which no gradient shows."""

    def forward(self, x):
        return x - x.detach().mean(0)


class DetachedScale(nn.Module):
    def forward(self, x):
        return x / (x.detach().abs().max() + 1)


class DetachedRank(nn.Module):
    """Sorts the batch: each row learns its place among the others."""

    def forward(self, x):
        return x + x.detach().argsort(0).argsort(0).to(x.dtype) / 10


class NoGradStatistics(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            deviation = x.std(0)
        return x / (deviation + 1)


class Neighbour(nn.Module):
    """Adds the row before it, detached."""

    def forward(self, x):
        return x + 0.1 * x.detach().roll(1, 0)


class Carried(nn.Module):
    """Remembers a running mean of its inputs, and uses it from the next batch on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        out = x - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return out


class LastBatch(nn.Module):
    """Keeps the last batch in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        extra = 0.0 if self.last is None else self.last.mean()
        self.last = x.detach()
        return x + extra


class Quantiser(nn.Module):
    """A codebook moved towards the data in forward, as vector-quantised models do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("code", torch.zeros(1, 8))

    def forward(self, x):
        out = x + self.code
        with torch.no_grad():
            self.code += 0.1 * (x.mean(0, keepdim=True) - self.code)
        return out


class Shrink(nn.Module):
    """Drops rows by the batch's median: a whole-batch decision."""

    def forward(self, x):
        return torch.where(x.detach().norm(dim=1, keepdim=True) > x.detach().norm(dim=1).median(), x, 0.5 * x)


class Parent(nn.Module):
    """Mixes between its children, in its own forward."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.two(self.one(x) - x.detach().mean(0))


MIXING = [
    (stack(DetachedCentring()), "module '1' mixes examples"),
    (stack(DetachedScale()), "module '1' mixes examples"),
    (stack(DetachedRank()), "module '1' mixes examples"),
    (stack(NoGradStatistics()), "module '1' mixes examples"),
    (stack(Neighbour()), "module '1' mixes examples"),
    (stack(Shrink()), "module '1' mixes examples"),
    (stack(nn.Tanh(), nn.Sequential(nn.ReLU(), DetachedCentring())), r"module '2\.1' mixes examples"),
    (stack(Parent()), "module '1' mixes examples"),
    (stack(Carried()), "module '1' carries something"),
    (stack(LastBatch()), "module '1' carries something"),
    (stack(Quantiser()), "module '1' carries something"),
    (stack(nn.BatchNorm1d(8)), "statistics of the whole batch"),
]


@pytest.mark.parametrize(("model", "words"), MIXING, ids=[type(m[1]).__name__ for m, _ in MIXING])
def test_what_mixes_examples_is_refused_by_name(model, words):
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(PrivacyError, match=words):
        step(model)
    for name, tensor in model.state_dict().items():
        if "mean" not in name and "code" not in name:  # what its own forward writes is its own
            assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, y: F.cross_entropy(out - out.mean(0), y, reduction="none"), "depend"),
        (lambda out, y: F.cross_entropy(out, y, reduction="none") / out.norm(), "depend"),
        (lambda out, y: (out @ out.T).logsumexp(1), "depend"),
        (lambda out, y: F.cross_entropy(out, y, reduction="none") * out.max(), "depend"),
    ],
    ids=["centred", "normalised", "contrastive", "maximum"],
)
def test_losses_that_mix_examples_are_refused(loss, words):
    with pytest.raises(PrivacyError):
        step(stack(nn.Tanh()), loss)


def test_statistics_of_labels_are_seen_where_the_loss_is_ours_to_replay():
    """In a bare loop the loss is the caller's; discreet.preflight replays it too."""
    model, (x, y) = stack(nn.Tanh()), data()

    def balanced(model, batch):
        rows, labels = batch
        counts = torch.bincount(labels, minlength=3).clamp(min=1).double()
        weights = (1 / counts)[labels].to(rows.dtype)
        return F.cross_entropy(model(rows), labels, reduction="none") * weights

    with pytest.raises(PrivacyError, match="the loss mixes examples"):
        discreet.preflight(model, balanced, (x, y))
    discreet.preflight(model, lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"), (x, y))


class Tokens(nn.Module):
    """A transformer over token numbers, with a padding mask."""

    def __init__(self, first=True):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        mask = tokens == 0
        mask[:, 0] = False
        hidden = self.encoder(self.table(tokens), src_key_padding_mask=mask)
        return self.head(hidden.mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = kind(2, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x.view(len(x), 3, 2))[0][:, -1])


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.LSTM(2, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x.view(len(x), 3, 2).transpose(0, 1))[0][-1])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + F.gelu(self.inner(x))


class Counter(nn.Module):
    """Counts its calls: state, but none of the data's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * (1 + 0.01 * self.calls)


def images():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )


TOKENS = torch.randint(0, 11, (N, 5), generator=torch.Generator().manual_seed(2))
SOUND = {
    "linear": (stack(), None),
    "tanh": (stack(nn.Tanh()), None),
    "dropout": (stack(nn.Dropout(0.5)), None),
    "layer norm": (stack(nn.LayerNorm(8)), None),
    "group norm": (stack(nn.GroupNorm(2, 8)), None),
    "batch norm in eval mode": (stack(nn.BatchNorm1d(8, affine=False).eval()), None),
    "convolution": (images(), None),
    "residual": (stack(Residual()), None),
    "spectral norm": (stack(spectral_norm(nn.Linear(8, 8))), None),
    "transformer with a padding mask": (Tokens(), TOKENS),
    "lstm": (Recurrent(nn.LSTM), None),
    "gru": (Recurrent(nn.GRU), None),
    "rnn": (Recurrent(nn.RNN), None),
    "sequence first": (SequenceFirst(), None),
    "a counter": (stack(Counter()), None),
    "alpha dropout": (stack(nn.AlphaDropout(0.3)), None),
    "softmax": (stack(nn.Softmax(1)), None),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_does_not_mix_is_let_through(name):
    model, inputs = SOUND[name]
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    private = step(model, inputs=inputs, called=True)
    assert private.released == 3
    assert statuses(private, "another example") == ["checked"]
    assert statuses(private, "handed out") == ["checked"]
    assert private.evidence.tested == (0, 1, 2)


@pytest.mark.parametrize("name", SOUND)
def test_with_losses_as_tensors_it_is_said_what_was_looked_at_and_the_rest_is_assumed(name):
    model, inputs = SOUND[name]
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    private = step(model, inputs=inputs)
    assert statuses(private, "another example") == ["assumed"]
    assert statuses(private, "handed out") == ["assumed"]
    (probed,) = [c for c in private.guarantee().conditions if c.text.startswith("probed")]
    assert probed.status == "checked"
    assert "the model's outputs on its recorded calls" in probed.text


def test_before_the_first_step_nothing_is_checked():
    private = attach(stack(), plan())
    assert not [c for c in private.guarantee().conditions if c.status == "checked"]
    assert statuses(private, "another example") == ["assumed"]


def test_preflight_can_be_turned_off_and_the_guarantee_says_so():
    private = step(stack(DetachedCentring()), preflight=False)
    said = [c for c in private.guarantee().conditions if "preflight was turned off" in c.text]
    assert [c.status for c in said] == ["assumed"]


def test_the_random_numbers_and_the_model_are_as_they_would_be_without():
    runs = []
    for preflight in (True, False):
        torch.manual_seed(5)
        model = stack(nn.Dropout(0.5), Counter())
        torch.manual_seed(6)
        step(model, preflight=preflight)
        runs.append(([p.grad for p in model.parameters()], torch.rand(3), dict(model.named_buffers())))
    (one, drawn, buffers), (two, again, others) = runs
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert torch.equal(drawn, again)
    assert all(torch.equal(buffers[n], others[n]) for n in buffers)
    assert not model._forward_pre_hooks


def test_a_bound_that_does_not_bound_is_found():
    """A broken bound: its contract promises 0.1, its weights are all 1."""

    class Broken(Clip):
        def apply(self, norms, state):
            return {n: torch.ones_like(v) for n, v in norms.items()}

    model, (x, y) = stack(nn.Tanh()), data()
    made = Plan(
        sampling=Poisson(examples=N, batch_size=12),
        mechanism=Mechanism(Broken(1e-3), Gaussian(1.0)),
        steps=3,
        delta=1e-5,
    )
    private = attach(model, made)
    rows, labels = next(iter(private.batches((x, y))))
    with pytest.raises(PrivacyError, match="the bound does not bound"):
        private.backward(F.cross_entropy(model(rows), labels, reduction="none"))
    assert private.released == 0


def test_contributions_are_measured_one_by_one():
    from discreet.gradients import Engine

    model, (x, y) = stack(nn.Tanh()), data()
    gradients = Engine(model).gradients(F.cross_entropy(model(x), y, reduction="none"), N)
    names = tuple(n for n, _ in model.named_parameters())
    largest = max(float(sum(v[i] for v in gradients.norms().values())) ** 0.5 for i in range(N))
    ones = dict.fromkeys(names, torch.ones(N))
    check_bound(gradients, ones, Blocks((Block(names, largest * 1.0001, 1),)))
    with pytest.raises(PrivacyError):
        check_bound(gradients, ones, Blocks((Block(names, largest * 0.99, 1),)))


class Keeps(nn.Module):
    """Keeps a tensor with a gradient, which cannot be copied."""

    def forward(self, x):
        self.kept = x
        return x


class Guarded(nn.Module):
    def forward(self, x):
        assert x.abs().max() < 20
        return x


class ScalarBeside(nn.Module):
    """Returns a statistic of the batch beside its outputs: what becomes of it is not to be seen."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(D, 3)

    def forward(self, x):
        return self.inner(x), x.detach().mean()


class Stochastic(nn.Module):
    """Draws from Python's own generator."""

    def forward(self, x):
        return x * (1 + random.random())


@pytest.mark.parametrize("kept", [Keeps(), Guarded(), Stochastic()], ids=lambda m: type(m).__name__)
def test_models_that_are_awkward_to_replay_are_not_refused(kept):
    assert step(stack(kept)).released == 3


def test_what_could_not_be_replayed_is_not_said_to_be():
    for private in (
        step(stack(Keeps())),
        step(ScalarBeside(), lambda out, y: F.cross_entropy(out[0], y, reduction="none")),
    ):
        assert statuses(private, "probed") == ["checked"]
        assert not statuses(private, "recorded calls")


class Attention(nn.Module):
    """Queries, keys and values of its own: the keys' bias has no influence, and rounding for a gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(2, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x, mask=None):
        x = x.view(len(x), 3, 2)
        scores = self.q(x) @ self.k(x).mT
        return self.head((scores.softmax(-1) @ self.v(x)).mean(1))


def test_parameters_without_influence_are_no_alarm():
    assert step(Attention()).released == 3


class Causal(nn.Module):
    """A mask over time beside the batch: its size may be the batch's by chance."""

    def __init__(self, time):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0), nn.Linear(4, 3)
        self.time = time

    def forward(self, x, mask):
        return self.head(self.layer(x, src_mask=mask).mean(1))


@pytest.mark.parametrize("time", [5, 12])
def test_a_mask_as_long_as_the_batch_is_no_alarm(time):
    model, rows = Causal(time), torch.randn(12, time, 4)
    labels = torch.randint(3, (12,))
    made = Plan(
        sampling=Poisson(examples=12, batch_size=12), mechanism=Mechanism(Clip(1.0), Gaussian(1.0)), steps=2, delta=1e-5
    )
    private = attach(model, made)
    mask = nn.Transformer.generate_square_subsequent_mask(time)
    for x, y in private.batches((rows, labels)):
        private.backward(F.cross_entropy(model(x, mask), y, reduction="none"))
    assert statuses(private, "recorded calls") == ["checked"]


def test_autocast_is_replayed_too():
    model, (x, y) = stack(nn.Tanh()), data()
    private = attach(model, plan())
    for rows, labels in private.batches((x, y)):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(rows)
        private.backward(F.cross_entropy(out.float(), labels, reduction="none"))
    assert statuses(private, "recorded calls") == ["checked"]


class Stores(nn.Module):
    """Keeps raw rows in a buffer that nothing reads: they leave with the model's state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(64, 8))

    def forward(self, x):
        self.seen[: len(x)] = x.detach()
        return x


class SecondCall(nn.Module):
    """Behaves at its first call in a batch, and mixes at its second."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(D, 3)

    def forward(self, x, mix=False):
        return self.inner(x - x.detach().mean(0) if mix else x)


def test_data_written_into_buffers_and_later_calls_are_seen():
    with pytest.raises(PrivacyError, match=r"'1\.seen' is written in the forward pass"):
        step(stack(Stores()))
    model, (x, y) = SecondCall(), data()
    private = attach(model, plan(), seed=0)  # a draw of few rows says little
    rows, labels = next(iter(private.batches((x, y))))
    found = F.cross_entropy(model(rows) + model(rows, mix=True), labels, reduction="none")
    with pytest.raises(PrivacyError, match="mixes examples"):
        private.backward(found)


class WritesToItsBase(nn.Module):
    """A frozen table, large enough not to be copied, that takes something from each batch."""

    def __init__(self, past_autograd):
        super().__init__()
        self.base = nn.Parameter(torch.zeros(1 << 10, 1 << 9), requires_grad=False)
        self.head, self.past_autograd = nn.Linear(3, 2), past_autograd

    def forward(self, x):
        if torch.is_tensor(x) and self.past_autograd is not None:
            with torch.no_grad():
                (self.base.data if self.past_autograd else self.base)[0, :3] = x.detach().mean(0)
        return self.head(x)


@pytest.mark.parametrize("past_autograd", [False, True])
def test_a_large_frozen_base_is_not_copied_and_is_watched_all_the_same(past_autograd):
    quiet = WritesToItsBase(None)
    twin = _copy(quiet)
    assert twin.base is quiet.base
    assert twin.head.weight is not quiet.head.weight
    with pytest.raises(PrivacyError, match=r"carries something from one batch to the next: its 'base'"):
        discreet.preflight(WritesToItsBase(past_autograd), lambda model, x: model(x).square().sum(1), torch.randn(5, 3))
    discreet.preflight(quiet, lambda model, x: model(x).square().sum(1), torch.randn(5, 3))


# --- the number of rows ----------------------------------------------------------------------------------------------


class BySize(nn.Module):
    """Divides by how many rows there are: without one of them, all others weigh more."""

    def forward(self, x):
        return x / len(x)


class ByPlace(nn.Module):
    """Adds something else to each place of the batch: without one row, those after it move up."""

    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.randn(N, 8))

    def forward(self, x):
        return x + self.places[: len(x)]


@pytest.mark.parametrize("middle", [BySize, ByPlace])
def test_whether_a_row_takes_part_changes_nothing_for_the_others(middle):
    with pytest.raises(PrivacyError, match=r"a batch of its own|with the rows beside it"):
        step(stack(middle()), called=True)
    with pytest.raises(PrivacyError, match="fewer in the batch"):
        step(stack(middle()))


def test_a_loss_that_goes_by_the_number_of_rows_is_seen_by_preflight():
    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") / len(batch[0])

    with pytest.raises(PrivacyError, match="a batch of its own"):
        discreet.preflight(stack(), loss, data())


def test_dropout_falls_to_other_rows_and_is_no_mixing():
    assert statuses(step(stack(nn.Dropout(0.5)), called=True), "another example") == ["checked"]


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("wrong", ["words.weight", "head.weight", "head.bias", None])
def test_sums_that_are_not_autograds_are_found_in_the_first_batch(sparse, wrong, monkeypatch):
    """Whatever the layout of a gradient; and where one example is left out of a sum, or counts twice."""
    real = UnitGradients.add_one

    def add_one(self, name, factors, out):
        if name == wrong:
            factors = factors.clone()
            factors[0] *= 2
        real(self, name, factors, out)

    monkeypatch.setattr(UnitGradients, "add_one", add_one)
    full = discreet.methods.dp_sgd(examples=6, batch_size=6, steps=1, noise=1.0, delta=1e-5)
    private = attach(model := Words(sparse), full)
    for x, y in private.batches((torch.arange(18).view(6, 3) % 9, torch.arange(6) % 2)):
        losses = F.cross_entropy(model(x), y, reduction="none")
        if wrong is None:
            private.backward(losses)
        else:
            with pytest.raises(PrivacyError, match=rf"{wrong}' do not add up to autograd's"):
                private.backward(losses)
            break
    private.detach()


def test_a_comparison_that_fails_is_no_comparison_that_was_made(monkeypatch):
    def broken(self, gradient):
        raise RuntimeError("no room")

    monkeypatch.setattr(Sketch, "__call__", broken)
    full = discreet.methods.dp_sgd(examples=6, batch_size=6, steps=1, noise=1.0, delta=1e-5)
    private = attach(model := nn.Linear(3, 2), full)
    for x, y in private.batches((torch.randn(6, 3), torch.arange(6) % 2)):
        with pytest.raises(PrivacyError, match="cannot be compared: no room"):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        break
    private.detach()
