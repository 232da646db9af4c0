"""Each unit's gradient, without paying for it.

    engine.py           all of it together: one backward pass, each op's gradients taken apart as it goes by
    graph.py            the autograd graph below the losses: every use of every parameter; backward passes over it
    locate.py           the ops at which a parameter's gradient can be taken apart by units
    layout.py           which rows of an op's output belong to which unit, found by reweighting the losses
    axes.py, ops.py     the same as the ops and shapes tell it, so that most steps need no probe
    moves.py, owners.py ops that move rows about, and whose rows their indices take
    structure.py        what a graph's structure and shapes fix of a backward pass: found once, kept
    rules/              for each op, each unit's gradient from what autograd saved; and the fallback
    forms/              the forms these gradients take: materialised, outer products, convolutions, ...
    kernels.py          which way each form's gradients are made: the fastest that the memory allows
    results.py          norms, weighted sums and chunks of units, from the forms
    refusals.py         what is refused by name
    torch_internals.py  what is read of torch's autograd that torch keeps to itself, checked

To add a rule for an op: a function with the decorator `rule`, in rules/layers.py or rules/products.py. None is needed
for a layer to work.
"""

from discreet.gradients.engine import Engine
from discreet.gradients.results import UnitGradients
from discreet.gradients.rules import Call, OpContext, rule

__all__ = ["Call", "Engine", "OpContext", "UnitGradients", "rule"]
