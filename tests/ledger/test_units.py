"""Whom a figure is about: what protects each row is never counted as if it protected each user."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from discreet.sklearn import PrivateScore
from forgery import rewritten
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import nn
from torch.nn import functional as F

from discreet import (
    BudgetExhausted,
    Clip,
    ConfigError,
    Gaussian,
    Laplace,
    Ledger,
    Mechanism,
    Plan,
    Poisson,
    PrivacyError,
    attach,
    calibrate,
    verify,
)
from discreet.accounting import cost, delta_curve, figures
from discreet.accounting.event_serialization import event_from_dict, event_to_dict
from discreet.accounting.events import Event, Magnitudes, units_of
from discreet.accounting.guarantee import Guarantee, guarantee
from discreet.cli.app import app
from discreet.data.ranges import private_ranges, ranges_cost
from discreet.features import PrivatePCA, Whitening
from discreet.federated import Rounds
from discreet.ledger import LedgerFile

DELTA = 1e-5
ROWS = 8  # of each user
X = torch.randn(6 * ROWS, 3, generator=torch.Generator().manual_seed(0))


def exact(mu):
    """Epsilon at DELTA of telling N(0, 1) from N(mu, 1), by Balle and Wang's closed form and nothing of the library."""

    def excess(epsilon):
        above, below = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return above + math.log1p(-math.exp(below - above)) - math.log(DELTA)

    return brentq(excess, 0.0, 200.0 + mu * mu)


def plan(unit="user", noise=4.0, steps=3, batch_size=6, **more):
    sampling = Poisson(examples=6, batch_size=batch_size, unit=unit)
    return Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(noise)), steps=steps, delta=DELTA, **more)


