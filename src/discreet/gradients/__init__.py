"""Each unit's gradient, without paying for it.

    graph.py    the autograd graph below the losses: every use of every parameter
    rows.py     which rows of an op's output belong to which unit, found by reweighting the losses
    sites.py    the ops at which a parameter's gradient can be taken apart by units
    rules.py    for each op, each unit's gradient from what autograd saved; and the fallback
    uses.py     the forms a use's gradients take: kept, outer products
    engine.py   all of it together: norms, weighted sums, or the gradients themselves

`rule` adds a rule for another op with one decorator.
"""

from discreet.gradients.engine import Engine, UnitGradients
from discreet.gradients.rules import Call, rule

__all__ = ["Call", "Engine", "UnitGradients", "rule"]
