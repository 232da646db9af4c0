"""A unit's gradient must not depend on who else is in the batch: tested with a loss that the library can call."""

import datetime
import functools
import random
import secrets
import sys
import time
from array import array
from collections import UserDict, deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import discreet
from discreet import Clip, ConfigError, Gaussian, Mechanism, Plan, Poisson, PrivacyError, attach, fit
from discreet.release.microbatches import Microbatches
from discreet.release.preflight.constant_draws import ConstantDraws
from discreet.release.private_sum import PrivateSum

N, D = 48, 6


def data():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, D, generator=generator), torch.randint(3, (N,), generator=generator)


def plan(steps=3, batch_size=12, microbatch=1):
    mechanism = Mechanism(Clip(1.0), Gaussian(1.0), microbatch=microbatch)
    return Plan(sampling=Poisson(examples=N, batch_size=batch_size), mechanism=mechanism, steps=steps, delta=1e-5)


def cross_entropy(model):
    return lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(model, loss_fn=None, rows=None, steps=3, planned=None, **settings):
    private = attach(model, plan(planned or steps), seed=1, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for batch in private.batches(data() if rows is None else rows, steps=steps):
            private.backward(loss_fn or cross_entropy(model), batch)
            optimizer.step()
    finally:
        private.detach()
    return private


def statuses(guarantee, words):
    return [c.status for c in guarantee.conditions if words in c.text]


def stack(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 8), *middle, nn.Linear(8, 3))


class Body(nn.Module):
    """Subtracts the batch's mean, which no gradient shows."""

    def forward(self, x):
        return x - x.detach().mean(0)


def zero_head():
    model = stack(Body())
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return model


# --- what mixes within a batch ---------------------------------------------------------------------------------------


def test_a_head_that_starts_at_zero_hides_nothing():
    with pytest.raises(PrivacyError, match="module '1' mixes examples"):
        fit(zero_head(), data(), plan())
    with pytest.raises(PrivacyError, match="mixes examples"):
        train(zero_head())
    with pytest.raises(PrivacyError, match="mixes examples"):
        discreet.preflight(zero_head(), lambda model, batch: cross_entropy(model)(batch), data())


def test_a_path_that_two_zeros_close_is_opened_by_perturbed_weights():
    class Closed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.gate, self.head = nn.Linear(D, 8), nn.Parameter(torch.zeros(())), nn.Linear(8, 3)
            self.gain = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            hidden = self.one(x)
            return self.head(hidden + self.gate * self.gain * (hidden - hidden.detach().mean(0)))

    torch.manual_seed(0)
    with pytest.raises(PrivacyError, match="mixes examples"):
        train(Closed(), steps=1)


def test_a_dataclass_of_outputs_hides_nothing():
    @dataclass
    class Output:
        logits: torch.Tensor

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = stack(Body())

        def forward(self, x):
            return Output(self.inner(x))

    model = Model()
    with pytest.raises(PrivacyError, match="mixes examples"):
        train(model, lambda batch: F.cross_entropy(model(batch[0]).logits, batch[1], reduction="none"))


class Ragged(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(1 + i % 7, 4, generator=generator), i % 3


def padded(rows):
    lengths = torch.tensor([len(x) for x, _ in rows])
    x = nn.utils.rnn.pad_sequence([x for x, _ in rows], batch_first=True)
    return x, torch.tensor([y for _, y in rows]), lengths


class Pooled(nn.Module):
    def __init__(self, masked):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.masked = nn.Linear(4, 8), nn.Linear(8, 3), masked

    def forward(self, x, lengths):
        hidden = torch.tanh(self.one(x))
        if not self.masked:
            return self.two(hidden.mean(1))
        mask = (torch.arange(x.shape[1]) < lengths[:, None]).to(hidden.dtype)[..., None]
        return self.two((hidden * mask).sum(1) / lengths[:, None].to(hidden.dtype))


@pytest.mark.parametrize("masked", [False, True])
def test_padding_to_the_longest_row_needs_a_mask(masked):
    model = Pooled(masked)
    private = attach(model, plan())

    def loss_fn(batch):
        x, y, lengths = batch
        return F.cross_entropy(model(x, lengths), y, reduction="none")

    def loop():
        for batch in private.batches(Ragged(), collate_fn=padded):
            private.backward(loss_fn, batch)

    if masked:
        loop()
        assert statuses(private.guarantee(), "another example") == ["checked"]
    else:
        with pytest.raises(PrivacyError, match="mixes examples"):
            loop()


def test_a_backward_pass_with_statistics_of_the_batch_is_found():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.T

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            return gradient @ weight, gradient.T @ (x - x.mean(0))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return Scaled.apply(x, self.weight)

    with pytest.raises(PrivacyError, match="mixes examples"):
        train(stack(Layer()))


def test_mixing_inputs_in_the_loop_is_not_called_checked():
    model = stack()
    private = attach(model, plan())
    for x, y in private.batches(data()):
        mixed = 0.7 * x + 0.3 * x.roll(1, 0)
        private.backward(cross_entropy(model), (mixed, y))
    assert statuses(private.guarantee(), "another example") == ["assumed"]
    assert "changed between private.batches and private.backward" in str(private.guarantee())


def test_writing_into_a_batch_that_was_handed_out_is_not_called_checked():
    model = stack()
    private = attach(model, plan())
    for batch in private.batches(data()):
        batch[0].sub_(batch[0].mean(0))
        private.backward(cross_entropy(model), batch)
    assert statuses(private.guarantee(), "another example") == ["assumed"]


def test_augmentation_that_mixes_is_found_in_fit():
    with pytest.raises(PrivacyError, match="mixes examples"):
        fit(stack(), data(), plan(), augment=lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))])