def train_users(ledger, made=None, steps=3):
    """Rounds of federated training; what is proven of them."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    rounds = Rounds(model, made or plan(), ledger)
    try:
        for _ in range(steps):
            cohort = rounds.draw()
            rounds.add(cohort, {n: torch.randn(len(cohort), *p.shape) for n, p in model.named_parameters()})
            rounds.release()
        return rounds.guarantee()
    finally:
        rounds.detach()


def train_rows(ledger, noise=4.0):
    torch.manual_seed(0)
    model, data = nn.Linear(3, 2), (X[:6], torch.zeros(6, dtype=torch.long))
    private = attach(model, plan("example", noise), ledger)
    for batch in private.batches(data):
        private.backward(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
    found = private.guarantee()
    private.detach()
    return found


class Constant:
    """A public model."""

    def predict(self, x):
        return np.zeros(len(x))


def pca(ledger):
    PrivatePCA(2, noise=10.0).fit(X, ledger)


def whitening(ledger):
    Whitening(17.3, 17.3, 17.3).fit(X[:, None], ledger, size=len(X))


def ranges(ledger):
    private_ranges({"a": X[:, 0], "b": X[:, 1]}, ["a", "b"], noise=10.0, ledger=ledger)


def score(ledger):
    PrivateScore(ledger, noise=10.0)(Constant(), X, np.zeros(len(X)))


QUERIES = [pca, whitening, ranges, score]


def capped(path, epsilon=100.0, **more):
    return Ledger(path, dataset="people", epsilon=epsilon, delta=DELTA, **more)


KINDS = [Ledger, capped]


def written_before_units(path, query=None, unit="example"):
    """A user-level run's ledger as earlier versions wrote it: no line's event has a unit."""
    if query is not None:
        LedgerFile(Ledger(path)).append({"kind": "query", "what": "directions", "phase": event_to_dict(query)})
    # the run is written by an empty file's account, then both are one chain
    other = path.with_name("run.jsonl")
    train_users(other)
    lines = [json.loads(line) for text in (path, other) if text.exists() for line in text.read_text().splitlines()]
    for line in lines[1:]:
        line.pop("format", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def older(line):
        if "phase" in line:
            line["phase"].pop("unit", None)

    rewritten(path, older)
    assert '"unit": "user"' in path.read_text()  # in the plan, and there alone
    assert all("unit" not in json.loads(line).get("phase", {}) for line in path.read_text().splitlines())


# --- A3: row-level queries in a user-level run ------------------------------------------------------------------------


@pytest.mark.parametrize("ask", QUERIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_level_query_before_a_user_level_run_is_refused(tmp_path, ask, kind):
    ledger = kind(tmp_path / "ledger.jsonl")
    ask(ledger)
    lines = (tmp_path / "ledger.jsonl").read_text()
    with pytest.raises(PrivacyError, match=r"protects each row .*rows=\.\.\.\).*Nothing was released"):
        train_users(ledger)
    assert (tmp_path / "ledger.jsonl").read_text() == lines


@pytest.mark.parametrize("ask", QUERIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_level_query_after_a_user_level_run_is_refused(tmp_path, ask, kind):
    ledger = kind(tmp_path / "ledger.jsonl")
    train_users(ledger)
    lines = (tmp_path / "ledger.jsonl").read_text()
    with pytest.raises(PrivacyError, match=r"protects each row, .*each user.*rows=\.\.\.\).*Nothing was asked"):
        ask(ledger)
    assert (tmp_path / "ledger.jsonl").read_text() == lines


@pytest.mark.parametrize("ask", QUERIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["query", "run"])
def test_a_query_is_counted_for_a_user_with_all_declared_rows(tmp_path, ask, kind, first):
    """The true figure is a Gaussian's of mu = hypot(sqrt(3) / 4, 8 / 10); one row's would be that of 1 / 10."""
    path = tmp_path / "ledger.jsonl"
    ledger = kind(path, unit="user", rows=ROWS)
    if first == "query":
        ask(ledger)
    train_users(ledger)
    if first == "run":
        ask(ledger)
    proven = verify(path).total if kind is capped else verify(path).runs[0].guarantee
    true, of_one_row = exact(math.hypot(math.sqrt(3) / 4, ROWS / 10)), exact(math.hypot(math.sqrt(3) / 4, 1 / 10))
    assert true > 1.9 * of_one_row
    assert proven.unit == "user"
    assert true * (1 - 1e-6) <= proven.epsilon <= true * 1.01
    assert [c.status for c in proven.conditions if "more than 8 rows" in c.text] == ["assumed"]
    if kind is capped:
        assert ledger.guarantee() == proven


@pytest.mark.parametrize("kind", KINDS)
def test_rows_can_still_be_declared_when_the_run_begins(tmp_path, kind):
    path = tmp_path / "ledger.jsonl"
    pca(kind(path))
    lines = path.read_text()
    stated = train_users(kind(path, unit="user", rows=ROWS))
    assert path.read_text().startswith(lines)
    true = exact(math.hypot(math.sqrt(3) / 4, ROWS / 10))
    proven = verify(path).total if kind is capped else verify(path).runs[0].guarantee
    again = train_users(kind(path, unit="user", rows=ROWS), steps=0)
    for found in (proven, again, stated)[: 1 if kind is capped else 3]:  # of a data set's, a run's own is alone
        assert found.epsilon == pytest.approx(true, rel=1e-2)
        assert found.epsilon >= true * (1 - 1e-6)
        assert any("more than 8 rows" in c.text for c in found.conditions)


def test_a_cap_counts_queries_for_whole_users(tmp_path):
    """One row's directions cost 0.34; those of users with 8 rows 3.39, which does not fit."""
    pca(capped(tmp_path / "rows.jsonl", 2.0))
    with pytest.raises(BudgetExhausted, match="for each user"):
        pca(capped(tmp_path / "users.jsonl", 2.0, unit="user", rows=ROWS))
    late = tmp_path / "late.jsonl"
    pca(capped(late, 2.0))
    with pytest.raises(BudgetExhausted, match="for each user"):
        train_users(capped(late, 2.0, unit="user", rows=ROWS))
    assert len(late.read_text().splitlines()) == 2


