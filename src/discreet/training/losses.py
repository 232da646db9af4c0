"""One loss for each unit of privacy from a model's predictions for tokens or rows.

`private.backward` wants one value a unit. A mean over the tokens of a whole batch, which is what language models return
by themselves, would divide one sequence's loss by the length of the others.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet._check import check_int
from discreet.errors import ConfigError

Reduction = Literal["mean", "sum"]
IGNORED = -100  # the label of tokens that are not predicted: padding, prompts


def sequence_losses(
    logits: Tensor, labels: Tensor, *, shift: bool = False, reduction: Reduction = "mean", ignore: int = IGNORED
) -> Tensor:
    """Cross-entropy of each sequence, from logits [rows, tokens, words] and labels [rows, tokens] to [rows].

    The mean is over a sequence's own tokens; one without any has loss 0 and no gradient.

    Args:
        logits: [rows, tokens, words].
        labels: [rows, tokens].
        shift: of causal models: what stands at a token predicts the next one.
        reduction: over a sequence's own tokens: "mean" or "sum".
        ignore: the label of tokens that do not count.

    >>> import torch
    >>> sequence_losses(torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2], [3, -100, -100]])) / torch.tensor(4).log()
    tensor([1., 1.])
    >>> sequence_losses(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]]), shift=True, reduction="sum").item() > 2.7
    True
    """
    if logits.dim() != 3 or labels.shape != logits.shape[:2] or labels.is_floating_point():
        raise ConfigError(
            f"logits of {logits.dim()} dimensions and labels of {labels.dim()} ({labels.dtype}) do not fit: [rows, "
            "tokens, words] and one whole number for each token are needed."
        )
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = F.cross_entropy(_full(logits).flatten(0, 1), labels.flatten(), reduction="none", ignore_index=ignore)
    summed = each.view(labels.shape).sum(1)
    if _checked(reduction) == "sum":
        return summed
    return summed / (labels != ignore).sum(1).clamp(min=1)


def label_losses(logits: Tensor, labels: Tensor, *, several: bool = False) -> Tensor:
    """The loss of each row for one label a row, [rows].

    Whole numbers are classes (cross-entropy), real ones are values to come close to (squared error, their mean); with
    `several` each column is a yes or no of its own (binary cross-entropy, their mean).

    Args:
        logits: what the model returned, [rows, outputs].
        labels: [rows], or [rows, outputs].
        several: each column is a yes or no of its own.

    >>> import torch
    >>> label_losses(torch.zeros(2, 1), torch.tensor([1.0, 3.0]))
    tensor([1., 9.])
    """
    rows, values = len(logits), _full(logits)
    if several:
        return F.binary_cross_entropy_with_logits(values, labels.to(values), reduction="none").flatten(1).mean(1)
    if labels.is_floating_point():
        return F.mse_loss(values.reshape(rows, -1), labels.to(values).reshape(rows, -1), reduction="none").mean(1)
    return F.cross_entropy(values, labels, reduction="none")


def unit_losses(losses: Tensor, rows: int, *, reduction: Reduction = "mean") -> Tensor:
    """The losses of units that have `rows` consecutive rows each: the sequences of one user, say.

    Args:
        losses: one for each row.
        rows: how many each unit has.
        reduction: over a unit's rows: "mean" or "sum".

    >>> import torch
    >>> unit_losses(torch.tensor([1.0, 3.0, 5.0, 7.0]), 2)
    tensor([2., 6.])
    """
    check_int("rows of a unit", rows, least=1)
    if losses.dim() != 1 or len(losses) % rows:
        raise ConfigError(f"the losses, in {losses.dim()} dimensions, are not {rows} for each unit.")
    split = losses.view(-1, rows)
    return split.sum(1) if _checked(reduction) == "sum" else split.mean(1)


def _full(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _checked(reduction: Reduction) -> Reduction:
    if reduction not in ("mean", "sum"):
        raise ConfigError(f"reduction is {reduction!r}; it must be 'mean' or 'sum'.")
    return reduction


__all__ = ["label_losses", "sequence_losses", "unit_losses"]
