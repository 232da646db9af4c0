"""A table's schema in a run: what is marked private in it is asked for once, whatever happens, and paid for."""

import hashlib
import math
from pathlib import Path

from msgspec import structs

from discreet.accounting import gaussian as gdp
from discreet.accounting.events import Adjacency, Event
from discreet.accounting.guarantee import Condition
from discreet.accounting.serialization import to_toml
from discreet.data.columns import TABLES
from discreet.data.files import reading, regular
from discreet.data.private_schema import private_schema, private_schema_cost
from discreet.data.schema import Known, plain
from discreet.data.tables import table_facts
from discreet.distributed.ranks import refuse
from discreet.errors import ConfigError
from discreet.ledger import Ledger
from discreet.runs.config import Config
from discreet.runs.folder import FOUND, NOISE, remove, secret_noise, write


def is_table(config: Config) -> bool:
    """Whether a run's data is a table in a file."""
    return Path(config.data.name).suffix.lower() in TABLES


def facts_of(config: Config) -> Known | None:
    """What a table's schema says; None of other data. No row is read."""
    if not is_table(config):
        return None
    facts = table_facts(config.data.name, config.data.schema, config.data.label)[1]
    if facts.private:
        if config.federated is not None:
            raise ConfigError(
                "the schema marks columns as private, which is asked of rows, and [federated] protects users; state "
                "them, or train centrally."
            )
        refuse("a schema with private marks")
    return facts


def asked_noise(config: Config) -> float:
    """The noise of what is asked of a table, such that it takes its share of the budget.

    A share s of epsilon is what a Gaussian release costs whose 1 / noise^2 is the part s of that which all of epsilon
    would allow one release.
    """
    share, budget = config.data.private_share, config.budget
    if not 0 < share < 1:
        raise ConfigError(f"[data] private_share is {share}; it is a part of [budget] epsilon, between 0 and 1.")
    if budget.epsilon is None:
        raise ConfigError(
            "the schema marks columns as private, which is paid for from a share of [budget] epsilon; give epsilon in "
            "place of noise, or state the columns."
        )
    return 1 / (math.sqrt(share) * gdp.mu(budget.epsilon, budget.delta))


def cost_of_schema(config: Config, adjacency: Adjacency) -> list[Event]:
    """What is asked of a table beside the training."""
    facts = facts_of(config)
    return [private_schema_cost(asked_noise(config), adjacency)] if facts is not None and facts.private else []


def assumed_of(facts: Known) -> list[Condition]:
    """What a guarantee rests on of a schema."""
    if not facts.guessed:
        return []
    listed = ", ".join(facts.guessed)
    words = (
        f"of the columns {listed}, their kinds, whether values are missing, and the label's classes were read off the "
        "rows when the schema was written, which is not counted: they are taken to be public"
    )
    return [Condition(words, "assumed")]


def answered(config: Config, folder: Path, ledger: Ledger) -> Config:
    """The same config with a schema in which everything is known: asked for now, or before.

    What was found is in the folder, and the noise that hides it is on disk before it is counted: if a crash comes
    before the answer is written, the same noise on the same rows is the same answer.
    """
    path, data = folder / FOUND, config.data
    sampling = {} if config.stages is None else config.stages.sampling
    if not path.is_file():
        noise, adjacency = asked_noise(config), sampling.get("adjacency", "zero-out")
        facts = table_facts(data.name, data.schema, data.label)[1]
        marked = ", ".join(f"{rule.asked} of {name}" for name, rule in facts.private.items())
        question = f"{marked}; noise {noise!r}, {adjacency}, {data.test_fraction!r} of the rows held out"
        found = private_schema(
            data.name,
            noise=noise,
            ledger=ledger,
            schema=data.schema,
            adjacency=adjacency,
            test_fraction=data.test_fraction,
            key=secret_noise(folder, question, lambda key: _digest(Path(data.name), key)),
        )
        write(path, "# What was found with noise: it has been released.\n" + to_toml(plain(found)))
    remove(folder / NOISE)
    return with_schema(config, path)


def with_schema(config: Config, path: Path) -> Config:
    """The same config with another schema."""
    return structs.replace(config, data=structs.replace(config.data, schema=str(path)))


def _digest(path: Path, key: bytes) -> str:
    """Of a table's file; it tells nothing without the key."""
    digest = hashlib.blake2b(key=key)
    with reading(path), regular(path).open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
