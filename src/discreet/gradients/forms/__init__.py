"""The forms that one parameter's per-example gradients take, each the cheapest that answers what is asked.

base.py            what a form answers; what kernels are, and what they cost
materialized.py    gradients that are there: made by a rule, stored between norm and sum, or looked up
outer.py           outer products of inputs and output gradients, and sums of them: linear layers
segments.py        the same for several matrices, one for each group of rows: experts, heads
convolution.py     windows times output gradients
complex_parts.py   gradients of a complex parameter
combined.py        several uses of one parameter, added up
reparametrized.py  gradients of something that is made of a parameter, pulled back to it
"""

from discreet.gradients.forms.base import (
    CHUNKED,
    STORED,
    Cost,
    Kernel,
    KnownNorms,
    Measure,
    PerExampleGrad,
    parts,
    squared_norms,
    sum_dtype,
)
from discreet.gradients.forms.complex_parts import ComplexParts, real_parts
from discreet.gradients.forms.materialized import Materialised
from discreet.gradients.forms.outer import OuterProduct, OuterProducts
from discreet.gradients.forms.segments import GroupedProducts

__all__ = [
    "CHUNKED",
    "STORED",
    "ComplexParts",
    "Cost",
    "GroupedProducts",
    "Kernel",
    "KnownNorms",
    "Materialised",
    "Measure",
    "OuterProduct",
    "OuterProducts",
    "PerExampleGrad",
    "parts",
    "real_parts",
    "squared_norms",
    "sum_dtype",
]
