"""Five people's ways through the product, from an installed wheel: what each came for is there in the end."""

import csv
import json
import random
import signal

import pytest
import yaml
from installed import Installed, environment


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An environment, and a folder with a table of people."""
    folder = tmp_path_factory.mktemp("journeys")
    draw = random.Random(0)
    with (folder / "people.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "job", "income"])
        for _ in range(600):
            age, job = draw.randint(18, 80), draw.choice(["clerk", "cook"])
            rows.writerow([age, job, "high" if age + 20 * (job == "clerk") + draw.gauss(0, 8) > 60 else "low"])
    return environment(folder), folder


@pytest.fixture
def installed(place):
    return Installed(*place)


@pytest.fixture(scope="module")
def trained(place):
    """The table, trained on in two commands."""
    session = Installed(*place)
    session.run("schema", "people.csv", "--label", "income")
    session.run("train", "people.csv", "--label", "income", "--epsilon", "1", "--epochs", "2", "--out", "runs/people")
    return session


def test_it_is_the_wheel(installed, place):
    where = installed.python("import json, discreet; print(json.dumps(discreet.__file__))")
    assert where.startswith(str(place[0]))


def test_a_data_scientist_has_predictions_in_three_commands(trained, place):
    folder = place[1]
    (folder / "new.csv").write_text("age,job\n75,clerk\n19,cook\n,clerk\n")
    trained.run("predict", "runs/people", "new.csv", "--out", "out.csv")
    with (folder / "out.csv").open() as file:
        assert [row["prediction"] in ("high", "low") for row in csv.DictReader(file)] == [True] * 3
    assert [command[0] for command in trained.commands] == ["schema", "train", "predict"]


def test_a_privacy_officer_has_a_page_and_an_entry(trained, installed, place):
    folder = place[1]
    assert "the chain holds" in " ".join(installed.run("verify", "runs/people").split())
    needed = 'name = "A"\ndescription = "B"\npurpose = "C"\nregion = "D"\npublished = "2026-11-19"\n'
    (folder / "said.toml").write_text(f'[statement]\n{needed}curators = ["E"]\nauthors = ["F"]\n')
    installed.run("report", "runs/people", "--statement", "said.toml", "--registry", "entry.yaml")
    entry = yaml.safe_load((folder / "entry.yaml").read_text())
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] <= 1
    page = (folder / "runs" / "people" / "report.html").read_text()
    assert all(words in page for words in ("Of 1,000 examples in the data", "What is not covered", "Glossary"))
    (folder / "copy.jsonl").write_text((folder / "runs/datasets/people.jsonl").read_text().replace("Clip", "Clop", 1))
    assert "damaged" in installed.run("verify", "copy.jsonl", code=1)


def test_an_opacus_user_keeps_the_loop(installed):
    released, epsilon = installed.python(
        """
import json, torch, discreet
from torch.nn import functional as F
model = torch.nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(200, 5), torch.randint(2, (200,))
plan = discreet.methods.dp_sgd(examples=200, batch_size=50, epochs=2, epsilon=3, delta=1e-5)
private = discreet.attach(model, plan, ledger="loop.jsonl")
for a, b in private.batches((x, y)):
    private.backward(F.cross_entropy(model(a), b, reduction="none"))
    optimizer.step()
print(json.dumps([private.released, private.guarantee().epsilon]))
"""
    )
    assert released == 8
    assert epsilon <= 3
    found = json.loads(installed.run("verify", "loop.jsonl", "--json"))
    assert found["runs"][0]["guarantee"]["epsilon"] == epsilon
    assert "loop-report" in installed.run("report", "loop.jsonl")


def test_a_researcher_plans_and_runs_what_was_planned(installed):
    planned = ("--examples", "200", "--batch-size", "50", "--epochs", "2", "--epsilon", "3")
    installed.run("plan", *planned, "--out", "plan.toml")
    ran, proven = installed.python(
        """
import json, torch, discreet
plan = discreet.Plan.load("plan.toml")
x, y = torch.randn(200, 5), torch.randint(2, (200,))
fitted = discreet.fit(torch.nn.Linear(5, 2), (x, y), plan)
print(json.dumps([fitted.guarantee.epsilon, plan.guarantee().epsilon]))
"""
    )
    assert ran == proven <= 3
    assert "mnist" in installed.run("train", "--recipe", "list")


def test_a_platform_engineer_stops_a_run_goes_on_and_ships_it(trained, installed, place):
    settings = ("--label", "income", "--epsilon", "1", "--epochs", "20", "--out", "runs/job")
    job = installed.start("train", "people.csv", *settings, "--log-format", "json")
    events = []
    for line in job.stderr:
        events.append(json.loads(line)["event"])
        if events[-1] == "begin":
            job.send_signal(signal.SIGTERM)
            break
    job.communicate(timeout=300)
    assert job.returncode == 143
    told = json.loads(installed.run("resume", "runs/job", "--json"))
    assert told["finished"]
    assert told["guarantee"]["epsilon"] <= 1
    installed.run("export", "runs/job", "--to", "sklearn", "--out", "model.joblib")
    assert (place[1] / "model.joblib").is_file()
