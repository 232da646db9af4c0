"""discreet verify."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from discreet._documents import read_bytes
from discreet.cli.exits import HOLDS_NOT, complain
from discreet.cli.options import AsJson, OwnStages
from discreet.cli.printing import print_json
from discreet.errors import ConfigError, PrivacyError
from discreet.runs.terminal import Terminal


def verify(
    ledgers: Annotated[list[Path], typer.Argument(help="A ledger file, or a run's folder; several are compared.")],
    key: Annotated[Path | None, typer.Option(help="A file with the key that signed the ledger.")] = None,
    anchor: Annotated[
        str | None, typer.Option(help="The hash of a line that must be there, as it was printed or stored elsewhere.")
    ] = None,
    stages: OwnStages = None,
    as_json: AsJson = False,
) -> None:
    """Check that a ledger is as it was written, and re-derive what is proven from the file alone.

    Of a run's folder, its model, metrics and statistics are compared with the hashes in its ledger, and an extract with
    the ledger that it is of. Of several, it is also looked whether one run was copied and continued twice. Exits with 1
    if something was changed, moved or taken out, and says what.
    """
    from discreet.ledger.extract import EXTRACT
    from discreet.ledger.forks import forks
    from discreet.ledger.verification import ledger_of
    from discreet.stages.custom import stage_classes

    secret = None if key is None else _read_key(key)
    if len(ledgers) > 1 and anchor is not None:
        raise ConfigError(f"an anchor is of one ledger, and {len(ledgers)} are named; verify each by itself.")
    own = stage_classes(stages or [])
    results = [_verified(ledger, secret, anchor, own) for ledger in ledgers]
    holds, parted = all(result["holds"] for result in results), []
    if len(ledgers) > 1 and holds:
        places = [ledger_of(place) if place.is_dir() else place for place in ledgers]
        whole = [place for place in places if place.name != EXTRACT]
        parted = forks(whole)
        for number, place in enumerate(places):
            if place.name == EXTRACT:
                results[number] = _compared(place, whole, own) or results[number]
        holds = all(result["holds"] for result in results)
    if as_json:
        told = [{k: v for k, v in result.items() if k != "words"} for result in results]
        several = {"holds": holds and not parted, "ledgers": told, "forks": [asdict(fork) for fork in parted]}
        print_json(told[0] if len(told) == 1 else several)
    else:
        for result in results:
            if result["holds"]:
                Terminal().print(Text(result["words"]))
            else:
                _print_broken(result["reason"])
        for fork in parted:
            _print_broken(str(fork))
    if parted or not holds:
        raise typer.Exit(HOLDS_NOT)


def _compared(extract: Path, ledgers: Sequence[Path], stages: Sequence[type[Any]]) -> dict[str, Any] | None:
    """What is wrong with an extract of one of these ledgers; None if nothing is."""
    from discreet.ledger import read
    from discreet.ledger.extract import compare_extract, read_extract

    runs = read_extract(extract, stages=stages)[0].runs
    for ledger in ledgers:
        if runs.keys() & read(ledger, stages=stages)[0].runs.keys():
            try:
                compare_extract(extract, ledger, stages)
            except PrivacyError as error:
                return {"holds": False, "reason": str(error)}
    return None


def _verified(ledger: Path, key: bytes | None, anchor: str | None, stages: Sequence[type[Any]]) -> dict[str, Any]:
    """What is found of one ledger, with the words for it."""
    from discreet.ledger.verification import verify as check

    try:
        verified = check(ledger, key=key, anchor=anchor, stages=stages)
    except PrivacyError as error:
        return {"holds": False, "reason": str(error)}
    return {"holds": True} | verified.to_dict() | {"words": str(verified)}


def _print_broken(reason: str) -> None:
    complain(reason, "does not hold: ")


def _read_key(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except ConfigError as error:
        raise ConfigError(f"the key cannot be read: {error}") from error
