"""What one unit may change: a stage that limits each unit's share of the sum.

clip.py              one norm for all parameters: DP-SGD's bound
per_layer.py         a norm for each part of the model
automatic.py         every gradient normalised
adaptive.py          norms that follow the gradients, learned from noisy answers
tanh.py              the tanh filter, coordinate by coordinate and in forms that bound a norm
encode.py            sorted magnitudes below a public envelope
envelope.py          those envelopes
bounded_network.py   a bound by the network's shape
certificate.py       how that follows from the shape
gate.py              what keeps its premises true

To add a clipping rule: a file here, and its name in `__all__` below, so that a saved plan finds it.

A bound is a frozen value with these members:

- `needs`: what it looks at: "norms" (each unit's norms, parameter by parameter), "elements" (its gradient itself) or
  "outputs" (nothing of single units: it works inside the network);
- `start(layout)`: its state before the first step (None where nothing changes from step to step);
- `contract(layout, state)`: what one unit may change now, in numbers;
- `apply(norms, state)` for "norms": for each parameter's name one weight per unit, given the squared norms per unit;
- `apply(rows, state)` for "elements": bounded rows, given gradients as rows, all parameters side by side in the
  layout's order; a few units at a time, and the rows may be overwritten;
- `install(model)` for "outputs": a gate with `sums(losses, units)`, `clear()` and `remove()`; see BoundedNetwork.

It may also have:

- `layout` and `fit_to(model)`: what it knows of a model, and the same bound knowing it, where the contract needs that;
- `ask(norms, state)` and `learn(answers, state)`: one number (or several) per unit, bounded by a block of the contract
  with a share of the budget; and the next state, from the noisy answers alone. Then the state is plain values;
- `claims(event, contract, scales)`: what others say of it, to be set beside what is proven.
"""

from discreet.stages.bounds.adaptive import AdaptiveClip
from discreet.stages.bounds.automatic import AutomaticClip
from discreet.stages.bounds.bounded_network import BoundedNetwork
from discreet.stages.bounds.clip import Clip
from discreet.stages.bounds.encode import Encode
from discreet.stages.bounds.per_layer import PerLayerClip
from discreet.stages.bounds.tanh import RadialTanh, ScaledTanh, Tanh

__all__ = [
    "AdaptiveClip",
    "AutomaticClip",
    "BoundedNetwork",
    "Clip",
    "Encode",
    "PerLayerClip",
    "RadialTanh",
    "ScaledTanh",
    "Tanh",
]
