"""What hides that change: laws of noise, and the secure source they are drawn from.

BandedGaussian and BLTGaussian are Gaussian noise that takes back a part of what was added before.

Every law is symmetric and unimodal, and exactly sampled (up to floating point) from the secure source.

distribution.py   what every law says of itself
gaussian.py       DP-SGD's noise
laplace.py, hyperbolic.py, student_t.py, airy.py   other laws
discrete.py       Gaussian noise on whole numbers, drawn exactly
correlated/       noise that takes back a part of what earlier steps added: BandedGaussian, BLTGaussian
random.py         the secure source
chacha.py         the same on devices

To add a law: a class over `NoiseDistribution` in a file here, and its name in `__all__` below. To add correlated noise:
a strategy in correlated/, and a class over `Normal` in correlated/gaussian.py.
"""

from discreet.stages.noise.airy import AirySquared
from discreet.stages.noise.correlated.gaussian import BandedGaussian, BLTGaussian
from discreet.stages.noise.gaussian import Gaussian
from discreet.stages.noise.hyperbolic import Logistic, Sech
from discreet.stages.noise.laplace import Laplace, VarianceGamma
from discreet.stages.noise.student_t import Cauchy, StudentT

__all__ = [
    "AirySquared",
    "BLTGaussian",
    "BandedGaussian",
    "Cauchy",
    "Gaussian",
    "Laplace",
    "Logistic",
    "Sech",
    "StudentT",
    "VarianceGamma",
]
