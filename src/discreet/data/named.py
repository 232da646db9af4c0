"""The data set of a name: a well-known one, a file or folder of one's own, a function of one's own."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from discreet._check import check_int
from discreet.data.cifar import cifar10
from discreet.data.columns import TABLES
from discreet.data.custom import from_function, npz
from discreet.data.dataset import Data, Split, limited
from discreet.data.download import REMOTE, Files
from discreet.data.files import Progress
from discreet.data.images import image_folder
from discreet.data.mnist import digits, idx
from discreet.data.people import PEOPLE, people
from discreet.data.schema import Schema
from discreet.data.tables import table
from discreet.errors import ConfigError

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", *PEOPLE)
_NAMED = f"name one of {', '.join(NAMES)}, a .csv, .parquet or .npz file, a folder of images, or MODULE:FUNCTION"

Kind = Literal["digits", "idx", "cifar10", "people", "folder", "table", "npz", "function"]


def load(
    name: str,
    *,
    folder: str | Path | None = None,
    download: bool = True,
    label: str | None = None,
    schema: Schema | str | Path | None = None,
    user: str | None = None,
    classes: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    limit: int | None = None,
    progress: Progress | None = None,
    group: str | None = None,
    groups: Sequence[str] | None = None,
    **more: Any,
) -> Data:
    """The data set of this name.

    | name                            | what it is                                                                   |
    | ------------------------------- | ---------------------------------------------------------------------------- |
    | digits                          | scikit-learn's 1,797 digits of 8 x 8, the last 360 of a fixed order to test   |
    | mnist, fashion-mnist            | IDX files, gzipped or not                                                    |
    | cifar10                         | parquet files of image bytes, the binary version, or train/CLASS/*.png       |
    | adult, german-credit,           | tables of people that other packages bring along; see `people`               |
    | credit-card                     |                                                                              |
    | PATH.csv, PATH.parquet          | a table, with the `label` column, the `schema` and perhaps a `user` column;  |
    |                                 | see `table`                                                                  |
    | PATH.npz                        | arrays x, y and perhaps test_x, test_y: real x; whole (classes) or real y    |
    | PATH of a folder                | images by class: CLASS/*.png, or train/CLASS/*.png and test/CLASS/*.png      |
    | MODULE:FUNCTION                 | what the function returns, called with `more`: a Data, a Dataset, a pair of  |
    |                                 | Datasets, tensors x, y or x, y, test_x, test_y                               |

    The well-known ones are looked for in `folder`, in $DISCREET_DATA/NAME and in the cache (discreet/NAME in
    $XDG_CACHE_HOME or ~/.cache), and are else downloaded, to `folder` or the cache, and kept only if their SHA-256 is
    the known one. Decoded CIFAR images are cached.

    What comes without a test part is split: rows to test are drawn by position, whatever they hold. As the draw depends
    on the number of rows, that number is public: use it with an adjacency that says so ("zero-out" or "replace").

    Args:
        name: which data set; see the table.
        folder: where a well-known one is looked for, and is downloaded to.
        download: whether it may be downloaded.
        label: a table's column to predict.
        schema: what is known of a table's columns.
        user: a table's column that says whose a row is.
        classes: how many classes there are, where the data does not say; without it the labels' largest is taken to be
            public, and the note says so.
        test_fraction: the share of rows that are kept to test, where the data has no test part; 0 leaves all rows for
            training.
        seed: of the draw of those rows.
        limit: keep the first so many examples of each part.
        progress: called as progress(done, total) while bytes come (of one file after another, total 0 if it is not
            known) and while images are decoded.
        group: a table's column by which test rows are grouped, for figures of each group.
        groups: its words, where the schema does not say them.
        **more: what a function of one's own is called with.

    Returns:
        Examples to train on and to test on.

    Raises:
        ConfigError: if there is no such data set, it cannot be read, or an option does not fit it.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a data set's name is {name!r}; {_NAMED}.")
    split = Split(test_fraction, seed)
    if limit is not None:
        check_int("limit", limit, least=1)
    if classes is not None:
        check_int("classes", classes, least=2)
    kind = _kind(name)
    _refuse(name, "folder", folder, name in REMOTE, "one of " + ", ".join(REMOTE))
    _refuse(name, "label", label, kind == "table", "a table")
    _refuse(name, "schema", schema, kind == "table", "a table")
    _refuse(name, "user", user, kind == "table", "a table")
    _refuse(name, "group", group, kind == "table", "a table")
    _refuse(name, "groups", groups, kind == "table", "a table")
    _refuse(name, "classes", classes, kind in ("npz", "function"), "an .npz file or a function")
    for option in more:
        _refuse(name, option, option, kind == "function", "a function")
    if kind == "digits":
        data = digits()
    elif kind == "idx":
        data = idx(name, Files.of(name, folder, download, progress))
    elif kind == "cifar10":
        data = cifar10(Files.of(name, folder, download, progress), limit, progress)
    elif kind == "people":
        data = replace(people(name, test_fraction=test_fraction, seed=seed), name=name)
    elif kind == "folder":
        data = image_folder(name, split, limit, progress)
    elif kind == "table":
        own: dict[str, Any] = {"label": label, "schema": schema, "user": user, "group": group, "groups": groups}
        data = table(name, **own, test_fraction=test_fraction, seed=seed)
    elif kind == "npz":
        data = npz(name, classes, split)
    else:
        data = from_function(name, classes, split, more)
    return data if limit is None else limited(data, limit)


def _kind(name: str) -> Kind:
    """What a name names; names of their own come before files of the same name."""
    named: dict[str, Kind] = {"digits": "digits", "cifar10": "cifar10", "mnist": "idx", "fashion-mnist": "idx"}
    named |= dict.fromkeys(PEOPLE, "people")
    ending = Path(name).suffix.lower()
    if name in named:
        return named[name]
    if os.path.isdir(name):  # of any text: one that can be no path is no folder
        return "folder"
    if ending in TABLES:
        return "table"
    if ending == ".npz":
        return "npz"
    if ":" in name:
        return "function"
    raise ConfigError(f"there is no data set or folder {name!r}; {_NAMED}.")


def _refuse(name: str, option: str, value: object, fits: bool, what: str) -> None:
    """An option that would be ignored is a mistake."""
    if value is not None and not fits:
        raise ConfigError(f"{option} is an option for {what}, which {name!r} is not; leave it out.")
