"""How good a model is on held-out data; and the loss that targets ask for."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from discreet.errors import ConfigError
from discreet.training.merit import HeldOut, merit
from discreet.training.options import Loss, Record, Rows

_MOST_OUTPUTS = 1000  # of a row, that are kept until all rows are evaluated


def evaluate(model: nn.Module, data: Rows, loss: Loss | None = None, *, rows: int = 1000) -> Record:
    """The mean loss on held-out data, and the accuracy where classes are predicted.

    Args:
        model: is evaluated in eval mode; the modes of its modules are restored.
        data: a pair of tensors, or a Dataset of pairs.
        loss: one value a row; `loss_for(data)` if not given.
        rows: how many are evaluated at a time.

    Returns:
        "loss", and "accuracy" where targets are classes.

    Raises:
        ConfigError: there are no rows.
    """
    return _evaluated(model, data, loss, rows)[0]


def evaluate_fully(
    model: nn.Module, data: Rows, loss: Loss | None = None, *, rows: int = 1000, about: HeldOut | None = None
) -> Record:
    """`evaluate`, and under "merit" what the figures are worth (merit.py), where there is one target a row."""
    record, outputs, targets = _evaluated(model, data, loss, rows, kept=[])
    figures = None if targets is None or targets.dim() != 1 else merit(outputs, targets, about)
    return record if figures is None else record | {"merit": figures}


def _evaluated(
    model: nn.Module, data: Rows, loss: Loss | None, rows: int, kept: list[tuple[Tensor, Tensor]] | None = None
) -> tuple[Record, Tensor, Tensor | None]:
    """The figures, and outputs and targets where they are to be kept (one target a row, and outputs not too many)."""
    loss = loss or loss_for(data)
    device = next(model.parameters()).device
    dataset = TensorDataset(*data) if isinstance(data, tuple) else data
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total, right, count, guesses = 0.0, 0, 0, 0
    try:
        with torch.no_grad():
            for inputs, targets in DataLoader(dataset, batch_size=rows):
                outputs, targets = model(inputs.to(device)), targets.to(device)
                total += float(loss(outputs, targets).double().sum())
                count += len(targets)
                if not targets.is_floating_point() and outputs.dim() == targets.dim() + 1:
                    right += int((outputs.argmax(1) == targets).sum())
                    guesses += targets.numel()
                if kept is not None and targets.dim() == 1 and outputs[0].numel() <= _MOST_OUTPUTS:
                    kept.append((outputs.cpu(), targets.cpu()))
    finally:
        for module, training in modes:  # a frozen part that was in eval mode stays there
            module.training = training
    if count == 0:
        raise ConfigError("there is no held-out data to evaluate on.")
    record = {"loss": total / count} | ({"accuracy": right / guesses} if guesses else {})
    if kept is None or len(kept) == 0:
        return record, torch.empty(0), None
    outputs, targets = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return record, outputs, targets


def try_evaluation(model: nn.Module, test: Rows, loss: Loss) -> None:
    """Refuse held-out data that the model or the loss cannot take, before anything is counted."""
    one: Rows = (test[0][:1], test[1][:1]) if isinstance(test, tuple) else Subset(test, [0])
    try:
        evaluate(model, one, loss)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the held-out data does not fit the model or the loss: {error}") from error


def loss_for(data: Rows, weights: Sequence[float] = ()) -> Loss:
    """Cross-entropy where targets are whole numbers, squared error where they are not; one value a row.

    `weights` are public constants by class, by which a row's cross-entropy is multiplied, before it is bounded.
    """
    target = data[1] if isinstance(data, tuple) else torch.as_tensor(data[0][1])
    if not target.is_floating_point():
        if weights:
            constants = torch.tensor(weights)
            return lambda outputs, targets: F.cross_entropy(
                outputs, targets, weight=constants.to(outputs), reduction="none"
            )
        return lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none")

    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        predicted, wanted = outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1)
        if predicted.shape != wanted.shape:
            raise ConfigError(
                f"the model predicts {predicted.shape[1]} numbers a row, and there are {wanted.shape[1]} targets; give "
                "it as many outputs."
            )
        return (predicted - wanted).square().mean(1)

    return squared


__all__ = ["evaluate", "evaluate_fully", "loss_for", "try_evaluation"]
