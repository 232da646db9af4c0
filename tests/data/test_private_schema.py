"""What a schema leaves open, asked for as one query whose sensitivity neighbouring files attain and never exceed."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import ConfigError, Ledger
from discreet.data import private_schema as module
from discreet.data.private_schema import private_schema, private_schema_cost
from discreet.data.rules import bucket
from discreet.data.tables import table

SCHEMA = {
    "age": {"range": "private", "missing": True},
    "born": {"dates": "private"},
    "job": {"categories": "private"},
    "y": {"classes": ["0", "1"]},
}
CELLS = st.one_of(st.none(), st.floats(allow_nan=True), st.sampled_from(["", "x", "2000-02-02", "1e5", "-3", b"7", 3]))
KINDS = ("range", "dates", "categories")


@pytest.fixture
def people(tmp_path):
    rows = [
        f"{20 + i % 60},{1940 + i % 60}-03-04,{['cook', 'clerk', 'rare'][(i % 7 > 3) + (i == 5)]},{i % 2}"
        for i in range(600)
    ]
    path = tmp_path / "people.csv"
    path.write_text("age,born,job,y\n" + "\n".join(rows) + "\n")
    return path


def looks(rows, edges):
    """Both looks' counts at rows of three cells, the second between given ends."""
    columns = [module._Column(kind, [row[i] for row in rows]) for i, kind in enumerate(KINDS)]
    first = np.concatenate([column.first() for column in columns])
    return first, np.concatenate([column.within(edges) for column in columns[:2]])


@settings(max_examples=40)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4), st.tuples(CELLS, CELLS, CELLS))
def test_neighbouring_files_move_the_looks_by_no_more_than_the_noise_is_for(rows, other):
    """A file without a row moves them by sqrt(3) and sqrt(2) at most; one with another row by sqrt(2) times that."""
    edges = np.linspace(-10.0, 800_000.0, module._FINE + 1)
    whole, without, replaced = (looks(each, edges) for each in (rows, rows[1:], [other, *rows[1:]]))
    for look, columns in ((0, 3), (1, 2)):
        assert np.square(whole[look] - without[look]).sum() <= columns
        assert np.square(whole[look] - replaced[look]).sum() <= 2 * columns


def test_the_bound_is_attained_and_the_noise_is_what_it_asks_for(people, tmp_path, monkeypatch):
    first, second = looks([("5", "2000-02-02", "x")], np.array([0.0, 800_000.0, 9e9]))
    assert (first.sum(), second.sum()) == (3, 2)
    scales = []

    def noted(counts, scale, source):
        scales.append(scale)
        return {name: each.astype(float) for name, each in counts.items()}, 0.5

    monkeypatch.setattr(module, "_noisy", noted)
    private_schema(people, noise=7.0, ledger=tmp_path / "l.jsonl", schema=SCHEMA)
    assert scales == [pytest.approx(7 * math.sqrt(5))] * 2
    assert 3 / scales[0] ** 2 + 2 / scales[1] ** 2 == pytest.approx(1 / private_schema_cost(7.0).multiplier ** 2)


def test_ranges_dates_and_frequent_words_are_found(people, tmp_path):
    found = private_schema(people, noise=0.5, ledger=tmp_path / "l.jsonl", schema=SCHEMA, seed=1)
    assert 10 < found["age"]["low"] <= 22
    assert 77 <= found["age"]["high"] < 90
    assert found["age"]["missing"] is True
    assert 1935 < found["born"]["low"].year <= 1942
    assert found["job"] == {"buckets": sorted(map(bucket, ("cook", "clerk")))}
    assert found["y"] == SCHEMA["y"]
    assert table(people, schema=found).shape == (1 + 1 + 3 + 3,)
    lines = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["phase"]["multiplier"], line["phase"]["steps"]) for line in lines] == [
        ("query", 0.5, 1)
    ]
    assert "fixed seed" in lines[0]["broken"]


def test_where_nothing_stands_out_a_table_is_read_all_the_same(people, tmp_path):
    found = private_schema(people, noise=500.0, ledger=tmp_path / "l.jsonl", schema=SCHEMA, seed=1)
    assert found["age"] == {"range": "unknown", "missing": True}
    assert found["job"] == {"hashed": 32}
    assert table(people, schema=found).shape == (3 + 1 + 3 + 32,)


def test_the_same_secret_noise_is_the_same_answer_and_is_counted_once(people, tmp_path):
    ledger, key = Ledger(tmp_path / "l.jsonl"), bytes(range(32))
    one, again = (private_schema(people, noise=3.0, ledger=ledger, schema=SCHEMA, key=key) for _ in range(2))
    assert one == again
    assert len((tmp_path / "l.jsonl").read_text().splitlines()) == 1


def test_a_schema_that_leaves_nothing_open_asks_for_nothing(people, tmp_path):
    schema = {"ignore": ["born", "job"], "age": {"low": 0, "high": 9}, "y": {"classes": ["0", "1"]}}
    with pytest.raises(ConfigError, match="marks nothing as private"):
        private_schema(people, noise=3.0, ledger=tmp_path / "l.jsonl", schema=schema)
    with pytest.raises(ConfigError, match="noise"):
        private_schema(people, noise=0.0, ledger=tmp_path / "l.jsonl", schema=SCHEMA)
    assert not (tmp_path / "l.jsonl").exists()


def test_a_replaced_row_moves_it_by_less_than_accounting_takes_it_to(people):
    assert private_schema_cost(2.0, "replace").multiplier == pytest.approx(2 * math.sqrt(2))
