"""Whether a saved state may be loaded: its counts, and the form of what bound and denoiser keep."""

import math

import pytest
import torch

import discreet
from discreet import ConfigError, PrivacyError
from discreet.release.saved_state import check_counts, check_stages

PLAN = discreet.methods.dp_sgd(examples=100, batch_size=10, steps=5, noise=1.0)
SHAPES = {"weight": torch.Size([2, 3])}


def state(**changes):
    return {"format": "discreet-state/1", "plan": PLAN.to_dict(), "released": 3, "participations": 3} | changes


def test_counts_are_those_of_the_state():
    assert check_counts(state(), PLAN) == (3, 3)


@pytest.mark.parametrize(("released", "participations"), [(6, 6), (3, 2), (3, 4)])
def test_counts_that_cannot_be_are_refused(released, participations):
    with pytest.raises(PrivacyError, match="which cannot be"):
        check_counts(state(released=released, participations=participations), PLAN)


@pytest.mark.parametrize("changes", [{"released": -1}, {"released": "3"}, {"participations": 2.5}])
def test_counts_that_are_no_counts_are_refused(changes):
    with pytest.raises(ConfigError, match="the state's number of"):
        check_counts(state(**changes), PLAN)


@pytest.mark.parametrize("changes", [{"format": "discreet-state/2"}, {"plan": {}}])
def test_another_plans_state_is_refused(changes):
    with pytest.raises(PrivacyError, match="belongs to another plan"):
        check_counts(state(**changes), PLAN)


def test_what_is_said_of_ranks_has_known_names_alone():
    check_counts(state(together={"ranks": 2, "rows": "alike"}), PLAN)
    with pytest.raises(PrivacyError, match="'together'"):
        check_counts(state(together={"ranks": 2, "seeded": False}), PLAN)


@pytest.mark.parametrize(
    ("saved", "fits"),
    [
        ({"norm": 2.0, "place": torch.zeros(2)}, True),
        ({"norm": 2.0}, False),
        ({"norm": math.nan, "place": torch.zeros(2)}, False),
        ({"norm": 2.0, "place": torch.zeros(3)}, False),
        ({"norm": 2.0, "place": torch.zeros(2, dtype=torch.float64)}, False),
        (None, False),
    ],
)
def test_a_bounds_state_has_the_form_of_its_own(saved, fits):
    own = {"norm": 1.0, "place": torch.ones(2)}
    if fits:
        check_stages({"bound": saved}, own, None, SHAPES)
        return
    with pytest.raises(PrivacyError, match="'bound' does not fit"):
        check_stages({"bound": saved}, own, None, SHAPES)


def test_a_denoisers_tensors_have_the_parameters_shapes():
    own = {"mean": {}}
    check_stages({"denoise": {"mean": {"weight": torch.zeros(2, 3)}}}, None, own, SHAPES)
    with pytest.raises(PrivacyError, match="'denoise' does not fit"):
        check_stages({"denoise": {"mean": {"weight": torch.zeros(3, 2)}}}, None, own, SHAPES)
