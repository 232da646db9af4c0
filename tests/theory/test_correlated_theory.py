"""The theorems of docs/theory-correlated.md against brute force.

Nothing of the library is imported. Each test would fail if a theorem were false, or if a condition that a theorem asks
for were not needed: the counterexamples are tests as well.

What an adversary may do is searched in full where the problem is small: the best adaptive choice of every share and of
every crash follows by backward induction, as the only thing to remember is the likelihood ratio so far.
"""

import itertools

import numpy as np
import pytest
import scipy.fft
from scipy.interpolate import CubicSpline
from scipy.special import ndtr

LENGTHS = (0.0, 0.4, 0.8, 1.0)  # of a unit's share: at most the bound
POINTS = np.linspace(-8.5, 8.5, 481)  # the trapezoidal rule, good to 5e-8 for what follows (against 961 points)
WEIGHTS = np.exp(-(POINTS**2) / 2) / np.exp(-(POINTS**2) / 2).sum()


# Tools


def call(weight, strike, s):
    """E[(weight Y - strike)+] for ln Y ~ N(-s^2 / 2, s^2)."""
    weight, strike = np.broadcast_arrays(np.asarray(weight, float), np.asarray(strike, float))
    value = weight - strike
    if s == 0:
        return np.maximum(value, 0)
    inside = (strike > 0) & (weight > 0)
    x = np.log(np.where(inside, weight, 1) / np.where(inside, strike, 1)) / s
    return np.where(inside, weight * ndtr(x + s / 2) - strike * ndtr(x - s / 2), np.maximum(value, 0))


def put(weight, strike, s):
    """E[(strike - weight Y)+]."""
    return call(weight, strike, s) - weight + strike


def ratios(s):
    """The likelihood ratio of a shift by s, at the points of the quadrature."""
    return np.exp(s * POINTS - s * s / 2)


def gaussian_delta(mu, a):
    return float(call(1.0, a, mu))


def patterns(steps, separation, most):
    """All sets of steps that are at least `separation` apart, of at most `most` members."""
    for size in range(1, most + 1):
        for chosen in itertools.combinations(range(steps), size):
            if all(later - earlier >= separation for earlier, later in itertools.pairwise(chosen)):
                yield chosen


def sensitivity(matrix, sets):
    """The largest ||C u|| over the sets and over u_t = +-1 (the maximum of a convex function is at a corner)."""
    best = 0.0
    for chosen in sets:
        signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=len(chosen) - 1)]).T
        best = max(best, np.linalg.norm(matrix[:, chosen] @ signs, axis=0).max())
    return best


def toeplitz(coefficients, steps):
    c = np.zeros(steps)
    c[: len(coefficients)] = coefficients[:steps]
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def restarted(matrix, seams):
    """What a run does that begins with an empty buffer at each of the seams, at the column of the step."""
    edges = [0, *seams, len(matrix)]
    cut = np.zeros_like(matrix)
    for start, stop in itertools.pairwise(edges):
        cut[start:stop, start:stop] = matrix[start:stop, start:stop]
    return cut


def largest_spread(values, separation, most):
    """The largest sum of at most `most` entries at least `separation` apart."""
    n = len(values)
    best = np.zeros(n + separation)
    for _ in range(most):
        best[:n] = values + best[separation:]
        best = np.maximum.accumulate(best[::-1])[::-1]
    return best[0]


# C1: adaptive matrix mechanisms are one Gaussian release


@pytest.mark.parametrize("a", [0.7, 1.0, 1.6, 4.0])
def test_shifts_that_follow_the_outputs_are_hidden_as_one_shift_of_their_whole_energy(a):
    mu, parts = 1.2, 6  # the adversary spends mu^2 in units of mu^2 / 6, over three rows, seeing each row first

    def value(ratio, units, rows):
        options = [call(ratio, a, mu * np.sqrt(units / parts))]  # all of it in this row
        for spent in range(units if rows > 1 else 0):
            r = ratios(mu * np.sqrt(spent / parts))
            options.append(value(ratio[..., None] * r, units - spent, rows - 1) @ WEIGHTS)
        return np.max(options, axis=0)

    best = float(value(np.array(1.0), parts, 3))
    assert best == pytest.approx(gaussian_delta(mu, a), abs=2e-6)


