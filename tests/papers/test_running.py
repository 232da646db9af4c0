"""Experiments are run once, kept, resumed, and shown beside what the paper states."""

import csv
import json
import math

import pytest
import torch
from typer.testing import CliRunner

from discreet import methods, papers
from discreet.cli.app import app
from discreet.errors import ConfigError
from discreet.models import build
from discreet.papers import render, running, train_case
from discreet.papers.experiment import Experiment, Paper, Place, Result, Results, Stated
from discreet.papers.train_case import ordinary, pairs, private, seeded
from discreet.papers.verdicts import Verdict
from discreet.report import Axis, Chart


def tiny(case, place):
    """A few steps on the bundled digits."""
    train, test = pairs("digits")
    plan = methods.dp_sgd(examples=len(train[0]), batch_size=64, steps=3, noise=case["noise"])
    return private(seeded(lambda: build("linear", (1, 8, 8), 10), place), train, test, plan, place)


def drawn(results):
    lines = tuple(results.where(noise=n).course(f"noise {n}", colour=i) for i, n in enumerate((1.0, 4.0)))
    return [Chart("noise", "Noise", Axis("epochs", "number"), Axis("accuracy", "share"), lines)]


def made(run=tiny, **changes):
    values = {
        "name": "noise",
        "title": "Two levels of noise",
        "about": "On digits.",
        "cases": lambda size: [{"noise": 1.0}, {"noise": 4.0}],
        "run": run,
        "charts": drawn,
        "stated": (Stated("noise 1", 0.9, 2.0, published={"noise": 1.0}, sound={"noise": 4.0}),),
        "needs": ("digits",),
    }
    return Experiment(**values | changes)


@pytest.fixture
def only(monkeypatch):
    """Put one experiment in the place of paper 001's."""

    def put(experiment):
        chosen = Paper("001", "A paper", (experiment,))
        monkeypatch.setattr(running, "find", lambda paper, name: experiment)
        monkeypatch.setattr(papers, "paper", lambda number: chosen)
        return experiment

    return put


def test_cases_are_run_once_and_kept(only, tmp_path):
    ran = []

    def run(case, place):
        ran.append((case["noise"], place.seed))
        return {"accuracy": 0.5, "epsilon": math.inf}

    experiment = only(made(run))
    first = running.run("001", experiment, tmp_path, seeds=2, workers=1)
    assert sorted(ran) == [(1.0, 0), (1.0, 1), (4.0, 0), (4.0, 1)]
    again = running.run("001", experiment, tmp_path, seeds=2, workers=1)
    assert len(ran) == 4
    assert [r.measured for r in again] == [r.measured for r in first]
    assert again[0]["epsilon"] == math.inf
    assert len(running.run("001", experiment, tmp_path, seeds=1, workers=1)) == 2
    running.run("001", experiment, tmp_path, seeds=3, workers=1)
    assert len(ran) == 6


def test_a_failure_keeps_what_had_finished_and_a_cut_line_is_run_again(only, tmp_path):
    broken = True

    def run(case, place):
        if broken and case["noise"] == 4.0:
            raise RuntimeError("the power is gone")
        return {"accuracy": case["noise"]}

    experiment = only(made(run))
    with pytest.raises(RuntimeError, match="power"):
        running.run("001", experiment, tmp_path, seeds=1, workers=1)
    file = tmp_path / "001" / "noise" / "usual.jsonl"
    assert len(running.read(file)) == 1
    with file.open("a") as out:
        out.write('{"case": {"noi')
    broken = False
    assert {r["accuracy"] for r in running.run("001", experiment, tmp_path, seeds=1, workers=1)} == {1.0, 4.0}
    assert not (tmp_path / "001" / "noise" / "usual.cases").exists()


class Killed(Exception):
    pass


def killed_at(step):
    def tell(done, total):
        if done == step:
            raise Killed

    return tell


def test_a_killed_case_goes_on_from_its_checkpoint_and_makes_every_step_of_its_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(train_case, "SAVED_EVERY", 0.0)
    train, test = pairs("digits")
    plan = methods.dp_sgd(examples=len(train[0]), batch_size=64, steps=6, noise=1.0)

    def trained(tell):
        place = Place(tmp_path, tell=tell)
        return private(seeded(lambda: build("linear", (1, 8, 8), 10), place), train, test, plan, place)

    for step in (3, 5):
        with pytest.raises(Killed):
            trained(killed_at(step))  # which is told of before it is saved
    seen = []
    found = trained(lambda done, total: seen.append(done))
    assert seen == [5, 6]
    assert found["steps"] == 6
    assert found["examples"] == len(train[0])
    assert found["parameters"] == 650
    assert found["epsilon"] == pytest.approx(plan.guarantee().epsilon)


def test_an_ordinary_training_that_was_killed_is_the_same_as_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(train_case, "SAVED_EVERY", 0.0)
    train, test = pairs("digits")

    def trained(folder, tell):
        folder.mkdir(exist_ok=True)
        place = Place(folder, tell=tell)
        model = seeded(lambda: build("linear", (1, 8, 8), 10), place)
        options = {"epochs": 2, "batch_size": 256, "momentum": 0.9}
        return ordinary(model, train, test, place, **options), model.state_dict()["1.weight"]

    whole, weights = trained(tmp_path / "whole", lambda done, total: None)
    with pytest.raises(Killed):
        trained(tmp_path / "killed", killed_at(8))
    steps = []
    again, same = trained(tmp_path / "killed", lambda done, total: steps.append(done))
    assert steps[0] == 8
    assert again["curve"] == whole["curve"]
    assert torch.equal(weights, same)


