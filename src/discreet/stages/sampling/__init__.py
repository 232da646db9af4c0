"""Who takes part in a step.

A sampler is a frozen value with these members: `contract()` says who takes part in a release and
under which relation it is analysed; `participations(steps)` how many releases of `steps` in a row one unit can
take part in; `draw` draws one step; `batch_size` is the public constant the sum is divided by. `steps_for`,
`epochs_in`, `with_batch_size`, `largest_batch_size` and `check_length` serve plans and calibration.

It may have four more: `continues`, whether steps are counted by the ledger, so that a run that is taken up again goes
on where it stopped (else `origin_step` is where this process took over); `taking_part`, who took part, and `assumes`,
what that rests on, in the guarantee's words; and `attend(released)`, where who takes part next depends on who did
before.

coins.py    draws anew in each step: Poisson, FixedSize
strata.py   coins whose chances differ: WeightedPoisson
passes.py   passes over the data: Shuffled, Allocation, FixedBatches
rounds.py   rounds for noise that remembers: CyclicPoisson, FixedOrder, MinSeparation
sizes.py    what samplers from a public number of examples share

To add a sampler: a class in one of these files, and its name in `__all__` below, so that a saved plan finds it.
"""

from discreet.stages.sampling.coins import FixedSize, Poisson
from discreet.stages.sampling.passes import Allocation, FixedBatches, Shuffled
from discreet.stages.sampling.rounds import CyclicPoisson, FixedOrder, MinSeparation
from discreet.stages.sampling.strata import WeightedPoisson

__all__ = [
    "Allocation",
    "CyclicPoisson",
    "FixedBatches",
    "FixedOrder",
    "FixedSize",
    "MinSeparation",
    "Poisson",
    "Shuffled",
    "WeightedPoisson",
]
