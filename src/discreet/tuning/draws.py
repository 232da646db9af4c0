"""How many trials a search has, and with which settings: drawn once and without the data, and kept secret.

The guarantee averages over the number of trials, so nobody who sees the outcome may know it, and nobody may draw it
again after having seen a trial. It is on disk, for its owner alone, before the first trial begins.
"""

import json
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discreet.accounting.tuning import Tuning, draw_runs
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.runs.folder import write
from discreet.runs.schema import TuneSection
from discreet.runs.space import Settings, Space

DRAWS = "draws.json"  # in a search's folder; secret
_FORMAT = "discreet-draws/1"


@dataclass(frozen=True)
class Trial:
    """One trial: a name that says nothing of its place, its settings, and the key of its score's noise."""

    name: str
    settings: Settings
    key: bytes


@dataclass(frozen=True)
class Draws:
    """What was drawn: the search's own name, and its trials."""

    search: str
    trials: tuple[Trial, ...]


def draw(tune: TuneSection) -> Draws:
    """A number of trials by its law, with settings from the space; from the system's secure source."""
    source, space = random.SystemRandom(), Space.of(tune.space)
    number = draw_runs(Tuning(tune.runs, tune.distribution, tune.score), source.random())
    trials = [
        Trial(secrets.token_hex(4), {**space.draw(source), "run.seed": source.getrandbits(31)}, secrets.token_bytes(32))
        for _ in range(number)
    ]
    return Draws(secrets.token_hex(8), tuple(trials))


def drawn(folder: Path, tune: TuneSection, *, begun: bool) -> Draws:
    """What was drawn for a search's folder: now, if nothing was; it is never drawn twice.

    Args:
        folder: of the search.
        tune: by what it is drawn.
        begun: whether a trial has begun: then the draws must be there.

    Raises:
        PrivacyError: they are gone, and the search cannot go on.
    """
    path = folder / DRAWS
    try:
        there = storage.is_file(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if there:
        return _read(path)
    if begun:
        raise PrivacyError(
            f"{path} is gone: how many trials there are was drawn once, and drawn again after some have been made "
            "it would prove nothing. Put the file back, or begin a new search."
        )
    made = draw(tune)
    write(path, json.dumps(_plain(made)), private=True)
    return made


def _plain(draws: Draws) -> dict[str, Any]:
    trials = [{"name": t.name, "settings": t.settings, "key": t.key.hex()} for t in draws.trials]
    return {"format": _FORMAT, "search": draws.search, "trials": trials}


def _read(path: Path) -> Draws:
    try:
        values: Mapping[str, Any] = json.loads(storage.read_text(path))
        if values["format"] != _FORMAT:
            raise ValueError(f"its format is {values['format']!r}")
        trials = tuple(Trial(t["name"], dict(t["settings"]), bytes.fromhex(t["key"])) for t in values["trials"])
        return Draws(values["search"], trials)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