def test_workers_are_told_by_name_and_report(tmp_path):
    experiment = papers.experiment("001", "noise-levels")
    told = []
    tasks = [running.Task("001", "nothing", {}, 0, tmp_path / "x")]
    with pytest.raises(ConfigError, match="has no experiment 'nothing'"):
        running._elsewhere(tasks, 1, lambda task, result: None, lambda *words: told.append(words))
    assert experiment.name == "noise-levels"


def test_the_command_writes_a_page_charts_and_cases(only, tmp_path):
    only(made())
    out = CliRunner().invoke(app, ["reproduce", "001", "--quick", "--workers", "1", "--results", str(tmp_path)])
    assert out.exit_code == 0, out.output
    assert "ours" in out.output
    folder = tmp_path / "001"
    page = (folder / "report.html").read_text()
    assert "Two levels of noise" in page
    assert "<svg" in page
    assert "discreet reproduce 001 --quick" in page
    assert {p.name for p in (folder / "noise").iterdir()} >= {"noise.svg", "noise.csv", "cases.csv", "quick.jsonl"}
    with (folder / "noise" / "cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    proven = methods.dp_sgd(examples=1437, batch_size=64, steps=3, noise=1.0).guarantee().epsilon
    assert [float(r["epsilon"]) for r in rows if r["noise"] == "1.0"] == pytest.approx([proven])


def test_what_was_found_as_json(only, tmp_path):
    only(made(run=lambda case, place: {"accuracy": 0.9, "epsilon": 1.5}, found=lambda results: "All is well."))
    arguments = ["reproduce", "001", "--json", "--seeds", "2", "--workers", "1", "--results", str(tmp_path)]
    out = CliRunner().invoke(app, arguments)
    assert out.exit_code == 0, out.output
    (found,) = json.loads(out.stdout)["experiments"]
    assert (found["trainings"], found["found"]) == (4, "All is well.")
    assert found["stated"][0]["verdict"] == "reproduces: 90.0%"


def test_the_list_runs_nothing(only, tmp_path):
    only(made(run=lambda case, place: pytest.fail("it ran")))
    out = CliRunner().invoke(app, ["reproduce", "001", "--list", "--results", str(tmp_path / "none")])
    assert out.exit_code == 0
    assert "Two levels" in out.output
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["005"], "not one of 000"), (["001", "figure-9"], "no experiment"), (["001", "--quick", "--full"], "two sizes")],
)
def test_what_is_not_there_is_said(arguments, words):
    out = CliRunner().invoke(app, ["reproduce", *arguments])
    assert isinstance(out.exception, ConfigError)
    assert words in str(out.exception)


def results(*accuracies, **case):
    return Results(Result(case, seed, {"accuracy": a, "epsilon": 3.0}, 1.0) for seed, a in enumerate(accuracies))


def test_a_statement_in_words_has_its_own_verdict():
    stated = Stated("it grows", "grows", verdict=lambda r: Verdict("reproduces" if r.mean() > 0.5 else "refuted", ""))
    assert [stated.judged(results(a)).word for a in (0.6, 0.4)] == ["reproduces", "refuted"]
    assert str(stated.judged(Results())) == "undecided: not run yet"


def test_a_row_has_the_worst_epsilon_and_the_deviation():
    found = Results([*results(0.90, 0.92, form="paper"), Result({"form": "sound"}, 0, {"accuracy": 0.5}, 1.0)])
    found = Results([*found, Result({"form": "paper"}, 2, {"accuracy": 0.91, "epsilon": math.inf}, 1.0)])
    experiment = made(stated=(Stated("it", 0.9, 2.0, {"form": "paper"}, {"form": "sound"}),))
    ((_, theirs, published, sound, claimed, proven, *_),) = render.stated_rows(experiment, found)
    assert (theirs, published, sound, claimed) == ("90.0%", "91.0% ± 1.0", "50.0%", "2")
    assert proven == "nothing (their form)"


def test_lines_and_courses_are_means_over_seeds():
    found = Results(
        Result({"c": c}, seed, {"accuracy": c + seed, "curve": [[1, seed, 0.1], [2, c, 0.2]]}, 1.0)
        for c in (2, 1)
        for seed in (0, 1)
    )
    assert found.line("it", "c").points == ((1.0, 1.5), (2.0, 2.5))
    assert found.where(c=2).course("it").points == ((1.0, 0.5), (2.0, 2.0))


def test_an_ordinary_training_learns(tmp_path):
    train, test = pairs("digits")
    torch.manual_seed(0)
    found = ordinary(
        build("linear", (1, 8, 8), 10), train, test, Place(tmp_path), epochs=3, batch_size=32, learning_rate=0.5
    )
    assert found["accuracy"] > 0.8
    assert [row[0] for row in found["curve"]] == [1, 2, 3]
    json.dumps(found)


def test_without_a_paper_all_are_listed():
    out = CliRunner().invoke(app, ["reproduce", "--list"])
    assert out.exit_code == 0, out.output
    for number in papers.FILES:
        assert f"paper {number}" in out.stdout
    assert "membership" in out.stdout
    without = CliRunner().invoke(app, ["reproduce", "--quick"])
    assert isinstance(without.exception, ConfigError) or without.exit_code == 2
