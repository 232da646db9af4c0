"""Federated runs from the command line: users of a table, made-up users, what is refused."""

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet import ConfigError, data, verify
from discreet.cli.app import app, main
from discreet.runs import config
from discreet.runs import run as runs

SCHEMA = """
ignore = ["day"]
age = {low = 0, high = 100}
mood = {categories = ["good", "bad"]}
buys = {classes = ["no", "yes"]}
"""


@pytest.fixture
def visits(tmp_path):
    """400 visits of 40 customers, and what is known of the columns."""
    draw = np.random.default_rng(0)
    rows = ["customer,age,mood,day,buys"]
    for i in range(400):
        age = draw.integers(100)
        rows.append(f"c{i % 40},{age},{draw.choice(['good', 'bad'])},{i},{'yes' if age > 50 else 'no'}")
    (tmp_path / "visits.csv").write_text("\n".join(rows))
    (tmp_path / "visits.toml").write_text(SCHEMA)
    return ["--data", tmp_path / "visits.csv", "--schema", tmp_path / "visits.toml", "--user", "customer"]


def cli(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["discreet", *(str(a) for a in arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


BUDGET = ["--users-per-round", "8", "--rounds", "12", "--noise", "0.8", "--delta", "1e-3"]


def test_a_tables_users_are_trained_verified_reported_and_resumed(visits, tmp_path):
    run = tmp_path / "run"
    said = json.loads(cli("federate", *visits, "--model", "linear", *BUDGET, "--out", run, "--json"))
    assert said["finished"]
    assert said["guarantee"]["unit"] == "user"
    found = verify(run).runs[0]
    assert found.guarantee.unit == "user"
    assert found.guarantee.epsilon == said["guarantee"]["epsilon"]
    assert found.guarantee.events[0].rate == 8 / 32  # 32 of the 40 users; the others are held out
    page = (run / "report.html").read_text()
    assert "for each user" in page
    assert "federated" in page
    assert "has finished" in cli("resume", run)


def test_made_up_users_of_bundled_data(tmp_path):
    run = tmp_path / "run"
    said = cli(
        "federate", "--data", "digits", "--users", "100", "--partition", "dirichlet", "--alpha", "1", "--model", "mlp",
        "--method", "adaptive_clipping", "--epsilon", "20", "--delta", "1e-3", "--rounds", "20", "--users-per-round",
        "50", "--local-learning-rate", "0.5", "--local-epochs", "3", "--momentum", "0.5", "--out", run,
    )  # fmt: skip
    assert "for each user" in " ".join(said.replace("│", " ").split())
    outcome = runs.read_end(run)
    assert outcome.accuracy > 0.5
    assert outcome.guarantee.epsilon <= 20
    measures = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert measures[-1]["clipping_norms"]


def test_a_file_says_the_same_as_flags(visits, tmp_path):
    file = tmp_path / "run.toml"
    made = config.merged(
        config.Config(),
        {
            "data.name": "digits",
            "federated.users": 30,
            "federated.epochs": 2,
            "budget.noise": 1.0,
            "budget.steps": 2,
            "budget.batch_size": 10,
        },
    )
    file.write_text(made.to_toml())
    for command in ("federate", "train"):
        cli(command, file, "--out", tmp_path / command)
        assert runs.read_end(tmp_path / command).guarantee.unit == "user"


def test_a_run_that_was_stopped_is_resumed(tmp_path):
    made = config.from_dict(
        {
            "data": {"name": "digits"},
            "federated": {"users": 50, "partition": "shards", "full_weight": 20, "total_weight": 50.0},
            "budget": {"noise": 1.0, "steps": 6, "batch_size": 10},
        }
    )
    steps = []
    stopped = runs.train(made, tmp_path / "run", runs.Watch(step=steps.append, stop=lambda: len(steps) == 2))
    assert not stopped.finished
    outcome = runs.resume(tmp_path / "run")
    assert outcome.finished
    assert outcome.lost == 0
    assert config.load(tmp_path / "run" / "config.toml").optimizer.learning_rate == 1.0  # written down, as all else
    assert verify(tmp_path / "run").runs[0].released == 6


def test_show_prints_the_guarantee_and_touches_nothing():
    said = json.loads(
        cli("federate", "--data", "mnist", "--users", "1000", *BUDGET, "--show", "--json"),
    )
    assert said["plan"]["sampling"]["unit"] == "user"
    assert said["plan"]["sampling"]["examples"] == 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "digits", *BUDGET], "--user"),
        (["--data", "digits", "--partition", "iid", *BUDGET], "made-up users"),
        (["--data", "digits", "--users", "20", "--user", "name", *BUDGET], "made-up users"),
        (["--data", "digits", "--user", "name", *BUDGET], "a table"),
        (["--data", "digits", "--users", "99999", *BUDGET], "99999 users"),
        (["--data", "digits", "--users", "20", "--users-per-round", "30", "--noise", "1"], "larger than the 20"),
        (["--data", "digits", "--users", "20", *BUDGET, "--engine", "fast"], "engine"),
        (["--data", "digits", "--users", "20", *BUDGET, "--local-epochs", "0"], "epochs"),
        (["--data", "digits", "--users", "20", *BUDGET, "--set", "augmentation.flip=true"], "augmentation"),
        (["--data", "digits", "--users", "20", *BUDGET, "--set", "run.chunk=5"], "chunk"),
        (["--data", "digits", "--users", "20", *BUDGET, "--set", "federated.full_weight=0"], "full_weight"),
        (["--data", "digits", "--users", "20", *BUDGET, "--method", "belu", "--set", "method.settings.certified=true"],
         "inside the network"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(arguments, words, tmp_path, monkeypatch, capsys):
    said = refused(["federate", *arguments, "--model", "belu", "--out", tmp_path / "run"], monkeypatch, capsys)
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_whole_users_are_held_out(visits, tmp_path):
    path, schema = str(tmp_path / "visits.csv"), tmp_path / "visits.toml"
    found = data.load(path, schema=schema, user="customer", test_fraction=0.25)
    assert len(found.train[0]) == 300
    assert found.owners.unique().tolist() == list(range(30))
    assert found.owners.bincount().tolist() == [10] * 30
    assert found.shape == (3,)  # neither the user nor the day is an input


@pytest.mark.parametrize(
    ("user", "words"), [("age", "no input"), ("buys", "no input"), ("nobody", "no column 'nobody'")]
)
def test_a_user_column_that_is_none_is_refused(visits, tmp_path, user, words):
    with pytest.raises(ConfigError, match=words):
        data.load(str(tmp_path / "visits.csv"), schema=tmp_path / "visits.toml", user=user)


def test_spaces_around_a_name_make_no_second_user(tmp_path):
    (tmp_path / "t.csv").write_text("who,age,buys\nann,1,no\nann ,2,yes\n ann,3,no\nbob,4,no\nAnn,4,no\n")
    (tmp_path / "t.toml").write_text("age = {low = 0, high = 9}\nbuys = {classes = ['no', 'yes']}\n")
    found = data.load(str(tmp_path / "t.csv"), schema=tmp_path / "t.toml", user="who", test_fraction=0.0)
    assert sorted(found.owners.bincount().tolist()) == [1, 1, 3]


@pytest.mark.parametrize("nobody", ["", "nan", "NA", " null "])
def test_a_row_without_a_user_is_refused(nobody, tmp_path):
    (tmp_path / "t.csv").write_text(f"who,age,buys\na,1,no\n{nobody},2,yes\n")
    (tmp_path / "t.toml").write_text("age = {low = 0, high = 9}\nbuys = {classes = ['no', 'yes']}\n")
    with pytest.raises(ConfigError, match="row 2 has no user"):
        data.load(str(tmp_path / "t.csv"), schema=tmp_path / "t.toml", user="who")
