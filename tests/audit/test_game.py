import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet import AdaptiveClip, Clip, ConfigError, Gaussian, Laplace, Mechanism, PerLayerClip, Tanh
from discreet.audit.game import Played, play


def network():
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


OTHERS = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double(), torch.tensor([0, 1, 0])
UNIT = 100 * torch.ones(1, 4).double(), torch.tensor([1])


def losses(model, rows, step):
    return F.cross_entropy(model(rows[0]), rows[1], reduction="none") * 100


def turning(model, rows, step):
    """The same, and its opposite at every second step."""
    return (-1) ** step * losses(model, rows, step)


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Clip(1.0), Gaussian(1.0)),
        Mechanism(Clip(0.1), Gaussian(2.0)),
        Mechanism(PerLayerClip(0.5), Gaussian(1.0), "each"),
        Mechanism(PerLayerClip(0.5), Gaussian(1.0), "power"),
        Mechanism(Clip(1.0), Gaussian(1.0), hardening="exact"),
        Mechanism(Tanh(0.3), Gaussian(1.0)),
        Mechanism(Clip(1.0), Laplace(1.0)),
    ],
    ids=["clip", "more noise", "each layer", "least power", "exact", "tanh", "Laplace"],
)
def test_the_unbroken_pipeline_is_not_refuted(mechanism):
    """A false alarm has a chance of at most 0.001; the seed is fixed."""
    played = play(network(), mechanism, OTHERS, UNIT, losses, games=100, seed=1)
    assert played.refuted(level=0.001) == ()
    assert played.epsilon_lower_bound(level=0.001) < played.guarantee.epsilon


def test_a_bound_that_learns_is_played_anew_each_time():
    mechanism = Mechanism(AdaptiveClip(1.0), Gaussian(1.0))
    with pytest.raises(ConfigError, match="games_each=1"):
        play(network(), mechanism, OTHERS, UNIT, losses)
    assert play(network(), mechanism, OTHERS, UNIT, losses, games=40, games_each=1, seed=1).refuted(level=0.001) == ()


def test_the_bound_comes_close_to_what_is_proven():
    """mu is 1 / noise, exactly, of a gradient that is clipped. A bound above it has a chance of at most 0.001, one
    below 0.6 of it, with 1,200 games, less than that (with 400 it would be 0.4)."""
    played = play(network(), Mechanism(Clip(1.0), Gaussian(0.5)), OTHERS, UNIT, losses, games=1200, seed=1)
    assert 0.6 * 2.0 < played.mu_lower_bound(level=0.001) < 2.0
    assert played.epsilon_lower_bound(level=0.001) < played.guarantee.epsilon


def test_several_steps_show_more_also_if_the_attacker_turns_the_loss_around():
    """Four steps at noise 1/2 are one at noise 1/4: mu = 4, where a single step has 2.

    A bound below 2 has a chance of less than 0.001 (with 100 games it would be 0.12)."""
    played = play(network(), Mechanism(Clip(1.0), Gaussian(0.5)), OTHERS, UNIT, turning, games=250, steps=4, seed=1)
    assert played.refuted(level=0.001) == ()
    assert 2.0 < played.mu_lower_bound() < 4.0
    assert played.guarantee.steps == 4


def test_what_is_claimed_is_the_claim_of_one_game():
    played = play(network(), Mechanism(Clip(1.0), Gaussian(2.0)), OTHERS, UNIT, losses, games=8)
    assert played.guarantee.adjacency == "add-remove"
    assert played.guarantee.steps == 1
    assert set(played.samples) == {"projection", "size", "0.weight", "0.bias", "2.weight", "2.bias"}
    assert all(len(values) == 8 for sample in played.samples.values() for values in sample)
    with pytest.raises(ConfigError, match="games"):
        play(network(), Mechanism(Clip(1.0), Gaussian(2.0)), OTHERS, UNIT, losses, games=2)
    with pytest.raises(ConfigError, match="the unit has 3 rows"):
        play(network(), Mechanism(Clip(1.0), Gaussian(2.0)), OTHERS, OTHERS, losses)


def test_a_claim_that_is_too_good_is_refuted_by_the_same_games():
    """The releases of noise 0.5 beside the claim of noise 1.5: what a wrong account would be."""
    weak, strong = (
        play(network(), Mechanism(Clip(1.0), Gaussian(noise)), OTHERS, UNIT, losses, games=games, seed=1)
        for noise, games in ((0.5, 200), (1.5, 8))
    )
    assert "projection" in Played(weak.samples, strong.guarantee).refuted()
    assert not replace(strong, samples=weak.samples).refuted(level=1e-300)


def test_a_seed_makes_games_reproducible_and_gives_each_world_its_own_noise():
    model = network()
    first, second = (
        play(model, Mechanism(Clip(1.0), Gaussian(1.0)), OTHERS, UNIT, losses, games=20, games_each=5, seed=7)
        for _ in range(2)
    )
    absent, present = first.samples["projection"]
    assert all((a == b).all() for n in first.samples for a, b in zip(first.samples[n], second.samples[n], strict=True))
    assert len({*absent, *present}) == 40
    assert (present - absent).std() > 0.5 * absent.std()  # what differs between the worlds is not the unit alone


def test_the_model_is_as_it_was():
    model = network()
    before = {name: p.clone() for name, p in model.named_parameters()}
    play(model, Mechanism(Clip(1.0), Gaussian(1.0)), OTHERS, UNIT, losses, games=8)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
    losses(model, OTHERS, 0).sum().backward()
    assert math.isfinite(float(model[0].weight.grad.sum()))
