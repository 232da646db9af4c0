import math
import re

import pytest
import torch
from small_training import CLASSES, ROWS, SIZE, data, linear, plan, silent, weights
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import discreet
from discreet import (
    ConfigError,
    PrivacyError,
    federated,
    methods,
    verify,
)
from discreet.release.chunk_size import chunk_that_fits, ran_out
from discreet.training.augmentation import Images
from discreet.training.evaluation import evaluate, loss_for
from discreet.training.loop import fit

# --- the loop --------------------------------------------------------------------------------------------------------


def test_it_learns_to_the_end_of_its_plan_and_says_what_is_proven():
    model, steps = linear(), []
    before = evaluate(model, data(200, seed=2))
    fitted = fit(model, data(), plan(30), test=data(200, seed=2), on_step=steps.append)
    assert steps == list(range(1, 31))
    assert fitted.finished
    assert fitted.model is model
    assert fitted.accuracy > max(0.8, before["accuracy"])
    assert fitted.guarantee.epsilon == pytest.approx(plan(30).guarantee().epsilon)
    assert fitted.guarantee.released == 30
    assert (fitted.lost, len(fitted.anchor)) == (0, 64)


def test_the_model_is_free_again_afterwards():
    model = linear()
    fit(model, data(), plan(1))
    F.cross_entropy(model(data()[0]), data()[1]).backward()  # an attached model would refuse
    assert model.weight.grad is not None


def test_a_step_is_that_of_the_optimizer_on_the_bounded_mean():
    model, (x, y) = linear(), data()
    expected = linear()
    total = torch.zeros(SIZE * CLASSES + CLASSES)
    for row, label in zip(x, y, strict=True):
        loss = F.cross_entropy(expected(row[None]), label[None])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(expected.parameters()))])
        total += gradient / max(1.0, float(gradient.norm()) / 0.3)
    fit(model, (x, y), silent(1, norm=0.3), optimizer=torch.optim.SGD(model.parameters(), lr=2.0))
    torch.testing.assert_close(weights(model), weights(expected) - 2.0 * total / ROWS)


def test_records_come_every_so_many_epochs_and_at_the_end():
    heard = []
    fitted = fit(linear(), data(), plan(8), test=data(), evaluate_every=1.0, on_record=heard.append)
    assert [r["step"] for r in fitted.records] == [3, 6, 8]  # 60 examples, 20 a step
    assert heard == fitted.records
    for record in fitted.records:
        assert record["epoch"] == pytest.approx(record["step"] / 3)
        assert 0 <= record["accuracy"] <= 1
        assert record["seconds"] >= 0
    spent = [r["epsilon"] for r in fitted.records]
    assert spent == sorted(spent)
    assert fitted.accuracy == fitted.records[-1]["accuracy"]


def test_without_held_out_data_nothing_is_measured():
    fitted = fit(linear(), data(), plan(3))
    assert fitted.accuracy is None
    assert "loss" not in fitted.records[-1]


def test_what_an_adaptive_bound_learned_is_in_the_records():
    adaptive = methods.adaptive_clipping(examples=ROWS, batch_size=20, steps=2, noise=1.0, delta=1e-5)
    (found,) = fit(linear(), data(), adaptive).records
    assert list(found["clipping_norms"]) == ["all parameters"]
    layered = methods.adaptive_clipping(examples=ROWS, batch_size=20, steps=2, noise=1.0, delta=1e-5, per_layer=True)
    (found,) = fit(linear(), data(), layered).records
    assert list(found["clipping_norms"]) == ["weight", "bias"]
    assert all(norm > 0 for norm in found["clipping_norms"].values())


def test_stop_is_asked_after_every_release():
    steps = []
    fitted = fit(linear(), data(), plan(10), on_step=steps.append, stop=lambda: len(steps) == 4)
    assert steps == [1, 2, 3, 4]
    assert not fitted.finished
    assert fitted.guarantee.released == 4
    assert fitted.guarantee.so_far < fitted.guarantee.epsilon  # the whole plan was declared


def test_numbers_are_predicted_with_squared_error():
    torch.manual_seed(0)
    x = torch.randn(ROWS, SIZE)
    y = x @ torch.arange(1.0, SIZE + 1)
    model = nn.Linear(SIZE, 1)
    before = evaluate(model, (x, y))
    fitted = fit(model, (x, y), silent(60, norm=10.0), test=(x, y))
    assert set(before) == {"loss"}
    assert fitted.records[-1]["loss"] < before["loss"] / 4
    assert fitted.accuracy is None
    torch.testing.assert_close(
        loss_for((x, y))(torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 1.0])), torch.tensor([4.0, 0.0])
    )
    with pytest.raises(ConfigError, match="predicts 2 numbers a row, and there are 1 targets"):
        loss_for((x, y))(torch.zeros(4, 2), torch.zeros(4))