# --- state -----------------------------------------------------------------------------------------------------------


class Bank(nn.Module):
    """Compares with the batch of some steps ago, which it keeps."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, x):
        old = self.kept[0] if len(self.kept) == self.kept.maxlen else torch.zeros(8)
        self.kept.append(x.detach().mean(0))
        return x - old


def test_a_bank_of_batches_in_an_attribute_is_found():
    with pytest.raises(PrivacyError, match="carries something from one batch to the next"):
        train(stack(Bank(deque(maxlen=1))))


def test_a_bank_whose_first_batch_comes_back_late_is_never_called_checked():
    private = train(stack(Bank(deque(maxlen=40))))
    assert "checked" not in statuses(private.guarantee(), "is kept from batch to batch")


def test_a_buffer_that_is_written_after_a_warm_up_is_found_or_said():
    class Late(nn.Module):
        def __init__(self, begin):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))
            self.calls, self.begin = 0, begin

        def forward(self, x):
            self.calls += 1
            if self.calls > self.begin:
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x

    for begin, steps in ((3, 9), (5, 7)):  # the last step that is planned is tested
        with pytest.raises(PrivacyError, match=r"'1\.mean' is written in the forward pass"):
            train(stack(Late(begin)), steps=steps)
    private = train(stack(Late(5)), steps=7, planned=9)
    assert private.evidence.tested == (0, 1, 2, 4)
    said = [c for c in private.guarantee().conditions if "never compared" in c.text]
    assert [c.status for c in said] == ["assumed"]
    assert "'1.mean'" in said[0].text


def test_state_that_does_not_depend_on_rows_is_no_alarm():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.history = []

        def forward(self, x):
            self.calls += 1
            self.history.append(int(self.calls))
            return x

    model = stack(Counter())
    private = train(model)
    assert int(model[1].calls) == 3  # tests leave no trace
    assert model[1].history == [1, 2, 3]
    assert statuses(private.guarantee(), "is kept from batch to batch") == ["checked"]


def test_an_attribute_that_holds_the_last_batch_and_is_never_read_is_said():
    class Shown(nn.Module):
        def forward(self, x):
            self.last = x.detach()
            return x

    private = train(stack(Shown()))
    (said,) = [c for c in private.guarantee().conditions if "'1.last'" in c.text]
    assert said.status == "assumed"


# --- training is as it would be without ------------------------------------------------------------------------------


def test_tests_leave_no_trace_in_what_is_trained():
    trained = []
    for preflight in (True, False):
        torch.manual_seed(5)
        model = nn.Sequential(
            nn.Linear(D, 8), nn.Dropout(0.5), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 3)
        )
        identities = [id(p) for p in model.parameters()]
        train(model, steps=5, preflight=preflight)
        assert [id(p) for p in model.parameters()] == identities
        assert all(p.dtype == torch.float32 for p in model.parameters())
        trained.append(torch.cat([t.flatten() for t in model.state_dict().values()]))
    assert torch.equal(*trained)


def test_a_model_that_fails_in_float64_is_as_it_was():
    class Floats(nn.Module):
        def forward(self, x):
            return x.float() @ torch.eye(8)

    model = stack(Floats())
    private = train(model)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert statuses(private.guarantee(), "another example") == ["checked"]


# --- the loss that is called -----------------------------------------------------------------------------------------


def test_a_loss_without_its_batch_and_a_batch_without_its_loss_are_refused():
    model = stack()
    private = attach(model, plan())
    for batch in private.batches(data(), steps=1):
        with pytest.raises(ConfigError, match="needs the batch"):
            private.backward(cross_entropy(model))
        with pytest.raises(ConfigError, match="leave the batch out"):
            private.backward(cross_entropy(model)(batch), batch)
        assert private.backward(cross_entropy(model), batch)


def test_a_loader_of_ones_own_is_tested_too():
    model, rows = stack(), list(zip(*data(), strict=True))
    private = attach(model, plan())
    loader = DataLoader(rows, batch_sampler=private.batch_sampler(), collate_fn=private.collate(rows))
    for batch in loader:
        private.backward(cross_entropy(model), batch)
    assert statuses(private.guarantee(), "another example") == ["checked"]
    other = stack()
    private = attach(other, plan())
    loader = DataLoader(rows, batch_sampler=private.batch_sampler(), collate_fn=private.collate(rows))
    for x, y in loader:
        private.backward(cross_entropy(other), (x - x.mean(0), y))
    assert statuses(private.guarantee(), "another example") == ["assumed"]


def test_rows_that_are_read_anew_at_random_are_no_alarm():
    class Noisy(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            x, y = data()
            return x[i] + 0.1 * torch.randn(D), y[i]

    model = stack()
    private = attach(model, plan())
    for batch in private.batches(Noisy()):
        private.backward(cross_entropy(model), batch)
    assert statuses(private.guarantee(), "another example") == ["checked"]


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("microbatch", [1, 4])
def test_a_batch_that_does_not_fit_is_taken_in_pieces_with_the_same_release(monkeypatch, where, microbatch):
    """Pieces are found by halving; nothing of the attempt that failed is left in the sum."""
    released, sizes = [], []
    owner, name = (PrivateSum, "add") if microbatch == 1 else (Microbatches, "add_sound")
    add = getattr(owner, name)

    def scarce(self, gradients, *rest):
        add(self, gradients, *rest)
        if gradients.units > 4:
            raise MemoryError("out of memory")

    for limited in (False, True):
        torch.manual_seed(0)
        model = stack()
        private = attach(model, plan(2, microbatch=microbatch), seed=4, preflight=False)
        if limited and where == "backward":
            monkeypatch.setattr(owner, name, scarce)

        def loss_fn(batch, model=model, limited=limited):
            if limited and where == "forward" and len(batch[0]) > 4:
                raise MemoryError("out of memory")
            sizes.append(len(batch[0]))
            return cross_entropy(model)(batch)

        for batch in private.batches(data()):
            assert private.backward(loss_fn, batch)
            released.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert min(sizes) <= 4
    for whole, pieces in zip(released[:2], released[2:], strict=True):
        torch.testing.assert_close(whole, pieces)


def test_memory_that_runs_out_for_a_single_row_is_an_error():
    model = stack()
    private = attach(model, plan(), preflight=False)

    def loss_fn(batch):
        raise MemoryError("out of memory")

    for batch in private.batches(data(), steps=1):
        with pytest.raises(MemoryError):
            private.backward(loss_fn, batch)
        break
    assert private.released == 0


def test_one_bare_loss_among_those_that_were_called_is_enough_to_assume():
    model = stack()
    private = attach(model, plan())
    for step, batch in enumerate(private.batches(data())):
        if step == 1:
            private.backward(cross_entropy(model)(batch))
        else:
            private.backward(cross_entropy(model), batch)
    assert private.evidence.sources == {"function", "tensors"}
    assert statuses(private.guarantee(), "another example") == ["assumed"]
    assert statuses(private.guarantee(), "handed out") == ["assumed"]


def test_evidence_cannot_be_written_from_outside():
    private = attach(stack(), plan())
    with pytest.raises(AttributeError):
        private.evidence = None
    with pytest.raises(AttributeError):
        private.evidence.tested = (0,)


# --- what an adversarial reader found -------------------------------------------------------------------------------


def many():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(400, D, generator=generator), torch.randint(3, (400,), generator=generator)


def train_on_many(loss_of, steps=3):
    model = stack()
    big = Plan(
        sampling=Poisson(examples=400, batch_size=100),
        mechanism=Mechanism(Clip(1.0), Gaussian(1.0)),
        steps=steps,
        delta=1e-5,
    )
    private = attach(model, big, seed=1)
    try:
        for batch in private.batches(many()):
            private.backward(loss_of(model, batch), batch)
    finally:
        private.detach()
    return private.guarantee()


def hardest(model, _):
    def loss(batch):
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        kept = torch.zeros_like(losses)
        kept[losses.detach().topk(min(len(losses), 64)).indices] = 1
        return losses * kept

    return loss


def centred_if_large(model, _):
    def loss(batch):
        x = batch[0] - (batch[0].mean(0) if len(batch[0]) > 64 else 0)
        return F.cross_entropy(model(x), batch[1], reduction="none")

    return loss


def of_limited_capacity(model, _):
    def loss(batch):
        before = F.one_hot(batch[1], 3).cumsum(0).gather(1, batch[1][:, None]).squeeze(1)
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") * (before <= 20)

    return loss


@pytest.mark.parametrize("loss_of", [hardest, centred_if_large, of_limited_capacity])
def test_mixing_that_begins_in_large_batches_is_found(loss_of):
    with pytest.raises(PrivacyError, match="mixes examples"):
        train_on_many(loss_of)


def standardised_in_the_loop(model, batch):
    mean, spread = batch[0].mean(0), batch[0].std(0)
    return lambda b: F.cross_entropy(model((b[0] - mean) / spread), b[1], reduction="none")


def divided_in_the_loop(model, batch):
    count = len(batch[0])
    return lambda b: F.cross_entropy(model(b[0]), b[1], reduction="none") / count


@pytest.mark.parametrize("loss_of", [standardised_in_the_loop, divided_in_the_loop])
def test_what_a_loop_computes_and_a_loss_holds_is_not_vouched_for(loss_of):
    assert set(statuses(train_on_many(loss_of), "another example")) == {"assumed"}


def test_a_step_s_number_in_a_closure_is_no_secret_of_the_batch():
    step = [0]

    def loss_of(model, _):
        step[0] += 1
        now = step[0]
        return lambda b: F.cross_entropy(model(b[0]), b[1], reduction="none") * (1 + now)

    assert set(statuses(train_on_many(loss_of), "another example")) == {"checked"}


class Rows(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": data()[0][i].numpy(), "y": int(data()[1][i])}


def as_arrays(rows):
    return {"x": np.stack([r["x"] for r in rows]), "y": torch.tensor([r["y"] for r in rows])}


def as_user_dict(rows):
    return UserDict({"x": torch.tensor(np.stack([r["x"] for r in rows])), "y": torch.tensor([r["y"] for r in rows])})


def in_place(batch):
    batch["x"] -= batch["x"].mean(0)


def past_autograd(batch):
    batch["x"].data.sub_(batch["x"].data.mean(0))


def replaced(batch):
    batch["x"] = batch["x"] - batch["x"].mean(0)


@pytest.mark.parametrize(
    ("collate", "edit"),
    [(as_arrays, in_place), (as_user_dict, replaced), (as_user_dict, past_autograd), (as_user_dict, in_place)],
)
def test_a_batch_that_is_changed_in_the_loop_is_noticed(collate, edit):
    model = stack()
    private = attach(model, plan(2), seed=1)

    def loss(batch):
        return F.cross_entropy(model(torch.as_tensor(batch["x"])), batch["y"], reduction="none")

    for batch in private.batches(Rows(), collate_fn=collate):
        edit(batch)
        private.backward(loss, batch)
    assert set(statuses(private.guarantee(), "handed out")) == {"assumed"}
    private.detach()


class Prior(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.prior = nn.Linear(D, 3), torch.distributions.Normal(torch.zeros(D), 1.0)

    def forward(self, x):
        mean = self.prior.loc
        self.prior = torch.distributions.Normal(0.5 * mean + 0.5 * x.mean(0).detach(), 1.0)
        return self.head(x - mean)


class Array(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.kept = nn.Linear(D, 3), array("d", [0.0] * D)

    def forward(self, x):
        mean = torch.tensor(self.kept, dtype=x.dtype)
        self.kept[:] = array("d", (0.5 * mean + 0.5 * x.mean(0).detach()).tolist())
        return self.head(x - mean)


@pytest.mark.parametrize("model", [Prior, Array])
def test_state_in_objects_of_other_kinds_is_seen(model):
    with pytest.raises(PrivacyError, match="carries something from one batch to the next"):
        train(model())


@pytest.mark.parametrize(
    "draw",
    [
        lambda: F.dropout(torch.ones(4, 5), 0.5),
        lambda: F.dropout(torch.ones(4, 5), 0.3),
        lambda: torch.bernoulli(torch.full((4, 5), 0.4)),
        lambda: torch.rand(4, 5),
        lambda: torch.randn(4, 5),
        lambda: torch.randint(3, 9, (4, 5)),
        lambda: torch.empty(4, 5).uniform_(2, 3),
        lambda: torch.multinomial(torch.tensor([[0.0, 1.0, 3.0]]), 4, replacement=True),
        lambda: torch.randperm(7),
    ],
)
def test_random_numbers_are_held_constant(draw):
    made = []
    for _ in range(3):
        with ConstantDraws() as held:
            made.append(draw())
        assert held.all
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def test_what_has_no_chance_is_not_drawn():
    with ConstantDraws():
        assert torch.bernoulli(torch.tensor([0.0, 1.0, 0.3])).tolist() == [0.0, 1.0, 1.0]
        assert bool((torch.empty(9).uniform_(2, 3) >= 2).all())
        assert bool((torch.randint(3, 9, (9,)) >= 3).all())


def test_rows_without_a_gradient_show_nothing():
    """Two rows in a hundred have a label: comparing the gradients of the others is no test."""
    torch.manual_seed(0)
    model, (x, y) = stack(Body()), data()
    labelled = torch.zeros(N)
    labelled[:2] = 1

    def loss(batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") * batch[2]

    def run(seed):
        private = attach(model, plan(6, batch_size=6), seed=seed)
        try:
            for batch in private.batches((x, y, labelled)):
                private.backward(loss, batch)
        except PrivacyError:
            return "refused"
        finally:
            private.detach()
        (status,) = statuses(private.guarantee(), "another example")
        return status

    assert {run(seed) for seed in range(6)} <= {"refused", "assumed"}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_raise_no_alarm(value):
    x, y = data()
    x[::7, 2] = value
    for seed in range(4):
        model = stack(nn.Tanh())
        private = attach(model, plan(4), seed=seed)
        for batch in private.batches((x, y)):
            private.backward(cross_entropy(model), batch)
        private.detach()


def test_a_branch_that_is_taken_on_steps_that_are_not_probed_is_tested_when_it_is():
    model, steps = stack(nn.Tanh()), [-1]

    def loss(batch):
        out = model(batch[0])
        losses = F.cross_entropy(out, batch[1], reduction="none")
        if steps[0] % 10 == 9:
            losses = losses + (out - out.mean(0).detach()).square().sum(1)
        return losses

    private = attach(model, plan(12), seed=1)

    def run():
        for batch in private.batches(data()):
            steps[0] += 1
            private.backward(loss, batch)

    with pytest.raises(PrivacyError, match="mixes examples"):
        run()
    assert steps[0] == 9
    private.detach()


def test_that_rows_are_made_of_one_unit_is_assumed():
    guarantee = train(stack(nn.Tanh())).guarantee()
    assert statuses(guarantee, "none is made of others when it is read") == ["assumed"]


class Words(Dataset):
    """Sequences of differing lengths, with a number each."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.full((1 + i % 4, D), 0.1 * i).sin(), torch.tensor(float(i % 3))


