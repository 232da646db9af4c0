"""The zoo tells the truth: brute force finds that what is called mixing mixes, and what is called sound does not."""

import os

import pytest
import torch
from torch import nn

from zoo import oracle
from zoo.cases import Case, Lambda, Member, cross_entropy, stack, table
from zoo.members import MEMBERS, MIXING, SOUND

VICTIMS, STEPS = (oracle.VICTIMS, oracle.STEPS) if os.environ.get("DISCREET_SOAK") else (oracle.VICTIMS[:1], 7)


def test_the_zoo_is_large_and_every_name_is_there_once():
    assert len(MIXING) >= 60
    assert len(SOUND) >= 100
    assert len({m.name for m in MEMBERS}) == len(MEMBERS)
    assert all(m.why.strip() for m in MEMBERS)


@pytest.mark.parametrize("member", MIXING, ids=lambda m: m.name)
def test_what_is_called_mixing_is_seen_to_mix(member):
    assert oracle.find(member).mixes


@pytest.mark.parametrize("member", SOUND, ids=lambda m: m.name)
def test_what_is_called_sound_moves_the_sum_by_no_more_than_the_bound(member):
    torch.manual_seed(0)
    double = member.make(**member.often).double
    found = oracle.find(member, victims=VICTIMS, steps=STEPS)
    assert found.sound(double=double), found
    assert found.movement > 0.4, "the row that is left out must count for something"


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_a_member_is_made_the_same_from_the_same_seed(member):
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        made.append(member.make().model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(made[0].values(), made[1].values(), strict=True))


def test_the_oracle_tells_a_mean_over_rows_from_a_mean_over_features():
    def member(dimension):
        return Member("m", dimension == 1, "a test", "test", lambda: centring(dimension))

    def centring(dimension):
        centred = Lambda(lambda x: x - x.detach().mean(dimension, keepdim=True))
        return Case(stack(centred, nn.Tanh()), table(), cross_entropy)

    assert oracle.find(member(0)).movement > 1.1
    assert oracle.find(member(1), victims=(0,)).sound(double=True)


def test_rows_have_the_same_random_numbers_whoever_else_is_there():
    def draw(rows):
        with oracle.RowByRow(rows, step=2):
            torch.rand(())
            a = torch.randn(len(rows), 9)
            b = nn.functional.dropout(torch.ones(4, len(rows), 9))
            c = torch.rand(3 * len(rows), 2).view(len(rows), 3, 2)
            return a, b.transpose(0, 1), c, torch.rand(4)

    whole, part = draw([3, 8, 20, 21, 40]), draw([3, 20, 21])
    for a, b in zip(whole[:3], part[:3], strict=True):
        assert torch.equal(a[[0, 2, 3]], b)
        assert not torch.equal(a[0], a[1])
    assert torch.equal(whole[3], part[3])
