"""What cells become, each row's by its own cell alone."""

import math
from datetime import date

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.data import rules
from discreet.data.rules import (
    BadCell,
    Bins,
    Buckets,
    Dates,
    Hashed,
    Private,
    Range,
    Text,
    Unscaled,
    WithMissing,
    Words,
)

DAYS = Dates(date(2000, 1, 1), date(2001, 1, 1))
CELLS = st.one_of(st.none(), st.sampled_from(["", "nan", "3", "1e9", "-4.5"]), st.floats(-1e6, 1e6))
ALL = [
    Range(0, 10),
    Bins((0, 10)),
    Unscaled(),
    WithMissing(Range(0, 1)),
    Words(("3", "a")),
    Hashed(4),
    Buckets((1, 2)),
    Text(4),
]


@pytest.mark.parametrize("rule", ALL, ids=repr)
@given(st.lists(CELLS, min_size=2, max_size=5), CELLS)
def test_a_row_becomes_the_same_beside_any_other_rows(rule, cells, other):
    whole, changed = rule.encoded(cells), rule.encoded([cells[0], *[other] * (len(cells) - 1)])
    assert torch.equal(whole[0], changed[0])
    assert whole.isfinite().all()
    assert whole.abs().max() <= 1


def test_numbers():
    assert Range(0, 10).encoded(["5", None, 20])[:, 0].tolist() == [0.0, 0.0, 1.0]
    assert WithMissing(Range(0, 10)).encoded(["5", "na"]).tolist() == [[0.0, 0.0], [0.0, 1.0]]
    small, none, large = Unscaled().encoded([-1.0, None, 1e9])[:, 0].tolist()
    assert (none, large) == (0.0, 1.0)
    assert small == pytest.approx(-math.log(2) / math.log1p(1e6))


def test_numbers_in_bins():
    encoded = Bins((18, 65)).encoded(["17.9", 18, "64", 65, 1e9, None])
    assert encoded.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    with pytest.raises(BadCell):
        Bins((18,)).encoded(["young"])


def test_numbers_of_no_known_range_are_told_apart_by_a_circle_of_their_size():
    eleven, fourteen, none, again = Unscaled().encoded([11, 14, None, 11 * 256]).double()
    assert (eleven[0] - fourteen[0]).abs() < 0.02  # the logarithm alone hardly does
    angle = math.acos(float(eleven[1:] @ fourteen[1:]))
    assert angle == pytest.approx(2 * math.pi * math.log2(14 / 11) / 8, rel=1e-3)
    assert none.tolist() == [0.0, 0.0, 0.0]
    assert torch.allclose(eleven[1:], again[1:], atol=1e-5)  # round once in a factor of 256


def test_dates_are_scaled_and_go_round_the_year():
    first, last, none = DAYS.encoded(["2000-01-01", "2001-01-01T12:00:00", ""]).tolist()
    assert (first[0], last[0], none) == (-1.0, 1.0, [0.0, 0.0, 0.0])
    assert math.hypot(first[1], first[2]) == pytest.approx(1.0)
    with pytest.raises(BadCell) as bad:
        DAYS.encoded(["2000-01-01", "yesterday"])
    assert (bad.value.row, bad.value.wanted) == (1, "date")


def test_words_by_their_hashes():
    one, again, other = Hashed(64).encoded(["cook", " cook ", "clerk"])
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    found = Buckets((rules.bucket("cook"),)).encoded(["cook", "clerk", None])
    assert found.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    text = Text(64).encoded(["The sea, the sea!", "", None])
    assert text.norm(dim=1).tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert torch.equal(text[0], Text(64).encoded(["sea the the sea"])[0])


def test_what_is_not_known_yet_can_be_tried():
    for asked, cell in (("range", "3"), ("dates", "2000-01-01"), ("categories", "a")):
        assert Private(asked).encoded([cell]).shape[0] == 1