class Rows(Dataset):
    """A data set that makes its rows."""

    def __init__(self, as_numpy=False):
        self.x, self.y = data()
        self.as_numpy = as_numpy

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return (self.x[index].numpy() if self.as_numpy else self.x[index]), int(self.y[index])


@pytest.mark.parametrize("rows", [Rows(), Rows(as_numpy=True), TensorDataset(*data())])
def test_a_data_set_is_the_same_as_its_tensors(rows):
    one, other = linear(), linear()
    fit(one, data(), silent(3), test=data())
    fitted = fit(other, rows, silent(3), test=rows)
    torch.testing.assert_close(weights(one), weights(other))
    assert fitted.accuracy is not None


def test_a_loss_of_ones_own_is_used():
    model = linear()
    fit(model, data(), silent(2), loss=lambda out, y: 0 * F.cross_entropy(out, y, reduction="none"))
    assert torch.equal(weights(model), weights(linear()))


# --- what is wrong is said before anything is counted ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"evaluate_rows": 0}, "evaluate_rows is 0"),
        ({"checkpoint_every": -1}, "checkpoint_every is -1"),
        ({"checkpoint_every": math.nan}, "checkpoint_every is nan"),
        ({"chunk": 0}, "chunk is 0"),
        ({"copies": 0, "augment": Images(flip=True)}, "copies is 0"),
        ({"copies": 2}, "nothing changes them"),
        ({"averaging": 1.0}, "averaging is 1.0"),
        ({"averaging": -0.1}, "averaging is -0.1"),
        ({"test": (torch.zeros(0, SIZE), torch.zeros(0))}, "no examples"),
        ({"data": (torch.zeros(59, SIZE), torch.zeros(59, dtype=torch.long))}, "59"),
        ({"data": DataLoader(TensorDataset(*data()))}, "a DataLoader draws its own batches"),
        ({"plan": "dp_sgd"}, "is not a Plan"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)}, "none of the model's parameters"),
        ({"schedule": 0.1}, "schedule is 0.1"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_counted(wrong, words, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    arguments = {"data": data(), "plan": plan(), "ledger": ledger} | wrong
    with pytest.raises(ConfigError, match=words):
        fit(linear(), **arguments)
    assert not ledger.exists()


@pytest.mark.parametrize(
    ("augment", "loss", "error", "words"),
    [
        (lambda x: x[::2], None, ConfigError, "augment made"),
        (lambda x: x, F.cross_entropy, PrivacyError, "reduction='none'"),
    ],
)
def test_copies_and_their_losses_are_counted(augment, loss, error, words):
    with pytest.raises(error, match=words) as refused:
        fit(linear(), data(), plan(), augment=augment, copies=2, loss=loss)
    assert not re.findall(r"\d", str(refused.value))  # how many were drawn is private


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def chained(optimizer):
    found = torch.optim.lr_scheduler.ChainedScheduler([torch.optim.lr_scheduler.ConstantLR(optimizer)], optimizer)
    found._schedulers.append(plateau(optimizer))  # as some versions of torch let one do
    return found


@pytest.mark.parametrize("make", [plateau, chained])
def test_a_schedule_that_goes_by_something_measured_is_refused_before_anything_is_counted(make, tmp_path):
    model, ledger = linear(), tmp_path / "ledger.jsonl"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau, whose every step needs metrics"):
        fit(model, data(), plan(), optimizer=optimizer, schedule=make(optimizer), ledger=ledger)
    assert not ledger.exists()


def test_a_federated_run_refuses_such_a_schedule_too(tmp_path):
    model, ledger = linear(), tmp_path / "ledger.jsonl"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    users = list(zip(*(rows.split(6) for rows in data()), strict=True))
    rounds = methods.dp_fedavg(users=10, users_per_round=5, rounds=2, noise=1.0, delta=1e-5)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau, whose every step needs metrics"):
        federated.fit(model, users, rounds, optimizer=optimizer, schedule=plateau(optimizer), ledger=ledger)
    assert not ledger.exists()


@pytest.mark.parametrize("missing", [1, 0])
def test_a_schedule_that_is_too_short_for_the_plan_is_refused_before_the_first_release(missing, tmp_path):
    model, planned, ledger = linear(), plan(6), tmp_path / "ledger.jsonl"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=planned.steps - missing)
    arguments = {"optimizer": optimizer, "schedule": schedule, "ledger": ledger}
    if not missing:
        assert fit(model, data(), planned, **arguments).finished
        return
    with pytest.raises(ConfigError, match="for 5 steps, and the plan has 6"):
        fit(model, data(), planned, **arguments)
    assert verify(ledger).runs[0].released == 0


# --- augmentation ----------------------------------------------------------------------------------------------------

FACTORS = torch.tensor([1.0, -2.0, 0.5, 30.0])


def scaled(x):
    """Four copies of each row, each changed in its own way."""
    return x * FACTORS.repeat(len(x) // 4)[:, None]


def test_the_mean_over_an_examples_copies_is_what_is_bounded():
    model, expected, (x, y) = linear(), linear(), data()
    total = torch.zeros(SIZE * CLASSES + CLASSES)
    for row, label in zip(x, y, strict=True):
        loss = F.cross_entropy(expected(row * FACTORS[:, None]), label.repeat(4))  # the mean of four
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(expected.parameters()))])
        total += gradient / max(1.0, float(gradient.norm()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fit(model, (x, y), silent(1), optimizer=optimizer, augment=scaled, copies=4)
    torch.testing.assert_close(weights(model), weights(expected) - total / ROWS)


@pytest.mark.parametrize("chunk", [3, 100])
def test_one_example_moves_the_sum_by_at_most_the_bound_with_all_its_copies(chunk):
    x, y = data()
    x[7] *= 1e4
    sums = []
    for rows in (slice(None), torch.arange(ROWS) != 7):
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=float(ROWS))  # undoes the division by the batch size
        fit(model, (x[rows], y[rows]), silent(1), optimizer=optimizer, augment=scaled, copies=4, chunk=chunk)
        sums.append(weights(linear()) - weights(model))
    moved = float((sums[0] - sums[1]).norm())
    assert 0.9 < moved <= 1 + 1e-4  # the example is large: it uses its bound, and no more


@pytest.mark.parametrize("size", range(5, 10))
def test_copies_of_images_with_as_many_pixels_as_rows_are_no_mixing(size):
    images, labels = torch.rand(8, 1, size, size), torch.arange(8) % CLASSES
    model = nn.Sequential(nn.Flatten(), nn.Linear(size * size, CLASSES))
    assert fit(model, (images, labels), silent(2, rows=8), augment=Images(shift=1), copies=4).finished


def test_a_model_that_mixes_copies_of_different_examples_is_found():
    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.detach().mean(0))

    with pytest.raises(PrivacyError, match="mixes examples"):
        fit(Mixing(SIZE, CLASSES), data(), silent(2), augment=scaled, copies=4)
    fitted = fit(linear(), data(), silent(2), augment=scaled, copies=4)
    assert [c.status for c in fitted.guarantee.conditions if "another example" in c.text] == ["checked"]


