import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repo", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("repo")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_models():
    """Models and data are the same in every run; the library draws nothing from this generator but probe labels."""
    torch.manual_seed(0)


@pytest.fixture
def soak():
    """How many times more a long test repeats under `make soak`."""
    return 20 if os.environ.get("DISCREET_SOAK") else 1