def test_rows_that_really_are_a_users_move_the_covariance_by_as_much_as_is_counted():
    """The bound is met: a user whose rows are all the same moves the sum by exactly `rows`."""
    from discreet.features.pca import _sum_of_products

    same = torch.tensor([[1.0, 0.0, 0.0]]).expand(ROWS, 3).double()
    with_user = _sum_of_products(3, [X.double(), same])
    moved = torch.linalg.matrix_norm(with_user - _sum_of_products(3, [X.double()]))
    asked = PrivatePCA(2, noise=10.0).cost()
    assert float(moved) == pytest.approx(10.0 / asked.per("user", ROWS).multiplier, rel=1e-5)
    assert cost([asked.per("user", ROWS)], DELTA).epsilon == pytest.approx(exact(ROWS / 10), rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        Event(0.5, 4.0, 1),
        Event(1.0, 4.0, 1, hardening="exact"),
        Event(0.5, 4.0, 1, scheme="fixed-size", adjacency="replace"),
        Event(0.5, 4.0, 1, scheme="fixed-batches"),
        Event(1.0, 4.0, 1, overflow=1e-9),
        Event(1.0, 0.0, 1, law=Laplace(1.0).law, scale=4.0, shifts=Magnitudes((0.25,), (1,))),
        Event(1.0, 4.0, 1, group=2),
    ],
    ids=["sampled", "exact", "fixed-size", "fixed-batches", "capped", "laplace", "group"],
)
def test_what_is_not_proven_for_several_rows_is_refused(tmp_path, event):
    with pytest.raises(PrivacyError, match=r"protects each row.*not proven"):
        event.per("user", 2)
    with pytest.raises(PrivacyError, match="row"):
        Ledger(tmp_path / "ledger.jsonl", unit="user", rows=2).query("x", event)
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: Ledger(path, rows=2),
        lambda path: Ledger(path, unit="example", rows=2),
        lambda path: Ledger(path, unit="user", rows=0),
        lambda path: Ledger(path, unit=""),
        lambda path: Event(1.0, 1.0, 1, unit=7),
        lambda path: Event(1.0, 1.0, 1).per("example", 2),
        lambda path: Event(1.0, 1.0, 1, unit="user").per("house", 2),
        lambda path: train_rows(Ledger(path, unit="user")),
    ],
)
def test_units_that_make_no_sense_are_refused(tmp_path, make):
    with pytest.raises(ConfigError):
        make(tmp_path / "ledger.jsonl")


def test_a_row_of_its_own_each_costs_a_unit_no_more_than_a_row():
    asked = ranges_cost(noise=3.0)
    assert asked.per("patient", 1) == replace(asked, unit="patient")


@pytest.mark.parametrize("use", [partial(calibrate, epsilon=5.0), lambda made, beside: made.guarantee(beside=beside)])
def test_plans_take_beside_them_only_what_protects_their_unit(use):
    asked = PrivatePCA(2, noise=10.0).cost()
    with pytest.raises(PrivacyError, match=r"each row.*each user.*rows="):
        use(plan(), beside=[asked])
    assert use(plan(), beside=[asked.per("user", ROWS)])
    assert use(plan("example"), beside=[asked])


def test_a_calibrated_run_with_a_converted_query_keeps_its_budget(tmp_path):
    asked = PrivatePCA(2, noise=10.0)
    solved = calibrate(plan(noise=None), 5.0, beside=[asked.cost().per("user", ROWS)])
    ledger = Ledger(tmp_path / "ledger.jsonl", unit="user", rows=ROWS)
    asked.fit(X, ledger)
    stated = train_users(ledger, solved)
    multiplier = solved.mechanism.noise.multiplier
    assert exact(math.hypot(math.sqrt(3) / multiplier, ROWS / 10)) <= stated.epsilon * (1 + 1e-9)
    assert 4.9 < stated.epsilon <= 5.0


# --- A4: totals speak of the unit they have ---------------------------------------------------------------------------


def test_totals_of_user_level_runs_speak_of_users(tmp_path):
    path = tmp_path / "ledger.jsonl"
    train_users(capped(path))
    train_users(capped(path), plan(noise=5.0))
    for total in (capped(path).guarantee(), verify(path).total):
        assert total.unit == "user"
        assert "for each user" in str(total)
        assert "example" not in str(total)
        assert {p.unit for p in total.events} == {"user"}


def test_an_example_of_a_user_is_less_protected_than_the_user_is_from_leaving():
    """Why the word matters: another example turns a user's update into any other, which moves the sum twice as far."""
    said = plan().guarantee()
    true = exact(2 * math.sqrt(3) / 4)
    assert said.unit == "user"
    assert true > 2 * said.epsilon


