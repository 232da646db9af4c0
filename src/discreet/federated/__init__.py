"""Training at user level: DP-FedAvg (McMahan et al. 2018) on the same stages as central training.

A unit is a user: all of a user's records together. Each round a secret Poisson sample of users trains the model on
their own data; how far each one's weights moved is bounded like a gradient, summed, noised once, divided by a public
constant, and given to any torch optimizer as the gradient.

    rounds.py     a plan attached to a model: who takes part in a round, and what becomes of their updates
    local.py      what a user does with the model
    engines.py    many users' updates on one machine: in one vectorised pass, or one after the other
    users.py      examples by user, and stated ways to deal rows out to made-up users
    training.py   the loop, for those who do not want to write one

discreet.integrations.flower has the same for users on many machines.

`fit` is all that most need; `Rounds` takes updates from wherever they are made.
"""

from discreet.federated.local import Local
from discreet.federated.rounds import Rounds
from discreet.federated.training import fit
from discreet.federated.users import Users

__all__ = ["Local", "Rounds", "Users", "fit"]
