"""000, Amian: gradients pass through a tanh instead of being clipped.

figures.py      figures 2 to 5: the filter beside DP-SGD
membership.py   membership inference, the paper's future work
recurrent.py    exploding gradients in a recurrent network
verdicts.py     what was measured, judged
"""

from discreet.papers.experiment import Paper
from discreet.papers.tanh_filter import figures, membership, recurrent

PAPER = Paper(
    "000",
    "Improving the algorithm of deep learning with differential privacy (Amian)",
    (*figures.EXPERIMENTS, membership.EXPERIMENT, recurrent.EXPERIMENT),
)
