"""Products by either library: the same values, and rows that know nothing of each other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from discreet.nn.rnn import products
from discreet.nn.rnn.products import linear, outer

SHAPES = [(4096, 128, 512), (4096, 512, 128), (2064, 96, 130), (2050, 96, 130), (256, 256, 512), (5, 3, 2), (64, 1, 7)]


def rows(count: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, size, dtype=dtype)


def close(found: Tensor, one: Tensor, other: Tensor) -> None:
    """As close as float32 can be: to some roundings of the terms' size."""
    exact, size = one.double() @ other.double(), one.double().abs() @ other.double().abs()
    assert found.shape == exact.shape
    assert bool(((found.double() - exact).abs() <= 1e-6 * size + 1e-30).all())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether oneDNN fitted, call by call."""
    found: list[bool] = []
    fits = products._fits
    monkeypatch.setattr(products, "_fits", lambda *given: found.append(fits(*given)) or found[-1])
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_linear(shape: tuple[int, int, int], biased: bool) -> None:
    count, n, m = shape
    x, weight, bias = rows(count, n), rows(m, n), torch.randn(m) if biased else None
    found = linear(x, weight, bias)
    if bias is None:
        close(found, x, weight.t())
    else:
        close(found, torch.cat([x, torch.ones(count, 1)], 1), torch.cat([weight.t(), bias[None]]))


@pytest.mark.parametrize("shape", SHAPES)
def test_outer(shape: tuple[int, int, int]) -> None:
    count, n, m = shape
    left, right = rows(count, n), rows(count, m)
    close(outer(left, right), left.t(), right)


@pytest.mark.parametrize("change", [lambda x: x[:, ::2], lambda x: x.flip(0).t().contiguous().t(), torch.Tensor.double])
def test_what_onednn_would_not_take(change: Callable[[Tensor], Tensor]) -> None:
    x, y = change(rows(4096, 256)), change(rows(4096, 512))
    weight = change(rows(128, 256))
    close(linear(x, weight), x, weight.t())
    close(outer(x, y), x.t(), y)
    close(outer(y, x), y.t(), x)
    assert outer(x, y).dtype == linear(x, weight).dtype == x.dtype


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_large_products_are_asked_of_onednn(asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    linear(rows(4096, 128), rows(512, 128))
    linear(rows(4096, 512), rows(512, 128).t())
    outer(rows(4096, 512), rows(4096, 128))
    linear(rows(64, 128), rows(512, 128))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    linear(rows(4096, 128), rows(512, 128))
    assert asked == [True, True, True, False, False]


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_of_linear_stay_apart(transposed: bool) -> None:
    """Isolation is seen by powers of two: a row's result must scale with it, bit for bit, and with no other."""
    x, weight = rows(4096, 128), rows(128, 512).t() if transposed else rows(512, 128)
    factors = 2.0 ** torch.randint(-20, 20, (4096, 1))
    assert torch.equal(linear(x * factors, weight), linear(x, weight) * factors)
    x[7] = torch.nan
    bad = linear(x, weight).isnan()
    assert bool(bad[7].all())
    assert not bool(bad[torch.arange(4096) != 7].any())