@pytest.mark.parametrize("preflight", [True, False])
def test_copies_one_by_one_and_all_at_once_are_the_same(preflight):
    model, expected = linear(), linear()
    fit(model, data(), silent(1), augment=scaled, copies=4, preflight=preflight, chunk=7)
    fit(expected, data(), silent(1), augment=scaled, copies=4, preflight=False)
    torch.testing.assert_close(weights(model), weights(expected))


def test_one_changed_copy_takes_the_place_of_the_example():
    one, other, (x, y) = linear(), linear(), data()
    fit(one, (x, y), silent(2), augment=lambda rows: 2 * rows)
    fit(other, (2 * x, y), silent(2))
    torch.testing.assert_close(weights(one), weights(other))


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 59, 60, 1000, None])
def test_what_is_released_is_the_same_for_any_chunk(chunk):
    model, expected = linear(), linear()
    fit(model, data(), silent(3), chunk=chunk)
    fit(expected, data(), silent(3), chunk=ROWS)
    torch.testing.assert_close(weights(model), weights(expected))


class Small(nn.Linear):
    """A model for which only so many rows fit; it remembers what it was given."""

    fits = 10
    error: type[Exception] = torch.OutOfMemoryError

    def forward(self, x):
        if self.training and len(x) > self.fits:
            raise self.error("out of memory")
        return super().forward(x)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_where_memory_runs_out_the_same_batch_is_taken_in_smaller_pieces(error, tmp_path):
    torch.manual_seed(0)
    model, expected, steps = Small(SIZE, CLASSES), linear(), []
    model.error = error
    fit(model, data(), silent(4), ledger=tmp_path / "ledger.jsonl", on_step=steps.append)
    fit(expected, data(), silent(4))
    torch.testing.assert_close(weights(model), weights(expected))
    assert steps == [1, 2, 3, 4]  # nothing was released twice
    assert discreet.verify(tmp_path / "ledger.jsonl").runs[0].released == 4