def end_to_end(rows):
    owner = torch.arange(len(rows)).repeat_interleave(torch.tensor([len(x) for x, _ in rows]))
    return torch.cat([x for x, _ in rows]), owner, torch.stack([y for _, y in rows])


@pytest.mark.parametrize("seed", range(8))
def test_words_end_to_end_with_dropout_are_sound(seed):
    """Batches may draw as many random numbers by chance, and a row's stand elsewhere among them."""
    model = nn.Linear(D, 1)

    def loss(batch):
        x, owner, y = batch
        return (x.new_zeros(len(y)).index_add(0, owner, model(F.dropout(x, 0.3)).squeeze(1)) - y).square()

    private = attach(model, plan(4), seed=seed)
    for batch in private.batches(Words(), collate_fn=end_to_end):
        private.backward(loss, batch)
    assert statuses(private.guarantee(), "another example") == ["checked"]
    private.detach()


def test_labels_that_are_shuffled_in_the_loss_are_found_though_rows_decide_how_much_is_drawn():
    """Words of all rows end to end, with dropout: other rows draw other numbers, so these are turned round."""

    model = nn.Linear(D, 1)

    def loss(batch):
        x, owner, y = batch
        pooled = x.new_zeros(len(y)).index_add(0, owner, model(F.dropout(x, 0.3)).squeeze(1))
        return (pooled - y[torch.randperm(len(y))]).square()

    private = attach(model, plan(3), seed=1)

    def run():
        for batch in private.batches(Words(), collate_fn=end_to_end):
            private.backward(loss, batch)

    with pytest.raises(PrivacyError, match="mixes examples"):
        run()
    private.detach()


