import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from discreet import ConfigError
from discreet.audit.curves import GaussianCurve
from discreet.audit.exposure import among, extrapolated, measure, most_likely


def test_exposure_is_the_rank_on_a_scale_of_bits():
    candidates = np.arange(1.0, 16.0)  # fifteen, and the secret is the sixteenth
    assert among(0.5, candidates).exposure == 4
    assert among(1.5, candidates).exposure == 3
    assert among(99.0, candidates).exposure == 0
    assert among(3.0, candidates).likelier == 3  # an equal one counts as likelier


def test_a_secret_nobody_saw_has_an_exposure_of_one_bit_and_a_half_on_average():
    """-log2 of a uniform rank has mean 1 / ln 2 = 1.44 and the same standard deviation. The mean of 2000 is outside
    six standard errors with probability 2e-9; the seed is fixed."""
    random = np.random.default_rng(0)
    found = [among(random.random(), random.random(500)).exposure for _ in range(2000)]
    assert np.mean(found) == pytest.approx(1 / math.log(2), abs=6 / math.log(2) / math.sqrt(2000) + 0.01)


def test_the_interval_of_a_sample_holds_the_truth_as_often_as_it_says():
    """The share of likelier secrets is 1/8. A miss has probability 0.1 at most; more than isf of 300 below 1e-4."""
    random, missed = np.random.default_rng(1), 0
    for _ in range(300):
        found = among(0.125, random.random(200), level=0.1)
        missed += not found.low <= 3.0 <= found.high
    assert missed <= stats.binom.isf(1e-4, 300, 0.1)


def test_extrapolation_finds_what_the_sample_is_too_small_to_show():
    """Perplexities N(20, 2); a secret four standard deviations below has one as likely in 2^14.95."""
    random = np.random.default_rng(2)
    perplexities = 20 + 2 * random.standard_normal(2000)
    truth = -stats.norm.logcdf(-4) / math.log(2)
    assert extrapolated(12.0, perplexities) == pytest.approx(truth, abs=1.5)
    found = among(12.0, perplexities)
    assert found.exposure == pytest.approx(math.log2(2001))
    assert found.low < truth < found.high == math.inf


@pytest.mark.parametrize("shape", [4.0, -3.0])
def test_extrapolation_follows_a_skew(shape):
    """Perplexities of a skew normal law, 4000 of them, and a secret with one as likely in 2^10."""
    law = stats.skewnorm(shape)
    found = extrapolated(law.ppf(2.0**-10), law.rvs(4000, random_state=np.random.default_rng(3)))
    assert found == pytest.approx(10, abs=1)


def test_where_a_law_cannot_be_fitted_there_is_no_estimate():
    assert math.isnan(extrapolated(1.0, np.ones(50)))
    assert math.isnan(extrapolated(1.0, np.arange(5.0)))
    assert math.isnan(extrapolated(math.inf, np.arange(50.0)))
    assert among(1.0, np.append(np.arange(5.0), math.inf)).exposure == pytest.approx(math.log2(7 / 3))


def test_the_figures_can_be_written_down():
    values = among(12.0, np.arange(20.0, 40.0)).to_dict()
    assert (values["high"], values["candidates"], values["extrapolated"]) == ("inf", 20, None)
    assert measure(float, 3, range(20)).to_dict()["extrapolated"] > 1


@pytest.mark.parametrize("arguments", [(math.nan, [1.0]), (1.0, []), (1.0, [math.nan]), (1.0, [[1.0]])])
def test_what_has_no_rank_is_refused(arguments):
    with pytest.raises(ConfigError, match="at least one candidate"):
        among(*arguments)


def test_a_guarantee_bounds_the_chance_of_an_exposure():
    assert most_likely(GaussianCurve(0.0), 5.0) == pytest.approx(2**-5)
    assert most_likely(GaussianCurve(1.0), 0.0) == 1
    assert most_likely(GaussianCurve(2.0), 9.0) == pytest.approx(GaussianCurve(2.0).power(2**-9))
    with pytest.raises(ConfigError, match="exposure is -1"):
        most_likely(GaussianCurve(1.0), -1.0)


class Letters(nn.Module):
    """A sequence model as small as can be: the next of six letters from the last two."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(36, 6)
        nn.init.zeros_(self.table.weight)

    def forward(self, text):
        return self.table(text[:, :-2] * 6 + text[:, 1:-1])

    def log_perplexity(self, secret):
        text = torch.tensor([secret])
        with torch.no_grad():
            losses = F.cross_entropy(self(text).flatten(0, 1), text[:, 2:].flatten(), reduction="sum")
        return float(losses) / math.log(2)


def taught(secret, times):
    """Trained on random text in which a secret comes so many times."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(6, (300, 8), generator=generator)
    text[:times] = torch.tensor([0, 0, *secret])
    model = Letters()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(text).flatten(0, 1), text[:, 2:].flatten()).backward()
        optimizer.step()
    return lambda candidate: model.log_perplexity([0, 0, *candidate])


def test_a_sequence_that_was_taught_is_exposed_and_one_that_was_not_is_not():
    """All 6^4 secrets of four letters, so that the rank is exact; then a sample of them."""
    secret = (3, 1, 4, 1)
    everything = [c for c in itertools.product(range(6), repeat=4) if c != secret]
    often, never = (measure(taught((*secret, 0, 0), times), secret, everything) for times in (20, 0))
    assert often.exposure > 9
    assert never.exposure < 6
    random = np.random.default_rng(4)
    some = [everything[i] for i in random.integers(len(everything), size=300)]
    sampled = measure(taught((*secret, 0, 0), 20), secret, some)
    assert sampled.low > 6
    assert sampled.extrapolated > 6
