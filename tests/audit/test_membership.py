"""The toy model is least squares with more weights than examples: it fits any labels, and so learns them by heart."""

import json
import math
import os

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_expit

from discreet import ConfigError
from discreet.audit.curves import GaussianCurve
from discreet.audit.membership import auc, by_loss, confidence, halves, interval, judge, lira, lira_offline, rmia, roc
from discreet.report.record import _audit

REPEATS = 200 if os.environ.get("DISCREET_SOAK") else 40
EXAMPLES, WIDTH, MODELS = 200, 120, 16


def made_up(seed):
    """Inputs, and labels +1 or -1 that half follow the inputs and half do not."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((EXAMPLES, WIDTH)) / math.sqrt(WIDTH)
    return x, np.sign(x[:, 0] * math.sqrt(WIDTH) + random.standard_normal(EXAMPLES))


def fit(x, y, ridge=0.05):
    return np.linalg.solve(x.T @ x + ridge * np.eye(WIDTH), x.T @ y)


@pytest.fixture(scope="module")
def overfitted():
    """Margins of a model trained on the first half, and of shadow models that have each example in half of them."""
    x, y = made_up(0)
    members = np.arange(EXAMPLES) < EXAMPLES // 2
    target = y * (x @ fit(x[members], y[members]))
    inside = halves(EXAMPLES, MODELS, seed=1)
    shadows = np.array([y * (x @ fit(x[coins], y[coins])) for coins in inside])
    return target, members, shadows, inside


@pytest.fixture(scope="module")
def untouched():
    """The same for a model that was trained on none of the examples."""
    (x, y), other = made_up(0), made_up(99)
    members = np.arange(EXAMPLES) < EXAMPLES // 2
    inside = halves(EXAMPLES, MODELS, seed=1)
    shadows = np.array([y * (x @ fit(x[coins], y[coins])) for coins in inside])
    return y * (x @ fit(*other)), members, shadows, inside


def attacks(target, members, shadows, inside):
    out = np.array([np.mean(shadows[~inside[:, i], i]) for i in range(EXAMPLES)])
    never = np.sort(np.where(inside, np.nan, shadows), axis=0)[: MODELS // 2]  # those without the example
    logs, known = log_expit(4 * target), log_expit(4 * shadows)
    return {
        "loss": judge("loss", by_loss(np.square(1 - target)), members),
        "LiRA": judge("LiRA", lira(target, shadows, inside), members),
        "LiRA, offline": judge("LiRA, offline", lira_offline(target, never), members),
        "RMIA": judge("RMIA", rmia(logs, known, logs[~members], known[:, ~members]), members),
        "RMIA, offline": judge(
            "RMIA, offline",
            rmia(logs, log_expit(4 * never), logs[~members], log_expit(4 * never[:, ~members]), offline=0.3),
            members,
        ),
        "difficulty": judge("difficulty", target - out, members),
    }


def test_attacks_on_a_model_that_learned_by_heart_succeed(overfitted):
    found = attacks(*overfitted)
    for attack in found.values():
        assert attack.low > 0.6, attack
    assert found["LiRA"].auc > found["loss"].auc
    assert found["LiRA"].points[1].true_positives > 0.05


def test_attacks_on_a_model_that_saw_none_of_it_do_not(untouched):
    """The interval holds 0.5 with probability 0.95 each, and here in all of them; the seed is fixed."""
    for attack in attacks(*untouched).values():
        assert attack.low < 0.5 < attack.high, attack


# --- the curve -------------------------------------------------------------------------------------------------------


def test_the_curve_and_its_area_agree_with_counting_pairs():
    random = np.random.default_rng(0)
    scores, members = random.integers(0, 6, 60).astype(float), random.random(60) < 0.4
    false, true = roc(scores, members)
    inside, outside = scores[members], scores[~members]
    pairs = np.sign(inside[:, None] - outside[None, :])
    area = float((pairs + 1).mean() / 2)
    assert auc(inside, outside)[0] == pytest.approx(area)
    assert float(np.trapezoid(true, false)) == pytest.approx(area)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert (np.diff(false) >= 0).all()
    assert (np.diff(true) >= 0).all()


def test_the_area_s_interval_holds_the_truth_as_often_as_it_says():
    """Scores N(1, 1) and N(0, 1): the area is Phi(1 / sqrt 2). A miss has probability 0.1, roughly, so that more than
    isf misses have probability below 1e-4; the seed is fixed."""
    random, truth = np.random.default_rng(1), stats.norm.cdf(1 / math.sqrt(2))
    missed = 0
    for _ in range(REPEATS):
        _, low, high = auc(random.standard_normal(80) + 1, random.standard_normal(120), level=0.1)
        missed += not low < truth < high
    assert missed <= stats.binom.isf(1e-4, REPEATS, 0.1)


def test_a_perfect_ordering_still_has_an_interval():
    area, low, high = auc(np.arange(100.0) + 1000, np.arange(100.0))
    assert (area, high) == (1, 1)
    assert low == pytest.approx(0.025 ** (1 / 100))
    area, low, high = auc(np.zeros(50), np.zeros(50))
    assert low < area == 0.5 < high


def test_clopper_pearson_has_both_ends():
    low, high = interval(7, 40, 0.05)
    assert stats.binom.sf(6, 40, low) == pytest.approx(0.025)
    assert stats.binom.cdf(7, 40, high) == pytest.approx(0.025)
    assert interval(0, 40, 0.05)[0] == 0
    assert interval(40, 40, 0.05)[1] == 1


def test_points_are_at_thresholds_that_few_others_reach():
    members = np.arange(4000) < 2000
    scores = np.where(members, 1.5, 0.0) + np.random.default_rng(2).standard_normal(4000)
    attack = judge("noise", scores, members, tradeoff=GaussianCurve(1.5))
    for point, rate in zip(attack.points, (0.001, 0.01), strict=True):
        assert point.reached == pytest.approx(rate)
        assert point.low < point.true_positives < point.high
        assert point.reached < point.most
        assert point.allowed == pytest.approx(GaussianCurve(1.5).power(point.most))
        assert not point.disproves


def test_a_point_s_intervals_hold_the_truth_of_its_threshold_as_often_as_they_say():
    """True positives miss with probability 0.1 at most, false ones with 0.05; more than isf of either below 1e-4."""
    random, members = np.random.default_rng(7), np.arange(600) < 300
    missed = np.zeros(2, int)
    for _ in range(REPEATS):
        scores = 1.5 * members + random.standard_normal(600)
        point = judge("noise", scores, members, false_positives=(0.02,), level=0.1).points[0]
        threshold = np.sort(scores[~members])[-7]  # which six of 300 exceed
        missed += (
            not point.low < stats.norm.sf(threshold - 1.5) < point.high,
            not stats.norm.sf(threshold) < point.most,
        )
    assert missed[0] <= stats.binom.isf(1e-4, REPEATS, 0.1)
    assert missed[1] <= stats.binom.isf(1e-4, REPEATS, 0.05)


def test_more_than_a_guarantee_allows_disproves_it():
    members = np.arange(4000) < 2000
    scores = np.where(members, 4.0, 0.0) + np.random.default_rng(2).standard_normal(4000)
    attack = judge("noise", scores, members, tradeoff=GaussianCurve(1.0))
    assert all(point.disproves for point in attack.points)


def test_the_true_curve_is_disproved_as_rarely_as_it_says():
    """Both ends of a point are wrong with probability 0.05 at most together; more than isf of them below 1e-4."""
    random, wrong = np.random.default_rng(5), 0
    members = np.arange(600) < 300
    for _ in range(REPEATS):
        scores = members + random.standard_normal(600)
        wrong += judge("noise", scores, members, tradeoff=GaussianCurve(1.0)).points[1].disproves
    assert wrong <= stats.binom.isf(1e-4, REPEATS, 0.05)


def test_a_report_reads_what_an_attack_writes():
    members = np.arange(400) < 200
    attack = judge("loss", members + np.random.default_rng(0).standard_normal(400), members)
    read = _audit(json.dumps(attack.to_dict()))
    assert [(p.false_positives, p.true_positives) for p in read.points] == [
        (p.reached, p.true_positives) for p in attack.points
    ]
    assert read.epsilon_lower_bound is None
    assert "0.1 % false positives" in read.points[0].label


# --- the scores ------------------------------------------------------------------------------------------------------


def test_confidence_is_the_logit_of_the_right_label():
    logits = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0]])
    labels = np.array([0, 2])
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p = chances[np.arange(2), labels]
    np.testing.assert_allclose(confidence(logits, labels), np.log(p / (1 - p)))
    np.testing.assert_allclose(confidence(np.stack([logits, logits]), labels)[1], np.log(p / (1 - p)))
    assert np.isfinite(confidence([[800.0, 0.0]], [0])).all()  # where the chance itself is 1


def test_lira_is_the_ratio_of_the_two_normal_laws():
    random = np.random.default_rng(3)
    inside = halves(5, 40)
    shadows = random.standard_normal((40, 5)) + 2 * inside
    target = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    found = lira(target, shadows, inside, shared=False)
    for i in range(5):
        with_it, without = shadows[inside[:, i], i], shadows[~inside[:, i], i]
        expected = [stats.norm.logpdf(target[i], v.mean(), v.std(ddof=1)) for v in (with_it, without)]
        assert found[i] == pytest.approx(expected[0] - expected[1])
    assert (np.diff(lira(target, shadows, inside)) > 0).all()


def test_offline_lira_is_the_chance_of_less_confidence():
    random = np.random.default_rng(3)
    shadows = random.standard_normal((40, 2))
    found = lira_offline([0.0, 3.0], shadows, shared=False)
    for i, value in enumerate((0.0, 3.0)):
        expected = stats.norm.logcdf(value, shadows[:, i].mean(), shadows[:, i].std(ddof=1))
        assert found[i] == pytest.approx(expected)


def test_rmia_counts_the_others_that_are_dominated():
    target, population = np.log([0.9, 0.25]), np.log([0.5, 0.1, 0.3, 0.6])
    reference, known = np.log([[0.5, 0.4], [0.3, 0.4]]), np.log([[0.5, 0.2, 0.2, 0.1], [0.5, 0.2, 0.4, 0.3]])
    ratios, others = np.array([0.9, 0.25]) / 0.4, np.array([0.5, 0.1, 0.3, 0.6]) / [0.5, 0.2, 0.3, 0.2]
    for gamma in (1.0, 2.0):
        expected = [(ratio / others >= gamma).mean() for ratio in ratios]
        np.testing.assert_allclose(rmia(target, reference, population, known, gamma=gamma), expected)
    offline = rmia(target, reference, population, known, offline=0.3)
    ratios = np.array([0.9, 0.25]) / ((1.3 * 0.4 + 0.7) / 2)
    np.testing.assert_allclose(offline, [(ratio / others >= 1).mean() for ratio in ratios])


def test_every_example_is_in_half_of_the_shadow_models():
    inside = halves(50, 8)
    assert (inside.sum(0) == 4).all()
    assert len(np.unique(inside, axis=1).T) > 20
    with pytest.raises(ConfigError, match="3 shadow models"):
        halves(50, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: judge("x", [1.0, np.nan], [True, False]), "one score for each example, a number"),
        (lambda: judge("x", [1.0, 2.0, 3.0], [True, False]), "one score for each example"),
        (lambda: judge("x", [1.0, 2.0, 3.0], [True, False, False]), "1 members and 2 others"),
        (lambda: judge("x", [1.0, 2.0], [True, False], level=2), "level is 2"),
        (lambda: lira([1.0], [[1.0], [2.0]], [[True], [False]]), "each needs two with it and two without"),
        (lambda: lira([1.0, 2.0], [[1.0], [2.0]], [[True], [False]]), r"shape \(2, 1\)"),
        (lambda: rmia([0.0], [0.0], [0.0], [[0.0]]), "they must be"),
        (lambda: rmia([0.0], [[0.0]], [], np.zeros((1, 0))), "at least one"),
    ],
)
def test_what_cannot_be_judged_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
