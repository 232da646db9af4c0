"""A run's folder on disk: making it, holding it, and the files in it that are not somebody else's.

run.json       which run it is: a random name, on disk before any line of a ledger has it, and who took it up
config.toml, plan.toml, ledger.jsonl, metrics.jsonl, checkpoint, ...     as discreet.runs says
"""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError

from discreet._documents import parse_json, read_bytes
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import Identity, Ledger, new_run, read, storage, withdraw
from discreet.ledger.extract import EXTRACT
from discreet.ledger.file import LedgerFile
from discreet.ledger.verification import IDENTITY, read_identity
from discreet.runs.config import Config
from discreet.runs.trained.card import CARD
from discreet.runs.trained.manifest import MANIFEST

STATISTICS = "features.safetensors"  # what whitens features, once it is released
COINS = "coins"  # of the canaries, until their audit is done
NOISE = "noise.json"  # what the features' statistics are to be hidden by, until they are released; secret
FOUND = "schema.found.toml"  # what was found, with noise, of what a table's schema marks as private
METRICS = "metrics.jsonl"
_BEGUN = ".begun"  # that something was released, wherever it was counted
_LOCK = ".lock"
SCHEMA = "schema.toml"  # what was said of a table's columns
_FILES = (
    *("config.toml", "plan.toml", IDENTITY, "ledger.jsonl", METRICS, "checkpoint", "model.safetensors"),
    *(SCHEMA, MANIFEST, EXTRACT, CARD),
)


def make(folder: Path) -> list[Path]:
    """Make a run's folder, its owner's alone, or take an empty one; which folders were made, the innermost first."""
    try:
        if folder.exists() and (not folder.is_dir() or not _empty(folder)):
            raise ConfigError(
                f"{folder} is there already and is left alone; choose another --out, or go on with: discreet resume "
                f"{folder}"
            )
        made = storage.make_folder(folder)
        if folder in made:  # its owner's alone, as it holds secrets until it has finished
            folder.chmod(0o700)
        return made
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error}") from error


def _empty(folder: Path) -> bool:
    """Whether nothing is in a folder but what a run leaves that was killed before its config was written."""
    return all(p.name == _LOCK or storage.SCRATCH.fullmatch(p.name) for p in folder.iterdir())


def unmake(folder: Path, ledger: Ledger) -> None:
    """Take away what a run wrote that has released nothing; one that has released anything stays."""
    if has_begun(folder) or _has_spent(folder, ledger):
        return
    named = read_identity(folder)
    if named is not None and ledger.dataset is not None:
        withdraw(ledger, named[0])
    for name in (*_FILES, "audit.toml", COINS, NOISE, FOUND, "ledger.jsonl.lock", _LOCK):
        (folder / name).unlink(missing_ok=True)


def _has_spent(folder: Path, ledger: Ledger) -> bool:
    """Whether a ledger counts anything of the folder's run; also if it cannot be read."""
    try:
        if not storage.is_file(ledger.path):
            return False
        content, _ = read(Path(ledger.path), stages=ledger.stages)
        named = read_identity(folder)
    except (OSError, PrivacyError, ConfigError):
        return True
    if content.dataset is None:
        return bool(content.queries) or any(run.released for run in content.runs.values())
    run = None if named is None else content.runs.get(named[0])
    return named is not None and (named[0] in content.askers or (run is not None and run.released > 0))


def remove_made(folders: Sequence[Path]) -> None:
    """Take away folders that `make` made, where they are empty again."""
    for place in folders:
        with suppress(OSError):
            place.rmdir()


def check_files(folder: Path) -> None:
    """Refuse a folder that is no run's, or in which a run's file is no regular file."""
    try:
        origin_step = os.path.isdir(folder) and storage.is_file(folder / "config.toml")
        for name in (
            *_FILES,
            "end.json",
            "guarantee.json",
            "audit.json",
            "audit.toml",
            STATISTICS,
            COINS,
            NOISE,
            FOUND,
        ):
            storage.is_file(folder / name)
    except storage.NotRegular as error:
        raise ConfigError(str(error)) from error
    except OSError:
        origin_step = False
    if not origin_step:
        raise ConfigError(f"{folder} is no run's folder: it has no config.toml. Begin one with: discreet train")


