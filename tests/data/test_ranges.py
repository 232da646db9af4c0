"""Ranges that nobody can state, found in private."""

import json
import math

import numpy as np
import pytest
import torch
from data_files import DELTA, error_of, without
from hypothesis import given
from hypothesis import strategies as st

from discreet import BudgetExhausted, ConfigError, Ledger, methods
from discreet.accounting import cost
from discreet.accounting import gaussian as gdp
from discreet.data import load, private_ranges, ranges, ranges_cost


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "run" / "ledger.jsonl"


def counts(columns, low=1e-6, high=1e6):
    return ranges._counts(columns, list(columns), ranges.doubling_edges(low, high))


CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([None, "", "text", "1e9", "-3", "nan", 0, 10**400, True, [1, 2], b"7", 1e-6, -1e-6, 1e6, -0.0]),
)


def test_what_is_left_out_of_the_ranges_is_asked_for(table, ledger):
    found = private_ranges(table, ["age"], noise=50.0, ledger=ledger, seed=0)
    assert found == {}
    schema = {**without("age"), **found}
    assert "says nothing of column 'age'" in error_of(table, schema=schema)


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_one_row_moves_the_counts_by_at_most_the_square_root_of_the_columns(width, height, data):
    row = st.lists(CELLS, min_size=width, max_size=width)
    rows = data.draw(st.lists(row, min_size=height, max_size=height))
    other = data.draw(row)

    def counted(rows):
        return counts({f"c{i}": [r[i] for r in rows] for i in range(width)})

    whole, removed, replaced = counted(rows), counted(rows[1:]), counted([other, *rows[1:]])
    assert np.square(whole - removed).sum() <= width
    assert np.square(whole - replaced).sum() <= 2 * width
    assert whole.sum(1).max() <= height


def test_the_bounds_are_attained():
    columns = {"a": [1.0, 5.0], "b": [-3.0, 7.0]}
    first, other = ({k: [v[i]] for k, v in columns.items()} for i in (0, 1))
    assert np.square(counts(columns) - counts(other)).sum() == 2
    assert np.square(counts(first) - counts(other)).sum() == 4


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 3.7, 1e-6, -1e-6, 1e6, -1e6, 1e300, math.inf, -math.inf, 1e-300])
def test_every_number_is_in_one_bin_and_that_bin_holds_it(value):
    edges = ranges.doubling_edges(1e-6, 1e6)
    (row,) = counts({"a": [value]})
    assert row.sum() == 1
    place = int(row.argmax())
    cut = min(max(value, edges[0]), edges[-1])
    assert edges[place] <= cut <= edges[place + 1]
    assert np.all(np.diff(edges) > 0)
    assert edges[-1] >= 1e6 * (1 - 1e-12)


def test_forms_of_the_same_column_count_the_same():
    values = [1.0, -2.0, 300.0, math.nan]
    usual = counts({"a": values})
    for form in (np.array(values), torch.tensor(values), np.array(values, object), [str(v) for v in values]):
        assert np.array_equal(counts({"a": form}), usual)


def test_ranges_are_found_and_fit_a_schema(tmp_path, ledger):
    dice = np.random.default_rng(0)
    ages, debts = dice.uniform(18, 90, 4000), -dice.uniform(0, 30_000, 4000)
    found = private_ranges({"age": ages, "debt": debts}, ["age", "debt"], noise=5.0, ledger=ledger, seed=1)
    assert found["age"]["low"] <= 18.5
    assert 89 <= found["age"]["high"] <= 180
    assert -66_000 <= found["debt"]["low"] <= -29_000
    assert -600 < found["debt"]["high"] <= 1
    lines = [f"{a},{d},{'yes' if a > 40 else 'no'}" for a, d in zip(ages, debts, strict=True)]
    (tmp_path / "a.csv").write_text("age,debt,y\n" + "\n".join(lines))
    data = load(str(tmp_path / "a.csv"), schema={**found, "y": {"classes": ["no", "yes"]}})
    assert data.shape == (2,)
    again = private_ranges(tmp_path / "a.csv", ["age", "debt"], noise=5.0, ledger=ledger, seed=1)
    assert again == found


def test_a_few_rows_far_out_do_not_decide_the_range(ledger):
    values = np.concatenate((np.full(5000, 1.5), np.full(20, 1e5)))
    found = private_ranges({"a": values}, ["a"], noise=1.0, ledger=ledger, seed=0)["a"]
    assert found["low"] <= 1.5 <= found["high"] < 4
    wide = private_ranges({"a": values}, ["a"], noise=1.0, ledger=ledger, seed=0, tail=0)["a"]
    assert wide["high"] >= 1e5


def test_a_column_that_does_not_stand_out_of_the_noise_is_left_out(ledger):
    table = {"few": [1.0] * 3 + [None] * 997, "text": ["x"] * 1000, "many": [1.0] * 1000}
    found = private_ranges(table, list(table), noise=10.0, ledger=ledger, seed=0)
    assert list(found) == ["many"]


