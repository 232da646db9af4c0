"""004, Nasr, Shokri and Houmansadr 2020: encoded gradients, any noise, and denoising.

gradients.py         figure 1: the distribution of gradients
budgets.py           figures 2 and 3: accuracy for a budget
denoising.py         figures 4, 5 and 7, and all laws of noise
noise_size.py        figure 6: the size of each noise
methods.py           bounds, noises and denoisers at one epsilon, and a training of each
distances.py         denoising by other distances
fitted_envelope.py   an envelope fitted to public gradients
verdicts.py          what was measured, judged
"""

from discreet.papers.encoding import budgets, denoising, gradients, noise_size
from discreet.papers.experiment import Paper

PAPER = Paper(
    "004",
    "Improving deep learning with differential privacy using gradient encoding and denoising (Nasr et al. 2020)",
    (gradients.EXPERIMENT, noise_size.EXPERIMENT, *denoising.EXPERIMENTS, budgets.EXPERIMENT),
)
