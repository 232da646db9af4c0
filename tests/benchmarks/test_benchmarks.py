"""The benchmark's machinery: real workers, real limits, and no assertion about how long anything takes."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY, WIDE = "MLP 784-32-10, 64", "MLP 784-1000-10, 600"


@pytest.fixture(autouse=True)
def _folder(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def rows_of(title, *names, cap=4.0, fastdp=None):
    import speed
    from race.track import Rules

    return {row["competitor"]: row for row in speed.measure([title], names, Rules(1, 1, 0.01, cap=cap), fastdp)}


def on_path(monkeypatch, folder):
    rest = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [rest])]))


def test_sgd_and_discreet_are_measured_and_shown(tmp_path, capsys):
    import speed

    file = tmp_path / "found.json"
    chosen = ["--only", TINY, "--competitors", "SGD", "discreet", "--rounds", "2", "--seconds", "0.01"]
    speed.main([*chosen, "--json", str(file)])
    shown = capsys.readouterr().out
    assert TINY in shown
    found = json.loads(file.read_text())
    assert str(tmp_path) not in found["about"]["command"]
    assert found["about"]["versions"]["torch"] == torch.__version__
    assert [row["competitor"] for row in found["results"]] == ["SGD", "discreet"]
    for row in found["results"]:
        assert row["status"] == "ran"
        assert len(row["wall"]) == len(row["cpu"]) == 2
        assert row["steps"] >= 1
        assert row["peak"] >= 0
    speed.main(["--from", str(file), "--markdown"])
    table = capsys.readouterr().out
    assert "| model, batch | SGD | discreet |" in table
    assert table.count(f"| {TINY} |") == 2  # once for each clock


def test_what_takes_more_than_the_cap_is_out_of_memory_and_the_rest_goes_on():
    found = rows_of(WIDE, "vmap", "SGD", cap=1.0)
    assert found["vmap"]["status"] == "out of memory"
    assert found["vmap"]["why"] == "cap 1 GiB"
    assert found["SGD"]["status"] == "ran"


def test_what_is_not_there_is_missing(tmp_path, monkeypatch):
    (tmp_path / "opacus.py").write_text("raise ModuleNotFoundError('no opacus', name='opacus')")
    on_path(monkeypatch, tmp_path)
    found = rows_of(TINY, "Opacus hooks", "fastDP")
    assert (found["Opacus hooks"]["status"], found["Opacus hooks"]["why"]) == ("missing", "opacus is not installed")
    assert (found["fastDP"]["status"], found["fastDP"]["why"]) == ("missing", "no checkout was given (--fastdp PATH)")


ENGINE = """
class PrivacyEngine:
    def __init__(self, model, **options):
        self.named_params = [(name, p) for name, p in model.named_parameters() if name not in {left_out}]

    def attach(self, optimizer):
        pass
