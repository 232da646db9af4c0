"""Stages as plain values and back, and plain values as TOML."""

import math
import tomllib
from dataclasses import dataclass

import pytest

from discreet import ConfigError
from discreet.accounting.serialization import build, describe, json_values, to_toml


@dataclass(frozen=True)
class Stage:
    norm: float
    kind: str = "usual"
    extra: int | None = None


def test_settings_that_are_usual_are_not_written():
    assert describe(Stage(1.0)) == {"type": "Stage", "norm": 1.0}
    assert describe(Stage(1.0, "other", 3)) == {"type": "Stage", "norm": 1.0, "kind": "other", "extra": 3}


@pytest.mark.parametrize("stage", [Stage(0.5), Stage(2.0, "other"), Stage(1.0, extra=0)])
def test_what_is_described_can_be_built(stage):
    assert build(describe(stage), [Stage]) == stage


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("Stage", "does not describe a stage"),
        ({"norm": 1.0}, "does not describe a stage"),
        ({"type": "Other"}, "'Other' is not one of Stage"),
        ({"type": "Stage", "norm": 1.0, "size": 2}, "Stage has no setting size"),
        ({"type": "Stage"}, "Stage cannot be made of"),
    ],
)
def test_what_describes_no_stage_is_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        build(values, [Stage])


def test_toml_says_the_same_to_any_reader():
    values = {
        "name": 'with "quotes", a \\ and\na line',
        "sizes": [1, 2],
        "on": True,
        "inner": {"rate": 0.5, "of a name with spaces": {"ä.b": 1}},
        "empty": {},
    }
    assert tomllib.loads(to_toml(values)) == values


def test_json_has_no_numbers_that_json_lacks():
    assert json_values([math.inf, (-math.inf, {"a": math.nan}), 1.5, 2, None, "x"]) == [
        "inf",
        ["-inf", {"a": None}],
        1.5,
        2,
        None,
        "x",
    ]