def test_filtered_noise_is_a_release_of_c_times_the_sums():
    rng = np.random.default_rng(0)
    matrix = np.tril(rng.normal(size=(6, 6))) + 3 * np.eye(6)
    cut = restarted(matrix, (2, 5))
    z = rng.normal(size=6)
    x = np.zeros(6)
    begun = 0
    for t in range(6):
        begun = t if t in (2, 5) else begun
        x[t] = (z[t] - matrix[t, begun:t] @ x[begun:t]) / matrix[t, t]
    np.testing.assert_allclose(cut @ x, z, atol=1e-12)


# C2, C3: sensitivity by participation pattern


def test_a_monotone_toeplitz_strategy_is_worst_at_the_earliest_steps():
    rng = np.random.default_rng(1)
    for _ in range(60):
        steps, separation = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        most = int(rng.integers(1, 5))
        c = np.cumprod(rng.uniform(0, 1, steps) ** rng.choice([0.1, 1]))
        rounds = min(most, -(-steps // separation))
        formula = np.linalg.norm(sum(np.r_[np.zeros(i * separation), c][:steps] for i in range(rounds)))
        assert formula == pytest.approx(sensitivity(toeplitz(c, steps), patterns(steps, separation, most)), abs=1e-12)


def test_it_is_not_so_where_the_coefficients_grow():
    c, steps = np.array([1, 0.0, 0.9]), 6
    formula = np.linalg.norm(c) * np.sqrt(2)  # steps 0 and 3 of separation 3 do not overlap
    shifted = sum(np.r_[np.zeros(i), c, np.zeros(steps)][:steps] for i in (0, 1))
    assert np.linalg.norm(shifted) == pytest.approx(formula)  # separation 1: the earliest two, 0 and 1
    assert sensitivity(toeplitz(c, steps), patterns(steps, 1, 2)) > 1.2 * formula  # 0 and 2 overlap


def test_a_majorant_covers_any_signs_and_a_minorant_does_not():
    rng = np.random.default_rng(2)
    for _ in range(60):
        steps, separation, most = int(rng.integers(2, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
        c = rng.normal(size=steps)
        majorant = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
        rounds = min(most, -(-steps // separation))
        bound = np.linalg.norm(sum(np.r_[np.zeros(i * separation), majorant][:steps] for i in range(rounds)))
        assert sensitivity(toeplitz(c, steps), patterns(steps, separation, most)) <= bound + 1e-12
    truth = sensitivity(toeplitz([1, 0.5, 0.8], 6), patterns(6, 1, 2)) ** 2
    assert truth <= 7.44 + 1e-12
    minorant = np.minimum.accumulate([1, 0.5, 0.8])
    assert truth > np.sum((np.r_[minorant, 0] + np.r_[0, minorant]) ** 2)


def test_bounds_for_any_matrix():
    rng = np.random.default_rng(3)
    for _ in range(60):
        steps, separation, most = int(rng.integers(1, 8)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
        matrix = np.tril(rng.normal(size=(steps, steps)))
        square = np.abs(matrix.T @ matrix)
        rows = np.array([largest_spread(row, separation, most) for row in square])
        bound = np.sqrt(largest_spread(rows, separation, most))
        assert sensitivity(matrix, patterns(steps, separation, most)) <= bound + 1e-12
        banded = np.tril(np.triu(matrix.T, 0).T, 0) * (np.subtract.outer(range(steps), range(steps)) < separation)
        exact = np.sqrt(largest_spread(np.diag(banded.T @ banded), separation, most))
        assert sensitivity(banded, patterns(steps, separation, most)) == pytest.approx(exact, abs=1e-12)


def test_vectors_and_shorter_shares_move_no_more_than_the_bound():
    rng = np.random.default_rng(4)
    for _ in range(200):
        matrix = np.tril(rng.normal(size=(5, 5)))
        chosen = list(patterns(5, 2, 3))[rng.integers(4, 8)]
        shares = rng.normal(size=(len(chosen), 3))
        shares *= rng.uniform(0.5, 1, (len(chosen), 1)) / np.linalg.norm(shares, axis=1, keepdims=True)
        square = np.abs(matrix.T @ matrix)[np.ix_(chosen, chosen)].sum()
        assert np.sum((matrix[:, chosen] @ shares) ** 2) <= square + 1e-12


# C5: restarts, without amplification


def test_restarts_at_the_steps_own_column_never_raise_the_sensitivity_whatever_the_signs():
    rng = np.random.default_rng(5)
    for _ in range(25):
        steps, separation, most = int(rng.integers(2, 7)), int(rng.integers(1, 3)), int(rng.integers(1, 5))
        sets = list(patterns(steps, separation, most))
        matrix = np.tril(rng.normal(size=(steps, steps)))
        whole = sensitivity(matrix, sets)
        for size in range(1, steps):
            for seams in itertools.combinations(range(1, steps), size):
                assert sensitivity(restarted(matrix, seams), sets) <= whole + 1e-12


def test_a_restart_at_column_zero_can_raise_it_unless_toeplitz():
    matrix = np.diag([1, 0.1, 0.1, 1])
    again = np.diag([1, 0.1, 1, 0.1])  # restarted at step 2 with columns 0 and 1
    order = [(0, 2), (1, 3)]
    assert sensitivity(matrix, order) ** 2 == pytest.approx(1.01)
    assert sensitivity(again, order) ** 2 == pytest.approx(2)


def test_a_kept_buffer_that_is_older_than_the_last_release_raises_it():
    c = toeplitz([1, 0.9, 0.8], 3)
    # Rows 0, 1, 2 are released; the run is set back to row 1 with the noise it had then, and releases 1', 2'.
    both = np.array(
        [
            [c[0, 0], 0, 0, 0, 0],
            [c[1, 0], c[1, 1], 0, 0, 0],
            [c[2, 0], c[2, 1], c[2, 2], 0, 0],
            [c[1, 0], 0, 0, c[1, 1], 0],
            [c[2, 0], 0, 0, c[2, 1], c[2, 2]],
        ]
    )
    once = [(i,) for i in range(5)]
    assert sensitivity(both, once) ** 2 == pytest.approx(3.9)
    assert sensitivity(c, [(i,) for i in range(3)]) ** 2 == pytest.approx(2.45)


# C4, C6: banded strategies and cyclic Poisson batches, with and without restarts


def poisson_delta(rate, s, a, rounds):
    """Removal, Poisson batches: H_a of the `rounds`-fold product, by quadrature."""
    ratio, weights = np.array([1.0]), np.array([1.0])
    for _ in range(rounds - 1):
        ratio = np.multiply.outer(ratio, 1 - rate + rate * ratios(s)).ravel()
        weights = np.multiply.outer(weights, WEIGHTS).ravel()
    return float(call(ratio * rate, a - ratio * (1 - rate), s) @ weights)


def poisson_addition(rate, s, a, rounds):
    """Addition: E[(1 - a L)+]."""
    ratio, weights = np.array([1.0]), np.array([1.0])
    for _ in range(rounds - 1):
        ratio = np.multiply.outer(ratio, 1 - rate + rate * ratios(s)).ravel()
        weights = np.multiply.outer(weights, WEIGHTS).ravel()
    return float(put(a * ratio * rate, 1 - a * ratio * (1 - rate), s) @ weights)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("a", [0.8, 1.1, 1.8])
def test_the_best_adversary_of_four_steps_two_bands_two_groups(adding, a):
    """It sees each row, then chooses the next share, and whether the run crashes there."""
    rate, sigma, tail = 0.4, 0.8, -0.7  # a negative coefficient: signs do not matter here
    head, rest = 1 / np.hypot(1, tail), abs(tail) / np.hypot(1, tail)

    def finish(ratio, s):  # the last row of a unit's last column, its other row already in `ratio`: (base, with coin)
        base, coin = ratio
        if adding:
            return put(a * coin, 1 - a * base, s)
        return call(coin, a - base, s)

    logs = np.linspace(-25, 25, 801)

    def second(ratio, crash):  # rows 2 and 3, after the ratio of rows 0 and 1
        options = []
        for length in LENGTHS:
            seen = ratio[..., None] * rate * ratios(length * head / sigma)
            base = ratio[..., None] * (1 - rate) + 0 * seen
            goes_on = finish((base, seen), length * rest / sigma)
            stops = finish((base, seen), 0.0)
            options.append((np.maximum(goes_on, stops) if crash else goes_on) @ WEIGHTS)
        return np.max(options, axis=0)

    def first(crash, lengths):
        table = CubicSpline(logs, second(np.exp(logs), crash))
        options = []
        for length in lengths:
            seen = ratios(length * head / sigma)
            goes_on = 1 - rate + rate * seen[:, None] * ratios(length * rest / sigma)
            going = table(np.log(goes_on)) @ WEIGHTS
            stopping = table(np.log(1 - rate + rate * seen))
            options.append(np.maximum(going, stopping) @ WEIGHTS if crash else going @ WEIGHTS)
        return max(options)

    claimed = (poisson_addition if adding else poisson_delta)(rate, 1 / sigma, a, 2)
    assert first(crash=False, lengths=(1.0,)) == pytest.approx(claimed, abs=1e-6)
    assert first(crash=True, lengths=LENGTHS) <= claimed + 1e-6


def test_more_bands_than_groups_cost_more():
    """One group, two bands of equal weight: two coins, and the rows overlap. Two rounds of norm 1 do not cover it."""
    rate, sigma, a = 0.5, 1.0, 3.0
    h = np.sqrt(0.5)
    points = np.linspace(-8, 8, 121)
    w = np.exp(-(points**2) / 2)
    w /= w.sum()
    y = np.stack(np.meshgrid(points, points, points, indexing="ij"))
    ratio = 0.0
    for coins in itertools.product((0, 1), repeat=2):
        m = np.array([h * coins[0], h * (coins[0] + coins[1]), h * coins[1]]) / sigma
        chance = np.prod([rate if coin else 1 - rate for coin in coins])
        ratio = ratio + chance * np.exp(np.tensordot(m, y, 1) - m @ m / 2)
    truth = np.einsum("ijk,i,j,k->", np.maximum(ratio - a, 0), w, w, w)
    assert truth > 1.05 * poisson_delta(rate, 1 / sigma, a, 2)


def test_a_new_partition_at_the_restart_is_another_round():
    """Group 0 drew at step 0; after the crash the same unit is of group 1, which draws at step 1."""
    rate, sigma, a = 0.5, 1.0, 1.5
    assert poisson_delta(rate, 1 / sigma, a, 2) > 1.3 * poisson_delta(rate, 1 / sigma, a, 1)  # ceil(2 / 2) = 1


# C7: random allocation


def allocation_delta(b, s, a, adding=False, lengths=(1.0,)):
    """The best adversary's delta in one epoch: it chooses each share's length having seen all earlier rows."""

    def value(total, rows):
        options = []
        for length in lengths:
            if rows == 1:
                t = length * s
                options.append(put(a / b, 1 - a * total / b, t) if adding else call(1 / b, a - total / b, t))
            else:
                options.append(value(total[..., None] + ratios(length * s), rows - 1) @ WEIGHTS)
        return np.max(options, axis=0)

    return float(value(np.array(0.0), b))


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize(("b", "s", "a"), [(2, 1.0, 1.2), (2, 2.0, 0.6), (3, 1.0, 1.1), (3, 1.5, 2.0), (3, 1.0, 0.7)])
def test_no_adversary_of_an_epoch_beats_the_pair(b, s, a, adding):
    lengths = LENGTHS if b == 2 else (0.0, 0.6, 1.0)
    claimed = allocation_delta(b, s, a, adding)
    assert allocation_delta(b, s, a, adding, lengths) == pytest.approx(claimed, abs=1e-9)


@pytest.mark.parametrize("bound", [0.8, 1.0])
def test_directions_that_follow_the_outputs_do_not_matter(bound):
    """Shares in R^3 that depend on all earlier rows; 400,000 draws under Q, within 4 standard errors (1 in 16,000)."""
    rng = np.random.default_rng(6)
    b, s, a, draws = 4, 1.0, 1.3, 400_000
    past = np.ones((draws, 3))
    total = np.zeros(draws)
    for _ in range(b):
        share = np.sin(past @ np.array([[1, 2, 0.3], [0.2, -1, 3], [2, 0.1, 1]]))
        share *= bound / np.linalg.norm(share, axis=1, keepdims=True)
        row = rng.normal(size=(draws, 3))
        total += np.exp(s * np.sum(share * row, axis=1) - (s * bound) ** 2 / 2)
        past = past * 0.5 + row
    payoff = np.maximum(total / b - a, 0)
    found, error = payoff.mean(), payoff.std() / np.sqrt(draws)
    assert abs(found - Epoch(bound * s, b, 60, 2**14).removal(a)) < 4 * error
    assert found < Epoch(s, b, 60, 2**14).removal(a) + 4 * error


@pytest.mark.parametrize("a", [0.7, 1.1, 1.9])
def test_two_epochs_of_the_best_adversary_cost_what_their_composition_costs(a):
    b, s = 2, 1.0

    def last(ratio):  # the best second epoch, after the ratio of the first
        options = []
        for first, second in itertools.product((0.5, 1.0), repeat=2):
            seen = ratio[..., None] * ratios(first * s) / b
            options.append(call(ratio[..., None] / b + 0 * seen, a - seen, second * s) @ WEIGHTS)
        return np.max(options, axis=0)

    logs = np.linspace(-15, 12, 1201)
    table = CubicSpline(logs, last(np.exp(logs)))
    best = WEIGHTS @ table(np.log((ratios(s)[:, None] + ratios(s)) / b)) @ WEIGHTS
    claimed = Epoch(s, b, 200, 2**16).composed(a, epochs=2)
    assert best <= claimed + 1e-9
    assert claimed == pytest.approx(best, rel=3e-3)


@pytest.mark.parametrize("a", [0.8, 1.3, 2.5])
def test_a_query_of_another_phase_between_two_rows_composes(a):
    """The second share may depend on the first row and on a Poisson query that was asked in between."""
    b, s, rate, t = 2, 1.0, 0.3, 1.4
    other = 1 - rate + rate * ratios(t)
    seen = ratios(s)
    options = [call(other / b + 0 * seen[:, None], a - seen[:, None] * other / b, length * s) for length in LENGTHS]
    best = WEIGHTS @ np.max(options, axis=0) @ WEIGHTS
    claimed = sum(w * p * allocation_delta(b, s, a / p) for w, p in zip(WEIGHTS, other, strict=True))
    assert best == pytest.approx(claimed, abs=1e-9)


@pytest.mark.parametrize("a", [0.7, 1.2, 2.0])
def test_part_of_an_epoch_costs_at_most_the_whole(a):
    b, s = 3, 1.2
    whole = allocation_delta(b, s, a)
    one = float(call(1 / b, a - (b - 1) / b, s))
    two = float(call(1 / b, a - (1 + ratios(s)) / b, s) @ WEIGHTS)
    assert one < two < whole


def test_a_fresh_draw_in_the_middle_of_an_epoch_is_not_one_epoch():
    """Broken off after row 1 of 2, drawn again, gone on with row 2: a unit may be in both."""
    b, s, a = 2, 1.0, 6.0
    first = (1 + ratios(s)) / 2
    truth = float(call(first / 2, a - first / 2, s) @ WEIGHTS)
    assert truth > 1.5 * allocation_delta(b, s, a)
    assert truth < Epoch(s, b, 200, 2**14).composed(a, epochs=2)


def test_a_row_that_is_released_twice_with_the_same_allocation_is_not_one_epoch():
    b, s, a = 2, 1.0, 2.0
    once = allocation_delta(b, s, a)
    twice = float(call(1 / b, a - ratios(s * np.sqrt(2)) / b, s) @ WEIGHTS)
    assert twice > 1.5 * once


def test_batches_of_a_fixed_size_are_not_covered():
    """All others give w: their number in a batch then tells where the unit is, also where it gives nothing."""
    s, a = 1.0, 2.0
    y, z = np.meshgrid(POINTS, POINTS, indexing="ij")

    def shifted(by):
        return (np.exp(by * y - by * by / 2) + np.exp(by * z - by * by / 2)) / 2

    truth = WEIGHTS @ np.maximum(shifted(-2 * s) - a * shifted(-s), 0) @ WEIGHTS
    assert truth > 1.5 * allocation_delta(2, s, a)


def test_poisson_batches_of_rate_one_in_b_do_not_dominate_an_epoch():
    b, s, a = 2, 4.0, 1.0
    assert allocation_delta(b, s, a) > 1.2 * poisson_delta(1 / b, s, a, b)


# C8: the grid


class Epoch:
    """The law of the mean of b lognormals on a grid, from above in convex order."""

    def __init__(self, s, b, span, cells, kind=np.longdouble):
        self.grid = np.arange(cells, dtype=kind) * (kind(span) / (cells - 1))
        step = span * b / (cells - 1)
        x = np.arange(cells) * step
        with np.errstate(divide="ignore"):
            logs = np.log(x)
        mass, moment = (self._between((logs + sign * s * s / 2) / s) for sign in (1, -1))
        upper = np.clip((moment - x[:-1] * mass) / step, 0, mass)
        one = np.zeros(cells, dtype=kind)
        one[1:] += upper
        one[:-1] += mass - upper
        self.one = one
        law = scipy.fft.irfft(scipy.fft.rfft(one) ** b, cells)
        unit = np.finfo(kind).eps
        rho = 4 * np.log2(cells) * unit
        norm_one, norm_all = np.linalg.norm(one.astype(float)), np.linalg.norm(law.astype(float))
        self.error = float(rho * (b * norm_one + norm_all) + 4 * b * unit * norm_all)  # of the law, in l2
        self.slack_removal = 2 * self.error * float(np.sqrt(np.sum(self.grid**2)))
        self.slack_addition = self.error * float(np.sqrt(cells))
        self.law = np.maximum(law, 0)
        self.lost_removal = max(0.0, float(1 - np.sum(self.grid * self.law))) + self.slack_removal
        self.lost_addition = max(0.0, float(1 - np.sum(self.law)))

    @staticmethod
    def _between(z):
        below, above = ndtr(z), ndtr(-z)
        return np.where(z[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])

    def removal(self, a):
        return float(np.sum(np.maximum(self.grid - a, 0) * self.law)) + self.lost_removal

    def addition(self, a):
        """What lies above the grid has a loss of at most -ln of its last point."""
        tail = max(0.0, 1 - a * float(self.grid[-1])) * self.lost_addition
        return float(np.sum(np.maximum(1 - a * self.grid, 0) * self.law)) + tail + self.slack_addition

    def losses(self, adding):
        """Losses, their masses, and the mass at infinity."""
        logs = np.log(self.grid[1:].astype(float))
        law = self.law[1:].astype(float)
        if not adding:
            return logs, law * self.grid[1:].astype(float), self.lost_removal
        return np.append(-logs, -logs[-1]), np.append(law, self.lost_addition), float(self.law[0]) + self.slack_addition

    def compose(self, epochs, adding=False, step=1e-3, dots=True):
        """Losses go up to multiples of `step`, or are shared between the two next to them (connect the dots)."""
        values, masses, infinite = self.losses(adding)
        lower = np.floor(values / step + 1e-9).astype(int)
        upper = np.clip(masses * np.expm1(step * lower - values) / np.expm1(-step), 0, masses)
        if not dots:
            upper = np.where(values > step * lower + 1e-9 * step, masses, 0)
        places, masses = np.append(lower, lower + 1), np.append(masses - upper, upper)
        law = np.bincount(places - places.min(), weights=masses)
        tail = np.cumsum(law[::-1])[::-1] > 1e-15
        infinite += law[~tail].sum()
        law = law[tail]
        skipped = int(np.argmax(np.cumsum(law) > 1e-15))
        law[skipped] += law[:skipped].sum()
        low, law = places.min() + skipped, law[skipped:]
        length = scipy.fft.next_fast_len(epochs * len(law))
        law = np.maximum(scipy.fft.irfft(scipy.fft.rfft(law, length) ** epochs, length), 0)
        return (low * epochs + np.arange(length)) * step, law, 1 - (1 - infinite) ** epochs

    def composed(self, a, epochs, adding=False):
        return exceeded(np.log(a), *self.compose(epochs, adding))

    def epsilon(self, delta, epochs, adding=False, dots=True, step=2e-4):
        law = self.compose(epochs, adding, step, dots)
        low, high = 0.0, 20.0
        while high - low > 5e-5:
            middle = (low + high) / 2
            low, high = (middle, high) if exceeded(middle, *law) > delta else (low, middle)
        return high


def exceeded(epsilon, losses, masses, infinite):
    """Delta at `epsilon`."""
    above = losses > epsilon
    return float(np.sum(masses[above] * -np.expm1(epsilon - losses[above]))) + infinite


@pytest.mark.parametrize("s", [0.5, 1.0, 1.5])
def test_one_batch_is_the_gaussian_mechanism_from_above(s):
    epoch = Epoch(s, 1, 400, 2**18)
    for a in (0.5, 1.0, 2.0, 5.0):
        truth = gaussian_delta(s, a)
        assert truth <= epoch.removal(a) <= truth + 1e-4
        assert float(put(a, 1, s)) <= epoch.addition(a) <= float(put(a, 1, s)) + 3e-3


@pytest.mark.parametrize("cells", [2**8, 2**11, 2**14])
@pytest.mark.parametrize(("b", "s"), [(2, 1.0), (3, 1.0), (3, 0.6)])
def test_every_grid_is_pessimistic_in_both_directions(b, s, cells):
    epoch = Epoch(s, b, 40, cells)
    for a in (0.5, 0.9, 1.0, 1.3, 3.0):
        assert epoch.removal(a) >= allocation_delta(b, s, a) - 1e-9
        assert epoch.addition(a) >= allocation_delta(b, s, a, adding=True) - 1e-9
        assert epoch.composed(a, 1) >= epoch.removal(a) - 1e-12
        assert epoch.composed(a, 1, adding=True) >= epoch.addition(a) - 1e-12


def test_halving_the_cells_quarters_the_error():
    a = 60 * 48 / 2**11  # a point of every grid
    truth = allocation_delta(3, 1.0, a)
    errors = [Epoch(1.0, 3, 60, cells + 1).removal(a) - truth for cells in (2**11, 2**12, 2**13)]
    assert 3.5 < errors[0] / errors[1] < 4.5
    assert 3.5 < errors[1] / errors[2] < 4.5


def test_what_wraps_around_is_counted_as_lost():
    """A grid that ends at twice the mean: the transforms wrap, and both directions stay above the truth."""
    b, s = 3, 1.0
    epoch = Epoch(s, b, 2, 2**13)
    for a in (0.6, 1.0, 1.5):
        assert epoch.removal(a) >= allocation_delta(b, s, a)
        assert epoch.addition(a) >= allocation_delta(b, s, a, adding=True)


@pytest.mark.parametrize("kind", [np.float64, np.longdouble])
def test_round_off_is_within_its_bound(kind):
    epoch = Epoch(1.0, 16, 8, 2**10, kind)
    exact = Epoch(1.0, 16, 8, 2**10).one  # its powers by sums of products, wrapped as the transforms wrap
    law = exact
    for _ in range(4):
        full = np.convolve(law, law)
        law = np.append(full[: 2**10], 0)[: 2**10] + np.append(full[2**10 :], [0])[: 2**10]
    difference = np.linalg.norm((epoch.law - law).astype(float))
    assert difference <= epoch.error
    if kind is np.float64:
        assert difference > 0  # it is measured, not assumed away


@pytest.mark.parametrize(
    ("sigma", "b", "epochs", "span", "removal", "addition"),
    [
        (1.0, 100, 1, 20, 0.6209, 0.4220),
        (0.8, 100, 1, 60, 1.3739, 0.5916),
        (0.6, 234, 1, 150, 2.6241, 0.6481),
        (0.8, 100, 10, 60, 2.9076, 2.2559),
        (1.0, 234, 10, 30, 1.0475, 0.9832),
        (2.0, 50, 10, 10, 0.8815, 0.8739),
        (1.1, 234, 60, 20, 2.3405, 2.2998),
    ],
)
def test_figures_for_random_allocation(sigma, b, epochs, span, removal, addition):
    """At delta 1e-5, as in docs/theory-correlated.md; a grid of 2^19 cells and two independent programs agree."""
    epoch = Epoch(1 / sigma, b, span, 2**18)
    step = 2e-4 if epochs < 60 else 1e-3
    assert epoch.epsilon(1e-5, epochs, step=step) == pytest.approx(removal, abs=3e-4)
    assert epoch.epsilon(1e-5, epochs, adding=True, step=step) == pytest.approx(addition, abs=5e-4)


def test_rounding_losses_up_costs_half_a_cell_an_epoch():
    epoch = Epoch(1.0, 234, 30, 2**17)
    rounded, shared = (epoch.epsilon(1e-5, 10, dots=dots, step=1e-3) for dots in (False, True))
    assert rounded - shared == pytest.approx(10 * 1e-3 / 2, abs=3e-4)


@pytest.mark.parametrize(("sigma", "b", "span", "removal"), [(2.0, 50, 300, 3.6262), (2.0, 234, 300, 2.1773)])
def test_figures_for_the_same_batch_in_ten_epochs(sigma, b, span, removal):
    epoch = Epoch(np.sqrt(10) / sigma, b, span, 2**18)
    assert epoch.epsilon(1e-5, 1) == pytest.approx(removal, abs=3e-4)
