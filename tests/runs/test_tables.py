"""Tables in runs: what a schema leaves open is paid for out of the budget, once, and is in the ledger."""

import json
import tomllib

import pytest

from discreet import ConfigError, PrivacyError, verify
from discreet.accounting import cost
from discreet.accounting import gaussian as gdp
from discreet.data.private_schema import private_schema_cost
from discreet.data.schema import known
from discreet.ledger import storage
from discreet.report import write
from discreet.runs import config
from discreet.runs import run as runs
from discreet.runs.tables import asked_noise, assumed_of, facts_of

SCHEMA = """guessed = ["age", "job"]
[age]
range = "private"
[job]
categories = "private"
[y]
classes = ["no", "yes"]
weights = [1.0, 3.0]
"""


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    rows = [f"{20 + i % 50},{'cook' if i % 3 else 'clerk'},{'yes' if i % 50 > 25 else 'no'}" for i in range(200)]
    path.write_text("age,job,y\n" + "\n".join(rows) + "\n")
    (tmp_path / "people.schema.toml").write_text(SCHEMA)
    return path


def asked(path, **budget):
    return config.from_dict(
        {
            "data": {"name": str(path), "label": "y"},
            "model": {"name": "linear"},
            "budget": {"epsilon": 2.0, "steps": 4, "batch_share": 0.5, **budget},
        }
    )


def lines(folder):
    ledger = folder.parent / "datasets" / "people.jsonl"
    return [json.loads(line) for line in ledger.read_text().splitlines()[1:]]


def test_a_run_pays_for_what_its_schema_leaves_open(people, tmp_path):
    folder = tmp_path / "run"
    outcome = runs.train(asked(people), folder)
    assert 1.99 < outcome.guarantee.epsilon <= 2.0
    assert verify(folder).runs[0].guarantee == outcome.guarantee
    query, declared, run, *_ = lines(folder)
    assert [query["kind"], declared["kind"], run["kind"]] == ["query", "declared", "run"]
    assert query["phase"]["multiplier"] == pytest.approx(asked_noise(asked(people)))
    found = tomllib.loads((folder / "schema.found.toml").read_text())
    assert not known("a", found).private
    assert "schema.found.toml" in verify(folder).runs[0].files
    assert any("were read off the rows" in c.text and c.status == "assumed" for c in outcome.guarantee.conditions)
    assert not (folder / "noise.json").exists()
    assert run["plan"]["sampling"]["batch_size"] == 80


def test_the_share_is_what_one_gaussian_release_would_cost(people):
    noise = asked_noise(asked(people))
    assert gdp.mu(2.0, 1e-5) ** 2 == pytest.approx(10 / noise**2)
    assert cost([private_schema_cost(noise)], 1e-5).epsilon < 2.0


def test_a_killed_run_asks_once(people, tmp_path):
    folder = tmp_path / "run"

    def killed(step):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.train(asked(people), folder, runs.Watch(step=killed))
    found = (folder / "schema.found.toml").read_text()
    outcome = runs.resume(folder)
    assert outcome.finished
    assert (folder / "schema.found.toml").read_text() == found
    assert [line["kind"] for line in lines(folder)].count("query") == 1


class Dead(BaseException):
    """Stands for the end of a process."""


def dying(monkeypatch, place, name, before=None):
    """Have a process die when it is to replace a file of this name, or right before."""
    replace = storage.replace

    def die(path, *arguments, **settings):
        if path.name == name:
            if before is None:
                replace(path, *arguments, **settings)
            raise Dead
        replace(path, *arguments, **settings)

    monkeypatch.setattr(storage, "replace", die)
    with pytest.raises(Dead):
        place()
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("config.toml", "private_share = 0.1", "private_share = 0.5"),
        ("config.toml", "test_fraction = 0.2", "test_fraction = 0.19"),
        ("schema.toml", '[age]\nrange = "private"', "[age]\nlow = 0\nhigh = 99"),
    ],
)
def test_noise_that_was_drawn_for_one_question_answers_no_other(file, old, new, people, tmp_path, monkeypatch):
    """The first answer is on disk, and may have been read; the same noise in a second one would come off."""
    folder = tmp_path / "run"
    dying(monkeypatch, lambda: runs.train(asked(people), folder), "schema.found.toml")
    (folder / "schema.found.toml").unlink()
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(PrivacyError, match="what is asked of the data is not what it was"):
        runs.resume(folder)
    assert not (folder / "schema.found.toml").exists()
    (folder / file).write_text(text)
    assert runs.resume(folder).finished
    assert [line["kind"] for line in lines(folder)].count("query") == 1


