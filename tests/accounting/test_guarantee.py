import json
import math
from dataclasses import replace

import pytest

from discreet import (
    Cauchy,
    Claim,
    Clip,
    Condition,
    ConfigError,
    Gaussian,
    Guarantee,
    Laplace,
    Logistic,
    Mechanism,
    Plan,
    Poisson,
    PrivacyError,
    Sech,
    StudentT,
    Tuning,
    VarianceGamma,
)
from discreet.accounting.events import Event, Magnitudes
from discreet.accounting.guarantee import guarantee


def plan(noise=1.1, steps=14_062):
    return Plan(
        sampling=Poisson(examples=60_000, batch_size=256),
        mechanism=Mechanism(Clip(1.0), Gaussian(noise)),
        steps=steps,
        delta=1e-5,
    )


def test_the_paragraph_says_what_is_proven_and_on_what_it_rests():
    text = str(plan().guarantee())
    for part in ("ε = 2.382", "δ = 1e-05", "each example", "14,062 Gaussian releases", "By construction", "Assumed"):
        assert part in text


def test_figures_in_words_are_never_rounded_down():
    guarantee = Guarantee(2.38101, 1e-5, "example", "zero-out", "proof")
    assert "ε = 2.382," in str(guarantee)


def test_nothing_proven_is_said_plainly():
    guarantee = plan(noise=0.0).guarantee()
    assert math.isinf(guarantee.epsilon)
    assert str(guarantee).startswith("Nothing is proven about the privacy of any example: no noise")


def test_no_steps_cost_nothing():
    assert plan(steps=0).guarantee().epsilon == 0


@pytest.mark.parametrize("noise", [0.0, 1.1])
def test_json_is_the_same_in_figures(noise):
    guarantee = plan(noise).guarantee()
    found = json.loads(guarantee.to_json())
    assert found["format"] == "discreet-guarantee/1"
    assert float(found["epsilon"]) == guarantee.epsilon
    assert found["conditions"][0] == {"text": guarantee.conditions[0].text, "status": "proven"}


def test_a_claim_stands_beside_and_never_instead():
    claim = Claim("a paper", 1.1, "false", "the bound is not one")
    guarantee = Guarantee(math.inf, 1e-5, "example", "zero-out", "nothing", claims=(claim,))
    assert "a paper claims ε = 1.1: false, the bound is not one." in str(guarantee)
    assert math.isinf(guarantee.epsilon)


def test_a_broken_condition_comes_first():
    guarantee = Guarantee(1.0, 1e-5, "example", "zero-out", "proof", (Condition("the seed is known", "broken"),))
    assert str(guarantee).startswith("NOT PRIVATE AS IT STANDS: the seed is known.")
    assert not guarantee.sound


def test_infinite_claims_are_valid_json_too():
    claim = Claim("a paper", math.inf, "unproven", "nothing is known")
    text = Guarantee(1.0, 1e-5, "example", "zero-out", "proof", claims=(claim,)).to_json()
    assert json.loads(text, parse_constant=pytest.fail)["claims"][0]["epsilon"] == "inf"


@pytest.mark.parametrize("first", ["add-remove", "zero-out"])
def test_a_number_of_units_that_one_release_has_for_public_is_public(first):
    """Whatever the order, and whatever the run says of itself."""
    other = {"add-remove": "zero-out", "zero-out": "add-remove"}[first]
    events = [Event(0.01, 1.0, 100, adjacency=first), Event(1.0, 9.0, 1, adjacency=other)]
    assert guarantee(events, 1e-5).adjacency == "zero-out"
    assert guarantee(events, 1e-5, adjacency="add-remove").adjacency == "zero-out"
    assert guarantee(events[:1], 1e-5).adjacency == first


def test_the_relation_is_that_of_the_releases():
    found = guarantee([Event(0.01, 1.0, 100, adjacency="replace")], 1e-5)
    assert found.adjacency == "replace"
    assert "replaced by another" in str(found)
    with pytest.raises(PrivacyError, match="analysed under"):
        guarantee([Event(0.01, 1.0, 100)], 1e-5, adjacency="replace")


def test_runs_on_the_same_data_compose():
    one, two = Event(0.01, 1.0, 100), Event(1.0, 8.0, 1)
    assert guarantee([one, two], 1e-5).epsilon > max(guarantee([p], 1e-5).epsilon for p in (one, two))


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise",
    [Gaussian(1.1), StudentT(9, 1.0), Laplace(1.0), Cauchy(1.0), Sech(1.0), Logistic(1.0), VarianceGamma(1.0)],
    ids=str,
)
def test_the_json_of_any_noise_round_trips(noise):
    plan = Plan(
        sampling=Poisson(examples=1000, batch_size=10), mechanism=Mechanism(Clip(1.0), noise), steps=50, delta=1e-5,
        tuning=Tuning(4),
    )  # fmt: skip
    shifts = Magnitudes((0.1, 0.2), (2, 1))
    moved = Event(0.01, 0.0, 10, law=noise.law, scale=1.0, shifts=shifts)
    for made in (plan.guarantee(), replace(plan, tuning=None).guarantee(), guarantee([moved], 1e-5)):
        again = Guarantee.from_json(made.to_json())
        assert again == made
        assert str(again) == str(made)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.update(epsilon=-3), "no epsilon"),
        (lambda v: v.update(epsilon="abc"), "no epsilon"),
        (lambda v: v.update(epsilon=None), "no epsilon"),
        (lambda v: v.update(delta=-1), "delta is -1"),
        (lambda v: v.update(adjacency="foo"), "adjacency is 'foo'"),
        (lambda v: v.update(group=0), "group is 0"),
        (lambda v: v["phases"][0].update(rate=-1), "rate is -1"),
        (lambda v: v["phases"][0].update(scheme="zzz"), "scheme is 'zzz'"),
        (lambda v: v["phases"][0].update(law={"type": "os.system"}), "not one of"),
        (lambda v: v.update(extra=1), "missing or unknown"),
        (lambda v: v.pop("unit"), "missing or unknown"),
        (lambda v: v.update(format="discreet-guarantee/9"), "this version reads"),
        (lambda v: v.update(conditions=[{"text": "x"}]), "cannot be read"),
    ],
)
def test_a_guarantee_that_was_tampered_with_is_refused(change, words):
    values = json.loads(guarantee([Event(0.01, 1.0, 100)], 1e-5).to_json())
    change(values)
    with pytest.raises(ConfigError, match=words):
        Guarantee.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "null", '{"format": 3}'])
def test_what_is_no_guarantee_is_refused(text):
    with pytest.raises(ConfigError):
        Guarantee.from_json(text)
