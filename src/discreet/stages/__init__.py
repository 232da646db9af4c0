"""What a release is made of: frozen values that say what they guarantee, and need no torch.

sampling.py        who takes part in a step
bounds/            what one unit may change
noise/             what hides that change, and the secure source it is drawn from
denoise.py         what may be done for free afterwards
mechanism.py       a bound, a noise, a denoiser: one value
plan.py            sampling + mechanism + steps + delta: one value that can be solved, saved and read aloud
presets.py         the papers' methods: functions that return a plan (public as discreet.methods)
sensitivity.py     the contracts that bounds state, and accounting reads
"""
