"""How a run ended: what it leaves behind, and what its folder says of it afterwards."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from discreet._documents import parse_json
from discreet.accounting.guarantee import Guarantee
from discreet.audit.witness import RunAuditor
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import Ledger, conclude, storage
from discreet.ledger.extract import EXTRACT, write_extract
from discreet.ledger.reading import has_hash
from discreet.ledger.verification import verify_folder
from discreet.runs import folder as run_folder
from discreet.runs.config import Config
from discreet.runs.folder import FOUND, METRICS, SCHEMA, STATISTICS, write
from discreet.runs.trained.card import CARD, card
from discreet.runs.trained.manifest import MANIFEST, Manifest
from discreet.training.state import FitResult

Made = tuple[Config, Manifest]  # what was asked for, and what it was trained as


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    guarantee: Guarantee
    accuracy: float | None
    finished: bool
    lost: int
    anchor: str
    already: bool = False  # it had finished before
    audit: Mapping[str, Any] | None = None  # what canaries in it showed
    stages: tuple[type[Any], ...] = ()  # bounds, noises and samplers of one's own
    merit: Mapping[str, Any] | None = None  # what its figures on held-out data are worth


def read_end(folder: str | Path, stages: Sequence[type[Any]] = ()) -> Outcome | None:
    """How a run ended, if it has: derived from its ledger, and compared with what its folder says.

    `stages` are bounds, noises and samplers of one's own, by class.
    """
    place, merit = Path(folder), None
    end = place / "end.json"
    if not os.path.lexists(end):
        return None
    verified, own = verify_folder(place, stages)
    try:
        values = parse_json(storage.read_text(end))
        stated = Guarantee.from_json(storage.read_text(place / "guarantee.json"), stages)
        accuracy, lost, anchor = values["accuracy"], values["lost"], values["anchor"]
        if own.ended:
            last = _last(storage.read_text(place / METRICS))
            measured, merit = last.get("accuracy"), last.get("merit")
            said = [("accuracy", accuracy, measured), ("lost", lost, own.lost), ("anchor", anchor, own.head)]
        else:
            said = [("anchor", has_hash(Path(verified.path), str(anchor)), True)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} has finished, but cannot be read: {error}") from error
    if not verified.old and not own.ended:
        raise PrivacyError(
            f"{folder} says that it has finished, and {verified.path} does not: it was cut short, or end.json is "
            "another run's."
        )
    for name, stored, derived in said:
        if stored != derived:
            raise PrivacyError(f"{end} was changed: its {name} is not what the run left.")
    if stated.epsilon < own.guarantee.epsilon * (1 - 1e-9) or stated.delta != own.guarantee.delta:
        raise PrivacyError(
            f"{folder}/guarantee.json says less than its ledger proves (epsilon {own.guarantee.epsilon:.4g}); it was "
            "changed."
        )
    if own.ended and stated != own.guarantee:
        raise PrivacyError(f"{folder}/guarantee.json is not what its ledger proves, word for word; it was changed.")
    own_stages = tuple(stages)
    return Outcome(place, own.guarantee, accuracy, True, lost, anchor, already=True, stages=own_stages, merit=merit)


def _last(metrics: str) -> Mapping[str, Any]:
    """What was measured of the last step; of two lines for it, after a crash, the later holds."""
    records = [parse_json(line) for line in reversed(metrics.splitlines())]
    return max(records, key=lambda values: values["step"], default={})


def write_end(
    fitted: FitResult, folder: Path, ledger: Ledger, auditor: RunAuditor | None, made: Made | None = None
) -> Outcome:
    """Write what a run leaves behind; the file that says it has finished comes last.

    The ledger is closed once the files are there whose hashes it has, and what is proven is what it proves.
    """
    run, end, audit = fitted.run, None, None
    run_folder.keep_name(folder, run)
    run_folder.complete_records(folder, fitted.records)
    if fitted.finished:
        weights = {n: t.detach().cpu().clone().contiguous() for n, t in fitted.model.state_dict().items()}
        write(folder / "model.safetensors", lambda path: save_file(weights, path))
        names = ["model.safetensors", MANIFEST, METRICS, STATISTICS, SCHEMA, FOUND]
        if auditor is not None:
            audit = {"audited": "run"} | auditor.figures(fitted.guarantee)
            write(folder / "audit.json", json.dumps(audit))
            names.append("audit.json")
        end = {"files": run_folder.digests(folder, *names), "lost": fitted.lost}
    anchor = conclude(ledger, run, fitted.rests_on, end)
    if fitted.finished and ledger.dataset is not None:  # one that goes on may release more than an extract says
        write_extract(ledger, run, folder / EXTRACT)
    try:
        own = verify_folder(folder, ledger.stages)[1]
        proven = own.guarantee
        if fitted.finished and made is not None:
            write(folder / CARD, card(folder, *made, own, fitted.records[-1] if fitted.records else {}))
    except ConfigError:  # it was stopped before anything was counted
        proven = fitted.guarantee
    write(folder / "guarantee.json", proven.to_json())
    write(folder / "guarantee.txt", f"{proven}\n")
    if fitted.finished:
        write(folder / "end.json", json.dumps({"accuracy": fitted.accuracy, "lost": fitted.lost, "anchor": anchor}))
        if auditor is not None:
            auditor.forget_secret()
    merit = fitted.records[-1].get("merit") if fitted.records else None
    return Outcome(
        folder,
        proven,
        fitted.accuracy,
        fitted.finished,
        fitted.lost,
        anchor,
        audit=audit,
        stages=ledger.stages,
        merit=merit,
    )