# --- what only chance, a missing value or a long row brings to light -------------------------------------------------


OWN = torch.Generator()


def mixed_by_a_coin(draw):
    def loss_of(model, _):
        def loss(batch):
            x = batch[0]
            x = torch.where(draw(x), (x + x.roll(1, 0)) / 2, x)
            return F.cross_entropy(model(x), batch[1], reduction="none")

        return loss

    return loss_of


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(()) < 1e-3,
        lambda x: torch.rand(len(x), 1) > 1 - 1e-3,
        lambda x: torch.tensor(torch.rand(1).item() < 1e-3),
        lambda x: torch.randint(1000, ()) == 999,
        lambda x: torch.randn(()) > 3.5,
        lambda x: torch.empty(()).exponential_() > 7,
        lambda x: torch.multinomial(torch.tensor([0.999, 0.001]), 1) == 1,
        lambda x: torch.rand((), generator=OWN) < 1e-3,
        lambda x: torch.bernoulli(torch.tensor(0.999)) == 0,
        lambda x: (torch.rand(()) < 0.2) & (torch.rand(()) > 0.8),
        lambda x: torch.tensor(bool(torch.rand(()) < 0.2 and torch.rand(()) > 0.8)),
        lambda x: (torch.rand(()) < 0.2).float() * (torch.rand(()) > 0.8).float() > 0,
    ],
)
def test_rows_that_a_rare_coin_mixes_are_found(draw):
    with pytest.raises(PrivacyError, match="mixes examples"):
        train_on_many(mixed_by_a_coin(draw))


