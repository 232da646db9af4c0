"""Plain loops under accelerate are private, or they fail."""

import copy
import os
from importlib.util import find_spec

import pytest
import torch
from scripts import run
from torch import nn
from torch.nn import functional as F

from discreet import PrivacyError, attach, methods

missing = find_spec("accelerate") is None and not os.environ.get("CI")
pytestmark = pytest.mark.skipif(missing, reason="accelerate is not installed: pip install 'discreet[transformers]'")


@pytest.fixture(autouse=True)
def _accelerate_forgets():
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def prepared():
    """A loop's parts, as accelerate hands them back."""
    from accelerate import Accelerator

    accelerator, model = Accelerator(), nn.Linear(4, 2)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))


DATA = torch.zeros(40, 4), torch.zeros(40, dtype=torch.long)
PLAN = methods.dp_sgd(examples=40, batch_size=20, steps=3, noise=1.0, delta=1e-5)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_example_runs(precision, monkeypatch, capsys):
    arguments = ["--epochs", "6", "--batch-size", "128", "--mixed-precision", precision]
    ((accuracy, steps, epsilon),) = run("accelerate_loop.py", arguments, monkeypatch, capsys)[2:]
    assert float(accuracy) > 50
    assert int(steps) == 67
    assert 2.9 < float(epsilon) <= 3


def test_accelerates_own_backward_is_refused(prepared):
    accelerator, model, _ = prepared
    private = attach(model, PLAN)
    x, y = next(iter(private.batches(DATA)))
    with pytest.raises(PrivacyError, match="without privacy"):
        accelerator.backward(F.cross_entropy(model(x), y))
    assert all(p.grad is None for p in model.parameters())
    private.detach()


def test_a_model_that_was_not_attached_fails(prepared):
    _, model, _ = prepared
    private = attach(copy.deepcopy(model), PLAN)
    x, y = next(iter(private.batches(DATA)))
    with pytest.raises(PrivacyError, match="from another model"):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))


def test_accelerates_optimizer_steps_with_what_was_released(prepared):
    _, model, optimizer = prepared
    private = attach(model, PLAN)
    for x, y in private.batches(DATA):
        before = model.weight.detach().clone()
        optimizer.step()  # nothing is released yet
        assert torch.equal(model.weight, before)
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
        torch.testing.assert_close(model.weight, before - 0.5 * model.weight.grad)
        optimizer.zero_grad()
    private.detach()
