"""Arguments that make no sense are refused by name, with their bound and what was given."""

import math

import pytest

from discreet import ConfigError
from discreet._check import check_int, check_positive, check_share, listed, shown


@pytest.mark.parametrize("value", [1, 0.5, 1e100, 1e-100])
def test_a_positive_number_comes_back_as_a_float(value):
    assert check_positive("norm", value) == value
    assert isinstance(check_positive("norm", value), float)
    assert check_positive("norm", 0, zero=True) == 0.0


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, "1", None])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(ConfigError) as caught:
        check_positive("norm", value)
    assert str(caught.value) == f"norm is {value!r}; it must be a finite number > 0."


@pytest.mark.parametrize("value", [1e-101, 5e-324, 1e101, 1e308, 10**200])
def test_numbers_whose_squares_are_none_are_refused(value):
    with pytest.raises(ConfigError, match=r"it must be from 1e-100 to 1e\+100\."):
        check_positive("norm", value)


LONG = "a" * 1000, "7" * 5000, [1] * 1000, 10**5000, {i: i for i in range(1000)}, [["a" * 1000]]


@pytest.mark.parametrize("number", range(len(LONG)))
def test_an_error_shows_the_beginning_of_a_value(number):
    assert len(shown(LONG[number])) <= 90


def test_an_error_lists_the_first_of_many_names():
    assert listed("ab") == "a, b"
    assert listed(range(1000), most=2) == "0, 1, ... (1,000 in all)"
    assert len(listed(["n" * 1000] * 1000)) <= 600


@pytest.mark.parametrize("value", [-0.1, 1, 1.0, math.nan, math.inf, True, "0.5", None])
def test_a_share_is_from_0_to_below_1(value):
    assert check_share("test_fraction", 0.25) == 0.25
    assert check_share("test_fraction", 0) == 0
    with pytest.raises(ConfigError, match=r"^test_fraction is .*; it must be a number from 0 to below 1\.$"):
        check_share("test_fraction", value)


def test_an_integer_between_its_bounds_comes_back():
    assert check_int("steps", 3, least=3, most=3) == 3


@pytest.mark.parametrize("value", [2, 3.0, True, "3", None])
def test_what_is_no_integer_or_too_small_is_refused(value):
    with pytest.raises(ConfigError, match=r"^steps is .*; it must be a whole number >= 3\.$"):
        check_int("steps", value, least=3)


def test_what_is_too_large_is_not_repeated():
    with pytest.raises(ConfigError, match=r"^steps is too large; it must be at most 1,000\.$"):
        check_int("steps", 10**400, least=1, most=1000)
