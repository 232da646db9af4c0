"""One private step: draw, bound, sum, count, add noise.

session.py       a plan attached to a model: batches(), backward(), guarantee()
private_sum.py   a plan's mechanism at work: the bounded, counted, noised sum; central and federated alike
sums.py          the bounded sums of a batch, in floats (whole, or a shard of them) or in whole numbers
batching.py      from drawn indices to batches
microbatches.py  means over a few units each, as units of their own
chunk_size.py    how many rows fit into memory at a time
guards.py        a hold on a model's parameters: one plan at a time, plain backward passes raise
preflight/       what tries to break the guarantee before step one, and on steps nobody can foresee
"""
