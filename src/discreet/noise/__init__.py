"""What hides one unit's change: noise laws, and the secure source they are drawn from."""

from discreet.noise.gaussian import Gaussian

__all__ = ["Gaussian"]
