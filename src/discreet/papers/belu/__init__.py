"""002, Jung et al. 2021: differentially private neural networks with a bounded activation function (BELU).

table.py      Table 1 and figures 2 to 4, and the learning rate
readings.py   what the bound B may mean
verdicts.py   what was measured, judged
"""

from discreet.papers.belu import readings, table
from discreet.papers.experiment import Paper

PAPER = Paper(
    "002",
    "Differentially private neural networks with bounded activation function (Jung et al. 2021)",
    (*table.EXPERIMENTS, readings.EXPERIMENT),
)
