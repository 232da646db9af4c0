"""A training loop, and what surrounds it.

loop.py           discreet.fit: private steps to the end of a plan
options.py        its options, as one value
state.py          what goes on around the steps: optimizer, records, checkpoints
evaluation.py     loss and accuracy on held-out data
averaging.py      the running average of the weights
checkpoint.py     a run's state in one file
losses.py         one loss for each sequence, row or unit (public as discreet.losses)
augmentation.py   changed copies of images
"""

from discreet.training.evaluation import evaluate
from discreet.training.loop import fit
from discreet.training.options import TrainingOptions
from discreet.training.state import FitResult

Fitted = FitResult  # its former name, for one release

__all__ = ["FitResult", "TrainingOptions", "evaluate", "fit"]
