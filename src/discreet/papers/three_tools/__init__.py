"""003, van der Veen et al. 2018: three tools for practical differential privacy.

The paper clips each of the ten tensors of a small AlexNet on its own and says epsilon 20, by moments that are added up
as if each tensor had a batch of its own. Their form here has the noise at which that accounting says 20; the sound form
is the same with the noise at which 20 is proven.

memorisation.py     figure 1: random labels on noise
patterns.py         figure 2: patterns of users
gradient_norms.py   figure 3: norms of gradients
clipping.py         figure 4: clipping norms that adapt
alpha.py            the setting alpha of those
batch_sizes.py      figure 5 and Table 1
plans.py            plans at epsilon 20, said or proven
alexnet.py          the network and its images
verdicts.py         which trainings are compared
"""

from discreet.papers.experiment import Paper
from discreet.papers.three_tools import alpha, batch_sizes, clipping, gradient_norms, memorisation, patterns

PAPER = Paper(
    "003",
    "Three tools for practical differential privacy (van der Veen et al. 2018)",
    (
        memorisation.EXPERIMENT,
        patterns.EXPERIMENT,
        gradient_norms.EXPERIMENT,
        clipping.EXPERIMENT,
        alpha.EXPERIMENT,
        *batch_sizes.EXPERIMENTS,
    ),
)
