"""The oracle of the one-run tests: the worst mechanism of a few canaries, found by linear programming."""

import itertools
import math

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix


def most_likely(canaries, guesses, correct, points):
    """The largest chance of at least `correct` right of `guesses` over all mechanisms that keep every (epsilon, delta).

    A mechanism is, for each of the coins' 2^m outcomes, a law over the guesses themselves. (epsilon, delta) between
    neighbours is sum over outputs of (M(y|x) - e^epsilon M(y|x'))+ <= delta, linear with one slack a term.
    """
    inputs = list(itertools.product((1, -1), repeat=canaries))
    outputs = [y for y in itertools.product((1, -1, 0), repeat=canaries) if sum(value != 0 for value in y) == guesses]
    place = {(x, y): i for i, (x, y) in enumerate(itertools.product(inputs, outputs))}
    laws = len(place)
    neighbours = [(x, (*x[:i], -x[i], *x[i + 1 :]), point) for x in inputs for i in range(canaries) for point in points]
    rows, columns, values, limits = [], [], [], []

    def add(entries, limit):
        for column, value in entries:
            rows.append(len(limits))
            columns.append(column)
            values.append(value)
        limits.append(limit)

    slack = laws
    for x, other, (epsilon, delta) in neighbours:
        for k, y in enumerate(outputs):
            add([(place[x, y], 1.0), (place[other, y], -math.exp(epsilon)), (slack + k, -1.0)], 0.0)
        add([(slack + k, 1.0) for k in range(len(outputs))], delta)
        slack += len(outputs)
    shape = len(limits), slack
    sums = coo_matrix(
        (np.ones(laws), ([i // len(outputs) for i in range(laws)], range(laws))), shape=(len(inputs), slack)
    )
    right = [sum(a == b for a, b in zip(x, y, strict=True)) >= correct for x, y in place]
    objective = np.concatenate((-np.array(right, float) / len(inputs), np.zeros(slack - laws)))
    found = linprog(
        objective,
        A_ub=coo_matrix((values, (rows, columns)), shape=shape),
        b_ub=limits,
        A_eq=sums,
        b_eq=np.ones(len(inputs)),
        method="highs",
    )
    assert found.status == 0
    return -found.fun
