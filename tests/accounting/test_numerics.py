"""Where a growing function passes given values, against functions whose inverse is known."""

import numpy as np
import pytest

from discreet.accounting.numerics import invert


@pytest.mark.parametrize(
    ("function", "inverse", "table"),
    [
        (np.sinh, np.arcsinh, np.linspace(-20, 20, 100)),
        (lambda x: x**3, np.cbrt, np.linspace(-3, 3, 7)),
        (lambda x: np.exp(x) - 1, np.log1p, np.linspace(-5, 5, 50)),
    ],
)
def test_the_inverse_is_found(function, inverse, table):
    values = function(np.linspace(table[0] + 0.01, table[-1] - 0.01, 301))
    np.testing.assert_allclose(function(invert(function, values, table)), values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(invert(function, values, table), inverse(values), rtol=1e-5, atol=1e-5)


def test_a_jump_is_found_where_it_is():
    at = invert(lambda x: np.where(x < 0.3, -1.0, 1.0), np.array([0.0]), np.linspace(0, 1, 11))
    assert at == pytest.approx(0.3, abs=1e-9)


def test_a_flat_part_is_passed_at_its_end():
    """What is asked is where the function goes above the value: behind the part where it equals it."""

    def flat(x):
        return np.where(x < 0.25, x - 0.25, np.maximum(0.0, x - 0.5))

    at = invert(flat, np.array([1e-6]), np.linspace(0, 1, 5))
    assert at == pytest.approx(0.5 + 1e-6, abs=1e-9)
