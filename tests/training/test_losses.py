"""Losses of sequences, rows and units: one value each, whatever the others in the batch are."""

import pytest
import torch
from discreet.losses import label_losses, sequence_losses, unit_losses
from torch.nn import functional as F

from discreet import ConfigError


def predictions(rows=4, length=6, words=5):
    labels = torch.randint(words, (rows, length))
    for row in range(rows):
        labels[row, length - row :] = -100
    return torch.randn(rows, length, words), labels


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_sequence_has_the_loss_that_torch_gives_it_alone(shift, reduction):
    logits, labels = predictions()
    found = sequence_losses(logits, labels, shift=shift, reduction=reduction)
    for row in range(4):
        predicted, wanted = (logits[row, :-1], labels[row, 1:]) if shift else (logits[row], labels[row])
        torch.testing.assert_close(found[row], F.cross_entropy(predicted, wanted, reduction=reduction))


def test_a_sequence_without_labels_has_no_loss_and_no_gradient():
    logits = torch.randn(2, 3, 4, requires_grad=True)
    losses = sequence_losses(logits, torch.tensor([[-100, -100, -100], [-100, 1, 2]]))
    assert losses[0] == 0
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert not gradient[0].any()
    assert gradient[1, 1:].all()


def test_padding_changes_nothing():
    logits, labels = predictions()
    longer = torch.cat([logits, torch.randn(4, 3, 5)], 1), F.pad(labels, (0, 3), value=-100)
    for shift in (False, True):
        torch.testing.assert_close(sequence_losses(*longer, shift=shift), sequence_losses(logits, labels, shift=shift))


def test_another_label_can_be_left_out():
    logits, labels = predictions()
    other = labels.masked_fill(labels == -100, 0)
    found = sequence_losses(logits, other, ignore=0)
    assert found.shape == (4,)
    torch.testing.assert_close(found[0], F.cross_entropy(logits[0], other[0], ignore_index=0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_losses_are_in_float32_at_least(dtype):
    logits, labels = predictions()
    assert sequence_losses(logits.to(dtype), labels).dtype == max(dtype, torch.float32, key=lambda d: d.itemsize)


def test_labels_of_rows():
    logits = torch.randn(3, 4)
    classes, yes_or_no, values = torch.tensor([0, 3, 1]), torch.rand(3, 4).round(), torch.randn(3, 4)
    torch.testing.assert_close(label_losses(logits, classes), F.cross_entropy(logits, classes, reduction="none"))
    expected = F.binary_cross_entropy_with_logits(logits, yes_or_no, reduction="none").mean(1)
    torch.testing.assert_close(label_losses(logits, yes_or_no, several=True), expected)
    torch.testing.assert_close(label_losses(logits, values), (logits - values).square().mean(1))
    torch.testing.assert_close(label_losses(logits[:, :1], values[:, 0]), (logits - values)[:, 0].square())


def test_units_of_several_rows():
    losses = torch.arange(6.0)
    assert unit_losses(losses, 3).tolist() == [1.0, 4.0]
    assert unit_losses(losses, 3, reduction="sum").tolist() == [3.0, 12.0]
    with pytest.raises(ConfigError, match="are not 4 for each unit"):
        unit_losses(losses, 4)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [((2, 3, 4), (2, 2)), ((2, 3), (2, 3)), ((2, 5, 4), (2, 3))],
)
def test_shapes_that_do_not_fit_are_refused(logits, labels):
    with pytest.raises(ConfigError, match="do not fit"):
        sequence_losses(torch.randn(logits), torch.zeros(labels, dtype=torch.long))


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ConfigError, match="must be 'mean' or 'sum'"):
        sequence_losses(torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), reduction="max")
