"""Does the law of the noise matter? Every family at equal Fisher information, and at equal epsilon.

Contributions lie in the half-normal envelope with l2 norm 1; Poisson rate 256 / 60,000, 14,062 steps, delta 1e-5.
For each law: epsilon at equal Fisher information (Gaussian multiplier 1.1), and how much larger its noise is than the
Gaussian's, in root mean square and in mean size, once its scale is tuned to the Gaussian's epsilon.

    python benchmarks/noise_families.py [--sizes 1000 100000 1000000]
"""

import argparse
import math
import platform
import time

from discreet import AirySquared, Cauchy, Gaussian, Laplace, Logistic, Sech, StudentT, VarianceGamma
from discreet.accounting import pld
from discreet.papers.claims import enveloped

RATE, STEPS, DELTA, SIGMA = 256 / 60_000, 14_062, 1e-5, 1.1
FAMILIES = {
    "Gaussian": Gaussian(),
    "Student-t 9": StudentT(9),
    "Student-t 5": StudentT(5),
    "Student-t 3": StudentT(3),
    "Cauchy": Cauchy(),
    "Laplace": Laplace(),
    "sech": Sech(),
    "variance-gamma": VarianceGamma(),
    "logistic": Logistic(),
    "Airy squared": AirySquared(),
}


def epsilon(law, scale, size):
    return pld.epsilon([enveloped(law, scale, size, RATE, STEPS)], DELTA)


def tuned(law, size, target):
    """The scale at which epsilon is the target, by three secant steps: epsilon falls about as a power of the scale."""
    one = SIGMA * math.sqrt(law.fisher)
    two = one * 0.99
    at = {s: math.log(epsilon(law, s, size) / target) for s in (one, two)}
    for _ in range(2):
        slope = (at[two] - at[one]) / math.log(two / one)
        one, two = two, two * math.exp(-at[two] / slope)
        at[two] = math.log(epsilon(law, two, size) / target)
        if abs(at[two]) < 1e-5:
            break
    return two


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    sizes = parser.parse_args().sizes
    ends = sorted({sizes[0], sizes[-1]})
    started = time.time()
    reference = {n: epsilon(Gaussian().law, SIGMA, n) for n in ends}
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, Python {platform.python_version()}\n")
    heads = [f"ε, n = {n:,}" for n in sizes]
    heads += [f"rms ratio, n = {n:,}" for n in ends] + [f"mean size ratio, n = {n:,}" for n in ends]
    print("| noise | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|", flush=True)
    for name, family in FAMILIES.items():
        law = family.law
        equal = [epsilon(law, SIGMA * math.sqrt(law.fisher), n) for n in sizes]
        scales = [SIGMA if law.gaussian else tuned(law, n, reference[n]) for n in ends]
        powers = [math.sqrt(law.variance) * s / SIGMA for s in scales]
        means = [law.mean_size * s / (SIGMA * Gaussian().mean_size) for s in scales]
        cells = [f"{x:.4f}" for x in (*equal, *powers, *means)]
        print(f"| {name} | " + " | ".join(c.replace("inf", "∞") for c in cells) + " |", flush=True)
    print(f"\n{time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
