"""A ledger is checked, and its guarantees re-derived, from the file alone; nothing forged is accepted."""

import json
import multiprocessing
from dataclasses import replace

import pytest
from forgery import mutations, rewritten
from small_ledgers import DATA, LAYOUT, capped, counted, plan
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import discreet
from discreet import (
    BudgetExhausted,
    ConfigError,
    Ledger,
    PerLayerClip,
    Plan,
    PrivacyError,
    Shuffled,
    StudentT,
    attach,
    verify,
)
from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.cli.app import app
from discreet.ledger import RunLedger

KEY = bytes(range(32))


def train(path, made=None, steps=None, model=None):
    model = model or nn.Linear(3, 2)
    private = attach(model, made or plan(), ledger=path)
    for x, y in private.batches(DATA, steps=steps):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    private.detach()
    return private


@pytest.mark.parametrize(
    "made",
    [
        plan(),
        plan(bound=PerLayerClip(0.5)),
        plan(noise=StudentT(9, 1.0)),
        plan(sampling=Shuffled(examples=20, batch_size=5)),
    ],
    ids=["clip", "per layer", "student", "shuffled"],
)
def test_the_guarantee_of_a_run_is_that_of_its_file(tmp_path, made):
    path = tmp_path / "ledger.jsonl"
    private = train(path, made)
    found = verify(path)
    (run,) = found.runs
    assert (run.planned, run.released, run.recovered) == (5, 5, 0)
    assert run.follows_from_its_plan
    assert run.guarantee.epsilon == pytest.approx(private.guarantee().epsilon)
    assert run.guarantee.adjacency == private.guarantee().adjacency
    assert found.lines == 6
    assert str(found).startswith(str(path))


def test_before_its_end_a_run_is_proven_to_its_declared_horizon(tmp_path):
    path = tmp_path / "ledger.jsonl"
    train(path, steps=2)
    (run,) = verify(path).runs
    assert run.released == 2
    assert run.guarantee.epsilon == pytest.approx(plan().guarantee().epsilon)


def test_a_torn_last_line_is_recognised_and_counted(tmp_path):
    path = tmp_path / "ledger.jsonl"
    counted(path)
    path.write_bytes(path.read_bytes() + b'{"at": "2026')
    found = verify(path)
    assert found.torn
    assert found.runs[0].released == 4
    assert "cut off by a crash" in str(found)
    assert RunLedger(Ledger(path), plan(), LAYOUT).released == 4


def test_an_anchor_shows_what_was_cut_off_the_end(tmp_path):
    path = tmp_path / "ledger.jsonl"
    head = counted(path).head
    whole = path.read_bytes()
    path.write_bytes(whole[: whole[:-1].rindex(b"\n") + 1])
    assert verify(path).runs[0].released == 2  # the chain alone cannot tell
    with pytest.raises(PrivacyError, match="lacks the line with hash"):
        verify(path, anchor=head)


def test_a_checkpoint_is_an_anchor(tmp_path):
    path, model = tmp_path / "ledger.jsonl", nn.Linear(3, 2)
    private = attach(model, plan(), ledger=path)
    for x, y in private.batches(DATA, steps=3):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    state = private.state_dict()
    private.detach()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    shortened = attach(model, plan(), ledger=path)
    with pytest.raises(PrivacyError, match="lacks a line that the checkpoint knows of"):
        shortened.load_state_dict(state)


def test_a_signed_ledger_cannot_be_rewritten_without_its_key(tmp_path):
    path, forged = tmp_path / "ledger.jsonl", tmp_path / "forged.jsonl"
    counted(path, key=KEY)
    assert verify(path, key=KEY).signed
    counted(forged, count=1, key=bytes(32))  # a whole new file by somebody else
    with pytest.raises(PrivacyError, match="damaged at line 1"):
        verify(forged, key=KEY)
    counted(tmp_path / "unsigned.jsonl", count=1)
    with pytest.raises(PrivacyError, match="damaged at line 1"):
        verify(tmp_path / "unsigned.jsonl", key=KEY)
    assert verify(path).runs[0].released == 3  # without the key the chain can still be read


