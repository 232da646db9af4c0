"""An audit within a run: what is declared, what is kept, and that what is measured is what ran."""

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from discreet import AdaptiveClip, Clip, ConfigError, FixedSize, Gaussian, Mechanism, Plan, Poisson, PrivacyError, fit
from discreet.audit.canaries import EXCLUDED
from discreet.audit.one_run import OneRun
from discreet.audit.witness import AuditSpec, RunAuditor, declare, verdicts
from discreet.ledger import Ledger
from discreet.ledger.verification import verify
from discreet.stages.bounds import BoundedNetwork
from discreet.training.evaluation import loss_for

N, M = 40, 60


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3))


def rows(n=N):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def plan(noise=1.0, steps=3, size=50, **more):
    sampling = more.pop("sampling", Poisson(examples=N + M, batch_size=size))
    return Plan(
        sampling=sampling, mechanism=Mechanism(more.pop("bound", Clip(1.0)), Gaussian(noise)), steps=steps, delta=1e-5
    )


def witness(model, made, **settings):
    declared = declare(model, made, M, score=settings.pop("score", None))
    return RunAuditor(model, made, declared, loss_for(rows()), seed=3, **settings)


def tells_all(found):
    """Whether the scores of all who were in are higher than those of all who were out."""
    return found.scores[found.coins].min() > found.scores[~found.coins].max()


def test_guesses_are_fixed_by_the_plan_and_the_model_alone():
    first, second = (declare(network(), plan(), M) for _ in range(2))
    assert first == second
    assert first.guesses_in + first.guesses_out <= M
    assert first.score == "likelihood"
    assert AuditSpec.from_dict(first.to_dict()) == first
    with pytest.raises(ConfigError, match="cannot be read"):
        AuditSpec.from_dict({"canaries": 3})


@pytest.mark.parametrize(
    ("made", "score"),
    [
        (plan(bound=AdaptiveClip(1.0)), "sum"),  # what a bound has learned is not in the likelihood
        (plan(sampling=FixedSize(examples=N + M, batch_size=50)), "sum"),
    ],
)
def test_where_no_likelihood_is_known_the_gradients_are_summed(made, score):
    assert declare(network(), made, M).score == score
    with pytest.raises(ConfigError, match="likelihood"):
        declare(network(), made, M, score="likelihood")


def test_a_network_that_is_bounded_inside_is_refused_by_name():
    with pytest.raises(ConfigError, match="BoundedNetwork"):
        declare(network(), plan(bound=BoundedNetwork(1.0, 1.0)), M)


def test_more_canaries_than_parameters_are_refused():
    with pytest.raises(ConfigError, match="do not fit"):
        declare(network(), plan(), 10_000)


def test_the_ledger_says_what_was_declared_and_verification_too(tmp_path):
    model, made = network(), plan()
    seen = witness(model, made)
    fit(model, rows(), made, ledger=tmp_path / "ledger.jsonl", audit=seen)
    first = json.loads((tmp_path / "ledger.jsonl").read_text().split("\n")[0])
    assert first["audit"] == seen.declared.to_dict()
    assert first["plan"]["sampling"]["examples"] == N + M  # canaries are counted as every row
    found = verify(tmp_path / "ledger.jsonl")
    assert found.runs[0].audit == seen.declared.to_dict()
    assert f"{M} of the rows that are counted are canaries" in str(found)
    assert found.runs[0].guarantee.epsilon == pytest.approx(made.guarantee().epsilon)


def test_another_audit_cannot_take_a_ledger_over(tmp_path):
    model, made = network(), plan()
    path = tmp_path / "ledger.jsonl"
    fit(model, rows(), made, ledger=path, audit=witness(model, made), stop=lambda: True)
    other = witness(model, made)
    other.declared = replace(other.declared, guesses_in=other.declared.guesses_in + 1)
    with pytest.raises(PrivacyError, match="another audit"):
        fit(model, rows(), made, ledger=path, audit=other)
    with pytest.raises(PrivacyError, match="another audit"):
        fit(model, rows(N + M), made, ledger=path)


def test_a_shared_ledger_keeps_audited_runs_apart(tmp_path):
    ledger = Ledger(tmp_path / "all.jsonl", dataset="d", epsilon=1e6, delta=1e-5)
    model, made = network(), plan()
    fit(model, rows(), made, ledger=ledger, audit=witness(model, made), stop=lambda: True)
    fit(network(), rows(N + M), made, ledger=ledger)
    assert [run.audit is None for run in verify(ledger.path).runs] == [False, True]


def test_without_noise_every_coin_is_told_and_the_others_are_taken_off_exactly():
    model, made = network(), plan(noise=1e-6, steps=4, size=100)
    seen = witness(model, made)
    fitted = fit(model, rows(), made, audit=seen)
    found = seen.result(fitted.guarantee)
    assert tells_all(found)


