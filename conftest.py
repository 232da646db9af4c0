"""Flower, Lightning and transformers are optional: what needs them is collected where they are, and on CI anyway."""

import os
from importlib.util import find_spec

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # as whoever starts Flower is to do; it is read when flwr is imported

TESTS, SOURCE = "tests/integrations", "src/discreet/integrations"
NEEDED = {
    "flwr": [f"{SOURCE}/flower", "tests/fake_grid.py"],
    "lightning": [f"{SOURCE}/lightning.py", f"{TESTS}/test_lightning.py"],
    "transformers": [
        f"{SOURCE}/transformers",
        f"{TESTS}/test_transformers.py",
        f"{TESTS}/test_transformer_families.py",
        "tests/tiny_transformers.py",
    ],
}
collect_ignore = [
    path
    for package, paths in NEEDED.items()
    for path in paths
    if find_spec(package) is None and not os.environ.get("CI")
]
