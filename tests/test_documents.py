"""TOML and JSON that are too deep, too long, or hold numbers that no machine has."""

import tomllib

import pytest

from discreet import ConfigError
from discreet._documents import check_writable, parse_json, parse_toml, read_bytes, read_toml


def test_usual_documents_are_read_as_ever(tmp_path):
    text = "a = 1\n[b.c]\nd = ['é', 1.5, true]\n'x y'.\"z\".w = -9223372036854775808\n"
    assert parse_toml(text) == tomllib.loads(text)
    (tmp_path / "a.toml").write_text(text)
    assert read_toml(tmp_path / "a.toml") == tomllib.loads(text)
    assert parse_json('{"a": [1, {"b": "\\u00e9"}]}') == {"a": [1, {"b": "é"}]}


@pytest.mark.parametrize(
    "text",
    ["a" + ".a" * 70 + " = 1", "a" + ".'b c'" * 70 + " = 1", "a = " + "[" * 70 + "]" * 70,
     "a = " + "[" * 5000 + "]" * 5000, "a" + ".a" * 200_000 + " = 1", f"a = {'1' * 5000}", "a = 9223372036854775808",
     'a = "b\\u0000"', "#" * (2 << 20)],
)  # fmt: skip
def test_what_exceeds_a_limit_is_refused(text):
    with pytest.raises(ConfigError):
        parse_toml(text)


def test_dots_in_texts_and_numbers_are_no_depth():
    text = f"a = '{'. ' * 100}'\nb = [{'1.5, ' * 100}]\n# {'..' * 100}\n"
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text", ["[" * 100 + "]" * 100, "[" * 10**5, '"\\ud800"', '{"\\udfff": 1}', "1" * 400, "1" * 5000, "{"]
)
def test_json_that_is_none_or_too_much_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 (which of its kinds does not matter)
        parse_json(text)


def test_devices_and_what_is_too_long_are_not_read(tmp_path):
    (tmp_path / "long").write_bytes(bytes(2 << 20))
    for place in ("/dev/zero", "/dev/null", tmp_path, tmp_path / "long", "a\0", "n" * 5000):
        with pytest.raises(ConfigError):
            read_bytes(place)


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    check_writable(tmp_path / "a.toml")
    for place in (tmp_path, "/dev/full", tmp_path / "no" / "a.toml", "n" * 5000, "a\0"):
        with pytest.raises(ConfigError, match="cannot be written"):
            check_writable(place)