def test_where_not_one_row_fits_it_says_so_and_spends_nothing(tmp_path):
    model = Small(SIZE, CLASSES)
    model.fits = 0
    with pytest.raises(torch.OutOfMemoryError):
        fit(model, data(), silent(4), ledger=tmp_path / "ledger.jsonl", preflight=False)
    assert discreet.verify(tmp_path / "ledger.jsonl").runs[0].released == 0


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    model = Small(SIZE, CLASSES)
    model.error = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        fit(model, data(), silent(4))
    assert ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not ran_out(RuntimeError("shapes cannot be multiplied"))


def test_a_chunk_is_larger_for_smaller_models_and_never_below_one(monkeypatch):
    monkeypatch.setattr("discreet.release.chunk_size.free_memory", lambda device: 1 << 26)
    row = torch.zeros(16)
    sizes = [
        chunk_that_fits(nn.Sequential(nn.Linear(16, n), nn.ReLU(), nn.Linear(n, 2)), row, 1, 10**6)
        for n in (1000, 10_000)
    ]
    assert 1 < sizes[1] < sizes[0]
    wide = nn.Sequential(nn.Linear(16, 1000), nn.ReLU(), nn.Linear(1000, 2))
    assert chunk_that_fits(wide, row, 4, 10**6) == pytest.approx(sizes[0] / 4, rel=0.05)
    assert chunk_that_fits(wide, row, 1, 3) == 6
    monkeypatch.setattr("discreet.release.chunk_size.free_memory", lambda device: 1)
    assert chunk_that_fits(wide, row, 1, 10**6) == 1


def test_a_chunk_is_found_without_looking_at_data_or_changing_anything():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    state = torch.get_rng_state()
    assert chunk_that_fits(model, torch.empty(4, device="meta"), 1, 8) == 16  # a row that has no values
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert model[2].weight.grad is None


def test_a_model_that_runs_out_or_cannot_be_copied_gets_a_small_chunk():
    model = Small(SIZE, CLASSES)
    model.fits = 1
    assert chunk_that_fits(model, torch.zeros(SIZE), 2, 100) == 1
    model = linear()
    model.made = model.weight * 2  # no leaf: torch does not copy it
    assert chunk_that_fits(model, torch.zeros(SIZE), 1, 100) == 64


# --- what is said of the loop, and what is refused before anything is counted ----------------------------------------


def own_row(fitted):
    (found,) = [c.status for c in fitted.guarantee.conditions if "handed out" in c.text]
    return found


def test_only_the_librarys_own_loop_loss_and_augmentation_are_proven_to_keep_rows_apart(tmp_path):
    class Mixes(Images):
        def __call__(self, images):
            return images + images.mean(0, keepdim=True)

    torch.manual_seed(0)
    x, y = torch.rand(40, 1, 4, 4), torch.randint(3, (40,))
    plan = discreet.methods.dp_sgd(examples=40, batch_size=10, steps=4, noise=1.0, delta=1e-5)

    def model():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    assert own_row(fit(model(), (x, y), plan)) == "proven"
    assert own_row(fit(model(), (x, y), plan, augment=Images(flip=True))) == "proven"
    with pytest.raises(PrivacyError, match="mixes examples"):
        fit(model(), (x, y), plan, augment=Mixes())

    def own_loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    files = {"ledger": tmp_path / "ledger", "checkpoint": tmp_path / "checkpoint"}
    stops = iter([False, True])  # a whole batch is compared on the second step
    assert own_row(fit(model(), (x, y), plan, loss=own_loss, stop=lambda: next(stops), **files)) == "checked"
    assert own_row(fit(model(), (x, y), plan, **files)) == "checked"  # some of its steps had another loss


def test_what_cannot_work_is_refused_before_a_release(tmp_path):
    x, y = torch.rand(40, 16), torch.randint(3, (40,))
    plan = discreet.methods.dp_sgd(examples=40, batch_size=10, steps=4, noise=1.0, delta=1e-5)
    model, ledger = nn.Linear(16, 3), tmp_path / "ledger"
    with pytest.raises(ConfigError, match="LBFGS"):
        fit(model, (x, y), plan, optimizer=torch.optim.LBFGS(model.parameters()), ledger=ledger)
    with pytest.raises(ConfigError, match="held-out data does not fit"):
        fit(model, (x, y), plan, test=(torch.rand(5, 9), torch.zeros(5, dtype=torch.long)), ledger=ledger)
    assert not ledger.exists()
