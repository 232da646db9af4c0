import json
import math
import tomllib
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file
from small_runs import Killed, config, contents, killed, stopping

from discreet import BudgetExhausted, ConfigError, Plan, PrivacyError, verify
from discreet.accounting.guarantee import Guarantee
from discreet.report import read
from discreet.runs import run as runs
from discreet.runs.config import from_dict, load, merged
from discreet.runs.outcome import read_end
from discreet.runs.progress import Watch
from discreet.runs.run import resume, train


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- a run from its beginning to its end -----------------------------------------------------------------------------


def test_a_run_leaves_everything_in_its_folder(table, tmp_path):
    folder, heard = tmp_path / "runs" / "a", []
    watch = Watch(stage=heard.append, begin=lambda done, steps: heard.append((done, steps)))
    made = config(table, budget={"noise": None, "epsilon": 3.0}, optimizer={"learning_rate": 0.5})
    outcome = train(made, folder, watch)
    assert heard == ["reading the data", "solving for the noise", "training", (0, 8)]
    assert {p.name for p in folder.iterdir()} >= {
        "config.toml", "plan.toml", "ledger.jsonl", "metrics.jsonl", "checkpoint", "model.safetensors",
        "guarantee.json", "guarantee.txt", "end.json",
    }  # fmt: skip
    assert outcome.finished
    assert not outcome.already
    assert outcome.lost == 0
    assert load(folder / "config.toml") == made
    plan = Plan.load(folder / "plan.toml")
    assert (plan.steps, plan.epsilon) == (8, 3.0)
    found = verify(folder, anchor=outcome.anchor)
    assert found.runs[0].released == 8
    assert found.runs[0].guarantee.epsilon <= 3.0
    stated = Guarantee.from_json((folder / "guarantee.json").read_text())
    assert stated == outcome.guarantee
    assert str(stated) in (folder / "guarantee.txt").read_text()
    weights = load_file(folder / "model.safetensors")
    assert {n: tuple(t.shape) for n, t in weights.items()} == {"1.weight": (3, 5), "1.bias": (3,)}
    assert lines(folder)[-1]["accuracy"] == outcome.accuracy
    assert read(folder).holds
    assert not [p for p in folder.iterdir() if p.suffix and len(p.suffix) == 9]  # nothing half written


def test_a_line_of_the_ledger_may_count_several_steps_ahead(table, tmp_path):
    train(config(table, run={"reserve": 4}), tmp_path / "a")
    written = [json.loads(line) for line in (tmp_path / "a" / "ledger.jsonl").read_text().splitlines()]
    assert [line.get("count") for line in written if line["kind"] == "release"] == [4, 4]
    assert verify(tmp_path / "a").runs[0].released == 8
    with pytest.raises(ConfigError, match="reserve"):
        train(config(table, run={"reserve": 0}), tmp_path / "b")


def test_metrics_have_a_line_an_evaluation(table, tmp_path):
    train(config(table, evaluation={"every": 0.5, "batch_size": 3}), tmp_path / "a")
    found = lines(tmp_path / "a")
    assert [line["step"] for line in found] == [2, 4, 6, 8]
    assert set(found[0]) == {"step", "epoch", "epsilon", "seconds", "examples_per_second", "loss", "accuracy"}
    assert found[1]["epoch"] == 1.0


def test_a_finished_run_says_so_and_is_left_alone(table, tmp_path):
    first = train(config(table), tmp_path / "a")
    before = contents(tmp_path / "a")
    again = resume(tmp_path / "a")
    assert again.already
    assert again.finished
    assert (again.accuracy, again.anchor, again.guarantee) == (first.accuracy, first.anchor, first.guarantee)
    with pytest.raises(ConfigError, match=r"is there already and is left alone; .* discreet resume"):
        train(config(table), tmp_path / "a")
    assert contents(tmp_path / "a") == before


