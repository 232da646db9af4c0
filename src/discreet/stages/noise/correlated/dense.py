"""The best strategy over all matrices, or all with so many bands: for short runs, and as a yardstick."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet._check import check_int
from discreet.errors import ConfigError
from discreet.stages.noise.correlated.sensitivity import ONCE, Pattern, of_matrix
from discreet.stages.noise.correlated.toeplitz import SGD, Error
from discreet.stages.noise.correlated.workload import Workload

Reals = npt.NDArray[np.float64]

_MOST = 2000  # steps for which it is solved: the work grows with their cube


@dataclass(frozen=True, eq=False)
class Dense:
    """Any lower triangular C. It ends with its last row: there are no more steps than it has."""

    rows: Reals

    def __post_init__(self) -> None:
        c = np.asarray(self.rows, float)
        if c.ndim != 2 or c.shape[0] != c.shape[1] or np.any(np.triu(c, 1)) or not np.all(np.diag(c)):
            raise ConfigError("a strategy is a square lower triangular matrix whose diagonal is nowhere 0.")

    def matrix(self, steps: int) -> Reals:
        if steps > len(self.rows):
            raise ConfigError(f"the strategy ends after {len(self.rows)} steps; {steps} were asked for.")
        return self.rows[:steps, :steps]

    def sensitivity(self, steps: int, pattern: Pattern = ONCE) -> float:
        return of_matrix(self.matrix(steps), pattern)

    def error(self, steps: int, workload: Workload = SGD, kind: Error = "rms") -> float:
        from scipy.linalg import solve_triangular

        errors = solve_triangular(self.matrix(steps).T, workload.matrix(steps).T).T  # A C^-1
        variances = np.square(errors).sum(1)
        return math.sqrt(float(variances.mean() if kind == "rms" else variances.max()))


def optimum(
    steps: int, *, batches: int | None = None, bands: int | None = None, equal: bool = False, workload: Workload = SGD
) -> Dense:
    """The C of sensitivity 1 with the smallest mean squared error (Denisov et al. 2022, Choquette-Choo et al. 2023).

    Args:
        steps: at most 2,000.
        batches: of an epoch in fixed order, after which a unit takes part again; each unit once if not given.
        bands: how many diagonals are not zero; all if not given.
        equal: whether all columns must be of one length, as cyclic sampling wants them.
        workload: what the optimiser makes of the stream.
    """
    check_int("steps", steps, least=1, most=_MOST)
    apart = steps if batches is None else check_int("batches", batches, least=1)
    age = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    free = np.tril(age > 0, -1) & (age % apart != 0) & (age < (steps if bands is None else bands))
    lower, left = np.nonzero(free)
    places = np.arange(steps) % apart
    counts = np.bincount(places)[places]
    most = counts.max()
    a = workload.matrix(steps)
    aim = a.T @ a / steps

    def form(v: Reals) -> Reals:
        x = np.zeros((steps, steps))
        x[lower, left] = v[steps:]
        x += x.T
        moved = v[:steps] - (np.bincount(places, v[:steps]) / np.bincount(places))[places]
        x[np.diag_indices(steps)] = 1 / most if equal else 1 / counts + moved
        return x

    def objective(v: Reals) -> tuple[float, Reals]:
        from scipy.linalg import cho_factor, cho_solve

        x = form(v)
        try:
            factor = cho_factor(x, lower=True)
        except np.linalg.LinAlgError:
            return 1e12, np.zeros(len(v))
        solved = cho_solve(factor, aim)
        pulled = -cho_solve(factor, solved.T)
        diagonal = np.diag(pulled) - (np.bincount(places, np.diag(pulled)) / np.bincount(places))[places]
        value = float(np.trace(solved))
        slope = np.concatenate((np.zeros(steps) if equal else diagonal, 2 * pulled[lower, left]))
        return math.log(value), slope / value

    from scipy.optimize import minimize

    v, before = np.zeros(steps + len(lower)), math.inf
    for _ in range(30):  # a search along a line ends where X is no longer positive, and is begun again from there
        best = minimize(
            objective,
            v,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 50},
        )
        v = best.x
        if before - best.fun < 1e-9:
            break
        before = best.fun
    return Dense(of_form(form(v)))


def of_form(x: Reals) -> Reals:
    """The lower triangular C with C^T C = X.

    A plain Cholesky factor has C C^T = X instead, and then rows and not columns are of the length that was asked for:
    turned round, it is the other way.
    """
    return np.asarray(np.linalg.cholesky(x[::-1, ::-1])[::-1, ::-1].T, np.float64)
