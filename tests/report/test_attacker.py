"""What an attacker could do is never understated, and is said of the task that there was."""

import math
import re
from statistics import NormalDist

import pytest

import discreet
from discreet.report.attacker import at_most, attacker_section, found, icons, in_plain_words

NORMAL = NormalDist()


def of_mu(mu):
    """A guarantee whose trade-off curve is known: one Gaussian release that everybody takes part in."""
    sampling = discreet.Poisson(examples=100, batch_size=100)
    mechanism = discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian(1 / mu))
    return discreet.Plan(sampling=sampling, mechanism=mechanism, steps=1, delta=1e-6).guarantee()


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0])
def test_as_many_are_found_as_the_exact_curve_says_and_hardly_more(mu):
    exact = 1000 * NORMAL.cdf(NORMAL.inv_cdf(0.01) + mu)
    assert math.ceil(exact) <= found(of_mu(mu)) <= exact * 1.06 + 1


def test_the_plain_words_have_the_icons_counts():
    guarantee = of_mu(1.0)
    count = found(guarantee)
    assert f"at most {count} of the former. By guessing alone it would be 10." in in_plain_words(guarantee)
    drawn = re.findall(r'<path class="(\w+)" d="([^"]*)"', icons(count))
    assert [(kind, path.count("M")) for kind, path in drawn] == [
        ("hit", count),
        ("rest", 1000 - count),
        ("missed", 10),
        ("rest", 990),
    ]
    assert f'aria-label="{count} of 1,000 in the data are found"' in icons(count)


def test_where_nothing_is_proven_all_may_be_found():
    nothing = discreet.Guarantee(math.inf, 1e-6, "user", "add-remove", "no noise")
    assert found(nothing) == 1000
    assert "nothing is proven that would prevent it" in in_plain_words(nothing)
    assert "people" in in_plain_words(nothing)
    assert "of Gaussian DP" not in attacker_section(nothing, None, [])


def test_the_one_figure_is_that_of_the_curve_with_its_fit():
    said = re.sub(r"<[^>]+>", "", attacker_section(of_mu(1.0), None, []))
    mu, below, above = re.search(
        r"μ = ([\d.]+) of .* at most ([\d.]+) below that of μ, and at most ([\d.]+)", said
    ).groups()
    fit = of_mu(1.0).gaussian()
    assert 0 <= float(mu) - fit.mu < 1e-3
    assert fit.error <= float(below)
    assert fit.slack <= float(above) < fit.slack + 1e-3
    assert "a random label" not in said  # nobody has said that there are labels


@pytest.mark.parametrize(("share", "shown"), [(0.1, "10.00%"), (0.100001, "10.01%"), (1.0, "100.00%"), (0.0, "0.00%")])
def test_shares_are_never_rounded_down(share, shown):
    assert at_most(share) == shown
