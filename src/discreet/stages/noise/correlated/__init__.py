"""Strategies of correlated noise: which part of earlier noise each step takes back, and what that costs.

A strategy is a lower triangular matrix C. The run releases `G + C^-1 Z`, whose rows are the steps' sums G with fresh
noise Z, filtered. What is proven follows from `C G + Z` (docs/theory-correlated.md). No torch here, but in memory.py.

    workload.py      what the optimiser makes of the stream: the matrix A whose error is to be small
    toeplitz.py      strategies that are the same at every step, by their first column
    sensitivity.py   how far one unit moves C G, by the steps in which it can take part
    banded.py        optimised bands, the default; the square root and its first coefficients
    blt.py           a few decaying buffers, for runs of any length
    inverse.py       strategies whose inverse is banded: BISR, BandInvMF, lambda-CGD
    dense.py         the optimum over all matrices, for short runs and as a yardstick
    gaussian.py      the noises that use them: BandedGaussian, BLTGaussian
    memory.py        the filters at work on a stream
"""

from discreet.stages.noise.correlated.banded import optimised_bands, square_root
from discreet.stages.noise.correlated.blt import BLT, optimised_blt
from discreet.stages.noise.correlated.dense import Dense, optimum
from discreet.stages.noise.correlated.inverse import BandedInverse, bisr, lambda_cgd, optimised_inverse
from discreet.stages.noise.correlated.sensitivity import Pattern
from discreet.stages.noise.correlated.toeplitz import Toeplitz
from discreet.stages.noise.correlated.workload import Workload

__all__ = [
    "BLT",
    "BandedInverse",
    "Dense",
    "Pattern",
    "Toeplitz",
    "Workload",
    "bisr",
    "lambda_cgd",
    "optimised_bands",
    "optimised_blt",
    "optimised_inverse",
    "optimum",
    "square_root",
]
