"""The statement of a run as an entry of a public registry, in the form of OpenDP's deployments registry (tier 3).

https://github.com/opendp/deployments-registry-data has the schema and the entries. What only people can say comes from
the `[statement]` table; all else is derived from the ledger.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

from discreet.accounting.guarantee import round_up
from discreet.errors import ConfigError, PrivacyError
from discreet.report.record import Record
from discreet.report.statement import NOT_STATED, mechanism, statement, total, trust, tuned, uncovered

SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
_NEEDED = ("name", "curators", "description", "purpose", "region", "published", "authors")


def registry(record: Record, declared: Mapping[str, Any] | None = None) -> str:
    """The entry as YAML.

    Args:
        record: the run.
        declared: what people declare, in place of the run's own `[statement]`.

    Raises:
        ConfigError: the registry needs something that nobody has declared.
        PrivacyError: the run's guarantee does not hold, so there is nothing to state.
    """
    record = record if declared is None else replace(record, statement=declared)
    if not record.holds:
        why = record.doubts[0] if record.doubts else "Not private as it stands."
        raise PrivacyError(f"{record.name} has no guarantee that could be stated in a registry. {why}")
    missing = [name for name in _NEEDED if not record.statement.get(name)]
    if missing:
        raise ConfigError(
            f"the registry needs what nobody has declared: {', '.join(missing)}; say it in [statement], in the "
            "run's file "
            "or in one for --statement."
        )
    return (
        _yaml(entry(record)).replace('url_slug: "', "url_slug: ", 1).replace('"\n', "\n", 1)
    )  # as the registry has it


def entry(record: Record) -> dict[str, Any]:
    """The entry as plain values."""
    said, proven = record.statement, record.guarantee
    name, curators, published = str(said["name"]), _names(said["curators"]), _day(said["published"])
    told = {field.name: field for part in statement(record).values() for field in part}
    basic = {
        "name": name,
        "data_curators": curators,
        "description": said["description"],
        "intended_use": said["purpose"],
        "data_product_type": "Machine learning model",
        "data_product_region": said["region"],
        "publication_date": published,
        "data_product_sector": _one_of("sector", said.get("sector"), {s: s for s in SECTORS}),
    }
    deployment = {
        "basic": basic,
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": _said(said, "domain"),
            "unprotected_quantities": _both(told["what is public of the data"]),
        },
        "privacy_loss": {
            "privacy_unit": str(said.get("unit") or proven.protected),
            "privacy_unit_details": f"The unit is each {proven.protected}. Adjacency, {told['adjacency'].derived}.",
            "privacy_parameters": {"epsilon": _up(proven.epsilon), "delta": proven.delta},
            "privacy_parameters_details": _parameters(record),
        },
        "deployment_model": {
            "model_name": "Federated" if record.config.get("federated") else "Central",
            "model_name_details": f"{trust(record)}.",
            "actors": _said(said, "actors"),
            "release_type": _one_of("releases", said.get("releases"), {"one": "One release", "many": "Many releases"}),
            "release_type_details": f"What is released: {told['what is released'].derived}. To whom: "
            f"{_said(said, 'released_to')}",
            "data_source_type": _one_of(
                "data_source", said.get("data_source"), {"static": "Static", "dynamic": "Dynamic"}
            ),
            "access_type": "Non-interactive",
            "access_type_details": "The model is used as it is; nobody asks the data anything.",
        },
        "accounting": {
            "post_processing": "Whatever is computed from the noisy gradients: the optimizer, averages, the model "
            "itself.",
            "composition": f"{_sentence(proven.proof)} {_sentence(total(record))}",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": _tuning(record),
            "mechanisms": f"{mechanism(record)}. Library: discreet {record.versions.get('discreet', '')}. Arithmetic: "
            f"{told['arithmetic'].derived}. Security: {_said(said, 'security')}",
            "justification": _said(said, "justification"),
        },
        "administrative": {
            "sources": said.get("sources"),
            "notes": _notes(record),
            "registry_authors": _names(said["authors"]),
        },
    }
    slug = "_".join(_clean(part) for part in (name, "-".join(curators), published[:4])).replace("_", "-")
    return _without_none({"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment})


# --- what the registry asks for ---------------------------------------------------------------------------------------


def _parameters(record: Record) -> str:
    proven = record.guarantee
    fit = proven.gaussian()
    one = (
        f"As one figure, mu = {math.ceil(fit.mu * 1000) / 1000:.3f} of Gaussian DP, whose trade-off curve the proven "
        f"one follows to within {max(fit.error, fit.slack):.2g}."
    )
    return (
        f"Proven from the run's ledger, epsilon rounded up ({round_up(proven.epsilon)}); it covers the model after "
        "every "
        f"step. {one}"
    )


def _tuning(record: Record) -> str:
    said = record.statement
    counted = tuned(record.guarantee) or "Choosing among runs is not in epsilon."
    return f"{counted} Tuning: {_said(said, 'tuning')} Exploration: {_said(said, 'exploration')}"


def _notes(record: Record) -> str:
    listed = "; ".join(f"{item.name} ({item.declared or NOT_STATED})" for item in uncovered(record))
    own = "" if record.statement.get("notes") is None else f"{record.statement['notes']} "
    head = "" if record.verified is None else f" The ledger's last hash is {record.verified.head}."
    return f"{own}Not covered by the guarantee: {listed}.{head}"


def _said(statement: Mapping[str, Any], name: str) -> str:
    return str(statement.get(name) or "Not stated.").strip()


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _both(field: Any) -> str:
    return "; ".join(filter(None, (field.derived, field.declared)))


def _names(value: Any) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else [str(value)]


def _one_of(name: str, value: Any, words: Mapping[str, str]) -> str | None:
    if value is None:
        return None
    if value not in words:
        raise ConfigError(f"[statement] {name} is {value!r}; a registry knows {', '.join(words)}.")
    return words[value]


def _day(value: Any) -> str:
    try:
        return date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise ConfigError(f"[statement] published is {value!r}; it is a day, as 2026-11-19.") from None


def _up(epsilon: float) -> float:
    return float(round_up(epsilon))


def _clean(words: str) -> str:
    return re.sub(r"\W+", "_", words.lower())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value


# --- YAML ------------------------------------------------------------------------------------------------------------


def _yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Tables, lists of texts, numbers and texts as YAML, each text in double quotes or as a block."""
    lines = []
    for key, held in value.items():
        if isinstance(held, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(held, indent + '  ')}")
        elif isinstance(held, list):
            lines.append(f"{indent}{key}:\n" + "".join(f"{indent}  - {_scalar(item)}\n" for item in held))
        else:
            lines.append(f"{indent}{key}: {_scalar(held)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    """A number or a text; a text as JSON, whose escapes YAML has too, with nothing in it that YAML refuses."""
    if isinstance(value, float):
        return (
            repr(float(f"{value:.12g}"))
            if 1e-4 <= value < 1e9
            else f"{value:.12f}".rstrip("0")
            if 1e-9 <= value < 1e9
            else json.dumps(f"{value:g}")
        )
    if isinstance(value, int):
        return str(value)
    quoted = json.dumps(str(value), ensure_ascii=False)
    return re.sub(
        r"[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]", _escaped, quoted
    )


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