@pytest.mark.parametrize("draw", [random.Random(1).random, np.random.default_rng(1).random, np.random.rand])
def test_coins_that_cannot_be_held_are_not_vouched_for(draw):
    assert set(statuses(train_on_many(mixed_by_a_coin(lambda x: torch.tensor(draw() < 1e-3))), "another example")) == {
        "assumed"
    }


@pytest.mark.parametrize(
    "draw",
    [
        lambda a: torch.tensor(0.3 < a.item() < 0.33),
        lambda a: torch.tensor(0.3 < a.view(1).tolist()[0] < 0.33),
        lambda a: torch.from_numpy(np.asarray(a.numpy() > 0.3)) & (a < 0.33),
        lambda a: (a > 0.3) & (a < 0.33),
        lambda a: torch.tensor(bool(0.3 < a < 0.33)),
        lambda a: (a - 0.3).abs() < 0.01,
        lambda a: a.sub_(0.3).abs_().neg_() > -0.01,
        lambda a: torch.randint(1000, ()) == 500,
    ],
)
def test_coins_of_the_middle_are_not_vouched_for(draw):
    said = train_on_many(mixed_by_a_coin(lambda x: draw(torch.rand(()))))
    assert set(statuses(said, "another example")) == {"assumed"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda: time.time_ns() % 1000 == 0,
        lambda: secrets.randbelow(1000) == 0,
        lambda: datetime.datetime.now(datetime.UTC).microsecond == 7,
        lambda: np.random.default_rng().random() < 1e-3,
        lambda: random.Random().random() < 1e-3,
    ],
)
def test_coins_by_the_clock_or_the_system_are_not_vouched_for(ask):
    said = train_on_many(mixed_by_a_coin(lambda x: torch.tensor(ask())))
    assert set(statuses(said, "another example")) == {"assumed"}


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: (torch.rand(x.shape) < 0.4) * x,
        lambda x: x if torch.rand(()) < 0.7 else -x,
        lambda x: x if torch.rand(()) < 0.0 else -x,  # layer dropout that is switched off
        lambda x: torch.where(torch.rand(len(x), 1) < 1e-3, -x, x),
        lambda x: x + F.gumbel_softmax(x, hard=True),
        lambda x: F.dropout(F.dropout(x, 0.1), 0.2),
        lambda x: F.normalize(F.dropout(x, 0.1), dim=1).clamp(-5, 5),
        lambda x: torch.bernoulli(torch.full((D,), 0.8)) * x,
        lambda x: x[:, torch.randperm(D)],
    ],
)
def test_choices_by_chance_that_are_seen_on_both_sides_are_sound(draw):
    def loss_of(model, _):
        return lambda b: F.cross_entropy(model(draw(b[0])), b[1], reduction="none")

    assert set(statuses(train_on_many(loss_of), "another example")) == {"checked"}


