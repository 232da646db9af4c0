"""What tries to break the guarantee before step one, and on steps nobody can foresee.

isolation.py     does an example's gradient depend on who else is in the batch?
replay.py        the model's calls run again with a row replaced; sums and bounds checked one by one
model_state.py   what a model keeps between its calls
evidence.py      what was seen of a run, and which conditions of its guarantee that carries
"""