def tidy(folder: Path) -> None:
    """Take away what a killed process left half written."""
    try:
        storage.sweep(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error}") from error


def tidy_finished(folder: Path, ledger: Ledger) -> None:
    """Take away what a process left that was killed when a run had ended, where the folder can be written."""
    with suppress(ConfigError, PrivacyError, OSError), held(folder):
        tidy(folder)
        for name in (COINS, NOISE):
            storage.remove(folder / name)
        if storage.is_file(ledger.path):
            LedgerFile(ledger).sweep()


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Have the folder for oneself; the system lets it go when the process ends, however it ends."""
    lock = storage.Lock(folder / _LOCK)
    try:
        lock.acquire()
    except storage.InUse as error:
        raise ConfigError(f"{folder} is in use by another process; wait for it, or stop it.") from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be locked: {error}") from error
    try:
        yield
    finally:
        lock.let_go()


# --- which run it is -------------------------------------------------------------------------------------------------


def identity(folder: Path) -> Identity:
    """Which run a folder holds, taken up by this process: on disk before anything is counted.

    A folder that an earlier version planned has no name; its run is the only one of its ledger, or told by its plan.
    """
    named = read_identity(folder)
    if named is None and (folder / "plan.toml").exists():
        return Identity("")
    own = (Identity(new_run()) if named is None else Identity(*named)).taken_up()
    _name(folder, own)
    return own


def keep_name(folder: Path, run: str) -> None:
    """Have a folder of an earlier version say which run it went on with: another of its plan is not it."""
    if read_identity(folder) is None:
        _name(folder, Identity(run))


def _name(folder: Path, own: Identity) -> None:
    write(folder / IDENTITY, json.dumps({"format": "discreet-run/1", "run": own.run, "attempts": own.attempts}))


def begin(folder: Path) -> None:
    """Write down that something was released."""
    if not has_begun(folder):
        write(folder / _BEGUN, b"")


def has_begun(folder: Path) -> bool:
    """Whether something was released, by what is in the folder."""
    return any((folder / name).exists() for name in ("checkpoint", METRICS, _BEGUN))


def check_ledger(folder: Path, ledger: Ledger) -> None:
    """Refuse to go on with a run whose ledger has lost it, before anything is written there: it would count anew.

    Of a run that has released something the ledger must have the line that opened it, and of one that has only asked
    something of the data some line of it.
    """
    begun = has_begun(folder)
    if not begun and not any((folder / name).exists() for name in (FOUND, STATISTICS)):
        return
    named = read_identity(folder)
    if named is None or ledger.dataset is None:
        signs = [b'"kind": "run"' if begun else b"\n"]
    elif begun:  # what follows the name in a line that opens a run: of all lines, these alone have a schedule or steps
        signs = [f'"run": "{named[0]}", "{key}": '.encode() for key in ("steps", "schedule")]
    else:
        signs = [f'"run": "{named[0]}"'.encode()]
    try:
        counted = storage.is_file(ledger.path) and any(storage.contains(ledger.path, sign) for sign in signs)
    except OSError as error:
        raise PrivacyError(f"{ledger.path} cannot be read: {error}") from error
    if not counted:
        raise PrivacyError(
            f"what the run has spent is gone from {ledger.path}; put the file back as it was, or begin a new run."
        )


# --- what it was asked for -------------------------------------------------------------------------------------------


def keep_schema(folder: Path, config: Config) -> Config:
    """Have a copy of a table's schema in the folder; the config that names it there."""
    source = config.data.schema
    if source is None:
        return config
    write(folder / SCHEMA, read_bytes(source))
    return msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, schema=SCHEMA))


