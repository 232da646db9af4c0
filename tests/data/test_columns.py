"""Tables that are bombs, have no end, or are none."""

import hostile_files
import pytest
from closed_box import wrong

from discreet import ConfigError
from discreet.data.columns import column_names, read_columns

ACCEPTED = {  # infinity is cut; bytes differ; a word that is repeated is there once
    "a number of 100,000 digits",
    "a changed page",
    "a bomb of 100 kB a cell",
    "a bomb of a megabyte a cell",
}


@pytest.mark.parametrize(("kind", "contents"), [("csv", hostile_files.csvs), ("parquet", hostile_files.parquets)])
def test_hostile_tables_are_refused(kind, contents, tmp_path):
    calls = {}
    for number, (name, make) in enumerate(contents().items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / f"t.{kind}").write_bytes(make())
        calls[name] = hostile_files.table_call(folder, f"t.{kind}"), folder
    refused = {name: call for name, call in calls.items() if name not in ACCEPTED}
    assert wrong(refused, environment=hostile_files.ENVIRONMENT) == {}
    assert (
        wrong(
            {name: calls[name] for name in calls.keys() & ACCEPTED}, codes=(0, 2), environment=hostile_files.ENVIRONMENT
        )
        == {}
    )


def test_rows_beyond_the_limit_are_refused_while_they_are_read(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 50)
    monkeypatch.setenv("DISCREET_LIMITS", "table_cells=99")
    with pytest.raises(ConfigError, match="more than 49 rows of 2 cells; at most 99"):
        read_columns(path, ["a", "b"])
    assert len(read_columns(path, ["a"])["a"]) == 50


def test_words_that_are_repeated_are_there_once(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(hostile_files.repeated("nurse", 1000))
    jobs = read_columns(tmp_path / "t.parquet", ["job", "age"])["job"]
    assert jobs == ["nurse"] * 1000
    assert len(set(map(id, jobs))) == 1
    assert column_names(tmp_path / "t.parquet") == ["age", "job", "ill"]
