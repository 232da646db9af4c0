"""Tables: columns, rules, missing values."""

import math
import sys

import pytest
import torch
from data_files import CSV, SCHEMA, changed, error_of, rows_of, without, write_images, write_parquet
from hypothesis import given
from hypothesis import strategies as st

from discreet.data import dataset, load


def test_a_table_is_scaled_by_what_the_schema_says(table):
    data = load(str(table), label="pay", schema=SCHEMA, test_fraction=0.2)
    assert (data.shape, data.classes, data.name) == ((3,), 2, str(table))
    assert (len(data.train[1]), len(data.test[1])) == (4, 1)
    assert rows_of(data) == sorted(
        [
            (-1.0, 1.0, 0.0, 0.0),
            (1.0, 0.0, 1.0, 1.0),
            (0.0, 0.0, 0.0, 0.0),  # no job
            (0.0, 0.0, 0.0, 1.0),  # no age, unknown job
            (1.0, 0.0, 1.0, 1.0),  # an age that is cut
        ]
    )


def test_parquet_and_csv_give_the_same(table, tmp_path):
    columns = {
        "id": [1, 2, 3, 4, 5],
        "age": [0.0, 120.0, 60.0, None, 500.0],
        "job": ["clerk", "cook", None, "miner", "cook"],
        "pay": ["no", "yes", "no", "yes", "yes"],
    }
    write_parquet(tmp_path / "people.parquet", columns)
    one, other = (load(str(p), schema=SCHEMA) for p in (table, tmp_path / "people.parquet"))
    assert torch.equal(one.train[0], other.train[0])
    assert torch.equal(one.test[1], other.test[1])


def test_the_schema_may_be_a_toml_file_and_the_label_the_column_with_classes(table, tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(
        'ignore = ["id"]\n[age]\nlow = 0\nhigh = 120\n[job]\ncategories = ["clerk", "cook"]\n'
        '[pay]\nclasses = ["no", "yes"]\n'
    )
    assert torch.equal(load(str(table), schema=path).train[0], load(str(table), label="pay", schema=SCHEMA).train[0])


def test_a_number_can_be_the_label(table):
    schema = {"ignore": ["id", "pay"], "age": {"low": -120, "high": 120}, "job": {"categories": ["cook"]}}
    table.write_text(CSV.replace("4,,", "4,-500,"))
    data = load(str(table), label="age", schema=schema, test_fraction=0)
    assert data.classes is None
    assert data.shape == (1,)
    assert sorted(data.train[1].tolist()) == [-1.0, 0.0, 0.5, 1.0, 1.0]


def test_numbers_can_be_categories_and_classes(tmp_path):
    schema = {"a": {"categories": [1, 2]}, "y": {"classes": [0, 1]}}
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,1\n")
    write_parquet(tmp_path / "a.parquet", {"a": [1.0, 2.0], "y": [0, 1]})
    for name in ("a.csv", "a.parquet"):
        assert rows_of(load(str(tmp_path / name), schema=schema)) == [(0.0, 1.0, 1.0), (1.0, 0.0, 0.0)]


def test_csv_files_as_they_come(tmp_path):
    """A byte order mark, spaces after commas, quotes, windows' line ends, blank lines, and numbers as people write."""
    text = '\ufeffa, y\r\n"1e1", "no"\r\n\r\n NaN ,"no"\r\n-inf, yes\r\n NA, yes\r\n'
    (tmp_path / "a.csv").write_bytes(text.encode())
    schema = {"a": {"low": 0, "high": 20}, "y": {"classes": ["no", "yes"]}}
    assert rows_of(load(str(tmp_path / "a.csv"), schema=schema)) == [(-1, 1), (0, 0), (0, 0), (0, 1)]


def test_a_column_may_be_called_ignore(tmp_path):
    (tmp_path / "a.csv").write_text("ignore,y\n1,0\n0,1\n")
    schema = {"ignore": {"low": 0, "high": 1}, "y": {"classes": [0, 1]}}
    assert load(str(tmp_path / "a.csv"), schema=schema).shape == (1,)


@given(st.integers(2, 60), st.integers(0, 5), st.floats(0, 0.49), st.data())
def test_the_split_does_not_depend_on_what_the_rows_hold(count, seed, fraction, data):
    """Row i is row i of the training part whatever it and the others hold."""
    split = dataset.Split(fraction, seed)
    labels = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    y, other = (torch.tensor(data.draw(labels)) for _ in range(2))
    numbers = torch.arange(count)[:, None].float()
    (train, _), test = split.of_pair("a", numbers, y)
    (again, _), _ = split.of_pair("a", numbers, other)
    assert torch.equal(train, again)
    tested = [] if test is None else test[0][:, 0].tolist()
    assert sorted(train[:, 0].tolist() + tested) == list(range(count))
    assert len(tested) == round(count * fraction)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (None, "needs a schema"),
        (without("ignore"), "says nothing of column 'id'"),
        (without("age"), "says nothing of column 'age'"),
        (changed(wage={"low": 0, "high": 1}), "has no column 'wage'"),
        (changed(ignore=["id", "age"]), "both describes and ignores column 'age'"),
        (changed(ignore="id"), "column 'ignore' is 'id'"),
        (changed(ignore=[1]), "ignore is [1]"),
        (changed(age={"low": 0}), "column 'age' is {'low': 0}"),
        (changed(age={"low": 0, "high": 1, "categories": ["a"]}), "column 'age' is"),
        (changed(age=120), "column 'age' is 120"),
        (changed(age={"low": 5, "high": 5}), "low 5 and high 5"),
        (changed(age={"low": 5, "high": 1}), "low 5 and high 1"),
        (changed(age={"low": math.nan, "high": 1}), "low nan and high 1"),
        (changed(age={"low": 0, "high": math.inf}), "low 0 and high inf"),
        (changed(age={"low": -1.7e308, "high": 1.7e308}), "must be finite numbers"),
        (changed(age={"low": "0", "high": 1}), "low '0' and high 1"),
        (changed(age={"low": False, "high": True}), "low False and high True"),
        (changed(job={"categories": []}), "has categories []"),
        (changed(job={"categories": "ab"}), "has categories 'ab'"),
        (changed(job={"categories": ["a", "a"]}), "give a list of 1 or more that differ"),
        (changed(job={"categories": [1, 1.0]}), "give a list of 1 or more that differ"),
        (changed(pay={"classes": ["no"]}), "give a list of 2 or more that differ"),
        (changed(pay={"categories": ["no", "yes"]}), "call them classes"),
        (changed(job={"classes": ["clerk", "cook"]}), "column 'job' has classes, but is not the label"),
        (without("pay"), "says nothing of the label column 'pay'"),
        ({"ignore": ["id", "age", "job"], "pay": SCHEMA["pay"]}, "no column but the label"),
        (3, "a schema is 3"),
        ("missing.toml", "missing.toml cannot be read"),
    ],
)
def test_schemas_that_do_not_fit_are_refused(schema, words, table):
    assert words in error_of(table, label="pay", schema=schema)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("id,age,job,pay\n", "has no rows"),
        ("id,age,job\n1,2,cook\n", "has no column 'pay'"),
        ("id,age,age,pay\n1,2,3,no\n", "several columns called 'age'"),
        (CSV + "6,7,cook\n", "row 6 has 3 cells"),
        (CSV + "6,7,cook,no,more\n", "row 6 has 5 cells"),
        (CSV + "6,old,cook,no\n", "row 6 has no number in column 'age'"),
        (CSV + "6,1_0,cook,no\n", "row 6 has no number in column 'age'"),
        (CSV + "6,7,cook,perhaps\n", "row 6 has in label column 'pay' none of the schema's classes (no, yes)"),
        (CSV + "6,7,cook,\n", "row 6 has in label column 'pay' none"),
        (CSV + '6,7,"cook,no\n', "cannot be read: unexpected end of data"),
        (CSV + '6,7,"co"ok,no\n', "cannot be read"),
        (CSV + "6,7," + "x" * 200_000 + ",no\n", "cannot be read: field larger than field limit"),
        (b"id,age,job,pay\n1,2,\xff\xfe,no\n", "cannot be read: 'utf-8' codec"),
        (CSV.replace(",", ";"), "has no column 'age'"),
    ],
)
def test_bad_tables_are_named(content, words, table):
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = error_of(table, label="pay", schema=SCHEMA)
    assert words in message
    assert str(table) in message


