"""What a person signs: who answers for a run, what is protected and how, and what is not covered.

The fields are those of the checklists of NIST SP 800-226 (the privacy pyramid) and of "How to DP-fy ML" (reporting
guarantees). Each is derived from the ledger, declared by people in a `[statement]` table, or marked as not stated.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from discreet.accounting.guarantee import Guarantee, round_up
from discreet.report.html import Html, mark, section, table, text
from discreet.report.merit import apart
from discreet.report.record import Record
from discreet.report.terms import explained

NOT_STATED = "not stated"


class Field(NamedTuple):
    """A line of the statement: what it is about, what the ledger or the configuration says, what people declare."""

    name: str
    derived: str = ""
    declared: str = ""


class Uncovered(NamedTuple):
    """Something that no epsilon covers: what it is, and what was declared about it."""

    name: str
    words: str
    declared: str = ""


def statement_section(record: Record) -> Html:
    """The statement as tables, one for each part of the checklists."""
    parts = []
    for title, fields in statement(record).items():
        rows = []
        for field in fields:
            said = [(mark("derived", "proven"), field.derived)] if field.derived else []
            said += [(mark("declared", "assumed"), field.declared)] if field.declared else []
            for number, (how, words) in enumerate(said or [(mark(NOT_STATED, "missing"), "")]):
                rows.append((field.name if number == 0 else "", explained(words), how))
        shown = table(("field", "what it says", "how it is known"), rows, kind="cards fields")
        parts.append(Html(f"<h3>{text(title)}</h3>{shown}"))
    words = (
        "Derived is what follows from the ledger and the configuration. Declared is what people have said in the "
        "[statement] table; nothing here checks it. The fields are those of the checklists of NIST SP 800-226 and of "
        "How to DP-fy ML."
    )
    return section("Statement", Html(f"<p>{explained(words)}</p>"), *parts)


def uncovered_section(record: Record) -> Html:
    """What the guarantee says nothing about, always listed whole."""
    rows = []
    for item in uncovered(record):
        said = item.declared or NOT_STATED
        rows.append((item.name, item.words, mark(said, "assumed" if item.declared else "missing")))
    return section("What is not covered", table(("what", "why", "declared"), rows, kind="cards fields uncovered"))


def statement(record: Record) -> dict[str, list[Field]]:
    """Every field, by part of the checklists."""
    said, proven = _Said(record.statement), record.guarantee
    return {
        "Who answers for it": [
            Field("name", record.name if not said("name") else "", said("name")),
            Field("owner", "", said("curators")),
            Field("purpose", "", said("purpose")),
            Field("what it is", "", said("description")),
            Field("date", _when(record), said("published")),
            Field("who filled this in", "", said("authors")),
        ],
        "What is protected": [
            Field("data set", _data(record)),
            Field("data domain, region", "", "; ".join(filter(None, (said("domain"), said("region"), said("sector"))))),
            Field("how the data were collected", "", said("collection")),
            Field("unit of privacy", f"each {proven.protected}", said("unit")),
            Field("adjacency", _ADJACENCY[proven.adjacency]),
            Field("what is public of the data", _public(record), said("public")),
        ],
        "How it is protected": [
            Field("privacy parameters", f"ε = {round_up(proven.epsilon)}, δ = {proven.delta:g}"),
            Field("kind of guarantee", "approximate differential privacy, proven for the worst data set and attacker"),
            Field("accountant", _accountant(proven)),
            Field("what the accounting rests on", _rests_on(proven)),
            Field("accesses to the data that are covered", _accesses(record)),
            Field("mechanism", mechanism(record)),
            Field("arithmetic", _ARITHMETIC[record.plan.mechanism.hardening]),
            Field("tuning", tuned(proven), said("tuning")),
            Field("total over the data set", total(record)),
        ],
        "What is released, and to whom": [
            Field("what is released", "the model after every step, not only the last, and every noisy gradient"),
            Field("to whom", "", said("released_to")),
            Field("how often", "", "; ".join(filter(None, (said("releases"), said("data_source"))))),
            Field("trust model", trust(record), said("actors")),
            Field("ledger's key", "", said("key")),
            Field("security and access", "", said("security")),
            Field("how it can be checked", _checked(record)),
        ],
        "What it is worth": [
            Field("data for evaluation", _evaluation(record), said("evaluation")),
            Field("utility", _utility(record)),
            Field("bias", apart(record.merit or {}), said("bias")),
            Field("why these choices", "", said("justification")),
        ],
    }


def uncovered(record: Record) -> list[Uncovered]:
    """What no epsilon of this run says anything about."""
    said, proven = _Said(record.statement), record.guarantee
    counted = record.verified is not None and record.verified.dataset is not None
    elsewhere = (
        "other runs on the data set are in its total" if counted else "other runs on the same data are not in it"
    )
    return [
        Uncovered(
            "tuning",
            f"{tuned(proven)}; {elsewhere}"
            if proven.tuning
            else f"Settings that were chosen by trying them on the same data: {elsewhere}.",
            said("tuning"),
        ),
        Uncovered(
            "exploration",
            "Whatever was looked at in the data before: plots, cleaning, which columns to use. Only what went "
            "through the "
            "ledger is counted.",
            said("exploration"),
        ),
        Uncovered("invariants", f"What is taken to be public: {_public(record)}.", said("public")),
        Uncovered(
            "timing", "How long steps took, how large batches were, memory, logs of losses on the data.", said("timing")
        ),
        Uncovered(
            "access",
            "Who can reach the data, the machine, checkpoints or the ledger's key. The guarantee is about what was "
            "released.",
            said("security"),
        ),
        Uncovered(
            "data for evaluation",
            "Figures on held-out data are exact: they protect nobody whose data these are.",
            said("evaluation"),
        ),
        Uncovered(
            "others' data",
            "What friends, relatives or colleagues reveal, and what is true of people in general. Somebody with "
            "several "
            f"{proven.unit}s in the data is protected less.",
        ),
        *(
            [Uncovered("rounding", "The proof is for exact arithmetic; sums and noise were floating-point numbers.")]
            if record.plan.mechanism.hardening != "exact"
            else []
        ),
    ]


# --- what is derived -------------------------------------------------------------------------------------------------


class _Said:
    """What people have declared, field by field, as text; nothing where they have not."""

    def __init__(self, statement: Mapping[str, Any]) -> None:
        self._statement = statement

    def __call__(self, name: str) -> str:
        value = self._statement.get(name)
        return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value).strip()


_ADJACENCY = {
    "zero-out": "zero-out: a unit's record is replaced by one that contributes nothing; how many there are is public",
    "add-remove": "add-remove: a unit's data are there or not",
    "replace": "replace: a unit's data are replaced by any others",
}
_ARITHMETIC = {
    "idealised": "floating-point numbers; the proof is for exact ones",
    "exact": "sums and noise are whole numbers, as in the proof",
}


def mechanism(record: Record) -> str:
    """The stages, by their settings."""
    stages = record.plan.mechanism
    said = f"{stages.bound!r}, {stages.noise!r}, {record.plan.sampling!r}, {record.plan.steps:,} steps"
    return re.sub(r", \w+=None\b", "", said)


def tuned(proven: Guarantee) -> str:
    """What of choosing among runs is in epsilon; nothing where nothing is."""
    return "" if proven.tuning is None else f"in ε: the run is the best of several, {proven.tuning!r}"


def total(record: Record) -> str:
    """What all that was asked of the data set costs together."""
    verified = record.verified
    if verified is None or verified.dataset is None:
        return "not known: the run's ledger is its own, and counts no other run on these data"
    if verified.total is None or math.isinf(verified.total.epsilon):
        return f"nothing is proven of data set {verified.dataset!r} as a whole"
    when = "" if verified.extract is None else f" as of {verified.extract.at}"
    whole = f"ε = {round_up(verified.total.epsilon)}, δ = {verified.total.delta:g}"
    return f"{whole} for all that was asked of data set {verified.dataset!r}{when}"


def trust(record: Record) -> str:
    """Who is trusted with the data, as far as the run itself shows."""
    if record.config.get("federated"):
        return "Central: the server sees each user's update before noise is added, and is trusted with it"
    return "Central: whoever ran the training saw the data, and is trusted with them"


def _rests_on(proven: Guarantee) -> str:
    """How many conditions there are of each kind; the page lists them."""
    count = Counter[str](condition.status for condition in proven.conditions)
    order = [kind for kind in ("broken", "proven", "checked", "assumed") if count[kind]]
    kinds = ", ".join(f"{count[kind]} {kind}" for kind in order)
    return f"conditions, listed under What is proven: {kinds}" if kinds else ""


def _accesses(record: Record) -> str:
    """What of all that was done with the data is in epsilon."""
    proven, own = record.guarantee, record.own
    training = "" if own is None else f"{own.planned:,} steps of training, and all that the proof lists beside them"
    return "; ".join(filter(None, (training, tuned(proven))))


def _checked(record: Record) -> str:
    """Who can derive the figures again, of what."""
    if record.verified is None:
        return ""
    versions = ", ".join(f"{name} {found}" for name, found in record.versions.items())
    made = f"; made with {versions}" if versions else ""
    return f"discreet verify derives ε from the ledger alone, by open code{made}"


def _accountant(proven: Guarantee) -> str:
    return proven.proof.rpartition("; accounted by ")[2] if "; accounted by " in proven.proof else proven.proof


def _when(record: Record) -> str:
    began = "" if record.own is None else record.own.began
    return f"training began {began[:10]}" if began else ""


def _data(record: Record) -> str:
    named = record.config.get("data")
    name = Path(str(named.get("name", ""))).name if isinstance(named, Mapping) else ""
    dataset = record.verified.dataset if record.verified is not None else None
    return ", ".join(filter(None, (name, f"data set {dataset!r} of its ledger" if dataset is not None else "")))


def _public(record: Record) -> str:
    count = f"how many {record.guarantee.unit}s there are, " if record.guarantee.adjacency == "zero-out" else ""
    return f"{count}the model's architecture, all settings, and the ranges and categories that are stated"


def _evaluation(record: Record) -> str:
    data = record.config.get("data")
    if not isinstance(data, Mapping) or (record.accuracy is None and record.merit is None):
        return ""
    share = data.get("validation") or 0.0
    if share:
        return f"{share:.0%} of the training part, chosen by a hash; not protected"
    return "rows that were held out of training; not protected"


def _utility(record: Record) -> str:
    merit = record.merit
    if merit is not None and "rmse" in merit:
        return f"root mean square error {merit['rmse']:.3g}, of always the mean {merit['mean_rmse']:.3g}"
    if record.accuracy is None:
        return ""
    beside = "" if merit is None else f"; the commonest class is {merit['majority']:.1%}"
    return f"accuracy {record.accuracy:.1%} on held-out data{beside}"
