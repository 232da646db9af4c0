"""Contracts: what one unit may change, in blocks, boxes and envelopes, and the noise that several blocks share."""

import math

import pytest

from discreet.accounting.events import Magnitudes
from discreet.stages.sensitivity import (
    GRID,
    Block,
    Blocks,
    Box,
    Envelope,
    Layout,
    asked,
    doubled,
    effective_multiplier,
    norm_of,
    rounded,
)

TWO = Blocks((Block(("a",), 3.0, 4), Block(("b",), 4.0, 9), Block(("how many",), 100.0, 1, share=0.1)), ("it holds",))


def test_a_layout_says_where_each_parameter_is():
    layout = Layout(("weight", "bias", "scale"), ((3, 2), (3,), ()))
    assert layout.sizes == (6, 3, 1)
    assert layout.columns == {"weight": (0, 6), "bias": (6, 9), "scale": (9, 10)}


def test_blocks_move_together_and_questions_do_not_count():
    assert norm_of(TWO) == TWO.norm == 5.0
    assert [block.members for block in asked(TWO)] == [("how many",)]


def test_a_box_is_a_ball_of_its_diagonal():
    box = Box(("a", "b"), 0.5, 16)
    assert norm_of(box) == 2.0
    assert box.magnitudes == Magnitudes((0.5,), (16,))


@pytest.mark.parametrize(("norm", "expected"), [(math.inf, 5.0), (2.0, 2.0)])
def test_an_envelope_is_no_longer_than_its_norm(norm, expected):
    envelope = Envelope(("a",), Magnitudes((4.0, 1.0), (1, 9)), norm=norm)
    assert norm_of(envelope) == expected
    assert envelope.blocks[0].size == 10


def test_rounding_adds_half_a_step_a_coordinate():
    first = rounded(TWO).blocks[0]
    assert first.norm == 3.0 * (1 + GRID)  # half a step on each of 4 coordinates is one step in l2
    assert rounded(TWO).premises == ("it holds",)


def test_a_bounded_vector_can_turn_into_any_other():
    assert norm_of(doubled(TWO)) == 10.0


@pytest.mark.parametrize(("scales", "multiplier"), [((10.0, 10.0), 2.0), ((0.0, 10.0), 0.0), ((3e9, 4.0), 1.0)])
def test_several_blocks_are_one_query(scales, multiplier):
    """1 / multiplier^2 is the sum over blocks of norm^2 / scale^2."""
    blocks = Blocks(TWO.blocks[:2])
    assert effective_multiplier(blocks, scales) == pytest.approx(multiplier, rel=1e-12)