def test_mixed_runs_are_told_apart(tmp_path):
    path = tmp_path / "ledger.jsonl"
    train_users(capped(path))
    train_rows(capped(path), noise=3.0)
    users, rows = exact(math.sqrt(3) / 4), exact(math.sqrt(3) / 3)
    for total in (capped(path).guarantee(), verify(path).total):
        assert (total.unit, total.epsilon, total.sound) == ("user", math.inf, False)
        assert "Nothing is proven about the privacy of any user" in str(total)
        told = next(c.text for c in total.conditions if c.status == "broken")
        assert f"ε = {math.ceil(users * 1000) / 1000:.3f} for each user" in told
        assert f"ε = {math.ceil(rows * 1000) / 1000:.3f} for each row" in told
        apart = total.apart()
        assert {unit: each.unit for unit, each in apart.items()} == {"user": "user", "example": "example"}
        assert apart["user"].epsilon == pytest.approx(users, rel=1e-6)
        assert apart["example"].epsilon == pytest.approx(rows, rel=1e-6)
        assert all(any("not counted" in c.text for c in each.conditions) for each in apart.values())
        assert Guarantee.from_json(total.to_json()) == total
        assert total.curve() == ((math.inf, DELTA),)
        assert set(total.figures().values()) == {math.inf}
    for ask in QUERIES:
        with pytest.raises(PrivacyError, match="row"):
            ask(capped(path))


