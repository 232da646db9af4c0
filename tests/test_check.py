"""Arguments that make no sense are refused by name, with their bound and what was given; so is too much input.

The environment overrides the table of limits, and the docs have all of it.
"""

import math
from pathlib import Path

import pytest

from discreet import ConfigError
from discreet._check import LIMITS, VARIABLE, check_int, check_positive, check_share, limit, listed, shown, within

PAGE = Path(__file__).parent.parent / "docs" / "limits.md"


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


def test_a_limit_is_the_tables_or_the_environments(monkeypatch):
    assert limit("depth") == LIMITS["depth"].most
    monkeypatch.setenv(VARIABLE, " depth = 7, table_columns=2e4,")
    assert limit("depth") == 7
    assert limit("table_columns") == 20_000
    assert limit("group") == LIMITS["group"].most


@pytest.mark.parametrize(
    "wrong", ["depth", "depth=", "depth=x", "depth=0", "depth=-1", "depth=nan", "deep=1", "depth=1e999"]
)
def test_an_override_that_says_nothing_is_refused(wrong, monkeypatch):
    monkeypatch.setenv(VARIABLE, wrong)
    with pytest.raises(ConfigError, match=f"{VARIABLE} says"):
        limit("depth")


def test_what_exceeds_a_limit_says_which_and_how_it_is_overridden():
    assert within("depth", 64, "it is 64 deep") == 64
    with pytest.raises(
        ConfigError, match=r"it is 65 deep; at most 64 are taken. If it is meant, set DISCREET_LIMITS=depth=N."
    ):
        within("depth", 65, "it is 65 deep")


def test_the_docs_have_every_limit_with_its_value():
    text = PAGE.read_text()
    for name, found in LIMITS.items():
        assert f"| `{name}` | {found.most:,} | {found.what} |" in text, name
    table = text[: text.index("## Exit codes")]
    assert table.count("| `") == len(LIMITS)