def test_a_profiler_goes_on_while_isolation_is_tested():
    calls = []

    def note(frame, event, argument):
        calls.append(event)

    sys.setprofile(note)
    try:
        train(stack(nn.Tanh()))
        assert sys.getprofile() is note
    finally:
        sys.setprofile(None)
    assert calls


def imputed(model):
    def loss(batch):
        x = torch.where(batch[0].isnan(), batch[0].nanmean(0), batch[0])
        return F.cross_entropy(model(x), batch[1], reduction="none")

    return loss


def test_missing_values_that_are_taken_from_the_batch_are_not_vouched_for():
    x, y = data()
    x[::3, 2] = torch.nan
    model = stack(nn.Tanh())
    try:
        said = statuses(train(model, imputed(model), (x, y)).guarantee(), "another example")
    except PrivacyError as error:
        said = "mixes examples" in str(error) and ["refused"]
    assert said in (["refused"], ["assumed"])


def test_missing_values_that_a_constant_fills_are_sound():
    x, y = data()
    x[::3, 2] = torch.nan
    model = stack(nn.Tanh())

    def loss(batch):
        return F.cross_entropy(model(batch[0].nan_to_num(0.0)), batch[1], reduction="none")

    assert statuses(train(model, loss, (x, y)).guarantee(), "another example") == ["checked"]