def test_a_run_beside_those_of_another_unit_says_so(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, second = train_users(capped(path)), train_rows(capped(path))
    assert not any("nothing is proven of all" in c.text for c in first.conditions)
    assert any("each user and not each row: nothing is proven of all" in c.text for c in second.conditions)


def test_a_ledger_of_users_takes_no_other_runs(tmp_path):
    ledger = capped(tmp_path / "ledger.jsonl", unit="user")
    train_users(ledger)
    with pytest.raises(ConfigError, match=r"the ledger's unit is 'user', and the plan protects each row"):
        train_rows(ledger)
    assert ledger.guarantee().sound


def test_each_unit_has_the_cap_to_itself(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = capped(path, 2.5)
    train_users(ledger)
    train_rows(ledger)
    with pytest.raises(BudgetExhausted, match="for each user"):
        train_users(ledger, plan(noise=2.0))
    assert verify(path).total is not None
    rewritten(path, lambda line: line.update({"epsilon": 1.0}) if line["kind"] == "dataset" else None)
    with pytest.raises(PrivacyError, match="caps data set"):
        verify(path)


def test_the_command_line_speaks_of_the_unit(tmp_path):
    from typer.testing import CliRunner

    path = tmp_path / "ledger.jsonl"
    train_users(capped(path))
    found = CliRunner().invoke(app, ["verify", str(path), "--json"])
    assert json.loads(found.stdout)["total"]["unit"] == "user"
    train_rows(capped(path))
    found = CliRunner().invoke(app, ["verify", str(path)])
    words = " ".join(found.stdout.split())
    assert "Nothing is proven about the privacy of any user" in words
    assert "for each row" in words


# --- ledgers written before units were told ---------------------------------------------------------------------------


def test_an_old_user_level_ledger_says_user(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written_before_units(path)
    found = verify(path).runs[0].guarantee
    assert (found.unit, found.sound) == ("user", True)
    assert found.epsilon == pytest.approx(exact(math.sqrt(3) / 4), rel=1e-6)
    assert train_users(path, steps=0).epsilon == found.epsilon  # it is the same run


def test_an_old_mixed_ledger_is_read_with_the_honest_word(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written_before_units(path, PrivatePCA(2, noise=10.0).cost())
    for found in (verify(path).runs[0].guarantee, train_users(path, steps=0)):
        assert (found.unit, found.sound, found.epsilon) == ("user", False, math.inf)
        assert any("row" in c.text for c in found.conditions if c.status == "broken")
    assert "row" in str(verify(path))


def test_an_old_mixed_data_sets_ledger_is_read_with_the_honest_word(tmp_path):
    path = tmp_path / "ledger.jsonl"
    train_users(capped(path))
    book = LedgerFile(capped(path))
    with book.locked():
        event = event_to_dict(PrivatePCA(2, noise=10.0).cost())
        book.append({"kind": "query", "what": "directions", "phase": event})
    rewritten(path, lambda line: line.get("phase", {}).pop("unit", None))
    for total in (capped(path).guarantee(), verify(path).total):
        assert (total.unit, total.epsilon, total.sound) == ("user", math.inf, False)
        assert any("row" in c.text for c in total.conditions if c.status == "broken")
    with pytest.raises(PrivacyError, match="each row"):
        train_users(capped(path), plan(noise=5.0))
    train_users(capped(path, unit="user", rows=ROWS), plan(noise=5.0))  # which declares it
    total = verify(path).total
    true = exact(math.hypot(math.sqrt(3) / 4, math.sqrt(3) / 5, ROWS / 10))
    assert total.sound
    assert true * (1 - 1e-6) <= total.epsilon <= true * 1.01


def test_an_old_mixed_run_with_a_limit_does_not_go_on(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written_before_units(path, PrivatePCA(2, noise=10.0).cost())
    rewritten(path, lambda line: line["plan"].update({"epsilon": 9.0}) if "plan" in line else None)
    with pytest.raises(PrivacyError, match="each row"):
        train_users(path, plan(epsilon=9.0), steps=0)


def test_lines_of_row_level_runs_are_as_they_were(tmp_path):
    path = tmp_path / "ledger.jsonl"
    pca(path)
    train_rows(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    events = [line["phase"] for line in lines if "phase" in line]
    assert len(events) == 2
    assert not any("unit" in event for event in events)
    assert not any("rows" in line for line in lines)
    assert verify(path).runs[0].guarantee.unit == "example"


def test_a_forged_unit_does_not_follow_from_the_plan(tmp_path):
    path = tmp_path / "ledger.jsonl"
    train_rows(path)
    rewritten(path, lambda line: line["phase"].update({"unit": "user"}) if "phase" in line else None)
    with pytest.raises(PrivacyError, match="not what its plan"):
        verify(path)


def test_an_old_guarantee_of_users_is_read_as_one():
    made = plan().guarantee()
    values = json.loads(made.to_json())
    assert [p.pop("unit") for p in values["phases"]] == ["user"]
    assert Guarantee.from_json(json.dumps(values)) == made


# --- no mixture is below the truth ------------------------------------------------------------------------------------

RELEASES = st.builds(
    Event,
    st.just(1.0),
    st.floats(0.5, 50.0),
    st.integers(0, 4),
    adjacency=st.sampled_from(["add-remove", "zero-out"]),
    unit=st.sampled_from(["example", "user"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(RELEASES, max_size=6), st.integers(1, 50), st.sampled_from([None, "example", "user"]))
def test_no_mixture_is_told_below_the_true_composition_for_the_unit_named(events, rows, unit):
    """The truth, at rate 1: a user moves a row-level sum by `rows`, an example a user-level one by 2."""
    found = guarantee(events, DELTA, unit=unit)
    factors = {"user": {"user": 1, "example": rows}, "example": {"user": 2, "example": 1}}[found.unit]
    mu = math.hypot(*(math.sqrt(p.steps) * factors[p.unit] / p.multiplier for p in events))
    true = 0.0 if mu == 0 or math.erf(mu / math.sqrt(8)) <= DELTA else exact(mu)
    assert found.epsilon >= true * (1 - 1e-6)
    if len(units_of(events)) > 1:
        assert not found.sound
        assert cost(events, DELTA).epsilon == math.inf
        assert delta_curve(events, DELTA) == ((math.inf, DELTA),)
        assert set(figures(events, DELTA).values()) == {math.inf}
        for one, part in found.apart().items():
            own = math.hypot(*(math.sqrt(p.steps) / p.multiplier for p in events if p.unit == one))
            assert part.unit == one
            assert part.epsilon >= (0.0 if math.erf(own / math.sqrt(8)) <= DELTA else exact(own)) * (1 - 1e-6)
    # and with the rows declared, it is the truth itself
    whole = guarantee([p if p.unit == "user" else p.per("user", rows) for p in events], DELTA, unit="user")
    mu = math.hypot(*(math.sqrt(p.steps) * (1 if p.unit == "user" else rows) / p.multiplier for p in events))
    true = 0.0 if mu == 0 or math.erf(mu / math.sqrt(8)) <= DELTA else exact(mu)
    assert true * (1 - 1e-6) <= whole.epsilon <= true * (1 + 1e-6) + 1e-9


@given(RELEASES)
def test_phases_are_read_as_they_were_written(event):
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