"""


@pytest.mark.parametrize(("left_out", "status"), [(["0.bias"], "cannot"), ([], "ran")])
def test_a_library_that_leaves_out_parameters_cannot_train_the_model(tmp_path, left_out, status):
    (tmp_path / "fastDP").mkdir()
    (tmp_path / "fastDP" / "__init__.py").write_text(ENGINE.format(left_out=left_out))
    row = rows_of(TINY, "fastDP", fastdp=str(tmp_path))["fastDP"]
    assert row["status"] == status
    assert row.get("why", "it does not train 0.bias") == "it does not train 0.bias"


def test_a_process_that_ends_by_itself_is_reported(tmp_path, monkeypatch):
    from race.track import Job, Rules, race

    (tmp_path / "fatal.py").write_text("import os\ndef step_of():\n    return lambda: os._exit(3)")
    on_path(monkeypatch, tmp_path)
    (found,) = race({"fatal": Job("fatal", "step_of", {})}, Rules(1, 1)).values()
    assert found == {"status": "fails", "why": "its process ended with exit code 3"}


def test_who_does_not_warm_up_in_time_is_too_slow(tmp_path, monkeypatch):
    from race.track import Job, Rules, race

    (tmp_path / "waits.py").write_text("import threading\ndef step_of():\n    threading.Event().wait()")
    on_path(monkeypatch, tmp_path)
    (found,) = race({"waits": Job("waits", "step_of", {})}, Rules(1, 1, patience=0.1)).values()
    assert found == {"status": "too slow", "why": "not warm after 0.1 s"}


def test_every_worker_has_the_same_allocator_and_threads(monkeypatch):
    from race import machine

    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    tuned, default = machine.environment(1, "tuned"), machine.environment(1, "default")
    assert tuned["OMP_NUM_THREADS"] == default["OMP_NUM_THREADS"] == "1"
    assert {k: v for k, v in tuned.items() if k.startswith("MALLOC_")} == machine.ALLOCATORS["tuned"]
    assert not any(k.startswith("MALLOC_") for k in default)


def test_a_line_is_found_exactly():
    import scale

    assert scale.line([1, 2, 4], [5, 7, 11]) == pytest.approx((3, 2, 1))


def test_the_large_transformer_has_a_hundred_million_parameters():
    import scale

    _, points = scale.large(quick=False)[0]
    assert points[0].at > 100
    assert (points[0].batch, points[0].size["length"]) == (8, 128)


@pytest.mark.parametrize("competitor", ["SGD", "discreet"])
def test_a_step_of_lora_trains_the_adapters_and_nothing_else(competitor, monkeypatch):
    import lora
    from race import adapters

    made = []
    monkeypatch.setattr(adapters, "llama", lambda **size: made.append(lora.llama(**size)) or made[0])
    step = adapters.step_of(competitor, **lora.QUICK["quick"])
    before = [p.detach().clone() for p in made[0].parameters()]
    step()
    changed = [not torch.equal(old, p) for old, p in zip(before, made[0].parameters(), strict=True)]
    assert not any(c for c, p in zip(changed, made[0].parameters(), strict=True) if not p.requires_grad)
    assert any(changed)
    every, trained = adapters.sizes(made[0])
    assert trained < every / 10


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed: pip install 'discreet[benchmarks]'")
def test_the_networks_in_jax_are_those_in_torch():
    import jax
    from models import SETTINGS
    from race.networks_in_jax import NETWORKS

    for setting in SETTINGS:
        model, x = setting.build(), setting.inputs(2)
        parameters = {name: jax.numpy.array(p.detach().numpy()) for name, p in model.named_parameters()}
        found = torch.tensor(NETWORKS[setting.name](parameters, jax.numpy.array(x.numpy())).tolist())
        torch.testing.assert_close(found, model(x).detach(), atol=1e-5, rtol=1e-4)


def test_the_overview_has_each_model_of_the_last_run_that_has_it_in_its_place():
    import speed

    def found(day, threads, **models):
        ran = {"status": "ran", "note": "", "peak": 0, "first": 0, "later": 0, "before": 0}
        rows = [
            {"model": model, "threads": threads, "competitor": name, "wall": [t], "cpu": [t], **ran}
            for model, seconds in models.items()
            for name, t in (("SGD", 0.001), ("discreet", seconds))
        ]
        return {"about": {**about, "date": day}, "results": rows}

    file = BENCHMARKS / "measured" / "speed" / "one-thread.json"
    about = json.loads(file.read_text())["about"]
    runs = found("first", 1, a=0.002, b=0.003), found("second", 1, b=0.004), found("third", 2, c=0.005)
    runs += (found("fourth", 1, a=0.005),)
    shown = speed.overview(*runs)
    lines = [line for line in shown.splitlines() if line.startswith(("| a |", "| b |", "| c |"))]
    assert [line.split("|")[2].strip() for line in lines] == ["5.00", "4.00"]
    assert [day in shown for day in ("first", "second", "third", "fourth")] == [False, True, False, True]


def test_goals_are_shown_beside_what_was_reached():
    import speed

    def row(competitor, threads, cpu, peak, status="ran"):
        times = {"wall": [2 * cpu], "cpu": [cpu]}
        return {
            "model": "WRN-16-4, 64",
            "threads": threads,
            "competitor": competitor,
            "status": status,
            "peak": peak,
            **times,
        }

    one = [row("SGD", 1, 1.0, 100), row("SGD twice", 1, 2.0, 200), row("discreet", 1, 1.2, 150)]
    one += [
        row("Opacus ew", 1, 1.8, 0),
        row("fastDP", 1, 2.4, 0),
        row("vmap", 1, 1.5, 0),
        row("jax-privacy", 1, 0.1, 0, "too slow"),
    ]
    two = [row("SGD", 2, 1.0, 100), row("discreet", 2, 1.3, 150), row("discreet keep", 2, 1.25, 150)]
    before = [row("SGD", 1, 1.0, 100), row("discreet", 1, 9.0, 900)]
    shown = speed.goals({"results": before}, {"results": one}, {"results": two})
    line = next(line for line in shown.splitlines() if "WRN" in line)
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    assert cells == ["1.1", "1.20", "", "1.30", "1.25", "1.50", "0.75", "Opacus ew", "1.50", "1.25"]


SPEED_PLACES = ("steps", "goals", "epoch", "lora", "scale", "where", "shared")


def test_the_places_for_tables_are_filled_and_can_be_filled_again(tmp_path):
    from race import pages

    places = [("README.md", "overview"), *(("docs/speed.md", name) for name in SPEED_PLACES)]
    for page, name in places:
        copy = tmp_path / page
        copy.parent.mkdir(exist_ok=True)
        copy.write_text((pages.ROOT / page).read_text())
        for text in ("| one |", "| two |"):
            pages.fill(page, name, text, root=tmp_path)
            assert f"-->\n{text}\n<!-- /speed -->" in copy.read_text()
        assert "| one |" not in copy.read_text()
    with pytest.raises(ValueError, match="0 places for 'nothing'"):
        pages.fill("README.md", "nothing", "", root=tmp_path)


@pytest.mark.parametrize("kind", ["whole", "loaders"])
def test_epochs_and_loaders_of_the_library_give_rows(kind, monkeypatch):
    from race import epochs

    rows = torch.rand(600, 1, 28, 28), torch.randint(10, (600,))
    monkeypatch.setattr(epochs, "images", lambda: (rows, "made up"))
    step = epochs.step_of(kind, "discreet")
    assert 0 < sum(step() for _ in range(3)) < 3 * 600


def test_the_parts_of_a_step_add_up_and_a_floor_has_no_calls(monkeypatch):
    import where
    from models import Setting

    def build():
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(32, 10))

    setting = Setting("several rows an example", build, lambda n: torch.randn(n, 4, 6), 16)
    clock = where.Clock()
    for owner, name, part in where.INSIDE:
        monkeypatch.setattr(owner, name, clock.timed(part, getattr(owner, name)))
    rows = {row[1]: row for row in where.rows_of(setting, clock, 3, 1.3)}
    assert list(rows) == ["SGD", "discreet", "probed", "floor"]
    cells = dict(zip(where.PARTS, rows["discreet"][2:-2], strict=True))
    assert all(float(cells[part]) > 0 for part in ("forward", "backward", "gradients", "noise", "rest"))
    assert float(rows["discreet"][-2]) == pytest.approx(sum(map(float, cells.values())), abs=0.05)
    assert rows["SGD"][-1] == "1.00"
    assert dict(zip(where.PARTS, rows["floor"][2:-2], strict=True))["bound"] == ""
