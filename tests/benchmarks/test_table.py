"""The one command's own arithmetic, on made-up results: what fits into its minutes, and what got slower."""

import json
from pathlib import Path

import pytest

MODELS = ("small", "large")


@pytest.fixture(autouse=True)
def _folder(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def row(model="small", threads=1, name="discreet", step=1.0, peak=100.0, status="ran", **more):
    measured = {"wall": [step], "cpu": [step], "seconds": step, "peak": peak, "first": peak, "later": peak}
    return {"model": model, "threads": threads, "competitor": name, "status": status, "note": "", **measured, **more}


def rows(ours, base=1.0, peak=100.0, threads=1):
    import table

    return table.by_key([row(name="SGD", step=base, threads=threads), row(step=ours, peak=peak, threads=threads)])


def words(now, before):
    import table

    return [text for several in table.slower(now, before).values() for text in several]


def test_a_step_that_takes_a_tenth_more_of_sgds_is_slower():
    assert words(rows(1.5), rows(1.3)) == ["1.30 -> 1.50 times SGD, 15 % slower"]
    assert words(rows(1.42), rows(1.3)) == []
    assert words(rows(1.0), rows(1.3)) == []


def test_another_machine_is_not_taken_for_another_library():
    assert words(rows(3.0, base=2.0), rows(1.5)) == []
    assert words(rows(1.5, base=0.5), rows(1.5)) == ["1.50 -> 3.00 times SGD, 100 % slower"]


def test_memory_is_compared_beyond_what_allocators_take():
    assert words(rows(1.0, peak=119.0), rows(1.0)) == ["100 -> 119 MiB"]
    assert words(rows(1.0, peak=117.0), rows(1.0)) == []
    assert words(rows(1.0, peak=9.0), rows(1.0, peak=2.0)) == []


def test_one_thread_is_compared_by_cpu_time_and_two_by_the_clock():
    for threads, clock in ((1, "cpu"), (2, "wall")):
        now, before = rows(1.0, threads=threads), rows(1.0, threads=threads)
        now["small", threads, "discreet"][clock] = [1.2]
        assert len(words(now, before)) == 1
        now, before = rows(1.0, threads=threads), rows(1.0, threads=threads)
        now["small", threads, "discreet"]["wall" if clock == "cpu" else "cpu"] = [1.2]
        assert words(now, before) == []


def test_what_ran_and_does_not_is_said_and_what_is_new_is_not():
    import table

    failed = table.by_key([row(name="SGD"), row(status="out of memory", why="cap")])
    assert words(failed, rows(1.0)) == ["out of memory, and it ran before"]
    assert words(rows(9.0), {}) == []
    assert words(table.by_key([row(name="vmap", step=9.0)]), table.by_key([row(name="vmap")])) == []


def test_the_verdict_names_model_and_threads():
    import table

    found = table.slower(rows(2.0, threads=2), rows(1.0, threads=2))
    assert table.verdict(found, 1) == "small, 2 thread(s): 1.00 -> 2.00 times SGD, 100 % slower"
    assert table.verdict({}, 3) == "3 steps compared: none is slower or larger by more than 10 %."


def test_the_dearest_peers_are_left_out_and_never_ours():
    import table

    names = ("SGD", "discreet", "Opacus ghost", "vmap")
    keys = [(model, 1, name) for model in MODELS for name in names]
    steps = {"SGD": 1.0, "discreet": 1.5, "Opacus ghost": 3.0, "vmap": 2.0}
    before = table.by_key(row(m, 1, n, step=steps[n] * (10 if m == "large" else 0.01)) for m, _, n in keys)
    whole = sum(table.expected(key, before) for key in keys)
    assert table.fitting(keys, whole, before) == keys
    assert table.fitting(keys, whole - 1, before) == [key for key in keys if key != ("large", 1, "Opacus ghost")]
    assert {name for *_, name in table.fitting(keys, 0.0, before)} == {"SGD", "discreet"}


def test_a_competitor_that_was_not_measured_is_expected_at_three_times_sgd():
    import table

    before = table.by_key([row(name="SGD", step=10.0)])
    assert table.expected(("small", 1, "vmap"), before) == pytest.approx(6 + 8 * 30 + 3 * 60)
    assert table.expected(("small", 2, "SGD"), before) == pytest.approx(6 + 80 + 3 * 20)


def test_the_whole_table_fits_into_half_an_hour_by_what_is_kept():
    import table
    from models import SETTINGS

    before, names = table.kept(), ("SGD", "discreet", *table.PEERS)
    keys = [(s.title, threads, name) for s in SETTINGS for threads in (1, 2) for name in names]
    chosen = table.fitting(keys, 28 * 60, before)
    assert sum(table.expected(key, before) for key in chosen) <= 28 * 60
    assert all(key in chosen for key in keys if key[2] in ("SGD", "discreet"))


@pytest.mark.parametrize("slow", [True, False])
def test_what_seems_slower_is_measured_again(slow, monkeypatch, capsys, tmp_path):
    import table

    title = "MLP 784-32-10, 64"
    before = table.by_key([row(title, name="SGD"), row(title)])
    monkeypatch.setattr(table, "kept", lambda: before)
    asked = []

    def measured(keys, fastdp, cap):
        asked.append(keys)
        step = 2.0 if slow or len(asked) == 1 else 1.0
        return [row(model, threads, name, step=step if name == "discreet" else 1.0) for model, threads, name in keys]

    monkeypatch.setattr(table, "measured", measured)
    file = tmp_path / "found.json"
    code = table.main(["--check", "--threads", "1", "--only", title, "--json", str(file)])
    assert code == int(slow)
    assert asked[1] == [(title, 1, "SGD"), (title, 1, "discreet")]
    assert ("100 % slower" in capsys.readouterr().out) == slow
    assert len(json.loads(file.read_text())["results"]) == len(asked[0])
