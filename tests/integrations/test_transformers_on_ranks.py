"""The Trainer's adapter on two processes: the same releases as on one, counted once."""

import os
import shutil
from importlib.util import find_spec

import pytest
import torch
from soak import SOAK

missing = find_spec("transformers") is None and not os.environ.get("CI")
pytestmark = pytest.mark.skipif(missing, reason="transformers is not installed: pip install 'discreet[transformers]'")


def test_two_processes_release_what_one_does_and_go_on_from_its_checkpoint(tmp_path):
    from trainer_work import train, trained

    alone, *_ = train(0, None, tmp_path / "one", 1, None)
    ours = trained(tmp_path, 2)
    for weights, count, conditions in ours:
        assert count == 2
        assert torch.tensor(weights).allclose(torch.tensor(alone), atol=1e-5)
        assert any("2 processes trained together" in text for text in conditions)
    assert ours[0][0] == ours[1][0]
    lines = [(folder / "ledger.jsonl").read_text().count("\n") for folder in (tmp_path / "one", tmp_path / "out")]
    assert lines[0] == lines[1]
    if SOAK:
        shutil.rmtree(tmp_path / "out" / "checkpoint-2")
        for weights, count, _ in trained(tmp_path, 2, resume=True):  # what the ledger counts stays spent
            assert count == 2
            assert not torch.tensor(weights).allclose(torch.tensor(alone), atol=1e-5)
