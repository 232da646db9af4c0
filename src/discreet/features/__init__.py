"""Features to train a small model on: public ones, of one image each, and what is learned privately of all of them.

leaves.py       images of nothing, from which public filters are learned
patches.py      a dictionary of patches of those, and how an image is encoded with it
scattering.py   wavelets, and wavelets of their moduli
backbone.py     a public pretrained network, which stays as it is
deskew.py       features of images that are first set upright by their own moments
public_whitening.py   whitening by the moments of features of images of nothing
extraction.py   the features of many images, two at a time, kept on disk
statistics.py   a private mean and private second moments, to centre and whiten features with
pipeline.py     from images to rows for a model, as a config describes it
pca.py          private principal directions (Abadi et al. 2016)
"""

from discreet.features.backbone import Backbone
from discreet.features.deskew import Upright
from discreet.features.extraction import extract
from discreet.features.leaves import dead_leaves
from discreet.features.patches import Patches
from discreet.features.pca import PrivatePCA, Projection
from discreet.features.public_whitening import Rehearsed
from discreet.features.scattering import Scattering
from discreet.features.statistics import Whitened, Whitening

__all__ = [
    "Backbone",
    "Patches",
    "PrivatePCA",
    "Projection",
    "Rehearsed",
    "Scattering",
    "Upright",
    "Whitened",
    "Whitening",
    "dead_leaves",
    "extract",
]
