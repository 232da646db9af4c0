"""The table of limits: the environment overrides it, and the docs have all of it."""

from pathlib import Path

import pytest

from discreet import ConfigError
from discreet._limits import LIMITS, VARIABLE, limit, within

PAGE = Path(__file__).parent.parent / "docs" / "limits.md"


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
