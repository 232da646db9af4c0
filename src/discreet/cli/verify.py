"""discreet verify."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from discreet.cli.options import AsJson
from discreet.cli.printing import print_json
from discreet.errors import ConfigError, PrivacyError


def verify(
    ledgers: Annotated[list[Path], typer.Argument(help="A ledger file, or a run's folder; several are compared.")],
    key: Annotated[Path | None, typer.Option(help="A file with the key that signed the ledger.")] = None,
    anchor: Annotated[
        str | None, typer.Option(help="The hash of a line that must be there, as it was printed or stored elsewhere.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a ledger is as it was written, and re-derive what is proven from the file alone.

    Of a run's folder, its model, metrics and statistics are compared with the hashes in its ledger. Of several, it is
    also looked whether one run was copied and continued twice. Exits with 1 if something was changed, moved or taken
    out, and says what.
    """
    from discreet.ledger.forks import forks
    from discreet.ledger.verification import ledger_of

    secret = None if key is None else _read_key(key)
    if len(ledgers) > 1 and anchor is not None:
        raise ConfigError(f"an anchor is of one ledger, and {len(ledgers)} are named; verify each by itself.")
    results = [_verified(ledger, secret, anchor) for ledger in ledgers]
    holds = all(result["holds"] for result in results)
    parted = []
    if len(ledgers) > 1 and holds:
        parted = forks([ledger_of(place) if place.is_dir() else place for place in ledgers])
    if as_json:
        told = [{k: v for k, v in result.items() if k != "words"} for result in results]
        several = {"holds": holds and not parted, "ledgers": told, "forks": [asdict(fork) for fork in parted]}
        print_json(told[0] if len(told) == 1 else several)
    else:
        for result in results:
            if result["holds"]:
                Console().print(Text(result["words"]))
            else:
                _print_broken(result["reason"])
        for fork in parted:
            _print_broken(str(fork))
    if parted or not holds:
        raise typer.Exit(1)


def _verified(ledger: Path, key: bytes | None, anchor: str | None) -> dict[str, Any]:
    """What is found of one ledger, with the words for it."""
    from discreet.ledger.verification import verify as check

    try:
        verified = check(ledger, key=key, anchor=anchor)
    except PrivacyError as error:
        return {"holds": False, "reason": str(error)}
    return {"holds": True} | verified.to_dict() | {"words": str(verified)}


def _print_broken(reason: str) -> None:
    Console(stderr=True).print(Text.assemble(("does not hold: ", "bold red"), reason), soft_wrap=True)


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the key cannot be read from {path}: {error}") from error
