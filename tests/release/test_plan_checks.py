"""What a plan is checked for when it meets a model: its limit, its contract, and whether its noise can be drawn."""

import re
from dataclasses import dataclass, replace

import pytest

import discreet
from discreet import BudgetExhausted, ConfigError
from discreet.release.plan_checks import check_budget, check_contract, check_exact_noise, check_shares
from discreet.stages.sensitivity import Block, Blocks, Layout

LAYOUT = Layout(("weight", "bias"), ((3, 2), (3,)))
PLAN = discreet.methods.dp_sgd(examples=100, batch_size=10, steps=5, noise=1.0)


@dataclass(frozen=True)
class Forgetful(discreet.Clip):
    """A clip whose contract leaves a parameter out."""

    def contract(self, layout, state):
        return Blocks((Block(("weight",), self.norm, 6),))


def with_mechanism(**changes):
    return replace(PLAN, mechanism=replace(PLAN.mechanism, **changes))


def test_a_plan_without_a_limit_is_not_refused():
    check_budget(replace(PLAN, epsilon=None), LAYOUT, ())


def test_what_was_asked_before_counts_against_the_limit():
    limit = PLAN.guarantee().epsilon * 1.01
    limited = replace(PLAN, epsilon=limit)
    check_budget(limited, LAYOUT, ())
    with pytest.raises(BudgetExhausted, match=re.escape(f"more than its limit {limit:g}")):
        check_budget(limited, LAYOUT, PLAN.events(LAYOUT))


def test_a_contract_has_each_parameter():
    check_contract(PLAN, LAYOUT, None)
    with pytest.raises(ConfigError, match="each parameter once; look at 'bias'"):
        check_contract(with_mechanism(bound=Forgetful(1.0)), LAYOUT, None)


@pytest.mark.parametrize("multiplier", [0.0, 1e15])
def test_noise_off_the_grid_is_refused(multiplier):
    blocks = PLAN.mechanism.contract(LAYOUT, None).blocks
    check_exact_noise(PLAN, LAYOUT, None, blocks)
    with pytest.raises(ConfigError, match="too little or too much to be drawn exactly"):
        check_exact_noise(with_mechanism(noise=discreet.Gaussian(multiplier)), LAYOUT, None, blocks)


def test_only_gaussian_noise_is_a_sum_of_shares():
    check_shares(PLAN)
    with pytest.raises(ConfigError):
        check_shares(with_mechanism(noise=discreet.Laplace(1.0)))