def test_the_noise_is_that_of_all_columns_together(ledger, monkeypatch):
    """Four columns of nothing: their counts are noise alone, of twice the multiplier. Five standard errors: a false
    alarm in about one of 10^6 seeds."""
    seen = []
    monkeypatch.setattr(ranges, "_between", lambda noisy, *rest: seen.append(noisy))
    for seed in range(20):
        private_ranges({n: [] for n in "abcd"}, list("abcd"), noise=3.0, ledger=ledger, seed=seed)
    values = np.concatenate(seen)
    assert np.sqrt(np.square(values).mean()) == pytest.approx(6.0, rel=5 / math.sqrt(2 * len(values)))
    assert len(np.unique(values)) == len(values)


class Watched(dict):
    """Columns that may be read only after something is in the ledger."""

    def __init__(self, ledger, columns):
        super().__init__(columns)
        self.ledger = ledger

    def __getitem__(self, name):
        assert "ranges of 1 columns" in self.ledger.read_text()
        raise RuntimeError("the data was read")


def test_the_query_is_counted_before_the_data_is_read(ledger):
    with pytest.raises(RuntimeError, match="the data was read"):
        private_ranges(Watched(ledger, {"a": []}), ["a"], noise=2.0, ledger=ledger)
    (line,) = map(json.loads, ledger.read_text().splitlines())
    assert line["kind"] == "query"
    assert line["phase"]["multiplier"] == 2.0


def test_of_a_file_only_the_names_are_read_before(table, ledger, monkeypatch):
    def watched(path, wanted):
        assert ledger.exists()
        raise RuntimeError("the data was read")

    monkeypatch.setattr(ranges, "read_columns", watched)
    with pytest.raises(RuntimeError, match="the data was read"):
        private_ranges(table, ["age"], noise=2.0, ledger=ledger)


def test_a_cap_is_kept(table, ledger, monkeypatch):
    monkeypatch.setattr(ranges, "read_columns", pytest.fail)
    capped = Ledger(ledger, dataset="people", epsilon=0.5, delta=DELTA)
    with pytest.raises(BudgetExhausted):
        private_ranges(table, ["age"], noise=1.0, ledger=capped)


def test_a_fixed_seed_is_written_down_and_no_seed_draws_anew(ledger):
    values = {"a": [1.0] * 5}
    private_ranges(values, ["a"], noise=1.0, ledger=ledger, seed=1)
    private_ranges(values, ["a"], noise=1.0, ledger=ledger)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert "fixed seed" in lines[0]["broken"]
    assert "broken" not in lines[1]


@pytest.mark.parametrize("noise", [0.7, 4.0, 10.0])
def test_the_cost_is_that_of_one_gaussian_query(noise):
    for adjacency in ("zero-out", "add-remove"):
        event = ranges_cost(noise, adjacency)
        assert (event.rate, event.steps, event.adjacency) == (1.0, 1, adjacency)
        assert cost([event], DELTA).epsilon == pytest.approx(gdp.epsilon(1 / noise, DELTA), rel=1e-12)
    found = cost([ranges_cost(noise, "replace")], DELTA).epsilon
    assert found == pytest.approx(gdp.epsilon(math.sqrt(2) / noise, DELTA), rel=1e-12)


def test_the_cost_is_accounted_together_with_a_run(ledger):
    plan = methods.dp_sgd(examples=1000, batch_size=10, steps=50, noise=1.0, delta=DELTA)
    alone = cost([plan.event(None)], DELTA).epsilon
    assert cost([plan.event(None), ranges_cost(5.0)], DELTA).epsilon > alone


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "age"}, "columns are 'age'"),
        ({"columns": []}, "columns are []"),
        ({"columns": ["age", "age"]}, "each once"),
        ({"columns": ["wage"]}, "has no column 'wage'"),
        ({"noise": 0.0}, "noise is 0.0"),
        ({"noise": math.nan}, "noise is nan"),
        ({"low": 0.0}, "low is 0.0"),
        ({"low": 2.0, "high": 1.0}, "low must be below high"),
        ({"high": math.inf}, "high is inf"),
        ({"tail": 0.5}, "tail is 0.5"),
        ({"tail": -0.1}, "tail is -0.1"),
        ({"ledger": None}, "is no ledger"),
        ({"adjacency": "near"}, "adjacency is 'near'"),
        ({"table": "people.txt"}, "is no table"),
        ({"table": 3}, "is no table"),
        ({"table": "missing.csv"}, "cannot be read"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_counted(options, words, table, ledger):
    settings = {"table": table, "columns": ["age"], "noise": 1.0, "ledger": ledger, **options}
    with pytest.raises(ConfigError) as caught:
        private_ranges(settings.pop("table"), settings.pop("columns"), **settings)
    assert words in str(caught.value)
    assert not ledger.exists()


@pytest.mark.parametrize("column", [np.ones((3, 2)), torch.ones(3, 1), np.float64(3)])
def test_a_row_cannot_be_in_several_bins_of_a_column(column, ledger):
    with pytest.raises(ConfigError, match="one value for each row"):
        private_ranges({"a": np.asarray(column)}, ["a"], noise=1.0, ledger=ledger)


def test_columns_of_different_lengths_are_refused(ledger):
    with pytest.raises(ConfigError, match="different lengths"):
        private_ranges({"a": [1.0], "b": [1.0, 2.0]}, ["a", "b"], noise=1.0, ledger=ledger)