def test_a_divisor_that_only_large_batches_change_is_found():
    def loss_of(model, _):
        return lambda b: F.cross_entropy(model(b[0]), b[1], reduction="none") * 32 / max(len(b[0]), 32)

    with pytest.raises(PrivacyError, match="mixes examples"):
        train_on_many(loss_of)


def test_a_faint_dependence_on_how_many_rows_there_are_is_not_taken_for_rounding():
    def loss_of(model, _):
        return lambda b: F.cross_entropy(model(b[0]), b[1], reduction="none") / (1 + 1e-5 * len(b[0]))

    try:
        said = statuses(train_on_many(loss_of), "another example")
    except PrivacyError:
        said = ["refused"]
    assert said in (["refused"], ["assumed"])


class OneLong(Dataset):
    """All rows are of one length but one, which is drawn late."""

    def __len__(self):
        return 400

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(9 if i == 0 else 4, 4, generator=generator), i % 3


@pytest.mark.parametrize("masked", [True, False])
def test_a_row_that_is_longer_than_all_before_is_tested_when_it_comes(masked):
    model = Pooled(masked)
    longest, status = 0, ""

    def loss(batch):
        return F.cross_entropy(model(batch[0], batch[2]), batch[1], reduction="none")

    sampling, mechanism = Poisson(examples=400, batch_size=20), Mechanism(Clip(1.0), Gaussian(1.0))
    private = attach(model, Plan(sampling=sampling, mechanism=mechanism, steps=20, delta=1e-5), seed=3)
    try:
        for batch in private.batches(OneLong(), collate_fn=padded):
            longest = max(longest, batch[0].shape[1])
            private.backward(loss, batch)
        (status,) = statuses(private.guarantee(), "another example")
    except PrivacyError as error:
        status = str(error)
    finally:
        private.detach()
    assert longest == 9
    assert status == "checked" if masked else "mixes examples" in status


# --- what the loop works out, and a loss or the model only holds -----------------------------------------------------

spread_of_the_batch, seen_before = 1.0, []


def spread_in_a_global(model, batch):
    global spread_of_the_batch
    spread_of_the_batch = float(batch[0].std())
    return lambda b: F.cross_entropy(model(b[0]) / spread_of_the_batch, b[1], reduction="none")


def tempered(outputs):
    return outputs / spread_of_the_batch


def spread_in_a_global_of_a_helper(model, batch):
    global spread_of_the_batch
    spread_of_the_batch = float(batch[0].std())
    return lambda b: F.cross_entropy(tempered(model(b[0])), b[1], reduction="none")


def queue_in_a_global(model, batch):
    seen_before.append(batch[0].mean(0))
    return lambda b: F.cross_entropy(model(b[0] - seen_before[max(0, len(seen_before) - 2)]), b[1], reduction="none")


def flag_of_the_batch(model, batch):
    hard = bool(batch[0].mean() > 0)
    return lambda b: F.cross_entropy(model(b[0]), b[1], reduction="none") * (2.0 if hard else 0.1)


@pytest.mark.parametrize(
    "loss_of", [spread_in_a_global, spread_in_a_global_of_a_helper, queue_in_a_global, flag_of_the_batch]
)
def test_what_a_loop_keeps_in_a_script_is_not_vouched_for(loss_of):
    assert set(statuses(train_on_many(loss_of, steps=12), "another example")) == {"assumed"}


def test_one_step_does_not_show_whether_a_loss_holds_something_of_the_batch():
    model = stack()
    private = attach(model, plan(1), seed=1)
    for x, y in private.batches(data()):
        spread = float(x.std())
        private.backward(lambda b, s=spread: F.cross_entropy(model(b[0]) / s, b[1], reduction="none"), (x, y))
    assert statuses(private.guarantee(), "another example") == ["assumed"]
    private.detach()