def test_a_cost_that_does_not_follow_from_the_plan_is_a_forgery(tmp_path):
    """Somebody rewrites the whole file, chain and all, with a smaller cost of a step."""
    path = tmp_path / "ledger.jsonl"
    counted(path)

    def cheaper(content):
        content.get("phase", content)["multiplier"] = 50.0

    rewritten(path, cheaper)
    with pytest.raises(PrivacyError, match="not what its plan and parameters give"):
        verify(path)


def test_releases_that_claim_less_than_the_plan_are_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    counted(path)
    rewritten(path, setting(("release",), multiplier=50.0))
    with pytest.raises(PrivacyError, match="costs less than its plan"):
        verify(path)


def setting(kind, **values):
    def change(content):
        if content["kind"] in kind:
            content.update(values)

    return change


@pytest.mark.parametrize(
    "change",
    [
        setting(("run", "release"), participations=0),
        setting(("run",), participations=0),
        setting(("run",), participations=4),
        setting(("run",), **{"pass": 5}),
        setting(("release",), participations=0),
        setting(("run",), steps=6),
        setting(("run",), plan=[]),
        setting(("run",), plan={}),
        setting(("run",), parameters=[]),
        setting(("run",), parameters=[["w", None]]),
        setting(("run",), steps=None),
        setting(("release",), count=10**15),
        setting(("release",), multiplier=1e-200),
        lambda content: content.get("plan", {}).update(delta="x"),
        lambda content: content.get("plan", {}).update(format="zzz"),
        lambda content: content.get("plan", {}).get("noise", {}).update(multiplier="1"),
        lambda content: content.get("phase", {}).update(group=10**12),
    ],
)
def test_a_rewritten_file_that_does_not_add_up_is_refused(tmp_path, change):
    path = tmp_path / "ledger.jsonl"
    counted(path)
    rewritten(path, change)
    with pytest.raises(PrivacyError):
        verify(path)


def test_a_stage_that_is_not_known_makes_the_guarantee_unsound(tmp_path):
    path = tmp_path / "ledger.jsonl"
    counted(path)
    rewritten(path, lambda content: content.get("plan", {}).get("bound", {}).update(type="Mine"))
    (run,) = verify(path).runs
    assert not run.follows_from_its_plan
    assert not run.guarantee.sound


def test_the_cost_of_tuning_is_in_what_is_verified(tmp_path):
    path, made = tmp_path / "ledger.jsonl", replace(plan(), tuning=discreet.Tuning(20, "geometric"))
    counted(path, made=made)
    assert verify(path).runs[0].guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
    with pytest.raises(ConfigError, match="ledger of its own"):
        attach(nn.Linear(3, 2), made, ledger=capped(tmp_path / "patients.jsonl", 1e3))


def test_queries_count_against_the_plans_own_limit(tmp_path):
    path, limit = tmp_path / "ledger.jsonl", plan().guarantee().epsilon * 1.01
    Ledger(path).query("covariance", Event(1.0, 0.5, 10, adjacency="zero-out"))
    with pytest.raises(BudgetExhausted, match="more than its limit"):
        attach(nn.Linear(3, 2), replace(plan(), epsilon=limit), ledger=path)


def test_one_file_has_one_lock_whatever_its_folder_is_called(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "here")
    first = attach(nn.Linear(3, 2), plan(), ledger=tmp_path / "here" / "ledger.jsonl")
    with pytest.raises(PrivacyError, match="in use"):
        attach(nn.Linear(3, 2), plan(), ledger=tmp_path / "there" / "ledger.jsonl")
    first.detach()


