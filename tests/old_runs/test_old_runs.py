"""Runs, plans, ledgers and checkpoints of an earlier version are read, hold, and are continued."""

import json
import math
import tomllib

import pytest
import torch
from old_runs.old_plans import PLANS
from old_runs.old_runs import HERE, KEPT, KEY, cli, go_on, put, stateful, verified

import discreet
from discreet import ConfigError, Ledger, Plan, PrivacyError

KNOWN = json.loads((HERE / "known.json").read_text())
RUNS = KNOWN["runs"]
FINISHED = [name for name, known in RUNS.items() if known["finished"]]
STOPPED = [name for name, known in RUNS.items() if not known["finished"]]
CLOSE = 1e-9  # what epsilon may differ by where others compute it


@pytest.fixture
def place(tmp_path):
    return put(tmp_path / "kept")


def plain(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def alike(found, known):
    """The same words and whole numbers; figures as close as they are computed."""
    if isinstance(known, dict):
        assert set(found) == set(known)
        for name in known:
            alike(found[name], known[name])
    elif isinstance(known, list):
        assert len(found) == len(known)
        for one, other in zip(found, known, strict=True):
            alike(one, other)
    elif isinstance(known, float):
        assert found == pytest.approx(known, rel=CLOSE)
    else:
        assert found == known


def test_every_run_and_plan_that_is_kept_is_looked_at():
    assert {p.parent.name for p in KEPT.glob("*/config.toml")} == set(RUNS)
    assert {p.stem for p in (KEPT / "plans").iterdir()} == set(KNOWN["plans"]) == set(PLANS)
    assert {p.name for p in KEPT.glob("*.jsonl")} == set(KNOWN["ledgers"])
    assert FINISHED
    assert STOPPED


def check_page(folder, epsilon):
    text = (folder / "report.html").read_text()
    assert "differentially private" in text
    assert f"{math.ceil(epsilon * 1000) / 1000:.3f}" in text


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_verified(place, name):
    before = plain(place / name)
    alike(verified(place / name), RUNS[name]["verified"])
    assert plain(place / name) == before


@pytest.mark.parametrize("name", [*FINISHED, "earlier", "stopped"])
def test_a_page_is_made_of_a_run(place, name):
    folder, known = place / name, RUNS[name]["verified"]
    assert cli("report", folder).strip() == str(folder / "report.html")
    (epsilon,) = [run["epsilon"] for run in known["runs"] if run["run"] == known["own"]]
    check_page(folder, epsilon)


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_says_so_and_is_left_alone(place, name):
    (place / name / "report.html").write_text("a page, as there was one where it was made")
    before = plain(place / name)
    assert "has finished; nothing was done" in cli("resume", place / name)
    after = plain(place / name)
    assert {p: after[p] for p in before} == before
    told = json.loads(cli("resume", place / name, "--json"))
    assert told["finished"]
    assert told["accuracy"] == RUNS[name]["accuracy"]


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_is_finished(place, name):
    end = RUNS[name]["end"]
    told = json.loads(cli("resume", place / name, "--json"))
    assert told["finished"]
    assert told["lost_steps"] == end["lost"]
    assert told["guarantee"]["epsilon"] == pytest.approx(end["epsilon"], rel=CLOSE)
    assert told["guarantee"]["released"] == end["released"]
    found = verified(place / name)
    (run,) = [run for run in found["runs"] if run["run"] == found["own"]]
    assert run["released"] == end["released"]
    assert run["epsilon"] == pytest.approx(end["epsilon"], rel=CLOSE)
    check_page(place / name, run["epsilon"])
    assert "has finished; nothing was done" in cli("resume", place / name)


@pytest.mark.parametrize("name", KNOWN["ledgers"])
def test_a_ledger_is_verified(place, name):
    key = place / "key"
    key.write_bytes(KEY)
    alike(verified(place / name, *(("--key", key) if name == "signed.jsonl" else ())), KNOWN["ledgers"][name])


@pytest.mark.parametrize("name", KNOWN["ledgers"])
def test_a_changed_ledger_does_not_hold(place, name):
    path = place / name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-2], lines[-1]]))
    with pytest.raises(PrivacyError):
        discreet.verify(path, key=KEY if name == "signed.jsonl" else None)


def test_a_checkpoint_is_read_and_continued(place):
    parts = stateful()
    model, plan, optimizer, schedule = parts
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    private = discreet.attach(model, plan, ledger=place / "checkpoint.jsonl")
    restored = discreet.load_checkpoint(
        place / "checkpoint.safetensors", model=model, private=private, optimizer=optimizer, schedule=schedule
    )
    assert restored.lost == 0
    assert restored.extra["words"] == ["kept"]
    assert torch.equal(restored.extra["tensor"], torch.arange(3))
    assert private.released == schedule.last_epoch == 2
    assert all(not torch.equal(fresh[name], value) for name, value in model.state_dict().items())
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}
    norms = go_on(parts, private, None)
    assert len(norms) == 3  # the pass that was left is not gone on with
    assert private.remaining == 0
    assert all(math.isfinite(norm) for norm in norms)
    private.detach()
    (run,) = verified(place / "checkpoint.jsonl")["runs"]
    assert (run["released"], run["planned"]) == (5, 6)
    assert run["epsilon"] == pytest.approx(KNOWN["ledgers"]["checkpoint.jsonl"]["runs"][0]["epsilon"], rel=CLOSE)


def test_a_signed_ledger_is_continued_with_its_key_alone(place):
    parts = stateful()
    with pytest.raises(PrivacyError):
        discreet.attach(parts[0], parts[1], ledger=Ledger(place / "signed.jsonl", key=KEY[::-1]))
    private = discreet.attach(parts[0], parts[1], ledger=Ledger(place / "signed.jsonl", key=KEY))
    assert private.released == 2
    assert len(go_on(parts, private, None)) == 3
    private.detach()


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_read_as_it_was(name, tmp_path):
    kept, plan = KEPT / "plans" / f"{name}.toml", Plan.load(KEPT / "plans" / f"{name}.toml")
    assert plan == PLANS[name]
    assert json.loads(json.dumps(plan.to_dict())) == tomllib.loads(kept.read_text())
    plan.save(tmp_path / "plan.toml")
    assert (tmp_path / "plan.toml").read_text() == kept.read_text()
    known = KNOWN["plans"][name]
    if isinstance(known, str):
        with pytest.raises((ConfigError, PrivacyError)) as raised:
            plan.guarantee()
        assert type(raised.value).__name__ == known
    elif name == "poisson-cap":  # a cap is accounted by what it leaves now, not by its chance
        assert known * 0.999 < plan.guarantee().epsilon < known
    elif known is not None:
        assert plan.guarantee().epsilon == pytest.approx(known, rel=1e-6)
