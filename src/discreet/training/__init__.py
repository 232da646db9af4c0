"""A training loop, and what surrounds it.

loop.py           discreet.fit: private steps to the end of a plan
options.py        its options, as one value
state.py          what goes on around the steps: optimizer, records, checkpoints
evaluation.py     loss and accuracy on held-out data
callbacks.py      who is told how a run goes: trackers
averaging.py      the running average of the weights
checkpoint.py     a run's state in one file
merit.py          what a model is worth on held-out rows
losses.py         one loss for each sequence, row or unit (public as discreet.losses)
augmentation.py   changed copies of images
"""

from discreet.training.callbacks import Callback
from discreet.training.evaluation import evaluate
from discreet.training.loop import fit
from discreet.training.options import TrainingOptions
from discreet.training.state import FitResult

Fitted = FitResult  # its former name, for one release

__all__ = ["Callback", "FitResult", "TrainingOptions", "evaluate", "fit"]
