"""Groups of test rows: by declared words, by words that were found with noise, and what is refused before that."""

import pytest

from discreet import ConfigError
from discreet.data import load
from discreet.data.dataset import limited, validated
from discreet.data.groups import Grouping
from discreet.data.rules import Buckets, WithMissing, Words, bucket
from discreet.data.tables import rehearsed

HEAD = "age,job,town,pay\n"
ROWS = [
    f"{20 + i % 50},{('clerk', 'cook')[i % 2]},{('', 'york', 'bath')[i % 3]},{('no', 'yes')[i % 4 == 0]}\n"
    for i in range(60)
]
SCHEMA = {
    "age": {"low": 0, "high": 120},
    "job": {"categories": ["clerk", "cook"]},
    "ignore": ["town"],
    "pay": {"classes": ["no", "yes"]},
}


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(HEAD + "".join(ROWS))
    return str(path)


def test_a_test_row_has_the_group_that_its_cell_says(people):
    data = load(people, schema=SCHEMA, group="job")
    assert data.group_names == ("clerk", "cook", "others")
    assert data.groups.tolist() == data.test[0][:, 2].long().tolist()  # the column of cooks
    assert data.shape == load(people, schema=SCHEMA).shape
    assert limited(data, 3).groups.tolist() == data.groups[:3].tolist()


def test_a_column_that_is_no_input_may_group_rows(people):
    data = load(people, schema=SCHEMA, group="town", groups=["york", "leeds"])
    assert data.group_names == ("york", "leeds", "others")
    assert set(data.groups.tolist()) == {0, 2}
    assert data.shape == (3,)


def test_words_that_were_found_with_noise_are_called_by_test_rows():
    rules = {"job": WithMissing(Buckets((bucket("cook"), bucket("clerk"))))}
    names, numbers = Grouping("job").of(["clerk", None, "miner", "cook", "clerk"], rules)
    assert names == ("cook", "clerk", "others")
    assert numbers.tolist() == [1, 2, 2, 0, 1]
    assert Grouping("job").of([], rules)[0] == (f"bucket {bucket('cook')}", f"bucket {bucket('clerk')}", "others")
    assert Grouping("job").of(["a", "b"], {"job": Words(("b", "a"))})[1].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"group": "age"}, "says no categories of 'age'"),
        ({"group": "town"}, "says no categories of 'town'"),
        ({"group": "pay"}, "the label column"),
        ({"group": "shoe", "groups": ["a", "b"]}, "no column 'shoe'"),
        ({"group": "job", "groups": []}, "words that differ"),
        ({"group": "job", "groups": ["a", "a"]}, "words that differ"),
        ({"group": "job", "groups": ["others"]}, "words that differ"),
        ({"groups": ["a"]}, "name it with group"),
    ],
)
def test_groups_that_cannot_be_are_refused_before_anything_is_asked(people, asked, words):
    for read in (load, rehearsed):
        with pytest.raises(ConfigError, match=words):
            read(people, schema=SCHEMA, **asked)


def test_groups_are_of_a_tables_test_part(people):
    with pytest.raises(ConfigError, match="an option for a table"):
        load("digits", group="job")
    with pytest.raises(ConfigError, match="validation"):
        validated(load(people, schema=SCHEMA, group="job"), 0.5)
    assert load(people, schema=SCHEMA, group="job", test_fraction=0).groups is None
