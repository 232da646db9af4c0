"""Lightning trains by a plan, or not at all."""

import copy

import lightning as L
import pytest
import torch
from discreet.lightning import Privacy
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import discreet
from discreet import BudgetExhausted, ConfigError, PrivacyError, attach, verify

N = 60


class Module(L.LightningModule):
    def __init__(self, automatic=True):
        super().__init__()
        self.automatic_optimization = automatic
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x):
        return self.net(x)

    def losses(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="none")

    def training_step(self, batch, number):
        return self.losses(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def dataset():
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x[:, 0] > 0).long())


def plan(steps=12, noise=1.0, batch_size=15):
    return discreet.methods.dp_sgd(examples=N, batch_size=batch_size, steps=steps, noise=noise, delta=1e-5)


def trainer(*callbacks, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    ordinary = {"max_epochs": -1, "enable_checkpointing": False, **quiet}
    return L.Trainer(callbacks=list(callbacks), **{**ordinary, **settings})


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_its_plan_and_has_its_guarantee(tmp_path):
    privacy, model = Privacy(plan(), ledger=tmp_path / "ledger.jsonl"), Module()
    lightning = trainer(privacy)
    lightning.fit(model, privacy.loader(dataset()))
    assert lightning.global_step == privacy.private.released == 12
    assert lightning.current_epoch == 3  # of four steps each
    assert privacy.guarantee().epsilon == plan().guarantee().epsilon
    assert float(lightning.callback_metrics["epsilon"]) == pytest.approx(privacy.guarantee().epsilon, rel=0.01)
    assert verify(tmp_path / "ledger.jsonl").runs[0].released == 12


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_what_is_trained_is_what_the_plain_loop_trains(precision):
    """Without noise and with everybody in each step, nothing is left to chance."""
    everybody = plan(steps=4, noise=0.0, batch_size=N)
    model, privacy = Module(), Privacy(everybody)
    x, y = dataset().tensors
    if precision == "64-true":
        x, data = x.double(), TensorDataset(x.double(), y)
    else:
        data = dataset()
    twin = copy.deepcopy(model).to(x.dtype)
    trainer(privacy, precision=precision).fit(model, privacy.loader(data))
    private, optimizer = attach(twin, everybody), torch.optim.SGD(twin.parameters(), lr=0.5)
    for rows, labels in private.batches((x, y)):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            losses = twin.losses((rows, labels))
        private.backward(losses)
        optimizer.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


class Sequences(torch.utils.data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.randn(1 + i % 5, 4, generator=torch.Generator().manual_seed(i)), i % 2


def summed(rows):
    return torch.stack([x.sum(0) for x, _ in rows]), torch.tensor([y for _, y in rows])


@pytest.mark.parametrize(("rows", "collate"), [(dataset(), None), (Sequences(), summed)])
def test_isolation_is_tested_over_several_passes_with_a_collate_of_ones_own(rows, collate):
    privacy = Privacy(plan())
    lightning = trainer(privacy)
    lightning.fit(Module(), privacy.loader(rows, collate_fn=collate))
    assert lightning.current_epoch == 3
    found = {c.status for c in privacy.guarantee().conditions if "another example" in c.text or "handed out" in c.text}
    assert found == {"checked"}, privacy.private.evidence


def test_a_collate_that_mixes_is_found():
    def centred(rows):
        x, y = summed(rows)
        return x - x.mean(0), y

    privacy = Privacy(plan())
    with pytest.raises(PrivacyError, match="mixes examples"):
        trainer(privacy).fit(Module(), privacy.loader(Sequences(), collate_fn=centred))


def test_the_module_is_as_it_was_afterwards():
    model, privacy = Module(), Privacy(plan(steps=2))
    before = set(vars(model))
    lightning = trainer(privacy)
    lightning.fit(model, privacy.loader(dataset()))
    assert set(vars(model)) - before <= {"_hparams"}  # Lightning's own
    assert "backward" not in vars(lightning.precision_plugin)
    model.losses(dataset().tensors).mean().backward()


def test_empty_draws_are_steps_too():
    privacy = Privacy(plan(steps=30, batch_size=1))
    trainer(privacy).fit(Module(), privacy.loader(dataset()))
    assert privacy.private.released == 30


def test_a_loader_with_a_worker_draws_the_same_plan():
    privacy = Privacy(plan())
    trainer(privacy).fit(Module(), privacy.loader(dataset(), num_workers=1))
    assert privacy.private.released == 12


def test_manual_optimisation_goes_the_same_way():
    class Manual(Module):
        def training_step(self, batch, number):
            self.manual_backward(self.losses(batch))
            self.optimizers().step()

    privacy = Privacy(plan())
    trainer(privacy).fit(Manual(automatic=False), privacy.loader(dataset()))
    assert privacy.private.released == 12


def test_a_data_module_may_hold_the_loader():
    class Data(L.LightningDataModule):
        def train_dataloader(self):
            return privacy.loader(dataset())

    privacy = Privacy(plan())
    trainer(privacy).fit(Module(), datamodule=Data())
    assert privacy.private.released == 12


# --- is privacy really on? -------------------------------------------------------------------------------------------


def test_without_the_callback_nothing_is_trained():
    privacy, model = Privacy(plan()), Module()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PrivacyError, match="not attached"):
        trainer().fit(model, privacy.loader(dataset()))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_loader_of_ones_own_is_refused():
    privacy = Privacy(plan())
    with pytest.raises(PrivacyError, match="no open batch"):
        trainer(privacy).fit(Module(), DataLoader(dataset(), batch_size=15))
    assert privacy.private.released == 0


def test_a_model_that_was_not_attached_fails(monkeypatch):
    def astray(model, *arguments, **settings):
        return attach(copy.deepcopy(model), *arguments, **settings)

    monkeypatch.setattr("discreet.integrations.lightning.attach", astray)
    privacy = Privacy(plan())
    with pytest.raises(PrivacyError, match="from another model"):
        trainer(privacy).fit(Module(), privacy.loader(dataset()))


class Averaged(Module):
    def training_step(self, batch, number):
        return self.losses(batch).mean()


class Silent(Module):
    def training_step(self, batch, number):
        return None


class Plain(Module):
    def training_step(self, batch, number):
        self.losses(batch).mean().backward()
        self.optimizers().step()


class Forgetful(Module):
    def training_step(self, batch, number):
        self.optimizers().step()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Averaged(), "one loss for each"),
        (Silent(), "without a release"),
        (Plain(automatic=False), "without privacy"),
        (Forgetful(automatic=False), "without a release"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore:.*training_step.*returned .None")
def test_a_step_that_is_not_private_fails(module, words):
    module = copy.deepcopy(module)
    before, privacy = copy.deepcopy(module.state_dict()), Privacy(plan())
    with pytest.raises(PrivacyError, match=words):
        trainer(privacy).fit(module, privacy.loader(dataset()))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    module.losses(dataset().tensors).mean().backward()  # it was let go


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches is 2"),
        ({"gradient_clip_val": 1.0}, "gradient_clip_val is 1.0"),
        ({"devices": 2, "strategy": "ddp"}, "DDPStrategy on 2 devices"),
        ({"strategy": "ddp"}, "DDPStrategy on 1 devices"),
        ({"precision": "bf16-true"}, "HalfPrecision"),
        ({"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}, "scales losses"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_a_trainer_that_would_change_gradients_is_refused(settings, words):
    privacy = Privacy(plan())
    with pytest.raises(ConfigError, match=words):
        privacy.setup(trainer(privacy, **settings), Module(), "fit")


def test_a_backward_of_ones_own_is_refused():
    class Own(Module):
        def backward(self, loss):
            loss.sum().backward()

    privacy = Privacy(plan())
    with pytest.raises(ConfigError, match="Own has a backward"):
        trainer(privacy).fit(Own(), privacy.loader(dataset()))


def test_data_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="60"):
        Privacy(plan()).loader(TensorDataset(torch.zeros(5, 4)))


# --- going on --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_goes_on_and_what_was_lost_stays_spent(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    second_epoch = LambdaCallback(
        on_train_epoch_start=lambda t, _: t.save_checkpoint(tmp_path / "two.ckpt") if t.current_epoch == 2 else None
    )
    first = Privacy(plan(steps=20), ledger)
    trainer(first, second_epoch, max_epochs=3).fit(Module(), first.loader(dataset()))
    assert first.private.released == 12
    assert first.guarantee().epsilon == plan(steps=20).guarantee().epsilon  # of the declared horizon

    second, model = Privacy(plan(steps=20), ledger), Module()
    lightning = trainer(second)
    lightning.fit(model, second.loader(dataset()), ckpt_path=tmp_path / "two.ckpt")
    assert second.private.released == 20
    assert lightning.global_step == 8 + 8  # eight steps were in the checkpoint, four are lost
    assert verify(ledger).runs[0].released == 20


def test_a_checkpoint_is_counted_without_a_ledger_too(tmp_path):
    first = Privacy(plan())
    lightning = trainer(first, max_epochs=1)
    lightning.fit(Module(), first.loader(dataset()))
    lightning.save_checkpoint(tmp_path / "one.ckpt")
    second = Privacy(plan())
    trainer(second).fit(Module(), second.loader(dataset()), ckpt_path=tmp_path / "one.ckpt")
    assert second.private.released == 12


def test_an_older_checkpoint_does_not_give_steps_back():
    privacy, model = Privacy(plan()), Module()
    trainer(privacy, max_epochs=1).fit(model, privacy.loader(dataset()))
    older = privacy.state_dict()
    trainer(privacy, max_epochs=1).fit(model, privacy.loader(dataset()))
    privacy.load_state_dict(older)  # as the learning rate finder does when it is done
    last = trainer(privacy)
    last.fit(model, privacy.loader(dataset()))
    assert last.global_step == 4
    assert privacy.private.released == 12


def test_a_plan_is_not_spent_twice():
    privacy = Privacy(plan())
    trainer(privacy).fit(Module(), privacy.loader(dataset()))
    with pytest.raises(BudgetExhausted, match="all 12 steps"):
        trainer(privacy).fit(Module(), privacy.loader(dataset()))
    assert privacy.guarantee().released == 12
