"""What bounded gradients are multiplied by: lengths added up, weights joined, and what is not finite left out."""

import math

import torch

from discreet.release.weights import each_once, joined, total, without_nan


def test_squared_norms_add_up_over_parameters():
    norms = {"weight": torch.tensor([1.0, 4.0]), "bias": torch.tensor([2.0, 0.0])}
    assert total(norms).tolist() == [3.0, 4.0]


def test_squared_norms_of_several_types_add_up_in_double():
    large = {"weight": torch.tensor([1.0]), "bias": torch.tensor([2.0**-40], dtype=torch.float64)}
    added = total(large)
    assert added.dtype == torch.float64
    assert added.item() == 1.0 + 2.0**-40


def test_a_weight_that_parameters_share_is_changed_once():
    shared, own = torch.tensor([0.5]), torch.tensor([0.25])
    seen = []
    changed = each_once({"a": shared, "b": own, "c": shared}, lambda w: seen.append(w) or 2 * w)
    assert len(seen) == 2
    assert changed["a"] is changed["c"]
    assert [changed[name].item() for name in "abc"] == [1.0, 0.5, 1.0]


def test_what_is_not_finite_weighs_nothing():
    assert without_nan(torch.tensor([math.nan, math.inf, -math.inf, 0.5])).tolist() == [0.0, 0.0, 0.0, 0.5]


def test_joined_weights_are_in_order_and_still_shared():
    first, second, own = torch.tensor([1.0, 2.0]), torch.tensor([3.0]), torch.tensor([4.0])
    both = joined([{"a": first, "b": first, "c": first}, {"a": second, "b": second, "c": own}])
    assert both["a"].tolist() == [1.0, 2.0, 3.0]
    assert both["a"] is both["b"]
    assert both["c"].tolist() == [1.0, 2.0, 4.0]