@pytest.mark.parametrize("before", [None, "before"])
def test_a_run_that_died_beside_its_copy_of_the_schema_is_begun(before, people, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    dying(monkeypatch, lambda: runs.train(asked(people), folder), "schema.toml", before)
    outcome = runs.resume(folder) if (folder / "config.toml").exists() else runs.train(asked(people), folder)
    assert outcome.finished
    assert (folder / "schema.toml").read_text() == SCHEMA
    assert 'schema = "schema.toml"' in (folder / "config.toml").read_text()


def test_what_was_declared_of_a_table_is_not_taken_back(people, tmp_path):
    folder = tmp_path / "run"
    runs.train(asked(people), folder, runs.Watch(stop=lambda: True))
    path = folder / "schema.toml"
    path.write_text(path.read_text().replace('guessed = ["age", "job"]', 'guessed = ["job"]'))
    told = [c.text for c in runs.resume(folder).guarantee.conditions]
    assert any("of the columns age, job" in text for text in told)


def test_a_run_that_has_asked_something_of_a_data_set_stays_when_it_is_refused(people, tmp_path, monkeypatch):
    section = {"ledger": str(tmp_path / "all.jsonl"), "dataset": "people", "dataset_epsilon": 9.0}
    made = config.merged(asked(people), {f"run.{k}": v for k, v in section.items()} | {"run.dataset_delta": 1e-5})

    def refused(*arguments):
        raise ConfigError("no plan today")

    monkeypatch.setattr(runs, "_plan", refused)
    with pytest.raises(ConfigError, match="no plan today"):
        runs.train(made, tmp_path / "run")
    monkeypatch.undo()
    found = (tmp_path / "run" / "schema.found.toml").read_text()
    assert runs.resume(tmp_path / "run").finished
    assert (tmp_path / "run" / "schema.found.toml").read_text() == found
    assert len(verify(tmp_path / "all.jsonl").queries) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_whose_ledger_has_lost_what_it_asked_is_not_gone_on_with(shared, people, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    path = tmp_path / "all.jsonl" if shared else folder / "ledger.jsonl"
    section = {"ledger": str(path), "dataset": "people", "dataset_epsilon": 9.0, "dataset_delta": 1e-5}
    made = config.merged(asked(people), {f"run.{k}": v for k, v in section.items()} if shared else {"run.alone": True})
    dying(monkeypatch, lambda: runs.train(made, folder), "schema.found.toml")
    path.rename(tmp_path / "elsewhere")
    before = sorted(p.name for p in folder.iterdir())
    with pytest.raises(PrivacyError, match="what the run has spent is gone from"):
        runs.resume(folder)
    assert not path.exists()
    assert sorted(p.name for p in folder.iterdir()) == before
    (tmp_path / "elsewhere").rename(path)
    assert runs.resume(folder).finished


def test_a_ledger_that_has_only_what_was_asked_has_lost_the_run(people, tmp_path):
    """Put back from before the run was opened, where no checkpoint knows more."""
    folder, path = tmp_path / "run", tmp_path / "all.jsonl"
    section = {"ledger": str(path), "dataset": "people", "dataset_epsilon": 9.0, "dataset_delta": 1e-5}
    made = config.merged(asked(people), {f"run.{k}": v for k, v in section.items()})

    def die(step):
        raise Dead

    with pytest.raises(Dead):
        runs.train(made, folder, runs.Watch(step=die))
    whole = path.read_bytes()
    asking = [
        line for line in whole.splitlines(keepends=True) if b'"kind": "run"' not in line and b'"release"' not in line
    ]
    assert len(asking) == 3  # the data set, what was asked, what was declared
    path.write_bytes(b"".join(asking))
    with pytest.raises(PrivacyError, match="what the run has spent is gone from"):
        runs.resume(folder)
    path.write_bytes(whole)
    assert runs.resume(folder).finished


def test_a_schema_that_was_put_in_a_finished_runs_folder_is_seen(people, tmp_path):
    runs.train(asked(people), tmp_path / "run")
    path = tmp_path / "run" / "schema.toml"
    path.write_text(path.read_text().replace("3.0", "1.0"))
    with pytest.raises(PrivacyError, match=r"schema.toml is not the file that the run left"):
        verify(tmp_path / "run")


def test_what_is_refused_costs_nothing(people, tmp_path):
    with people.open("a") as file:
        file.write("old,cook,perhaps\n")
    with pytest.raises(ConfigError, match="2 problems"):
        runs.train(asked(people), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget.batch_share": 2.0}, "batch_share is 2.0"),
        ({"data.private_share": 1.0}, "private_share is 1.0"),
        ({"federated.user": "job"}, r"\[federated\] protects users"),
    ],
)
def test_what_does_not_go_together(changes, words, people, tmp_path):
    with pytest.raises(ConfigError, match=words):
        runs.train(config.merged(asked(people), changes), tmp_path / "run")


def test_noise_in_place_of_a_budget_has_no_share(people, tmp_path):
    plain = config.from_dict({"data": {"name": str(people), "label": "y"}, "budget": {"noise": 1.0}})
    with pytest.raises(ConfigError, match="paid for from a share of"):
        runs.train(plain, tmp_path / "run")


def test_other_data_has_no_facts_and_a_stated_schema_assumes_nothing():
    assert facts_of(config.Config()) is None
    assert assumed_of(known("a", {"a": {"low": 0, "high": 1}})) == []


def test_a_number_has_its_errors_in_its_own_units_and_by_group_in_metrics_page_and_card(people, tmp_path):
    schema = "[age]\nlow = 20\nhigh = 70\n[job]\ncategories = 'private'\n[y]\ncategories = ['no', 'yes']\n"
    (tmp_path / "people.schema.toml").write_text(schema)
    wanted = config.merged(asked(people), {"data.label": "age", "evaluation.group": "y"})
    outcome = runs.train(wanted, tmp_path / "run")
    merit = outcome.merit
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["merit"]
    assert last == json.loads(json.dumps(merit))
    assert 12 < merit["mean_rmse"] < 17  # of ages from 20 to 69, evenly
    assert merit["target"] == [20.0, 70.0]
    assert [(g["name"], g["rows"] > 0) for g in merit["groups"]] == [("no", True), ("yes", True), ("others", False)]
    write([tmp_path / "run"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "by y" in page
    assert "own units" in page
    assert f"Root mean square error {merit['rmse']:.4g}" in (tmp_path / "run" / "README.md").read_text()
    assert runs.resume(tmp_path / "run").merit == last