def test_a_ledger_that_is_a_link_is_refused_by_name(tmp_path):
    counted(tmp_path / "ledger.jsonl")
    (tmp_path / "other.jsonl").symlink_to(tmp_path / "ledger.jsonl")
    with pytest.raises(PrivacyError, match="is a link, and only regular files are opened"):
        attach(nn.Linear(3, 2), plan(), ledger=tmp_path / "other.jsonl")
    with pytest.raises(ConfigError, match="is a link, and only regular files are opened"):
        verify(tmp_path / "other.jsonl")


def test_a_file_that_somebody_else_appends_to_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = RunLedger(Ledger(path), plan(), LAYOUT)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(PrivacyError, match="changed by somebody else"):
        account.spend()


def test_an_interruption_while_writing_leaves_a_ledger_that_can_be_continued(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    account = RunLedger(Ledger(path), plan(), LAYOUT)

    def interrupted(descriptor):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            account.spend()
    account.spend()
    account.close()
    assert verify(path).runs[0].released == 1


def test_a_state_cannot_lower_the_count():
    model = nn.Linear(3, 2)
    private = attach(model, plan(steps=10))
    for released, participations in ((9, 0), (9, 8), (11, 11), (3, 5)):
        state = private.state_dict() | {"released": released, "participations": participations}
        with pytest.raises(PrivacyError, match="which cannot be"):
            private.load_state_dict(state)


def test_reserved_steps_are_spent_when_a_state_is_loaded(tmp_path):
    """In the middle of a shuffled pass: the new pass is on disk before it is used."""
    path, model = tmp_path / "ledger.jsonl", nn.Linear(3, 2)
    made = plan(steps=8, sampling=Shuffled(examples=20, batch_size=5))
    private = attach(model, made, ledger=Ledger(path, reserve=4))
    data = private.batches(DATA, steps=1)
    for x, y in data:
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    private.load_state_dict(private.state_dict())
    for x, y in private.batches(DATA, steps=2):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    on_disk = sum(json.loads(line).get("participations", 0) for line in path.read_text().splitlines()[1:])
    assert on_disk == 2


# --- a data set's ledger ---------------------------------------------------------------------------------------------


def test_runs_on_one_data_set_compose_up_to_its_cap(tmp_path):
    path, one = tmp_path / "patients.jsonl", plan().guarantee().epsilon
    two = cost([plan().event(), plan().event()], 1e-5).epsilon
    ledger = capped(path, two * 1.001)
    train(ledger)
    train(ledger, steps=1)  # ends early, but counts with its whole horizon
    with pytest.raises(BudgetExhausted, match="'patients' may spend"):
        attach(nn.Linear(3, 2), replace(plan(), steps=6), ledger=ledger)
    found = verify(path)
    assert len(found.runs) == 2
    assert one < found.total.epsilon <= two * 1.001
    assert found.total.epsilon == pytest.approx(ledger.guarantee().epsilon)


def test_queries_beside_training_count(tmp_path):
    path = tmp_path / "patients.jsonl"
    pca = Event(1.0, 4.0, 1, adjacency="zero-out")
    ledger = capped(path, cost([pca, plan().event()], 1e-5).epsilon * 1.001)
    ledger.query("covariance", pca)
    train(ledger)
    with pytest.raises(BudgetExhausted):
        ledger.query("covariance again", pca)
    assert verify(path).queries == ("covariance",)
    own = tmp_path / "own.jsonl"
    Ledger(own).query("covariance", pca)
    private = train(own)
    assert private.guarantee().epsilon == pytest.approx(cost([pca, plan().event()], 1e-5).epsilon)
    assert verify(own).runs[0].guarantee.epsilon == pytest.approx(private.guarantee().epsilon)


def test_a_data_sets_name_and_cap_cannot_be_changed(tmp_path):
    path = tmp_path / "patients.jsonl"
    train(capped(path, 50.0))
    for other in (Ledger(path), capped(path, 60.0), Ledger(path, dataset="others", epsilon=50.0, delta=1e-5)):
        with pytest.raises(PrivacyError, match="caps"):
            attach(nn.Linear(3, 2), plan(), ledger=other)


def test_attaching_to_a_data_set_begins_a_new_run(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", 50.0), nn.Linear(3, 2)
    first = train(ledger, steps=2, model=model)
    again = train(ledger, model=model)
    assert first.run != again.run
    assert [(run.run, run.released) for run in verify(ledger.path).runs] == [(first.run, 2), (again.run, 5)]


def test_a_run_on_a_data_set_is_continued_by_its_name(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", 50.0), nn.Linear(3, 2)
    first = train(ledger, steps=2, model=model)
    train(ledger, steps=1, model=model)
    again = attach(model, plan(), ledger=ledger, run=first.run)
    assert (again.run, again.released, again.remaining) == (first.run, 2, 3)
    with pytest.raises(PrivacyError, match=f"run {first.run} in .* is in use by another process"):
        attach(nn.Linear(3, 2), plan(), ledger=replace(ledger, run=first.run))
    again.detach()
    with pytest.raises(PrivacyError, match="belongs to another plan"):
        attach(model, plan(steps=6), ledger=ledger, run=first.run)
    with pytest.raises(ConfigError, match="'mine' names no run"):
        attach(model, plan(), ledger=ledger, run="mine")


def test_a_run_on_a_data_set_is_continued_by_its_state(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", 50.0), nn.Linear(3, 2)
    first = train(ledger, steps=2, model=model)
    state = first.state_dict()
    other = train(ledger, steps=1, model=model)
    total = ledger.guarantee()
    again = attach(model, plan(), ledger=ledger)
    again.load_state_dict(state)
    assert (again.run, again.released) == (first.run, 2)
    assert ledger.guarantee() == total  # the run that attach had begun is withdrawn
    for x, y in again.batches(DATA):
        again.backward(F.cross_entropy(model(x), y, reduction="none"))
    with pytest.raises(PrivacyError, match=f"the state is of run {other.run}, and here run {first.run} counts"):
        again.load_state_dict(other.state_dict())
    again.detach()
    assert [run.released for run in verify(ledger.path).runs] == [5, 1]


def test_a_state_whose_run_another_process_has_is_refused_and_a_new_run_goes_on(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", 50.0), nn.Linear(3, 2)
    first = attach(nn.Linear(3, 2), plan(), ledger=ledger)
    again = attach(model, plan(), ledger=ledger)
    with pytest.raises(PrivacyError, match=f"run {first.run} in .* is in use by another process"):
        again.load_state_dict(first.state_dict())
    for x, y in again.batches(DATA):
        again.backward(F.cross_entropy(model(x), y, reduction="none"))
    assert {run.run: run.released for run in verify(ledger.path).runs} == {first.run: 0, again.run: 5}


def test_a_state_is_continued_where_its_own_run_has_spent_the_cap(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", plan().guarantee().epsilon * 1.2), nn.Linear(3, 2)
    first = train(ledger, steps=2, model=model)
    again = attach(model, plan(), ledger=ledger)
    again.load_state_dict(first.state_dict())
    for x, y in again.batches(DATA):
        again.backward(F.cross_entropy(model(x), y, reduction="none"))
    again.detach()
    assert [(run.run, run.released) for run in verify(ledger.path).runs] == [(first.run, 5)]
    with pytest.raises(BudgetExhausted, match="'patients' may spend"):
        attach(model, plan(), ledger=ledger)


def test_a_new_run_beside_one_that_is_not_over_is_refused_at_its_first_release(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", plan().guarantee().epsilon * 1.2), nn.Linear(3, 2)
    train(ledger, steps=2, model=model)
    with pytest.raises(BudgetExhausted, match="'patients' may spend"):
        train(ledger, model=model)
    assert [run.released for run in verify(ledger.path).runs] == [2]


def test_a_broken_pass_with_none_left_counts_beside_a_new_run(tmp_path):
    ledger = capped(tmp_path / "patients.jsonl", 50.0)
    made = plan(steps=4, sampling=Shuffled(examples=20, batch_size=5))
    train(ledger, made, steps=2)
    again = train(ledger, made)
    assert (again.released, again.remaining) == (4, 0)
    assert [run.released for run in verify(tmp_path / "patients.jsonl").runs] == [2, 4]


@pytest.mark.parametrize("kept", [1, 20, 120, -1])
def test_a_data_sets_ledger_whose_first_line_was_cut_off_is_begun_again(tmp_path, kept):
    """The first line comes before any release: with half of it, nothing has been counted."""
    ledger = capped(tmp_path / "patients.jsonl", 50.0)
    ledger.guarantee()
    ledger.path.write_bytes(ledger.path.read_bytes()[:kept])
    train(ledger)
    assert [run.released for run in verify(ledger.path).runs] == [5]


def test_a_line_that_was_cut_off_counts_for_no_run_that_is_alive(tmp_path):
    ledger, model = capped(tmp_path / "patients.jsonl", 50.0), nn.Linear(3, 2)
    dead = train(ledger, steps=1)
    alive = attach(model, plan(), ledger=ledger)
    ledger.path.write_bytes(ledger.path.read_bytes() + b'{"at": "2026-11-18T1')
    for x, y in alive.batches(DATA):
        alive.backward(F.cross_entropy(model(x), y, reduction="none"))
    alive.detach()
    assert {run.run: (run.released, run.recovered) for run in verify(ledger.path).runs} == {
        dead.run: (2, 1),
        alive.run: (5, 0),
    }


def test_no_lock_is_left_beside_a_data_sets_ledger(tmp_path):
    ledger = capped(tmp_path / "patients.jsonl", 50.0)
    (tmp_path / "patients.jsonl.0123456789abcdef.lock").touch()  # of a process that was killed
    train(ledger)
    assert {p.name for p in tmp_path.iterdir()} == {"patients.jsonl", "patients.jsonl.lock"}


def _attach_and_train(path, queue):
    try:
        train(capped(path, 1e3))
        queue.put("trained")
    except Exception as error:
        queue.put(repr(error))


def test_two_processes_count_in_one_data_sets_ledger(tmp_path):
    path, context = tmp_path / "patients.jsonl", multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_attach_and_train, args=(path, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [queue.get(timeout=120) for _ in processes] == ["trained", "trained"]
    for process in processes:
        process.join()
    found = verify(path)
    assert sum(run.released for run in found.runs) == 10


# --- reserving, failing disks, clocks --------------------------------------------------------------------------------


def test_reserving_writes_less_and_a_crash_over_counts_by_as_many(tmp_path):
    path = tmp_path / "ledger.jsonl"
    account = counted(path, count=3, made=plan(steps=10), reserve=4)
    assert account.released == 3
    assert account.events[0].steps == 3
    assert len(path.read_text().splitlines()) == 2
    again = RunLedger(Ledger(path, reserve=4), plan(steps=10), LAYOUT)
    assert again.released == 4
    for _ in range(6):
        again.spend()
    assert [json.loads(line)["count"] for line in path.read_text().splitlines()[1:]] == [4, 4, 2]


def test_reserving_through_attach_ends_at_the_plans_end(tmp_path):
    path, model = tmp_path / "ledger.jsonl", nn.Linear(3, 2)
    private = attach(model, plan(steps=7), ledger=Ledger(path, reserve=3))
    for x, y in private.batches(DATA):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    assert (private.released, private.remaining) == (7, 0)
    assert private.guarantee().epsilon == pytest.approx(plan(steps=7).guarantee().epsilon)
    assert verify(path).runs[0].released == 7


def test_a_full_disk_leaves_a_ledger_that_can_be_continued(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    account = RunLedger(Ledger(path), plan(), LAYOUT)
    account.spend()

    def full(descriptor):
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(PrivacyError, match="no space"):
            account.spend()
    assert account.released == 1
    account.spend()
    account.close()
    assert verify(path).runs[0].released == 2


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path, monkeypatch):
    path, clock = tmp_path / "ledger.jsonl", iter(range(10**9, 0, -(10**7)))
    monkeypatch.setattr("time.gmtime", lambda: __import__("datetime").datetime.fromtimestamp(next(clock)).timetuple())
    counted(path)
    assert verify(path).runs[0].released == 3


def test_a_ledger_that_cannot_be_opened_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PrivacyError, match="cannot be used as a ledger"):
        attach(nn.Linear(3, 2), plan(), ledger=tmp_path / "file" / "ledger.jsonl")
    with pytest.raises(ConfigError, match="no such file"):
        verify(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    "settings",
    [
        {"reserve": 0},
        {"key": b"short"},
        {"dataset": "x"},
        {"epsilon": 3.0},
        {"dataset": "x", "epsilon": -1.0, "delta": 1e-5},
        {"dataset": "x", "epsilon": 1.0, "delta": 1.0},
    ],
)
def test_ledgers_that_make_no_sense_are_refused(tmp_path, settings):
    with pytest.raises(ConfigError):
        Ledger(tmp_path / "x", **settings)


# --- the command line ------------------------------------------------------------------------------------------------

runner = CliRunner()


def test_verify_on_the_command_line(tmp_path):
    path = tmp_path / "run" / "ledger.jsonl"
    head = counted(path, key=KEY).head
    key = tmp_path / "key"
    key.write_bytes(KEY)
    shown = runner.invoke(app, ["verify", str(path.parent), "--key", str(key), "--anchor", head])
    assert shown.exit_code == 0, shown.output
    assert "the chain holds, every line signed" in " ".join(shown.output.split())
    found = json.loads(runner.invoke(app, ["verify", str(path), "--json"]).stdout)
    assert found["holds"] is True
    assert found["runs"][0]["released"] == 3
    assert found["runs"][0]["guarantee"]["epsilon"] == pytest.approx(plan().guarantee().epsilon)
    path.write_text(path.read_text().replace('"step": 1', '"step": 2'))
    damaged = runner.invoke(app, ["verify", str(path)])
    assert damaged.exit_code == 1
    assert "damaged at line 3" in " ".join(damaged.output.split())
    reason = json.loads(runner.invoke(app, ["verify", str(path), "--json"]).stdout)
    assert reason["holds"] is False


# --- fuzzing ---------------------------------------------------------------------------------------------------------


def harmless(text: bytes, content: bytes) -> bool:
    """A file that only lost its end, or whose last line is torn: what a crash leaves, and the chain cannot tell."""
    *lines, _ = text.split(b"\n")
    return lines == content.split(b"\n")[: len(lines)]


def test_no_mutation_of_a_ledger_is_accepted_or_crashes_the_reader(tmp_path, fuzz_count):
    path = tmp_path / "ledger.jsonl"
    counted(path)
    content = path.read_bytes()
    reasons = []
    for text in mutations(content, fuzz_count, seed=1):
        path.write_bytes(text)
        try:
            verify(path)
        except (PrivacyError, ConfigError) as error:
            reasons.append(str(error))
        else:
            assert harmless(text, content)
    assert len(reasons) > 0.5 * fuzz_count
    assert all("damaged at line" in reason for reason in reasons)


def test_no_mutation_of_a_plan_crashes_its_loader(tmp_path, fuzz_count):
    path = tmp_path / "plan.toml"
    replace(plan(noise=StudentT(9, 1.0)), tuning=discreet.Tuning(4)).save(path)
    content = path.read_bytes()
    for text in mutations(content, fuzz_count, seed=2):
        path.write_bytes(text)
        try:
            Plan.load(path)
        except (ConfigError, PrivacyError):
            continue


def test_no_mutation_of_a_guarantee_crashes_its_reader(fuzz_count):
    content = plan().guarantee().to_json().encode()
    for text in mutations(content, fuzz_count, seed=3):
        try:
            discreet.Guarantee.from_json(text.decode(errors="replace"))
        except (ConfigError, PrivacyError):
            continue
