import os
import random
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import rank_work
import ranks
import torch
import torch.distributed as dist
from scipy.stats import chi2

from discreet import BudgetExhausted, ConfigError, Gaussian, Ledger, PrivacyError, attach, verify
from discreet.distributed import ranks as distributed
from discreet.distributed.ranks import Disagreement, Shares

KILLS = int(os.environ.get("DISCREET_KILLS", 20 if os.environ.get("DISCREET_SOAK") else 3))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process does."""
    (found,) = ranks.run(1, rank_work.same_as_one, tmp_path_factory.mktemp("alone"))
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_ranks_releases_what_one_does(tmp_path, alone, count):
    found = ranks.run(count, rank_work.same_as_one, tmp_path)
    for key, (expected, batches, steps) in alone.items():
        for released, own_batches, own_steps in (rank[key] for rank in found):
            error = (released - expected).norm() / expected.norm()
            assert error < 1e-6, f"{key}: {error:.1e}"
            assert torch.equal(released, found[0][key][0])
            assert own_batches == found[0][key][1] <= batches
            assert own_batches == batches or key[1]
            assert own_steps == steps


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_example_of_a_draw_is_in_one_share_and_shares_are_equal(size):
    indices = np.sort(np.random.default_rng(0).permutation(50)[:20])
    found = [Shares(rank, size, 50).split(indices) for rank in range(size)]
    parts = [(np.arange(20)[mine], most) for mine, most in found]
    assert np.array_equal(np.sort(np.concatenate([mine for mine, _ in parts])), np.arange(20))
    assert {most for _, most in parts} == {max(len(mine) for mine, _ in parts)} == {-(-20 // size)}


def test_every_example_of_a_draw_is_in_the_share_of_the_rank_that_has_it():
    indices = np.array([0, 4, 5, 6, 13])
    parts = [Shares(rank, 3, 5, 1, 8) for rank in range(3)]
    places = [part.split(indices)[0] for part in parts]
    assert [list(p) for p in places] == [[0, 1], [2], [3, 4]]
    assert [list(part.rows(indices[p])) for part, p in zip(parts, places, strict=True)] == [[0, 4], [0], [0, 7]]
    assert {part.length for part in parts} == {14}


def test_each_rank_reads_its_share_alone_and_releases_are_the_same(tmp_path):
    (one,) = ranks.run(1, rank_work.reads, tmp_path)
    two = ranks.run(2, rank_work.reads, tmp_path)
    for found in two:
        for own, expected in zip(found[:4], one[:4], strict=True):
            assert torch.allclose(own, expected, rtol=0, atol=1e-6 * expected.abs().max())
    alone, together = ([any("part of the data of one rank" in c for c in f[6]) for f in all_] for all_ in ([one], two))
    assert (alone, together) == ([False], [True, True])  # what nobody can see is said
    assert torch.equal(one[2], one[3])  # a part for each rank draws as one data set does
    compared = rank_work.EXAMPLES + 8  # all of so few rows, and eight of them twice
    for place in (4, 5):
        reads = [found[place] for found in two]
        assert reads[0][: compared + 1] == reads[1][: compared + 1]  # and one row for its shape
        assert set(reads[0][: compared + 1]) == set(range(rank_work.EXAMPLES))
        own = [read[compared + 1 :] for read in reads]
        assert sorted(own[0] + own[1]) == sorted(one[place][1:])
        assert abs(len(own[0]) - len(own[1])) <= rank_work.STEPS


# --- ranks that differ are refused -----------------------------------------------------------------------------------


def test_ranks_that_differ_are_refused_on_all_ranks_and_none_is_left_waiting(tmp_path):
    found = ranks.run(2, rank_work.drift, tmp_path)
    words = {
        "weights": "differ in their weights",
        "plan": "differ in their plan",
        "seed": "differ in their seed",
        "preflight": "differ in their preflight",
        "model": "differ in their model",
        "code": "differ in their code",
        "at_most": "differ in their at_most",
        "parameters": "differ in their parameters",
        "break": "not at the same place",
        "bound": "differ in their state's bound",
        "released": "differ in their state's releases",
        "attendance": "differ in their state's attendance, so",
    }
    for what, expected in words.items():
        for rank in found:
            assert isinstance(rank[what], Disagreement), what
            assert expected in str(rank[what])
    stopped = {
        "number of examples": (ConfigError, "30"),
        "mixing": (PrivacyError, "mixes examples"),
        "skip": (PrivacyError, "was not called"),
        "losses": (PrivacyError, "have shape"),
        "rows": ((PrivacyError, ValueError), "no such row"),
    }
    for what, (kind, expected) in stopped.items():
        for rank, error in enumerate(each[what] for each in found):
            assert isinstance(error, kind), what
            assert expected in str(error)
            assert ("rank 1 stopped" in str(error)) == (rank == 0)
    assert [rank["nothing"] for rank in found] == [rank_work.STEPS] * 2


# --- the same rows on all ranks --------------------------------------------------------------------------------------


def conditions(guarantee, *words):
    """The conditions that have all of these words: their texts and how far they are known."""
    return [c for c in guarantee.conditions if all(word in c.text for word in words)]


@pytest.fixture(scope="module", params=[False, True], ids=["batches", "a loader of one's own"])
def rows_of_two(request, tmp_path_factory):
    """What two ranks make of all kinds of rows."""
    folder = tmp_path_factory.mktemp("rows")
    return ranks.run(2, rank_work.same_rows, folder, request.param, folder), folder, request.param


@pytest.mark.parametrize("what", [what for what in rank_work.ROWS if what.startswith(("another", "other"))])
def test_ranks_with_other_rows_or_another_order_are_refused_before_anything_is_drawn(rows_of_two, what):
    for words, released, read in (rank[what] for rank in rows_of_two[0]):
        assert "the same rows in another order" in words
        assert "Nothing was drawn" in words
        assert (released, read) == (0, [])


def test_what_is_said_of_rows_is_no_more_than_what_was_compared(rows_of_two):
    expected = {
        "same tensors": ("checked", "of all rows were equal"),
        "same rows": ("checked", "256 rows, chosen in secret"),
        "same rows of another kind": ("checked", "256 rows, chosen in secret"),
        "noisy rows": ("assumed", "could not be"),
        "rows that are rarely noisy": ("assumed", "could not be"),
        "opaque rows": ("assumed", "could not be"),
        "parts": ("assumed", "in the part of the data of one rank alone"),
    }
    both, folder, loader = rows_of_two
    for what, (status, words) in expected.items():
        if what == "parts" and loader:
            continue
        for before, guarantee, read in (rank[what] for rank in both):
            assert len(read) == rank_work.STEPS
            assert "which was not compared" in before.split("Assumed")[1]  # nothing is known before the first step
            (found,) = [
                *conditions(guarantee, "ranks", "in the same order"),
                *conditions(guarantee, "of one rank alone"),
            ]
            assert found.status == status
            assert words in found.text
            (coin,) = conditions(guarantee, "by its own secret coin")
            assert coin.status == status  # two ranks' coins are one example's only if their rows are the same
            (run,) = verify(folder / f"{what}.jsonl").runs
            assert found in run.guarantee.conditions


def test_no_example_of_the_same_rows_is_drawn_by_two_ranks(rows_of_two):
    (one, two), *_ = rows_of_two
    for what in ("same tensors", "same rows"):
        for mine, theirs in zip(one[what][2], two[what][2], strict=True):
            assert not (mine[:, None] == theirs[None]).all(-1).any() or (mine == 0).all() or (theirs == 0).all()


@pytest.mark.parametrize(("change", "digested", "released"), [("", 1, 4), ("seen", 2, 2), ("unseen", 1, 2)])
def test_tensors_are_digested_once_and_a_write_that_torch_does_not_see_is_found(tmp_path, change, digested, released):
    for words, count, steps in ranks.run(2, rank_work.loops_over_tensors, tmp_path, change):
        assert (count, steps) == (digested, released)
        assert ("another order" in words) == bool(change)


def test_what_ranks_knew_of_their_rows_is_remembered_by_whoever_goes_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for count, kind, steps, status in (
        (1, "same tensors", 2, None),
        (2, "same rows", 2, "checked"),
        (1, "same tensors", 2, "checked"),
        (2, "noisy rows", 2, "assumed"),
        (2, "same tensors", 2, "assumed"),
        (1, "same tensors", 2, "assumed"),
    ):
        for guarantee in ranks.run(count, rank_work.one_goes_on, tmp_path, path, kind, steps):
            (coin,) = conditions(guarantee, "by its own secret coin")
            assert coin.status == (status or "proven")
            assert [c.status for c in conditions(guarantee, "ranks", "in the same order")] == (
                [status] if status else []
            )


# --- one ledger ------------------------------------------------------------------------------------------------------


def test_one_rank_writes_the_ledger_and_all_know_it(tmp_path):
    path = tmp_path / "ledger.jsonl"
    found = ranks.run(2, rank_work.counted, tmp_path, path, 3)
    (run,) = verify(path).runs
    assert run.released == 3
    for released, anchor, guarantee, state, gradients in found:
        assert released == 3
        assert anchor == verify(path).head
        assert guarantee == found[0][2]
        assert "2 processes trained together; rank 0 drew the noise" in guarantee
        assert state == found[0][3]
        assert torch.equal(gradients, found[0][4])


def test_a_run_is_continued_by_another_number_of_ranks(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for count, steps in ((2, 3), (3, 4), (1, 4), (2, None)):
        found = ranks.run(count, rank_work.counted, tmp_path, path, steps)
        (run,) = verify(path).runs
        assert [rank[0] for rank in found] == [run.released] * count
        most = max(2, count, 3 if run.released > 3 else 0)  # what the ledger counts is remembered, whoever goes on
        for guarantee in (found[0][2], str(run.guarantee)):
            assert f"{most} processes trained together; rank 0 drew the noise" in guarantee
    assert found[0][0] == 12


def test_ranks_share_a_data_sets_ledger_with_other_processes(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", dataset="d", epsilon=100.0, delta=1e-5, key=b"k" * 16, reserve=2)
    ledger.query("something", rank_work.plan(noise=Gaussian(1.0)).event(None, steps=1))
    first = ranks.run(2, rank_work.counted, tmp_path, ledger, 3)
    ledger.query("something else", rank_work.plan(noise=Gaussian(1.0)).event(None, steps=1))
    (run,) = verify(ledger.path, key=ledger.key).runs
    second = ranks.run(2, rank_work.counted, tmp_path, replace(ledger, run=run.run), 3)
    assert {rank[2] for rank in first} == {first[0][2]}
    assert [rank[0] for rank in first + second] == [4, 4, 8, 8]  # what was reserved is lost when a state is loaded
    cap = Ledger(tmp_path / "small.jsonl", dataset="d", epsilon=0.1, delta=1e-5)
    for error in ranks.run(2, rank_work.too_many, tmp_path, cap):
        assert isinstance(error, BudgetExhausted)


# --- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_shares", [False, True])
def test_noise_has_the_same_variance_whoever_draws_it(tmp_path, noise_shares):
    """40,000 squares of standard normal values; outside these limits with probability 2e-8 each."""
    for count in (1, 2, 3):
        found = ranks.run(count, rank_work.only_noise, tmp_path, noise_shares)
        for released, _ in found:
            assert torch.equal(released, found[0][0])
        values = found[0][0].double() / 2.0
        assert chi2.ppf(1e-8, 40_000) < float(values.square().sum()) < chi2.isf(1e-8, 40_000)
        assert abs(float((values[0] * values[1]).sum())) < 5.7 * 20_000**0.5  # steps' noises have nothing in common
        conditions = "".join(found[0][1])
        assert ("1/3 of the variance" in conditions) == (noise_shares and count == 3)


def test_shares_of_noise_that_remembers_are_filtered_alike_and_add_up(tmp_path):
    """C times what was released is independent noise. Outside these limits with probability 1e-8 each."""
    one, two = ranks.run(2, rank_work.only_noise, tmp_path, True, True)
    assert torch.equal(one[0], two[0])
    released = one[0].double() / 2.0
    fresh = released.clone()
    fresh[1:] += 0.75 * released[:-1]
    fresh /= 1.25
    values = fresh.square().sum(1)
    assert all(chi2.ppf(1e-8, 20_000) < float(v) < chi2.isf(1e-8, 20_000) for v in values)
    pairs = ((0, 1), (0, 2), (1, 2))
    assert all(abs(float((fresh[i] * fresh[j]).sum())) < 5.8 * 20_000**0.5 for i, j in pairs)
    assert float((released[0] * released[1]).sum()) < -0.7 * 20_000  # where what is released is not


def test_noise_that_is_no_sum_of_shares_is_refused(tmp_path):
    for student, exact in ranks.run(2, rank_work.refused_shares, tmp_path):
        assert "StudentT" in student
        assert "cannot be drawn in shares" in student
        assert "exact (discrete) noise cannot be drawn in shares" in exact


# --- who is there ----------------------------------------------------------------------------------------------------


def test_a_process_may_be_alone_or_in_a_part_of_the_group(tmp_path):
    found = ranks.run(3, rank_work.apart, tmp_path)
    assert torch.equal(found[0][0], found[1][0])
    for rank in found:
        rounds, wrapped, odd = rank[-3:]
        assert "federated training works in one process" in rounds
        assert "attach the module inside it" in wrapped
        assert "group is 'gloo'" in odd


def test_a_group_that_appears_after_attach_is_refused(monkeypatch):
    private = attach(rank_work.network(), rank_work.plan(noise=Gaussian(1.0)))
    alone = attach(rank_work.network(), rank_work.plan(noise=Gaussian(1.0)), group=False)
    monkeypatch.setattr(dist.distributed_c10d, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "get_world_size", lambda group=None: 2)
    with pytest.raises(PrivacyError, match="appeared after attach"):
        private.batches(rank_work.data())
    next(alone.batches(rank_work.data()))


# --- a rank dies -----------------------------------------------------------------------------------------------------


def test_when_a_rank_dies_the_others_stop_and_nothing_is_uncounted(tmp_path):
    draw, kills, campaign = random.Random(3), 0, 0
    while kills < KILLS:
        folder = tmp_path / str(campaign)
        folder.mkdir()
        campaign += 1
        ended, seen = False, 0
        while not ended:
            victim, count = draw.randrange(2), 2 if kills < KILLS else draw.choice([1, 3])
            with ranks.Group(count, rank_work.mortal, tmp_path, folder) as group:
                if kills < KILLS:
                    for _ in range(draw.randrange(1, 12)):
                        kind, value = group.hear(victim)
                        seen = max(seen, value) if kind == "said" else seen
                        if kind == "ended":
                            break
                    group.processes[victim].kill()  # it goes on working until then: any moment of a step
                    kills += 1
                heard = [group.hear_out(rank) for rank in range(count)]
            seen = max([seen, *(value for said, _ in heard for value in said)])
            (run,) = verify(folder / "ledger.jsonl").runs
            assert seen <= run.released <= 40
            for said, end in heard:
                assert said == sorted(set(said))
                if isinstance(end, float):
                    ended = True
                else:
                    assert end is None or (isinstance(end, Disagreement) and "lost the others" in str(end))
        assert run.released == 40


# --- fit, train and torchrun -----------------------------------------------------------------------------------------


def test_a_rank_that_fails_at_its_noise_sends_nothing_afterwards(tmp_path):
    """Or what it sends next could be taken for the sum with the noise that others wait for."""
    first, second = ranks.run(2, rank_work.fails_at_noise, tmp_path)
    assert [str(error)[:8] for error in first[0]] == ["no noise", "rank 0 o"]
    assert "left the others" in str(first[0][1])
    assert all(isinstance(error, Disagreement) for error in second[0])
    for _, released, gradients in (first, second):
        assert released == 2  # counted
        assert gradients == [None] * 4


def test_fit_stops_for_all_when_one_rank_asks_and_is_resumed_by_more(tmp_path):
    first = ranks.run(2, rank_work.fitted, tmp_path, tmp_path, 5)
    assert [rank[:2] for rank in first] == [([1, 2, 3, 4, 5], False)] * 2
    second = ranks.run(3, rank_work.fitted, tmp_path, tmp_path, 100)
    for steps, finished, loss, guarantee, anchor, weights in second:
        assert steps == list(range(6, 13))
        assert finished
        assert (loss, guarantee) == (second[0][2], second[0][3])
        assert anchor == verify(tmp_path / "ledger.jsonl").head
        assert torch.equal(weights, second[0][5])


def test_what_goes_wrong_in_one_ranks_loss_stops_all(tmp_path):
    one, other = ranks.run(2, rank_work.fit_that_fails, tmp_path)
    assert "no such loss" in str(other)
    assert "rank 1 stopped, and so all do: no such loss" in str(one)


def test_a_runs_folder_is_written_by_one_rank_and_resumed_by_any_number(tmp_path):
    x, y = rank_work.data()
    np.savez(tmp_path / "rows.npz", x=x.numpy(), y=y.numpy())
    budget = {"noise": 2.0, "steps": 8, "batch_size": 8}
    config = {"data": {"name": str(tmp_path / "rows.npz")}, "model": {"name": "linear"}, "budget": budget}
    folder = tmp_path / "run"
    first = ranks.run(2, rank_work.folder_of_a_run, tmp_path, config, folder, 3)
    assert [rank[:2] for rank in first] == [([1, 2, 3], False)] * 2
    for error in ranks.run(2, rank_work.folder_of_a_run, tmp_path, config, folder, 3):
        assert isinstance(error, ConfigError)
        assert "is there already" in str(error)
    second = ranks.run(3, rank_work.folder_of_a_run, tmp_path, None, folder, 100)
    for steps, finished, _, *others in second:
        assert (steps, finished) == ([4, 5, 6, 7, 8], True)
        assert others == list(second[0][3:])
    assert verify(folder).runs[0].released == 8
    for found in ranks.run(2, rank_work.folder_of_a_run, tmp_path, None, folder, 100):
        assert found[2]  # it had finished
    with_canaries = config | {"audit": {"canaries": 10}}
    for error in ranks.run(2, rank_work.folder_of_a_run, tmp_path, with_canaries, tmp_path / "audited", 100):
        assert "an audit within a run works in one process" in str(error)
    assert not (tmp_path / "audited").exists()


def test_a_signal_to_one_rank_ends_all_after_the_release(tmp_path):
    x, y = rank_work.data()
    np.savez(tmp_path / "rows.npz", x=x.numpy(), y=y.numpy())
    budget = {"noise": 2.0, "steps": 8, "batch_size": 8}
    config = {"data": {"name": str(tmp_path / "rows.npz")}, "model": {"name": "linear"}, "budget": budget}
    assert ranks.run(2, rank_work.signalled, tmp_path, config, tmp_path / "run") == [143, 0]
    assert verify(tmp_path / "run").runs[0].released == 3
    assert (tmp_path / "run" / "checkpoint").is_file()


@pytest.mark.parametrize("kind", [ConfigError, PrivacyError, BudgetExhausted, Disagreement])
def test_a_script_under_torchrun_ends_with_one_line_and_its_code(kind, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ending:
        distributed.said_in_a_line(sys.__excepthook__, kind, kind("it is\nwrong"), None)
    assert ending.value.code == kind.exit_code in (2, 3, 4)
    assert capsys.readouterr().err == "rank 1: it is wrong\n"


def test_what_is_not_ours_goes_to_the_hook_that_was_there(monkeypatch):
    passed = []
    error = ZeroDivisionError()
    distributed.said_in_a_line(lambda *given: passed.append(given), ZeroDivisionError, error, None)
    monkeypatch.setenv("DISCREET_TRACEBACK", "1")
    refused = ConfigError()
    distributed.said_in_a_line(lambda *given: passed.append(given), ConfigError, refused, None)
    assert passed == [(ZeroDivisionError, error, None), (ConfigError, refused, None)]


def test_the_interpreter_ends_with_the_hooks_code():
    """So that torchrun sees it: an exit that is raised by the hook is the process's."""
    code = "import sys\ndef hook(*given): raise SystemExit(2)\nsys.excepthook = hook\nraise ValueError"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, b"")


def test_how_long_ranks_wait_can_be_set(monkeypatch):
    assert distributed._patience() is None
    monkeypatch.setenv("DISCREET_RANK_TIMEOUT", "90")
    assert distributed._patience() == timedelta(seconds=90)
    for wrong in ("soon", "0", "-1", "nan", "inf", "1e99"):
        monkeypatch.setenv("DISCREET_RANK_TIMEOUT", wrong)
        with pytest.raises(ConfigError, match="DISCREET_RANK_TIMEOUT is"):
            distributed._patience()


def test_the_example_under_torchrun():
    """The loop has no line about ranks, and no process group was begun before attach."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parents[2] / "examples" / "ddp.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    flags = ["--epochs", "6", "--batch-size", "128", "--noise-shares"]
    ended = subprocess.run([*command, script, *flags], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("2 processes, accuracy") == 1
    assert "added Gaussian noise with 1/2 of the variance" in ended.stdout
