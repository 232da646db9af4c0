"""Flower, Lightning and transformers are optional: what needs them is collected where they are, and on CI anyway."""

import os
from importlib.util import find_spec

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # as whoever starts Flower is to do; it is read when flwr is imported

NEEDED = {
    "flwr": ["src/discreet/integrations/flower", "tests/integrations/fake_grid.py"],
    "lightning": ["src/discreet/integrations/lightning.py", "tests/integrations/test_lightning.py"],
    "transformers": ["src/discreet/integrations/transformers", "tests/integrations/hugging_face"],
}
collect_ignore = [
    path
    for package, paths in NEEDED.items()
    for path in paths
    if find_spec(package) is None and not os.environ.get("CI")
]