def test_what_a_loop_lends_the_model_for_a_step_is_not_vouched_for():
    model = stack()
    model.spread = 1.0
    private = attach(model, plan(3), seed=1)

    def loss(batch):
        return F.cross_entropy(model(batch[0]) / model.spread, batch[1], reduction="none")

    for x, y in private.batches(data()):
        model.spread = float(x.std())
        private.backward(loss, (x, y))
        model.spread = 1.0
    assert statuses(private.guarantee(), "another example") == ["assumed"]
    private.detach()


temperature_of_the_script = 1.0


class Cooled(nn.Module):
    """Reads a global of the script, by a method and a property of its own."""

    def __init__(self):
        super().__init__()
        self.net = stack()

    @property
    def temperature(self):
        return temperature_of_the_script

    def cooled(self, outputs):
        return outputs / self.temperature

    def forward(self, x):
        return self.cooled(self.net(x))


def test_a_global_that_a_models_forward_pass_reads_is_not_vouched_for():
    global temperature_of_the_script
    model = Cooled()
    private = attach(model, plan(3), seed=1)
    loss = cross_entropy(model)
    for x, y in private.batches(data()):
        temperature_of_the_script = float(x.std())
        private.backward(loss, (x, y))
    assert statuses(private.guarantee(), "another example") == ["assumed"]
    assert "temperature_of_the_script" in str(private.guarantee())
    private.detach()


class OfStep:
    """A batch that is known by its step's number alone."""

    def __init__(self, step, x):
        self.step, self.x = step, x

    def __hash__(self):
        return self.step

    def __eq__(self, other):
        return self.step == other.step


@pytest.mark.parametrize("size", [1, None])
def test_statistics_in_a_cache_of_functools_are_not_vouched_for(size):
    step = [0]

    @functools.lru_cache(maxsize=size)
    def spread(batch):
        return batch.x.std()

    def loss_of(model, batch):
        step[0] += 1
        spread(OfStep(step[0], batch[0]))
        return lambda b: F.cross_entropy(model(b[0]) / spread(OfStep(step[0], b[0])), b[1], reduction="none")

    assert set(statuses(train_on_many(loss_of), "another example")) == {"assumed"}


@functools.cache
def scale_of(width):
    return 1 / width


def test_a_cache_of_constants_is_sound():
    def loss_of(model, _):
        return lambda b: F.cross_entropy(model(b[0]) * scale_of(b[0].shape[1]), b[1], reduction="none")

    assert set(statuses(train_on_many(loss_of), "another example")) == {"checked"}


def test_preflight_finds_standardisation_behind_a_head_that_starts_at_zero():
    class Standardised(nn.Module):
        def forward(self, x):
            return (x - x.detach().mean(0)) / (x.detach().std(0) + 1e-3)

    model = stack(Standardised())
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    with pytest.raises(PrivacyError, match="mixes examples"):
        discreet.preflight(model, lambda model, batch: cross_entropy(model)(batch), data())


def test_preflight_says_what_it_could_not_decide():
    class Scaled(nn.Module):
        def forward(self, x):
            return x / (x.detach().norm() / len(x))

    model = stack(Scaled())
    nn.init.zeros_(model[-1].weight)
    x, y = data()
    with pytest.warns(UserWarning, match="not decided"):
        discreet.preflight(model, lambda model, batch: cross_entropy(model)(batch), (x[:8], y[:8]))


@pytest.mark.parametrize("mixes", [True, False])
def test_rows_of_other_lengths_that_share_a_user_are_not_vouched_for(mixes):
    """Rows count more where another one of their user's is there; no two rows have the same length."""
    rows = [(torch.randn(3 + i), i % 150, i % 3) for i in range(300)]
    model = nn.Linear(310, 3)
    mechanism = Mechanism(Clip(1.0), Gaussian(1.0))
    private = attach(
        model, Plan(sampling=Poisson(examples=300, batch_size=16), mechanism=mechanism, steps=6, delta=1e-5)
    )

    def collate(some):
        x = torch.stack([F.pad(row, (0, 310 - len(row))) for row, _, _ in some])
        return x, torch.tensor([user for _, user, _ in some]), torch.tensor([y for *_, y in some])

    def loss_fn(batch):
        x, users, y = batch
        others = (users[:, None] == users) & (x[:, None] != x).any(2)
        return F.cross_entropy(model(x), y, reduction="none") * (1 + others.any(1) * mixes)

    refused = False
    try:
        for batch in private.batches(rows, collate_fn=collate):
            private.backward(loss_fn, batch)
    except PrivacyError:  # both rows of a user may be drawn into one batch, which is then compared without one of them
        refused = True
    if refused:
        assert mixes
    else:
        assert statuses(private.guarantee(), "another example") == ["assumed" if mixes else "checked"]
