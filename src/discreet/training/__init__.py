"""A training loop, and what surrounds it.

loop.py           the loop, for those who do not want to write one; evaluation, averaged weights
checkpoint.py     a run's state in one file
losses.py         one loss for each sequence, row or unit (public as discreet.losses)
augmentation.py   changed copies of images
"""

from discreet.training.loop import FitResult, evaluate, fit

Fitted = FitResult  # its former name, for one release

__all__ = ["FitResult", "evaluate", "fit"]
