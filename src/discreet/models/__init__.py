"""Networks that a run can name.

networks.py   multi-layer perceptrons, the papers' convolutional networks, functions of one's own
text.py       a small transformer for sequences
pretrained.py public networks with their weights, from packages
finetuning.py one of those with a new head: what of it is trained
"""

from discreet.models.networks import StandardisedConv2d, build, names

__all__ = ["StandardisedConv2d", "build", "names"]
