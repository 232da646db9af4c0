"""THEORY section 7, row by row: to its printed digits, or tighter where more is proven."""

import math
from functools import cache

import pytest

from discreet import ConfigError
from discreet.accounting.guarantee import Claim
from discreet.papers import claims

# configuration: (Mironov, improved, PLD), as printed
PRINTED = {
    "000": {
        "MNIST, std 1.1, batch 256, 15 epochs": (1.594, 1.281, 1.134),
        "MNIST, std 1.1, batch 256, 60 epochs": (3.008, 2.597, 2.382),
        "CIFAR-10, std 1.1, batch 256, 10 epochs": (1.526, 1.213, 1.022),
        "CIFAR-10, std 1.1, batch 256, 50 epochs": (3.027, 2.612, 2.393),
        "CIFAR-10, std 1.1, batch 256, 100 epochs": (4.328, 3.812, 3.510),
    },
    "001": {
        "noise 8.0": (0.5, 0.388, 0.352),
        "noise 4.0": (2.0, 1.694, 1.554),
        "noise 2.0": (8.0, 7.247, 6.727),
        "noise 2, rate 0.01, 700 epochs": (7.79, 7.08, 6.57),
        "noise 4, rate 0.01, 10,000 steps": (1.259, 1.035, 0.947),
        "own run, noise 1, batch 256, 15": (1.927, 1.560, 1.351),
        "own run, noise 1, batch 256, 10": (1.715, 1.352, 1.100),
    },
    "002": {
        "ReLU and clipping": (1.097, 0.804, 0.494),
        "BELU, correct bounds": (2.532, 2.005, 1.244),
    },
    "003": {
        "noise 0.7225": (5.689, 5.026, 4.516),
        # of little noise: fractional orders are exact here, and up to 2 % smaller than dp-accounting's series for them
        "10 tensors": (453.0, 449.6, 421),
        "5 layers": (118.8, 116.3, 107),
        "adaptive": (515.3, 511.7, 480),
    },
    "004": {
        "Gaussian 0.8": (5.648, 5.004, 4.550),
        "Gaussian 0.9": (4.333, 3.802, 3.478),
        "Gaussian 1.0, MNIST": (3.539, 3.079, 2.823),
        "Gaussian 1.1": (3.008, 2.597, 2.382),
        "Gaussian 1.2": (2.626, 2.250, 2.064),
        "Gaussian 1.3": (2.335, 1.989, 1.824),
        "Gaussian 1.4, MNIST": (2.106, 1.784, 1.635),
        "headline, Gaussian 1.240": (2.5, None, 1.960),
        "headline, Gaussian 1.060": (3.2, None, 2.541),
        "headline, Gaussian 0.842": (5.0, None, 4.022),
        "headline, Gaussian 0.781": (6.0, None, 4.836),
        "Gaussian 1.0, CIFAR": (5.096, 4.524, 4.165),
        "Gaussian 1.4, CIFAR": (3.019, 2.611, 2.401),
    },
}
TIGHTER = {("001", "noise 2.0"): 7.9675}  # by Mironov's conversion, as fractional orders help


@cache
def table(paper):
    """Every row of one paper, but for those that take long, computed once."""
    return [claims.compute(row) for row in claims.rows(paper) if "Student" not in row.configuration]


def only(found, start):
    matching = [f for f in found if f.row.configuration.startswith(start)]
    assert len(matching) == 1, start
    return matching[0]


def digits(value):
    """Half a unit of the last printed digit, and a little."""
    text = f"{value}"
    places = len(text.split(".")[1]) if "." in text else 0
    return 0.55 * 10.0**-places if value < 100 else 0.75


@pytest.mark.parametrize("paper", claims.PAPERS)
def test_every_printed_figure_and_its_verdict(paper):
    for start, (mironov, improved, losses) in PRINTED[paper].items():
        found = only(table(paper), start)
        mironov = TIGHTER.get((paper, start), mironov)
        for name, expected in (("mironov", mironov), ("improved", improved), ("losses", losses)):
            if expected is not None:
                slack = 1.5e-3 if "headline" in start else max(digits(expected), 6e-4)  # their noise is rounded too
                assert getattr(found, name) == pytest.approx(expected, abs=slack), (start, name)
    for found in table(paper):  # a false claim is below what is proven, a true one is not
        claim = found.claim
        assert isinstance(claim, Claim)
        assert claim.reason
        assert found.proven <= claim.epsilon * 1.01 or claim.verdict != "holds"
        assert found.proven > claim.epsilon or claim.verdict != "false"
        assert all(v != math.inf for v in found.to_dict().values())


def test_students_t_in_an_envelope():
    """THEORY's Rényi figures are those of the Gaussian of equal Fisher information, an estimate; these are proven."""
    printed = {
        "scale 0.9": (3.631, 3.163, 2.899),
        "scale 1.0": (3.029, 2.615, 2.399),
        "scale 1.2": (2.299, 1.956, 1.794),
        "scale 1.5": (1.709, 1.430, 1.309),
        "variance 0.9": (4.176, 3.658, 3.349),
        "variance 1.5": (2.682, 2.302, 2.111),
    }
    rows = [claims.compute(row) for row in claims.rows("004") if "Student" in row.configuration]
    assert len(rows) == len(printed)
    for words, (mironov, improved, losses) in printed.items():
        found = only(rows, f"Student-t 9, {words}")
        assert found.losses == pytest.approx(losses, abs=6e-4)
        assert mironov * 0.9995 <= found.mironov <= mironov * 1.005
        assert improved * 0.9995 <= found.improved <= improved * 1.001


def test_what_is_proven_of_paper_000_as_written():
    found = table("000")
    assert 0.9e6 < only(found, "MNIST, std 1.1, batch 256, 60").proven <= 1.04e6
    assert 1.4e6 < only(found, "CIFAR-10, std 1.1, batch 256, 100").proven <= 1.57e6
    assert only(found, "MNIST, 60 epochs, norm bounded").proven == pytest.approx(60.4, abs=0.05)


def test_what_is_proven_of_paper_001_as_written():
    found = table("001")
    assert only(found, "noise 2, rate 0.01, 700 epochs").proven == pytest.approx(6.69, abs=6e-3)
    for sigma, epsilon in ((16, 0.204), (7, 0.503), (4, 0.926)):
        assert only(found, f"PCA alone, noise {sigma}").proven == pytest.approx(epsilon, abs=6e-4)
    assert only(found, "own run, noise 1, batch 256, 15").proven == pytest.approx(23.35, abs=0.06)


def test_what_is_proven_of_paper_002_as_written():
    """At most THEORY's figures, 10^4, 3.4e3 and 1.2e3, and nowhere near the claim."""
    for beta, most in ((2, 1.05e4), (5, 3.4e3), (20, 1.2e3)):
        assert 500 < only(table("002"), f"BELU beta = {beta},").proven <= most


def test_paper_003_is_not_below_the_proven_lower_bounds():
    for start, lower in (("10 tensors", 387), ("5 layers", 74), ("adaptive", 447)):
        assert only(table("003"), start).proven >= lower
    assert "19.87" in only(table("003"), "10 tensors").row.reason
    assert "20.05" in only(table("003"), "adaptive").row.reason


def test_an_unknown_paper_is_refused():
    with pytest.raises(ConfigError, match="'005' is not one of"):
        claims.rows("005")
