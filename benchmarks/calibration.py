"""How often a lower bound is below the truth, on mechanisms whose epsilon is known.

python benchmarks/calibration.py [--repeats 200]
"""

import argparse
import math

import numpy as np

from discreet.accounting import gaussian as gdp
from discreet.audit.guessing import count_correct, guess
from discreet.audit.one_run import exact_epsilon_lower_bound

LEVEL, DELTA = 0.05, 1e-5


def randomised_response(random, canaries=2_000):
    """Each coin is told right with chance e / (1 + e): epsilon is 1, and every one is guessed."""
    right = int((random.random(canaries) < math.e / (1 + math.e)).sum())
    return exact_epsilon_lower_bound(canaries, canaries, right, 0.0, LEVEL)


def gaussian(random, canaries=4_000, each=200):
    """Scores N(0, 1) for those out and N(1, 1) for those in; 200 are guessed each way."""
    coins = random.random(canaries) < 0.5
    right = count_correct(guess(random.normal(size=canaries) + coins, each, each), coins)
    return exact_epsilon_lower_bound(canaries, 2 * each, right, DELTA, LEVEL)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    print("| mechanism | true epsilon | bound below it | median bound |\n| --- | --- | --- | --- |")
    cases = (
        ("randomised response, 2,000 canaries", 1.0, randomised_response),
        ("Gaussian, mu = 1, 4,000 canaries", gdp.epsilon(1.0, DELTA), gaussian),
    )
    for name, truth, measure in cases:
        found = [measure(np.random.default_rng(seed)) for seed in range(repeats)]
        below = sum(bound <= truth for bound in found) / repeats
        print(f"| {name} | {truth:.3f} | {below:.1%} | {np.median(found):.3f} |")


if __name__ == "__main__":
    main()
