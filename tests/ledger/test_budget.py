"""What runs on one data set have spent together: with a cap, without one, and with one that is set later."""

import json
import math

import pytest

from discreet import BudgetExhausted, ConfigError, Ledger, PrivacyError, verify
from discreet.accounting import cost, gaussian
from discreet.accounting.events import Event
from discreet.ledger.budget import read_budget

QUERY = Event(rate=1.0, multiplier=10.0, steps=1, adjacency="zero-out")


def of(path, **more):
    return Ledger(path, dataset="people", delta=1e-5, **more)


def test_all_that_is_asked_adds_up_and_nothing_is_capped(tmp_path):
    path = tmp_path / "people.jsonl"
    for name in ("one", "two"):
        of(path).query(name, QUERY)
    found = read_budget(path)
    assert [one.what for one in found.spent] == ["one", "two"]
    assert found.cap is None
    assert found.left is None
    assert found.total.epsilon == pytest.approx(cost([QUERY, QUERY], 1e-5).epsilon)
    assert found.spent[0].epsilon == pytest.approx(cost([QUERY], 1e-5).epsilon)
    assert verify(path).total.epsilon == found.total.epsilon


def test_a_cap_is_set_later_and_holds_for_those_who_do_not_name_it(tmp_path):
    path = tmp_path / "people.jsonl"
    of(path).query("one", QUERY)
    of(path, epsilon=0.8).query("two", QUERY)
    assert read_budget(path).cap == 0.8
    with pytest.raises(BudgetExhausted, match=r"may spend epsilon 0\.8"):
        of(path).query("three", Event(rate=1.0, multiplier=2.0, steps=1, adjacency="zero-out"))
    with pytest.raises(PrivacyError, match="name the data set and its cap"):
        of(path, epsilon=5.0).query("three", QUERY)
    exact = gaussian.epsilon(math.sqrt(gaussian.mu(0.8, 1e-5) ** 2 - 2 / 100), 1e-5)  # Gaussian noise adds by squares
    assert exact * 0.99 < read_budget(path).left <= exact
    assert read_budget(path).left > 0.8 - cost([QUERY, QUERY], 1e-5).epsilon
    assert of(path).guarantee().epsilon < 0.8


def test_a_cap_below_what_is_spent_is_refused_and_not_written(tmp_path):
    path = tmp_path / "people.jsonl"
    of(path).query("one", QUERY)
    before = path.read_bytes()
    with pytest.raises(BudgetExhausted, match=r"cannot be capped at 0\.01"):
        of(path, epsilon=0.01).query("two", QUERY)
    assert path.read_bytes() == before


def test_the_file_keeps_the_delta_it_was_given_first(tmp_path):
    path = tmp_path / "people.jsonl"
    of(path).query("one", QUERY)
    Ledger(path, dataset="people", delta=1e-3).query("two", QUERY)
    assert read_budget(path).delta == 1e-5


def test_a_cap_that_was_taken_out_shows(tmp_path):
    path = tmp_path / "people.jsonl"
    of(path).query("one", QUERY)
    of(path, epsilon=0.8).query("two", QUERY)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["dataset", "query", "cap", "query"]
    path.write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    with pytest.raises(PrivacyError, match="line 3"):
        read_budget(path)


def test_what_does_not_add_up_proves_nothing_together_and_is_refused_under_a_cap(tmp_path):
    path, users = tmp_path / "people.jsonl", Event(rate=1.0, multiplier=10.0, steps=1, unit="user")
    of(path).query("one", QUERY)
    of(path).query("two", users)
    found = read_budget(path)
    assert math.isinf(found.total.epsilon)
    assert not found.total.sound
    capped = tmp_path / "capped.jsonl"
    of(capped, epsilon=1.0).query("one", QUERY)
    with pytest.raises(PrivacyError, match="protects each user"):
        of(capped).query("two", users)


def test_relations_that_differ_prove_nothing_together(tmp_path):
    path = tmp_path / "people.jsonl"
    of(path).query("one", QUERY)
    of(path).query("two", Event(rate=0.1, multiplier=10.0, steps=1, scheme="fixed-size", adjacency="replace"))
    found = read_budget(path)
    assert math.isinf(found.total.epsilon)
    assert not found.total.sound


def test_what_is_no_ledger_of_a_data_set(tmp_path):
    path = tmp_path / "people.jsonl"
    with pytest.raises(ConfigError, match="no such file"):
        read_budget(path)
    Ledger(path).query("one", QUERY)
    with pytest.raises(ConfigError, match="ledger of one run"):
        read_budget(path)
