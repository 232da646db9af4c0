"""A ledger alone suffices for a page: whatever trained, what is proven follows from it."""

import pytest
import torch
from small_ledgers import DATA, counted, plan
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import ConfigError, PrivacyError
from discreet.report import read_all, render, write


def loop(folder):
    model = nn.Linear(3, 2, bias=False)
    private = discreet.attach(model, plan(), ledger=folder / "ledger.jsonl")
    for x, y in private.batches(DATA):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    private.detach()
    return private.guarantee()


def estimator(folder):
    from discreet.integrations.sklearn import PrivateClassifier

    ledger = discreet.Ledger(folder / "ledger.jsonl", dataset="people", epsilon=9.0, delta=1e-5)
    settings = {"epsilon": 3.0, "delta": 1e-5, "bounds": (-1, 1), "classes": [0, 1], "epochs": 1, "batch_size": 10}
    made = PrivateClassifier(**settings, ledger=ledger)
    return made.fit(DATA[0].clamp(-1, 1).numpy(), torch.arange(20).numpy() % 2).guarantee_


def lightning(folder):
    L = pytest.importorskip("lightning", reason="lightning is not installed")
    from torch.utils.data import TensorDataset

    from discreet.integrations.lightning import Privacy

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def training_step(self, batch, number):
            return F.cross_entropy(self.inner(batch[0]), batch[1], reduction="none")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    privacy = Privacy(plan(2), ledger=folder / "ledger.jsonl")
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    L.Trainer(max_epochs=-1, callbacks=[privacy], accelerator="cpu", **quiet).fit(
        Model(), privacy.loader(TensorDataset(*DATA))
    )
    return privacy.guarantee()


@pytest.mark.parametrize("trained", [loop, estimator, lightning])
def test_runs_of_every_loop_have_a_page_from_their_ledger(trained, tmp_path):
    proven = trained(tmp_path)
    (record,) = read_all(tmp_path / "ledger.jsonl")
    assert record.holds
    assert record.guarantee.epsilon == proven.epsilon
    page = write(tmp_path / "ledger.jsonl")
    assert page == tmp_path / "ledger-report" / "report.html"
    text = page.read_text()
    for words in ("What is proven", "What is not covered", "Statement", "Glossary", "Made from the ledger alone"):
        assert words in text
    assert "accuracy on held-out data" not in text
    assert "Configuration" not in text
    (same,) = read_all(tmp_path)  # a folder with a ledger and no run's files, as a Trainer's
    assert same.guarantee == record.guarantee


def test_a_ledger_with_several_runs_has_them_beside_each_other(tmp_path):
    ledger = discreet.Ledger(tmp_path / "all.jsonl", dataset="people", epsilon=90.0, delta=1e-5)
    from small_ledgers import LAYOUT

    from discreet.ledger import RunLedger

    for _ in range(2):
        account = RunLedger(ledger, plan(), LAYOUT)
        account.spend()
        account.close()
    assert "2 private runs" in render(read_all(tmp_path / "all.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("none.jsonl", None, ConfigError, "there is no such file"),
        ("a.jsonl", "", PrivacyError, "holds no whole line"),
        ("a.jsonl", "hello\n", PrivacyError, "damaged at line 1"),
    ],
)
def test_what_is_no_ledger_is_an_error_in_one_line(tmp_path, name, content, error, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=words):
        read_all(tmp_path / name)


def test_a_forged_ledger_has_no_page(tmp_path):
    counted(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(lines.replace('"steps": 5', '"steps": 6', 1))
    with pytest.raises(PrivacyError, match="line 1"):
        write(tmp_path / "a.jsonl")
    assert not (tmp_path / "a-report").exists()
