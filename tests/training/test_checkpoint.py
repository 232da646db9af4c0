import json
import pickle
import struct

import pytest
import torch
from forgery import mutations
from torch import nn
from torch.nn import functional as F

from discreet import ConfigError, PrivacyError, attach, load_checkpoint, methods, save_checkpoint

DATA = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(40, dtype=torch.long)


def plan(steps=12):
    return methods.dp_sgd(examples=40, batch_size=10, steps=steps, noise=1.0, delta=1e-5)


class Run:
    def __init__(self, ledger=None, model=None, made=None):
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.private = attach(self.model, made or plan(), ledger=ledger)

    def train(self, steps=None):
        for x, y in self.private.batches(DATA, steps=steps):
            self.private.backward(F.cross_entropy(self.model(x), y, reduction="none"))
            self.optimizer.step()
            self.schedule.step()
        return self

    def parts(self):
        return {
            "model": self.model, "private": self.private, "optimizer": self.optimizer, "schedule": self.schedule
        }  # fmt: skip


def test_everything_comes_back(tmp_path):
    path, one = tmp_path / "deep" / "c.safetensors", Run().train(5)
    extra = {"note": "half way", "best": [0.5, None, True], "moments": torch.arange(3), 7: (1, 2)}
    save_checkpoint(path, **one.parts(), extra=extra)
    two = Run()
    with torch.no_grad():
        for p in two.model.parameters():
            p.zero_()
    found = load_checkpoint(path, **two.parts())
    assert found.lost == 0
    assert torch.equal(found.extra.pop("moments"), torch.arange(3))
    assert found.extra == {"note": "half way", "best": [0.5, None, True], 7: (1, 2)}
    for p, q in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert two.optimizer.state_dict()["param_groups"] == one.optimizer.state_dict()["param_groups"]
    for mine, theirs in zip(one.optimizer.state.values(), two.optimizer.state.values(), strict=True):
        assert all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(theirs[k])) for k in mine)
    assert two.schedule.last_epoch == 5
    assert (two.private.released, two.private.remaining) == (5, 7)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no scratch files are left


def test_steps_after_the_checkpoint_are_lost_not_repeated(tmp_path):
    path, ledger = tmp_path / "c.safetensors", tmp_path / "ledger.jsonl"
    one = Run(ledger).train(5)
    save_checkpoint(path, **one.parts())
    one.train(3)
    one.private.detach()
    two = Run(ledger)
    assert load_checkpoint(path, **two.parts()).lost == 3
    assert two.private.remaining == 4
    two.train()
    assert two.private.released == 12
    assert two.private.guarantee().epsilon == pytest.approx(plan().guarantee().epsilon)


def test_a_resumed_run_draws_other_noise_and_other_batches(tmp_path):
    """Two resumes from one checkpoint share no key: their next gradients differ."""
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, **Run().train(2).parts())
    gradients = []
    for _ in range(2):
        run = Run()
        load_checkpoint(path, **run.parts())
        run.train(1)
        gradients.append(torch.cat([p.grad.flatten() for p in run.model.parameters()]))
    assert not torch.equal(*gradients)


def test_what_does_not_fit_changes_nothing(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, **Run().train(2).parts())
    other = Run(model=nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    before = [p.clone() for p in other.model.parameters()]
    with pytest.raises(ConfigError, match="another shape or type"):
        load_checkpoint(path, **other.parts())
    with pytest.raises(ConfigError, match="other names"):
        load_checkpoint(path, **Run(model=nn.Linear(4, 3)).parts())
    with pytest.raises(PrivacyError, match="belongs to another plan"):
        load_checkpoint(path, **Run(made=plan(13)).parts())
    with pytest.raises(ConfigError, match="optimizer"):
        load_checkpoint(path, **(Run().parts() | {"optimizer": None}))
    assert other.private.released == 0
    assert all(torch.equal(p, q) for p, q in zip(before, other.model.parameters(), strict=True))


def test_an_optimizer_state_that_does_not_fit_changes_nothing(tmp_path):
    path, one = tmp_path / "c.safetensors", Run().train(2)
    save_checkpoint(path, **(one.parts() | {"optimizer": torch.optim.SGD([torch.zeros(1) for _ in range(3)], lr=0.1)}))
    two = Run()
    before = [p.clone() for p in two.model.parameters()]
    with pytest.raises(ConfigError, match="does not fit the optimizer"):
        load_checkpoint(path, **two.parts())
    assert two.private.released == 0
    assert all(torch.equal(p, q) for p, q in zip(before, two.model.parameters(), strict=True))
    two.train(1)


class Bomb:
    """Unpickling it would say so."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was run')",))


def header(tensors, tree=b""):
    content = json.dumps(tensors).encode()
    return struct.pack("<Q", len(content)) + content + tree


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04",
        pickle.dumps(Bomb()),
        struct.pack("<Q", 2**60),
        header({"0": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}}),
        header({"0": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        header({"__metadata__": {"format": "discreet-checkpoint/1", "tree": "[" * 50_000}}),
        header({"__metadata__": {"format": "discreet-checkpoint/1", "tree": '{"tensor": "../../etc/passwd"}'}}),
        header({"__metadata__": {"format": "discreet-checkpoint/1", "tree": '{"table": [[[], 1]]}'}}),
        header({"__metadata__": {"format": "discreet-checkpoint/1"}}),
    ],
)
def test_a_hostile_checkpoint_is_one_clear_error_and_runs_nothing(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.safetensors"):
        load_checkpoint(path, **Run().parts())


def test_a_missing_file_and_things_that_cannot_be_saved(tmp_path):
    run = Run()
    with pytest.raises(ConfigError, match="no such file"):
        load_checkpoint(tmp_path / "none", **run.parts())
    with pytest.raises(ConfigError, match="not Bomb"):
        save_checkpoint(tmp_path / "c", **run.parts(), extra=Bomb())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_checkpoint(tmp_path / "file" / "c", **run.parts())


def test_no_mutation_of_a_checkpoint_crashes_its_loader(tmp_path, fuzz_count):
    path, run = tmp_path / "c.safetensors", Run()
    save_checkpoint(path, **run.parts())
    for text in mutations(path.read_bytes(), fuzz_count // 3, seed=4):
        path.write_bytes(text)
        try:
            load_checkpoint(path, **run.parts())
        except (ConfigError, PrivacyError):
            continue
