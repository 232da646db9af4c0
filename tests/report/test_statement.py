"""What is signed is derived from the ledger, declared by people, or marked as not stated: nothing else."""

from dataclasses import replace

import msgspec
import pytest
from small_ledgers import capped, counted, plan

from discreet import Tuning
from discreet.accounting.guarantee import round_up
from discreet.ledger import RunLedger
from discreet.report import Measure, read_all
from discreet.report.statement import NOT_STATED, statement, statement_section, uncovered, uncovered_section
from discreet.runs.schema import StatementSection

ALWAYS = {"tuning", "exploration", "invariants", "timing", "access", "data for evaluation", "others' data"}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "ledger.jsonl"
    counted(path, 5)
    return read_all(path)[0]


def fields(record):
    return {field.name: field for part in statement(record).values() for field in part}


def test_the_machines_fields_are_the_ledgers(record):
    found, proven = fields(record), record.guarantee
    assert found["privacy parameters"].derived == f"ε = {round_up(proven.epsilon)}, δ = {proven.delta:g}"
    assert found["unit of privacy"].derived == "each example"
    assert "Clip(norm=1.0)" in found["mechanism"].derived
    assert found["accountant"].derived in proven.proof
    assert found["date"].derived == f"training began {record.own.began[:10]}"
    assert "not known" in found["total over the data set"].derived


def test_the_checklists_ask_what_it_rests_on_what_is_covered_and_who_can_check_it(record):
    found, counts = fields(record), record.guarantee.conditions
    assert f"{sum(c.status == 'assumed' for c in counts)} assumed" in found["what the accounting rests on"].derived
    assert f"{record.own.planned} steps of training" in found["accesses to the data that are covered"].derived
    assert "from the ledger alone" in found["how it can be checked"].derived
    assert "None" not in found["mechanism"].derived
    assert fields(replace(record, verified=None))["how it can be checked"].derived == ""


def test_how_groups_fare_is_said_of_bias(record):
    groups = [{"name": "a", "rows": 9, "accuracy": 0.5}]
    measured = replace(
        record, measures=(Measure(step=5, accuracy=0.5, merit={"majority": 0.4, "group": "town", "groups": groups}),)
    )
    assert fields(measured)["bias"].derived == "By town: a 50.0% (9 rows)."


def test_what_nobody_has_said_is_marked_and_nothing_is_left_empty(record):
    page = statement_section(record)
    silent = [field.name for field in fields(record).values() if not field.derived and not field.declared]
    assert {"owner", "purpose", "to whom", "ledger's key", "bias"} <= set(silent)
    assert page.count(f">{NOT_STATED}</span>") == len(silent)


def test_every_field_that_can_be_declared_is_shown_somewhere(record):
    said = {
        f.name: [f"{f.name}!"] if f.type == list[str] else f"{f.name}!"
        for f in msgspec.structs.fields(StatementSection)
    }
    told = replace(record, statement=said)
    page = statement_section(told) + uncovered_section(told)
    missing = [name for name in said if f"{name}!" not in page]
    assert missing == ["sources", "notes"]  # which are a registry's


def test_what_it_is_worth_fits_the_task(record):
    of_numbers = {"rmse": 0.25, "mae": 0.2, "r2": 0.5, "mean_rmse": 0.5, "mean_mae": 0.4, "rows": 9}
    measured = replace(record, config={"data": {"name": "a/b.csv"}}, measures=(Measure(step=5, merit=of_numbers),))
    assert fields(measured)["utility"].derived == "root mean square error 0.25, of always the mean 0.5"
    assert "held out" in fields(measured)["data for evaluation"].derived
    assert fields(measured)["data set"].derived == "b.csv"
    assert not fields(record)["utility"].derived


def test_what_is_declared_is_text(record):
    page = statement_section(replace(record, statement={"purpose": "<script>", "curators": ["<b>"]}))
    assert "<script>" not in page
    assert "&lt;b&gt;" in page


def test_what_is_not_covered_is_listed_whatever_is_declared(record):
    assert {item.name for item in uncovered(record)} == {*ALWAYS, "rounding"}
    told = replace(record, statement=dict.fromkeys(("tuning", "exploration", "timing", "security"), "none"))
    assert {item.name for item in uncovered(told)} == {*ALWAYS, "rounding"}


def test_choosing_among_runs_is_said_to_be_counted_only_where_it_is(record):
    assert not fields(record)["tuning"].derived
    tuned = replace(record, guarantee=replace(record.guarantee, tuning=Tuning(runs=10)))
    assert "in ε" in fields(tuned)["tuning"].derived


def test_the_total_over_a_data_set_is_the_ledgers(tmp_path):
    ledger = capped(tmp_path / "patients.jsonl", 50.0)
    from small_ledgers import LAYOUT

    for _ in range(2):
        account = RunLedger(ledger, plan(), LAYOUT)
        account.spend()
        account.close()
    first, second = read_all(tmp_path / "patients.jsonl")
    assert first.name != second.name
    total = first.verified.total.epsilon
    assert total > first.guarantee.epsilon
    assert fields(first)["total over the data set"].derived.startswith(f"ε = {round_up(total)}, ")
    assert "'patients'" in fields(first)["data set"].derived