def test_a_stopped_run_is_continued_to_its_end(table, tmp_path):
    made = config(table, schedule={"name": "cosine", "warmup": 0.2}, averaging={"decay": 0.9})
    first = train(made, tmp_path / "a", stopping(3))
    assert not first.finished
    assert read_end(tmp_path / "a") is None
    assert not (tmp_path / "a" / "model.safetensors").exists()
    assert verify(tmp_path / "a").runs[0].released == 3
    steps = []
    second = resume(tmp_path / "a", Watch(step=steps.append))
    assert steps == [4, 5, 6, 7, 8]
    assert second.finished
    assert second.lost == 0
    assert second.guarantee.epsilon == first.guarantee.epsilon  # the plan was declared whole
    assert [line["step"] for line in lines(tmp_path / "a")] == [3, 4, 8]
    assert read(tmp_path / "a").holds


@pytest.mark.parametrize("at", [1, 5, 8])
def test_a_killed_run_is_continued_within_its_budget(table, tmp_path, at):
    with pytest.raises(Killed):
        train(config(table), tmp_path / "a", killed(at))
    (tmp_path / "a" / ".checkpoint.0123abcd").write_bytes(b"half")
    with (tmp_path / "a" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 7, "epo')
    outcome = resume(tmp_path / "a")
    assert outcome.finished
    assert outcome.lost == 1  # the step itself: its checkpoint was not written
    assert verify(tmp_path / "a", anchor=outcome.anchor).runs[0].released == 8
    assert lines(tmp_path / "a")[-1]["step"] == 8
    assert not (tmp_path / "a" / ".checkpoint.0123abcd").exists()


@pytest.mark.parametrize("stage", ["reading the data", "solving for the noise", "training"])
def test_a_run_killed_before_it_began_is_continued(table, tmp_path, stage):
    def die(words):
        if words == stage:
            raise Killed

    with pytest.raises(Killed):
        train(config(table), tmp_path / "a", Watch(stage=die))
    outcome = resume(tmp_path / "a")
    assert outcome.finished
    assert outcome.lost == 0


@pytest.mark.parametrize("torn", [b"", b'{"at": "2026-11-', b'{"format": "discreet-le'])
def test_a_ledger_whose_first_line_was_cut_off_has_counted_nothing_and_is_begun_anew(table, tmp_path, torn):
    with pytest.raises(Killed):
        train(config(table), tmp_path / "a", Watch(begin=lambda done, steps: (_ for _ in ()).throw(Killed())))
    (tmp_path / "a" / "ledger.jsonl").write_bytes(torn)
    assert resume(tmp_path / "a").finished
    assert verify(tmp_path / "a").runs[0].released == 8


def test_a_ledger_that_lost_what_a_checkpoint_knows_is_not_begun_anew(table, tmp_path):
    train(config(table), tmp_path / "a", stopping(3))
    lines = (tmp_path / "a" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for left, words in ((b"", "what the run has spent is gone from"), (lines[0], "lacks a line that the checkpoint")):
        (tmp_path / "a" / "ledger.jsonl").write_bytes(left)
        with pytest.raises(PrivacyError, match=words):
            resume(tmp_path / "a")
        assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == left


@pytest.mark.parametrize("torn", [None, b"", b'{"at": "20'])
def test_a_run_whose_ledger_is_gone_is_not_begun_anew(table, tmp_path, torn):
    with pytest.raises(Killed):
        train(config(table), tmp_path / "a", killed(2))
    (tmp_path / "a" / "checkpoint").unlink()
    (tmp_path / "a" / "ledger.jsonl").unlink()
    if torn is not None:
        (tmp_path / "a" / "ledger.jsonl").write_bytes(torn)
    with pytest.raises(PrivacyError, match="what the run has spent is gone from"):
        resume(tmp_path / "a")


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_anything_is_not_taken(table, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        train(config(table), folder)
    with pytest.raises(ConfigError, match="is there already"):
        train(config(table), folder / "notes.txt")
    with pytest.raises(ConfigError, match="cannot be made"):
        train(config(table), folder / "notes.txt" / "below")
    with pytest.raises(ConfigError, match="cannot be made"):
        train(config(table), tmp_path / ("long" * 100))
    assert {p.name for p in folder.iterdir()} == {"notes.txt"}


def test_an_empty_folder_is_taken_also_if_a_run_was_killed_there_before_its_config_was_written(table, tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".config.toml.0123abcd").write_text("[da")
    with pytest.raises(ConfigError, match="no config"):
        resume(folder)
    assert train(config(table), folder).finished
    assert not (folder / ".config.toml.0123abcd").exists()


def test_one_process_at_a_time_has_a_folder(table, tmp_path):
    folder, seen = tmp_path / "a", []

    def meanwhile(done, steps):
        with pytest.raises(ConfigError, match="in use by another process"):
            resume(folder)
        seen.append(True)

    assert train(config(table), folder, Watch(begin=meanwhile)).finished
    assert seen == [True]


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"name": "nowhere.npz"}},
        {"data": {"examples": 63}},
        {"model": {"name": "cnn"}},
        {"budget": {"batch_size": 1000}},
        {"augmentation": {"flip": True}},
        {"method": {"settings": {"norm": -1.0}}},
        {"model": {"name": "small_runs:mixing"}},
    ],
)
def test_what_is_refused_before_the_first_release_leaves_nothing(table, tmp_path, sections):
    with pytest.raises((ConfigError, PrivacyError)):
        train(config(table, **sections), tmp_path / "new" / "a")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises((ConfigError, PrivacyError)):
        train(config(table, **sections), tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())  # it was there before, and still is