@pytest.mark.parametrize("score", ["sum", "parameters"])
def test_weaker_attackers_see_less(score):
    model, made = network(), plan(noise=1e-6, steps=2, size=100)
    seen = witness(model, made, score=score)
    fitted = fit(model, rows(), made, audit=seen, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    figures = seen.figures(fitted.guarantee)
    assert figures["covered"]
    assert figures["correct"] > 0.6 * figures["guesses"]


def test_chunks_do_not_change_what_is_scored():
    found = []
    for chunk in (7, 100):
        model, made = network(), plan(noise=1e-6, steps=2, size=100)
        seen = witness(model, made)
        found.append(seen.result(fit(model, rows(), made, audit=seen, chunk=chunk).guarantee))
    assert (found[0].coins == found[1].coins).all()
    assert all(tells_all(run) for run in found)


def test_augmented_runs_are_refused():
    model, made = network(), plan()
    with pytest.raises(ConfigError, match="augment"):
        fit(model, rows(), made, audit=witness(model, made), augment=lambda x: x)


def test_data_must_leave_room_for_the_canaries():
    model, made = network(), plan(sampling=Poisson(examples=N, batch_size=20))
    with pytest.raises(ConfigError, match="100"):
        fit(model, rows(), made, audit=witness(model, made))


# --- coins -----------------------------------------------------------------------------------------------------------


def test_coins_are_on_disk_for_the_owner_alone_before_the_first_release(tmp_path):
    model, made = network(), plan()
    secret = tmp_path / "coins"
    seen = witness(model, made, secret=secret)
    seen.join(rows(), 0)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    again = RunAuditor(model, made, seen.declared, loss_for(rows()), secret=secret)
    numbers = [w.join(rows(), 0)[2] for w in (seen, again)]
    assert (numbers[0] == numbers[1]).all()
    seen.forget_secret()
    assert not secret.exists()


def test_a_run_that_was_stopped_keeps_its_coins_and_scores(tmp_path):
    model, made = network(), plan(noise=1e-6, steps=2, size=100)  # all take part, so both steps tell the same
    settings = {"ledger": tmp_path / "ledger.jsonl", "checkpoint": tmp_path / "checkpoint"}
    first = witness(model, made, secret=tmp_path / "coins")
    assert not fit(model, rows(), made, audit=first, stop=lambda: True, **settings).finished
    model = network()
    later = RunAuditor(model, made, first.declared, loss_for(rows()), secret=tmp_path / "coins")
    fitted = fit(model, rows(), made, audit=later, **settings)
    found = later.result(fitted.guarantee)
    assert (found.coins == first._coins).all()
    assert tells_all(found)
    assert found.scores == pytest.approx(2 * first._scored(), rel=1e-3)


@pytest.mark.parametrize("damage", ["gone", "broken", "others"])
def test_where_coins_are_lost_all_canaries_are_out_and_the_run_goes_on(tmp_path, damage):
    model, made = network(), plan(steps=4)
    settings = {"ledger": tmp_path / "ledger.jsonl", "checkpoint": tmp_path / "checkpoint"}
    secret = tmp_path / "coins"
    first = witness(model, made, secret=secret)
    fit(model, rows(), made, audit=first, stop=lambda: True, **settings)
    if damage == "gone":
        secret.unlink()
    elif damage == "broken":
        secret.write_bytes(b"no such file")
    else:
        first._coins = np.zeros(3, np.bool_)
        first.save()
    model = network()
    later = RunAuditor(model, made, first.declared, loss_for(rows()), secret=secret)
    fitted = fit(model, rows(), made, audit=later, **settings)
    assert fitted.finished
    assert fitted.guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
    figures = later.figures(fitted.guarantee)
    assert "coins" in figures["lost"]
    assert "epsilon_lower_bound" not in figures
    assert (later.join(rows(), 4)[2][N:] == EXCLUDED).all()


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_claims_are_tested_beside_the_proof():
    proven = replace(plan().guarantee(), claims=())
    claim = type("Claim", (), {"source": "a paper", "epsilon": 0.01})()
    found = verdicts(OneRun(1000, 100, 90, proven.epsilon, 1e-5), replace(proven, claims=(claim,)))
    assert not found["refuted"]
    assert found["claims"][0]["refuted"]


def test_what_is_written_says_nothing_of_who_was_in():
    model, made = network(), plan()
    seen = witness(model, made)
    figures = seen.figures(fit(model, rows(), made, audit=seen).guarantee)
    assert not [v for v in json.loads(json.dumps(figures)).values() if isinstance(v, list) and len(v) > 1]
    assert {"points", "epsilon_lower_bound", "canaries", "guesses", "correct", "p_value", "level"} <= set(figures)
