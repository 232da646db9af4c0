"""What a release is made of: frozen values that say what they guarantee, and need no torch.

sampling/          who takes part in a step
bounds/            what one unit may change
noise/             what hides that change, and the secure source it is drawn from
denoise.py         what may be done for free afterwards
mechanism.py       a bound, a noise, a denoiser: one value
attendance.py      who took part when, where who takes part next depends on it
participation.py   what a plan's steps cost together
plan.py            sampling + mechanism + steps + delta: one value that can be solved, saved and read aloud
presets/           the papers' methods: functions that return a plan (public as discreet.methods)
conditions.py      what a plan's releases prove, and what that rests on
planning.py        budget against noise, batch size and length
caution.py         words of caution where a plan is unusual
custom.py          stages of one's own, by name
sensitivity.py     the contracts that bounds state, and accounting reads
"""
