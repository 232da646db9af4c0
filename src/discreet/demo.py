"""The main job on bundled data: a small network learns to read digits, privately."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.accounting.guarantee import Guarantee
from discreet.errors import ConfigError
from discreet.methods import dp_sgd
from discreet.plan import Plan
from discreet.private import attach

TEST_EXAMPLES = 360


@dataclass(frozen=True)
class Demo:
    """What a demo run found, and where it left its files."""

    plan: Plan
    guarantee: Guarantee
    accuracy: float
    folder: Path
    anchor: str  # the ledger's last hash


def run(
    folder: Path,
    *,
    epsilon: float = 3.0,
    delta: float = 1e-5,
    epochs: float = 60.0,
    on_start: Callable[[Plan], None] = lambda plan: None,
    on_step: Callable[[], None] = lambda: None,
) -> Demo:
    """Train on scikit-learn's digits to the budget; `folder` gets the plan, the ledger and the guarantee."""
    (x, y), (test_x, test_y) = digits()
    plan = dp_sgd(examples=len(x), batch_size=512, epochs=epochs, epsilon=epsilon, delta=delta)
    folder = _free(folder)
    folder.mkdir(parents=True)
    plan.save(folder / "plan.toml")
    on_start(plan)
    model = network()
    private = attach(model, plan, ledger=folder / "ledger.jsonl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    for images, labels in private.batches((x, y)):
        private.backward(F.cross_entropy(model(images), labels, reduction="none"))
        optimizer.step()
        schedule.step()
        on_step()
    guarantee = private.guarantee()
    anchor = private.anchor
    private.detach()
    (folder / "guarantee.json").write_text(guarantee.to_json(), encoding="utf-8")
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).double().mean().item()
    return Demo(plan, guarantee, accuracy, folder, anchor)


def network() -> nn.Module:
    """Two convolutions and a linear layer, about 6,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """scikit-learn's 1,797 images of 8 x 8, in a fixed random order: for training, and the last 360 for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "the digits come with scikit-learn, which is not installed; pip install 'discreet[data]'."
        ) from error
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(bunch.images, dtype=torch.float32)[order, None] / 16
    y = torch.tensor(bunch.target)[order]
    return (x[:-TEST_EXAMPLES], y[:-TEST_EXAMPLES]), (x[-TEST_EXAMPLES:], y[-TEST_EXAMPLES:])


def _free(folder: Path) -> Path:
    """The folder, or with a number behind it the first that does not exist: a run never overwrites another."""
    candidates = (folder if i == 1 else folder.with_name(f"{folder.name}-{i}") for i in range(1, 10**6))
    return next(c for c in candidates if not c.exists())
