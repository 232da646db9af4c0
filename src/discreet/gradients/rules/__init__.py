"""Layer rules: for an op's input that is a parameter, each unit's gradient from what autograd saved.

registry.py   `rule`, which declares one with all its facts, and what it is given
products.py   matrix products, and parameters that meet every row
layers.py     normalisation, look-ups, convolutions, torch's own LSTM
fallback.py   for an op without a rule: its own backward, once a unit

To add a rule: a function with the decorator `rule` in products.py or layers.py. It says of itself all that the engine
has to know; none is needed for a layer to work.
"""

from discreet.gradients.rules import layers, products
from discreet.gradients.rules.fallback import OneByOne
from discreet.gradients.rules.registry import RULES, Call, OpContext, Placement, Rule, rule

__all__ = ["RULES", "Call", "OneByOne", "OpContext", "Placement", "Rule", "layers", "products", "rule"]
