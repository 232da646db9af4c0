import json
import math

import pytest

from discreet import Claim, Clip, Condition, Gaussian, Guarantee, Mechanism, Plan, Poisson


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
