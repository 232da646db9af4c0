"""What one unit may change: a stage that limits each unit's share of the sum.

A bound is a frozen value with these members (nothing registers it):

- `needs`: "norms" if it only looks at each unit's norms;
- `start(layout)`: its state before the first step (None where nothing changes from step to step);
- `apply(norms, state)`: for each parameter's name one weight per unit, given the squared norms per unit;
- `contract(layout, state)`: what one unit may change now, in numbers.
"""

from discreet.bounds.automatic import AutomaticClip
from discreet.bounds.clip import Clip
from discreet.bounds.per_layer import PerLayerClip

__all__ = ["AutomaticClip", "Clip", "PerLayerClip"]
