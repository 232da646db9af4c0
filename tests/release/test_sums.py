import math

import pytest
import torch

from discreet import Gaussian, PrivacyError
from discreet.release.sums import Drawing, FloatSums, each_once, joined, total, without_nan
from discreet.stages.noise.random import KeyTree

LIKE = {"weight": torch.zeros(30, 40), "bias": torch.zeros(30), "scalar": torch.zeros(())}


def sums(dtype=torch.float32):
    made = FloatSums({name: t.to(dtype) for name, t in LIKE.items()})
    made.add({name: torch.full(t.shape, 2.0, dtype=dtype) for name, t in LIKE.items()})
    return made


def source():
    return KeyTree(seed=5).stream("noise", 0)


class Holes(Gaussian):
    """Leaves one value out, and makes the others as large as `value`."""

    def sample(self, out, scale, source):
        kept = out[self.place].clone()
        out.fill_(self.value)
        out[self.place] = kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", [0, 1, 15, 16, 611, 1229, 1230])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e38, -1e38, torch.inf, -torch.inf])
def test_a_single_value_that_was_not_filled_is_refused(dtype, place, value, monkeypatch):
    monkeypatch.setattr(Holes, "place", place, raising=False)
    monkeypatch.setattr(Holes, "value", value, raising=False)
    with pytest.raises(PrivacyError, match="did not fill"):
        sums(dtype).noised(Drawing(Holes(1.0), dict.fromkeys(LIKE, 1.0), source()))


def test_noise_too_large_to_be_squared_is_released():
    found = sums().noised(Drawing(Gaussian(1.0), dict.fromkeys(LIKE, 1e37), source()))
    assert all(t.isfinite().all() for t in found.values())
    assert found["weight"].abs().max() > 1e37


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_release_is_sum_plus_noise_times_the_factor_and_clears(dtype):
    made = sums(dtype)
    noise = source().normals(1231, dtype)
    found = made.noised(Drawing(Gaussian(1.0), dict.fromkeys(LIKE, 1.0), source(), 0.125))
    assert {n: t.shape for n, t in found.items()} == {n: t.shape for n, t in LIKE.items()}
    assert torch.equal(torch.cat([t.reshape(-1) for t in found.values()]), (noise + 2) * 0.125)
    again = made.noised(Drawing(Gaussian(1.0), dict.fromkeys(LIKE, 1.0), source()))
    assert torch.equal(torch.cat([t.reshape(-1) for t in again.values()]), noise)


def test_each_tensor_gets_the_noise_of_its_own_scale():
    found = sums().noised(Drawing(Gaussian(1.0), {"weight": 1.0, "bias": 0.0, "scalar": 0.0}, source()))
    assert found["weight"].std() > 0.9
    assert torch.equal(found["bias"], torch.full((30,), 2.0))
    assert found["scalar"] == 2


# --- weights: lengths added up, weights joined, and what is not finite left out -------------------------------------


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
