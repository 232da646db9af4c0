"""001, Abadi et al. 2016: deep learning with differential privacy, and the slides' own runs with it.

noise_levels.py   figures 3 and 4: three noise levels, with and without PCA
budgets.py        the slides: accuracy against epsilon, and epsilon over epochs
tuning.py         clipping norms and optimizers, which the slides leave to the future
"""

from discreet.papers.dp_sgd import budgets, noise_levels, tuning
from discreet.papers.experiment import Paper

PAPER = Paper(
    "001",
    "Deep learning with differential privacy (Abadi et al. 2016)",
    (noise_levels.EXPERIMENT, *budgets.EXPERIMENTS, *tuning.EXPERIMENTS),
)