def test_errors_do_not_say_what_is_in_a_private_row(table):
    table.write_text(CSV + "6,confidential,cook,no\n")
    assert "confidential" not in error_of(table, schema=SCHEMA)
    table.write_text(CSV + "6,7,cook,confidential\n")
    assert "confidential" not in error_of(table, schema=SCHEMA)


def test_a_missing_number_cannot_be_a_label(table):
    schema = {"ignore": ["id", "pay"], "age": {"low": 0, "high": 120}, "job": {"categories": ["cook"]}}
    assert "row 4 has no label in column 'age'" in error_of(table, label="age", schema=schema)
    assert "0 columns have classes" in error_of(table, schema=schema)


def test_other_bad_tables(table, tmp_path):
    assert "cannot be read" in error_of(tmp_path / "missing.csv", schema=SCHEMA)
    (tmp_path / "a.toml").write_text("age = {")
    assert "a.toml is not TOML" in error_of(table, schema=tmp_path / "a.toml")
    (tmp_path / "a.toml").write_bytes(b"\xff")
    assert "a.toml cannot be read" in error_of(table, schema=tmp_path / "a.toml")


def test_bad_parquet_files_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, {"a": [1.0, 2.0], "y": ["no", "yes"]})
    sound = path.read_bytes()
    schema = {"a": {"low": 0, "high": 1}, "y": {"classes": ["no", "yes"]}}
    load(str(path), schema=schema)
    for content in (b"", b"nonsense", sound[:-9], sound[:4] + bytes(40) + sound[44:]):
        path.write_bytes(content)
        message = error_of(path, schema=schema)
        assert f"{path} cannot be read" in message
    write_parquet(path, {"a": [[1.0], [2.0]], "y": ["no", "yes"]})
    assert "row 1 has no number in column 'a'" in error_of(path, schema=schema)


@pytest.mark.parametrize(
    ("name", "missing", "package"),
    [("a.parquet", "pyarrow.parquet", "pyarrow"), ("pets", "PIL.Image", "Pillow"), ("digits", "sklearn.datasets", "")],
)
def test_what_is_not_installed_is_named_with_the_extra(name, missing, package, tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", {"a": [1.0], "y": ["no"]})
    write_images(tmp_path / "pets")
    monkeypatch.setitem(sys.modules, missing, None)
    options = {"schema": {"a": {"low": 0, "high": 1}, "y": {"classes": ["no", "yes"]}}} if "." in name else {}
    message = error_of(name if name == "digits" else tmp_path / name, **options)
    assert "pip install 'discreet[data]'" in message
    assert package in message
