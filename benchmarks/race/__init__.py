"""A race of libraries: each builds the same training step in a process of its own, and they run in turns.

competitors.py      a step of each library for each network of benchmarks/models.py
networks_in_jax.py  the same networks for jax
epochs.py           steps that draw and load their own batches of MNIST
growing.py          steps of a network or batch of a given size
adapters.py         steps of LoRA on a Llama-like model
worker.py           the process of one competitor: it measures itself when told to
track.py            starts the workers, lets one run at a time, ends what takes too much memory
machine.py          the machine, the versions, the allocator's settings
tables.py           results as tables
pages.py            the places in README and docs that they go to
"""
