"""What hides that change: laws of noise, and the secure source they are drawn from.

Every law is symmetric and unimodal, and exactly sampled (up to floating point) from the secure source.
"""

from discreet.noise.airy import AirySquared
from discreet.noise.gaussian import Gaussian
from discreet.noise.hyperbolic import Logistic, Sech
from discreet.noise.laplace import Laplace, VarianceGamma
from discreet.noise.student_t import Cauchy, StudentT

__all__ = ["AirySquared", "Cauchy", "Gaussian", "Laplace", "Logistic", "Sech", "StudentT", "VarianceGamma"]
