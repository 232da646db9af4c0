"""Flower and transformers are optional: what needs them is collected where they are, and on CI in any case."""

import os
from importlib.util import find_spec

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # as whoever starts Flower is to do; it is read when flwr is imported

collect_ignore = []
if find_spec("flwr") is None and not os.environ.get("CI"):
    collect_ignore = ["src/discreet/federated/flower.py", "tests/federated/fake_grid.py"]
if find_spec("transformers") is None and not os.environ.get("CI"):
    collect_ignore += ["src/discreet/transformers.py", "tests/hugging_face"]
