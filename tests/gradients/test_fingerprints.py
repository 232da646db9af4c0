"""Fingerprints of gradients say what a comparison of the gradients themselves says, or nothing."""

import math

import pytest
import torch

from discreet.gradients.layout import Factors, Fingerprints, Matching, Rows, random_labels

UNITS = 6
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def gradients(dtype, rows=3):
    return torch.randn(UNITS * rows, 5, generator=torch.Generator().manual_seed(0)).to(dtype)


def scaled(plain, labels):
    return plain * labels.to(plain.dtype).repeat_interleave(len(plain) // UNITS)[:, None]


def found(plain, change=lambda g: g):
    taken = Fingerprints(plain, UNITS, Factors())
    for labels in random_labels(UNITS, plain.dtype):
        taken.compare(change(scaled(plain, labels)), labels)
    return taken.found()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_scale_with_their_unit_are_found(dtype):
    match = found(gradients(dtype))
    assert (match.rows, match.folded, match.evident) == (Rows(0), True, True)
    assert not found(gradients(dtype, rows=1)).folded


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unit", range(UNITS))
def test_one_bit_anywhere_is_seen(dtype, unit):
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for bit in range(8 * dtype.itemsize):
        mask = torch.tensor(-(2 ** (8 * dtype.itemsize - 1)) if bit == 8 * dtype.itemsize - 1 else 1 << bit, dtype=word)

        def flip(g, mask=mask):
            g = g.clone()
            g[3 * unit + 1].view(word)[2] ^= mask
            return g

        for _ in range(4):  # factors are random: one that missed it now and then would be caught
            assert found(gradients(dtype), flip) is None


def test_zeros_have_no_sign():
    plain = gradients(torch.float32)
    plain[1::2] = 0.0
    assert found(plain, lambda g: torch.where(g == 0, -g.abs(), g)) is not None


def test_gradients_need_not_be_contiguous():
    plain = torch.randn(5, 3 * UNITS).t()
    assert found(plain).folded


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e-45])
def test_values_that_say_nothing_are_left_to_the_comparison(value):
    plain = gradients(torch.float32)
    plain[4, 2] = value
    labels, *_ = random_labels(UNITS, torch.float32)
    while labels[1].abs() == 1:  # that unit's own: then 1e-45 is still there
        labels, *_ = random_labels(UNITS, torch.float32)
    taken, whole = Fingerprints(plain, UNITS, Factors()), Matching(plain, UNITS)
    for each in (taken, whole):
        each.compare(scaled(plain, labels), labels)
    assert taken.found() is None or not math.isfinite(value)
    assert whole.found(spoiled=torch.arange(UNITS) == 1).evident


def test_other_readings_are_left_to_the_comparison():
    second = torch.randn(UNITS, UNITS)  # units along the second dimension
    taken = Fingerprints(second, UNITS, Factors())
    for labels in random_labels(UNITS, torch.float32):
        taken.compare(second * labels, labels)
    assert taken.found() is None
    assert Fingerprints(torch.randn(4, UNITS), UNITS, Factors()).found() is None
    assert Fingerprints(torch.randn(UNITS, 4, dtype=torch.complex64), UNITS, Factors()).found() is None


def test_units_without_gradients_are_no_evidence():
    plain = torch.zeros(UNITS, 3)
    plain[2] = 1.0
    assert not found(plain).evident


def test_factors_stay_the_same_however_many_are_asked_for():
    factors, device = Factors(), torch.device("cpu")
    few = factors.first(3, device).clone()
    assert torch.equal(factors.first(1000, device)[:3], few)
    assert torch.equal(factors.first(3, device), few)
    assert len(factors.first(1000, device).unique()) == 1000


def test_a_fingerprint_is_not_changed_by_a_longer_one_that_comes_later():
    factors, plain, longer = Factors(), gradients(torch.float32), gradients(torch.float32, rows=9)
    taken, other = Fingerprints(plain, UNITS, factors), Fingerprints(longer, UNITS, factors)
    for labels in random_labels(UNITS, torch.float32):
        for each, whole in ((taken, plain), (other, longer)):
            each.compare(scaled(whole, labels), labels)
    assert taken.found() is not None
    assert other.found() is not None