def keep_config(folder: Path, config: Config) -> None:
    """Have the config in the folder, and then a copy of its table's schema, which it names from then on."""
    write(folder / "config.toml", config.to_toml())
    kept = keep_schema(folder, config)
    if kept is not config:
        write(folder / "config.toml", kept.to_toml())


def located(config: Config, folder: Path) -> Config:
    """A folder's config, with the folder's own schema where it is now."""
    if config.data.schema != SCHEMA:
        return config
    return msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, schema=str(folder / SCHEMA)))


# --- files -----------------------------------------------------------------------------------------------------------


def write(path: Path, content: Any, *, private: bool = False) -> None:
    """Write a file in one move: bytes, text, or what a function writes; `private` is for its owner alone."""
    try:
        storage.replace(path, content, private=private)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def remove(path: Path) -> None:
    """Take a file away, if it is there."""
    try:
        storage.remove(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be taken away: {error}") from error


def secret_noise(folder: Path, question: str, digest: Callable[[bytes], str]) -> bytes:
    """What hides an answer: drawn once, and on disk before the answer is counted, with the digest of what it is of.

    If a crash comes before the answer is written, the same noise on the same data is the same answer, and not a new
    one. On other data, or in the answer to another question, it would hide nothing: that is refused.

    Args:
        folder: the run's.
        question: all that decides what is answered, but the data.
        digest: of the data, by the key.
    """
    path = folder / NOISE
    if not storage.is_file(path):
        key = os.urandom(32)
        write(path, json.dumps({"key": key.hex(), "data": digest(key), "question": question}), private=True)
        return key
    try:
        values = parse_json(storage.read_text(path))
        key, data = bytes.fromhex(values["key"]), values["data"]
        asked = values.get("question", question)  # an earlier version did not write it down
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(key) != 32 or data != digest(key):
        raise PrivacyError(
            "the data is not what it was when its statistics were asked for, and the noise that was drawn for them "
            "hides nothing twice. Go on with the same data, or begin a new run."
        )
    if asked != question:
        raise PrivacyError(
            f"what is asked of the data is not what it was when noise was drawn for it ({asked}; now {question}), and "
            "the same noise in two answers hides neither. Put schema.toml and config.toml back as they were, or begin "
            "a new run."
        )
    return key


def add_record(folder: Path, values: Mapping[str, Any]) -> None:
    """Add a line to the metrics; of two for one step, after a crash, the later holds."""
    try:
        storage.append(folder / METRICS, f"{json.dumps(values)}\n".encode(), durable=False)
    except OSError as error:
        raise ConfigError(f"{folder / METRICS} cannot be written: {error}") from error


def mend_records(folder: Path) -> None:
    """Take away a line of the metrics that was cut off by a crash."""
    if (folder / METRICS).exists():
        write(folder / METRICS, "".join(f"{line}\n" for _, line in _records(folder)))


def complete_records(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Add those of the `records` to the metrics that a crash took, and have all of them on disk."""
    lines = _records(folder)
    steps = {step for step, _ in lines}
    lines += [(int(values["step"]), json.dumps(values)) for values in records if values["step"] not in steps]
    write(folder / METRICS, "".join(f"{line}\n" for _, line in lines))


def _records(folder: Path) -> list[tuple[int, str]]:
    """The lines of the metrics with their steps, up to one that cannot be read."""
    path, lines = folder / METRICS, []
    try:
        text = storage.read(path).decode(errors="replace") if storage.is_file(path) else ""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for line in text.splitlines():
        try:
            lines.append((int(parse_json(line)["step"]), line))
        except (ValueError, KeyError, TypeError):
            break
    return lines


def digests(folder: Path, *names: str) -> dict[str, str]:
    """The hashes of those files that are there."""
    try:
        return {name: storage.digest(folder / name) for name in names if storage.is_file(folder / name)}
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error}") from error
