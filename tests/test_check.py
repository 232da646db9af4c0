"""Arguments that make no sense are refused by name, with their bound and what was given."""

import math

import pytest

from discreet import ConfigError
from discreet._check import check_int, check_positive


@pytest.mark.parametrize("value", [1, 0.5, 1e300])
def test_a_positive_number_comes_back_as_a_float(value):
    assert check_positive("norm", value) == value
    assert isinstance(check_positive("norm", value), float)
    assert check_positive("norm", 0, zero=True) == 0.0


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, "1", None])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(ConfigError) as caught:
        check_positive("norm", value)
    assert str(caught.value) == f"norm is {value!r}; it must be a finite number > 0."


def test_an_integer_between_its_bounds_comes_back():
    assert check_int("steps", 3, least=3, most=3) == 3


@pytest.mark.parametrize("value", [2, 3.0, True, "3", None])
def test_what_is_no_integer_or_too_small_is_refused(value):
    with pytest.raises(ConfigError, match=r"^steps is .*; it must be a whole number >= 3\.$"):
        check_int("steps", value, least=3)


def test_what_is_too_large_is_not_repeated():
    with pytest.raises(ConfigError, match=r"^steps is too large; it must be at most 1,000\.$"):
        check_int("steps", 10**400, least=1, most=1000)
