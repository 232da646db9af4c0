import pytest
import torch
from small_training import data, linear, plan, silent, weights

import discreet
from discreet import (
    ConfigError,
    Ledger,
    PrivacyError,
)
from discreet.training.loop import fit


class Killed(Exception):
    """Stands for the end of a process."""


def training(folder, planned, *, until=None, stop=None, averaging=0.9):
    """One life of a run that keeps everything; `until` ends it without a word, `stop` politely."""
    model = linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / planned.steps)
    steps = []

    def on_step(step):
        steps.append(step)
        if step == until:
            raise Killed

    fitted = fit(
        model,
        data(),
        planned,
        test=data(),
        optimizer=optimizer,
        schedule=schedule,
        averaging=averaging,
        ledger=folder / "ledger.jsonl",
        checkpoint=folder / "checkpoint",
        checkpoint_every=0.0,
        on_step=on_step,
        stop=lambda: len(steps) == stop,
    )
    return model, fitted, steps, schedule


def test_a_stopped_run_goes_on_exactly_where_it_was(tmp_path):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, fitted, _, _ = training(tmp_path / "whole", silent(12))
    _, first, steps, _ = training(tmp_path / "parts", silent(12), stop=5)
    assert (steps, first.finished) == ([1, 2, 3, 4, 5], False)
    resumed, second, steps, schedule = training(tmp_path / "parts", silent(12))
    assert steps == list(range(6, 13))
    assert second.finished
    assert second.lost == 0
    assert schedule.get_last_lr() == [0.0]
    torch.testing.assert_close(weights(resumed), weights(whole))  # optimizer, schedule and average were all restored
    assert second.guarantee.released == fitted.guarantee.released == 12
    assert [r["step"] for r in second.records][-1] == 12


def test_a_killed_run_loses_what_came_after_its_checkpoint_and_repeats_nothing(tmp_path):
    planned = plan(12)
    with pytest.raises(Killed):
        training(tmp_path, planned, until=7)  # released, and not in a checkpoint
    _, fitted, steps, schedule = training(tmp_path, planned)
    assert steps == list(range(8, 13))
    assert fitted.lost == 1
    assert schedule.get_last_lr() == [0.0]  # goes by releases: it ends where the plan ends
    found = discreet.verify(tmp_path / "ledger.jsonl", anchor=fitted.anchor)
    assert found.runs[0].released == planned.steps
    assert found.runs[0].guarantee.epsilon <= planned.guarantee().epsilon


def test_a_run_killed_before_its_first_checkpoint_goes_on_with_what_is_left(tmp_path):
    with pytest.raises(Killed):
        training(tmp_path, plan(6), until=1)
    assert not (tmp_path / "checkpoint").exists()
    _, fitted, steps, schedule = training(tmp_path, plan(6))
    assert steps == [2, 3, 4, 5, 6]
    assert fitted.lost == 1
    assert schedule.get_last_lr() == [0.0]


def test_a_finished_run_is_trained_no_further(tmp_path):
    model, first, _, _ = training(tmp_path, plan(4))
    again, second, steps, _ = training(tmp_path, plan(4))
    assert steps == []
    assert second.finished
    torch.testing.assert_close(weights(again), weights(model))
    assert second.records == first.records


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    training(tmp_path, plan(4), stop=2)
    with pytest.raises(ConfigError, match="another averaging"):
        training(tmp_path, plan(4), averaging=0.0)
    model = linear()
    private = discreet.attach(model, plan(4))
    discreet.save_checkpoint(
        tmp_path / "own", model=model, private=private, optimizer=torch.optim.SGD(model.parameters(), lr=1.0)
    )
    private.detach()
    with pytest.raises(ConfigError, match="no checkpoint of a trained run"):
        fit(linear(), data(), plan(4), checkpoint=tmp_path / "own")


def test_a_data_sets_ledger_caps_runs_together(tmp_path):
    one = plan(4).guarantee().epsilon
    ledger = Ledger(tmp_path / "all.jsonl", dataset="clouds", epsilon=1.2 * one, delta=1e-5)
    assert fit(linear(), data(), plan(4), ledger=ledger).finished
    with pytest.raises(PrivacyError, match="'clouds' may spend"):
        fit(linear(), data(), plan(4), ledger=ledger)