def test_what_fails_after_a_release_is_kept(table, tmp_path):
    def fail(step):
        if step == 3:
            raise ConfigError("the disk is full")

    with pytest.raises(ConfigError):
        train(config(table), tmp_path / "a", Watch(step=fail))
    assert resume(tmp_path / "a").finished


def test_a_folder_that_is_no_runs_says_so(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / ("long" * 100)):
        with pytest.raises(ConfigError, match="is no run's folder"):
            resume(folder)


def test_relative_paths_mean_the_same_wherever_a_run_is_continued(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = {"ledger": "all.jsonl", "dataset": "clouds", "dataset_epsilon": 9.0, "dataset_delta": 1e-5}
    train(config(table.name, run=section), "a", stopping(2))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(tmp_path / "a").finished
    assert not (tmp_path / "elsewhere" / "all.jsonl").exists()


# --- methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["sound", "paper"])
@pytest.mark.parametrize("name", ["dp_sgd", "tanh_filter", "belu", "adaptive_clipping", "encode_denoise"])
def test_every_method_trains_stops_resumes_and_verifies(table, tmp_path, name, form):
    settings = {"form": form} | ({"envelopes": 1} if name == "encode_denoise" else {})
    made = config(
        table,
        model={"name": "belu"} if name == "belu" else {},
        method={"name": name, "settings": settings},
        budget={"steps": 4},
    )
    first = train(made, tmp_path / "a", stopping(2))
    second = resume(tmp_path / "a")
    assert (first.finished, second.finished, second.lost) == (False, True, 0)
    found = verify(tmp_path / "a", anchor=second.anchor)
    assert found.runs[0].follows_from_its_plan
    assert found.runs[0].guarantee.epsilon == pytest.approx(second.guarantee.epsilon)
    assert ("clipping_norms" in lines(tmp_path / "a")[-1]) == (name == "adaptive_clipping")


def test_a_certified_network_is_bounded_by_its_shape(table, tmp_path):
    method = {"name": "belu", "settings": {"certified": True}}
    outcome = train(config(table, model={"name": "belu"}, method=method), tmp_path / "a")
    assert outcome.finished
    assert tomllib.loads((tmp_path / "a" / "plan.toml").read_text())["bound"]["type"] == "BoundedNetwork"


def test_stages_one_by_one(table, tmp_path):
    stages = {
        "sampling": {"type": "Poisson"},
        "bound": {"type": "PerLayerClip", "norms": 0.5},
        "noise": {"type": "Gaussian"},
        "denoise": {"type": "Kalman", "gain": 0.4},
        "allocation": "each",
        "noise_schedule": [1.5, 0.8],
    }
    train(config(table, stages=stages), tmp_path / "a", stopping(5))
    outcome = resume(tmp_path / "a")
    assert outcome.finished
    plan = Plan.load(tmp_path / "a" / "plan.toml")
    assert plan.noise_schedule == (1.5, 0.8)
    assert verify(tmp_path / "a").runs[0].guarantee.epsilon == pytest.approx(outcome.guarantee.epsilon)


def test_without_noise_nothing_is_proven_and_the_run_says_so(table, tmp_path):
    outcome = train(config(table, budget={"noise": 0.0}), tmp_path / "a")
    assert outcome.guarantee.epsilon == math.inf
    assert not read(tmp_path / "a").holds
    assert read_end(tmp_path / "a").guarantee.epsilon == math.inf


# --- a data set's ledger, TensorBoard, and what else a run may say ---------------------------------------------------


def test_a_data_sets_ledger_caps_its_runs_together(table, tmp_path):
    one = config(table).plan(64).guarantee().epsilon
    section = {
        "ledger": str(tmp_path / "all.jsonl"),
        "dataset": "clouds",
        "dataset_epsilon": 1.2 * one,
        "dataset_delta": 1e-5,
    }
    made = config(table, run=section)
    train(made, tmp_path / "a", stopping(3))
    assert resume(tmp_path / "a").finished
    assert not (tmp_path / "a" / "ledger.jsonl").exists()
    assert read(tmp_path / "a").holds
    found = verify(tmp_path / "all.jsonl")
    assert (found.dataset, [run.released for run in found.runs]) == ("clouds", [8])
    with pytest.raises(BudgetExhausted, match="'clouds' may spend"):
        train(made, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_logs_are_written(table, tmp_path):
    train(config(table, run={"tensorboard": True}), tmp_path / "a")
    assert list((tmp_path / "a" / "tensorboard").iterdir())


def test_a_relation_that_a_split_by_position_does_not_keep_is_refused(tmp_path):
    """Which rows are held out depends on how many there are: with one more, many change sides."""
    config = from_dict(
        {
            "data": {"name": "digits"},
            "model": {"name": "linear"},
            "budget": {"noise": 5.0, "steps": 2, "batch_size": 64},
            "stages": {
                "sampling": {"type": "Poisson", "rate": 0.05},
                "bound": {"type": "Clip", "norm": 1.0},
                "noise": {"type": "Gaussian"},
            },
        }
    )
    with pytest.raises(ConfigError, match="added or removed"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_flag_for_epochs_replaces_steps_in_the_file():
    file = from_dict({"budget": {"epsilon": 1.0, "steps": 7}})
    assert merged(file, {"budget.epochs": 40.0}).budget.steps is None
    with pytest.raises(ConfigError, match="no fields of its own"):
        merged(file, {"data.name.x": 1})
    with pytest.raises(ConfigError, match="must be a finite number"):
        merged(file, {"optimizer.settings.lr": math.nan})


def test_what_is_drawn_while_training_does_not_follow_from_the_public_seed(table, tmp_path, monkeypatch):
    """Dropout and changed copies: who knew the seed would know everybody's, and who is left out would shift them."""
    seen, loop = [], runs.train_loop
    monkeypatch.setattr(runs, "train_loop", lambda *a: (seen.append(torch.initial_seed()), loop(*a))[1])
    for name in ("a", "b"):
        runs.train(config(table), tmp_path / name)
    assert len({0, *seen}) == 3
