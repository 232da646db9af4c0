"""Networks that a run can name.

networks.py   multi-layer perceptrons, the papers' convolutional networks, functions of one's own
text.py       a small transformer for sequences
"""

from discreet.models.networks import StandardisedConv2d, build, names

__all__ = ["StandardisedConv2d", "build", "names"]
