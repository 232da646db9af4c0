"""An entry of a registry has the form that the registry asks for, and says nothing that was not derived or declared."""

import datetime
import math
from dataclasses import replace

import pytest
import yaml
from small_ledgers import counted

from discreet import ConfigError, PrivacyError
from discreet.report import read_all, registry

DECLARED = {
    "name": 'A model: of «ε»\n"quoted" # no comment \u2028\x7f\ud83d\ude00'.encode("utf-16", "surrogatepass").decode(
        "utf-16"
    ),
    "curators": ["An office", "- another: one"],
    "description": "yes",
    "purpose": "to plan",
    "region": "12",
    "published": "2026-11-19",
    "authors": ["null"],
}
TEXT, NUMBER = str, (int, float)
FORM = {  # of an entry, as OpenDP's deployments registry has it: names in full, with what may stand there
    "url_slug": TEXT,
    "status": {"Converted", "Draft", "Pending", "Changes Required", "Approved"},
    "tier": {1, 2, 3},
    "deployment": {
        "basic": {
            "name": TEXT,
            "data_curators": list,
            "intended_use": TEXT,
            "data_product_type": {"Machine learning model"},
            "data_product_region": TEXT,
            "description": TEXT,
            "publication_date": TEXT,
            "data_product_sector": {"Technology", "Healthcare", "Education", "Government", "Energy", "Finance"},
        },
        "dp_variant": {
            "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
            "data_domain": TEXT,
            "unprotected_quantities": TEXT,
        },
        "privacy_loss": {
            "privacy_unit": TEXT,
            "privacy_unit_details": TEXT,
            "privacy_parameters": {"epsilon": NUMBER, "delta": NUMBER},
            "privacy_parameters_details": TEXT,
        },
        "deployment_model": {
            "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
            "model_name_details": TEXT,
            "actors": TEXT,
            "release_type": {"One release", "Many releases"},
            "release_type_details": TEXT,
            "data_source_type": {"Static", "Dynamic"},
            "access_type": {"Interactive", "Non-interactive"},
            "access_type_details": TEXT,
        },
        "accounting": {"post_processing": TEXT, "composition": TEXT},
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": TEXT,
            "mechanisms": TEXT,
            "justification": TEXT,
        },
        "administrative": {"sources": TEXT, "notes": TEXT, "registry_authors": list},
    },
}
OPTIONAL = {"data_product_sector", "release_type", "data_source_type", "sources"}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "ledger.jsonl"
    counted(path, 5)
    (found,) = read_all(path)
    return found


def wrong(value, form, path=""):
    """Where a value is not of a form."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return [path]
        lacking = [f"{path}/{name}" for name in form.keys() - value.keys() - OPTIONAL]
        return [
            *lacking,
            *(f"{path}/{name}" for name in value.keys() - form.keys()),
            *(w for name in value.keys() & form.keys() for w in wrong(value[name], form[name], f"{path}/{name}")),
        ]
    if isinstance(form, set):
        return [] if value in form else [path]
    texts = form is not list or (value and all(isinstance(item, str) for item in value))
    return [] if isinstance(value, form) and texts else [path]


def test_an_entry_has_the_registrys_form_and_texts_stay_texts(record):
    entry = yaml.safe_load(registry(record, DECLARED))
    assert wrong(entry, FORM) == []
    basic = entry["deployment"]["basic"]
    assert {k: basic[k] for k in ("name", "description", "data_product_region")} == {
        "name": DECLARED["name"],
        "description": "yes",
        "data_product_region": "12",
    }
    assert basic["data_curators"] == DECLARED["curators"]
    assert entry["deployment"]["administrative"]["registry_authors"] == ["null"]
    assert datetime.date.fromisoformat(basic["publication_date"]) == datetime.date(2026, 11, 19)
    assert registry(record, DECLARED).startswith(f"url_slug: {entry['url_slug']}\n")


def test_what_the_guarantee_says_is_never_understated(record):
    loss = yaml.safe_load(registry(record, DECLARED))["deployment"]["privacy_loss"]
    epsilon = record.guarantee.epsilon
    assert epsilon <= loss["privacy_parameters"]["epsilon"] < epsilon + 1e-3
    assert loss["privacy_parameters"]["delta"] == record.guarantee.delta
    assert record.guarantee.gaussian().mu <= float(loss["privacy_parameters_details"].split("mu = ")[1].split(" ")[0])


def test_everything_that_may_be_declared_has_a_place(record):
    more = {"releases": "many", "data_source": "dynamic", "sector": "Finance", "sources": "a page", "notes": "a note"}
    words = {
        "tuning": "T!",
        "exploration": "E!",
        "actors": "A!",
        "security": "S!",
        "justification": "J!",
        "domain": "D!",
    }
    entry = yaml.safe_load(registry(record, DECLARED | more | words))
    assert wrong(entry, FORM) == []
    assert entry["deployment"]["deployment_model"]["release_type"] == "Many releases"
    assert entry["deployment"]["deployment_model"]["data_source_type"] == "Dynamic"
    assert all(word in str(entry) for word in words.values())


def test_what_is_not_covered_is_always_in_it(record):
    notes = yaml.safe_load(registry(record, DECLARED))["deployment"]["administrative"]["notes"]
    for what in ("tuning", "exploration", "invariants", "timing", "access"):
        assert f"{what} (not stated)" in notes


@pytest.mark.parametrize("name", DECLARED)
def test_what_the_registry_needs_is_not_made_up(record, name):
    with pytest.raises(ConfigError, match=f"nobody has declared: {name};"):
        registry(record, {k: v for k, v in DECLARED.items() if k != name})


@pytest.mark.parametrize(("name", "value"), [("published", "soon"), ("sector", "Games"), ("releases", "few")])
def test_what_the_registry_does_not_know_is_refused(record, name, value):
    with pytest.raises(ConfigError, match=rf"\[statement\] {name} is '{value}'"):
        registry(record, DECLARED | {name: value})


def test_a_run_whose_guarantee_does_not_hold_has_no_entry(record):
    with pytest.raises(PrivacyError, match="no guarantee that could be stated"):
        registry(replace(record, doubts=("Something is wrong.",)), DECLARED)
    with pytest.raises(PrivacyError, match="Not private"):
        registry(replace(record, guarantee=replace(record.guarantee, epsilon=math.inf)), DECLARED)
