"""What tries to break the guarantee before step one, and on steps nobody can foresee.

watch.py            what is tested of an attached model, and when
isolation.py        does an example's gradient depend on who else is in the batch?
trial.py            a model and a loss, run on batches of one's own without a trace
batches.py          batches in which some rows stay and the others are exchanged
coins.py            choices by chance that were seen on one side only
clocks.py           numbers from outside of a run, which no test can hold
constant_draws.py   random numbers held constant, so that runs on batches of other sizes can be compared
replay.py           the model's calls run again with a row replaced
differences.py      how far two gradients are apart: rounding, mixing, or too little to tell
exactness.py        the engine's sums against autograd's own, contributions against the bound's contract
first_batch.py      what is probed on the first batch, once
reachable.py        what can be reached from a model or a loss
model_state.py      what a model keeps between its calls
step_start.py       what a step starts from, and what its forward pass has changed
evidence.py         what was seen of a run, and which conditions of its guarantee that carries
check.py            `discreet.preflight`, for a test of one's own
"""
