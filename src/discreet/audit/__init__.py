"""Attacks, and the lower bound on epsilon that they give: what is measured, beside what is proven.

An audit that rejects a claim disproves it, at a stated level; one that does not reject proves nothing.

    one_run.py      many canaries, one training run: the test of (epsilon, delta), and epsilon from below
    curves.py       the same run against a whole trade-off curve
    guessing.py     from scores to guesses whose number was fixed in advance
    many_run.py     many games of a mechanism itself: its errors, and epsilon from below
    membership.py   who was in the training, by a score for each example: loss, LiRA, RMIA
    exposure.py     how much a secret sequence stands out for a model that was shown it
    canaries/       made-up units in a real run: examples, and chosen directions of the gradient; the audit of a run
    game.py         the many games, on an attached model
    witness.py      canaries within a run of discreet.fit: declared first, scored on the way, kept over a crash
    audit_run.py    the audit of a finished run, from its folder
    render.py       what was measured, for a terminal
    sanity/         checks of a plan before any private data is touched
    doctor.py       what the devices of a machine compute

From canaries/ on they import torch, but for render.py.
"""
