"""One private step: draw, bound, sum, count, add noise.

attachment.py     `attach`: a plan on a model
private.py        what attach returns: batches(), backward(), guarantee(); a step from top to bottom
session.py        what every handle on a run can tell, central or federated
loop.py           a loop over the plan's batches: which one is open
epochs.py         a run's epochs, and batches for a loader of one's own
draws.py          from the plan's draws to the chunks that are handed out
batching.py       from drawn indices to batches
collate.py        batches of units that have several rows each
loss_function.py  a loss that the library can call
private_sum.py    a plan's mechanism at work: the bounded, counted, noised sum; central and federated alike
sums.py           the bounded sums of a batch, in floats (whole, or a shard of them) or in whole numbers
microbatches.py   means over a few units each, as units of their own
saved_state.py    whether a state that was saved may be loaded
chunk_size.py     how many rows fit into memory at a time
plan_checks.py    what a plan is checked for when it meets a model
guards.py         a hold on a model's parameters: one plan at a time, plain backward passes raise
preflight/        what tries to break the guarantee before step one, and on steps nobody can foresee
"""
