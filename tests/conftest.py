import hashlib
import itertools
import locale
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("repo", deadline=None, derandomize=True, suppress_health_check=QUIET)
settings.register_profile("soak", deadline=None, max_examples=1000, suppress_health_check=QUIET)
settings.load_profile("soak" if os.environ.get("DISCREET_SOAK") else "repo")
torch.set_num_threads(1)
HERE = Path(__file__).parent
collect_ignore = ["pinned/make.py", "old_runs/make.py"]  # they make what the tests beside them compare with
if "DISCREET_DEVICE" not in os.environ:
    collect_ignore += [
        "device",
        "elsewhere.py",
    ]  # test_device.py runs them: torch takes a device in for all of a process


def _as_utf8(method):
    """A method of paths that takes the files of tests for UTF-8 in every locale; the library has to say so itself."""

    def ours(path, *args, encoding=None, **settings):
        if encoding is None and Path(sys._getframe(1).f_code.co_filename).is_relative_to(HERE):
            encoding = "utf-8"
        return method(path, *args, encoding=encoding, **settings)

    return ours


if locale.getpreferredencoding(False).lower().replace("-", "") != "utf8":  # make soak-ascii
    Path.read_text, Path.write_text = _as_utf8(Path.read_text), _as_utf8(Path.write_text)


# What `make quick` leaves out, besides single tests that are marked: whole families, by the beginning of their path.
SLOW = (
    "accounting/test_allocation", "accounting/test_calibrate", "accounting/test_coordinate_pld", "accounting/test_cost",
    "accounting/test_schemes", "audit", "benchmarks", "by_hand", "cli", "data/test_columns", "distributed",
    "gradients/test_compositions", "integrations/test_accelerate", "integrations/test_flower",
    "integrations/test_sklearn_checks", "integrations/test_transformer", "old_runs", "papers", "pinned",
    "release/test_correlated_runs", "release/test_taking_part",
    "runs/test_crashes", "runs/test_faults", "stages/bounds/test_encode", "stages/noise/test_correlated",
    "stages/noise/test_strategies", "stages/test_noise.py", "stages/test_planning", "stages/test_presets",
    "test_device", "test_docs", "test_examples", "test_features", "test_journeys", "test_notebooks",
    "theory", "zoo",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.relative_to(HERE).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _fixed_models():
    """Models and data are the same in every run; the library draws nothing from this generator but probe labels."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fixed_draws(request, monkeypatch):
    """Keys of the secure source are the same in every run of a test, so that chance decides none of them.

    A forked child has keys of its own. `make soak` draws as users do.
    """
    if os.environ.get("DISCREET_SOAK"):
        return
    test, parent, count = request.node.nodeid, os.getpid(), itertools.count()

    def urandom(size):
        child = "" if os.getpid() == parent else str(os.getpid())
        return hashlib.shake_256(f"{test} {next(count)} {child}".encode()).digest(size)

    monkeypatch.setattr(os, "urandom", urandom)


@pytest.fixture
def fuzz_count():
    """How many mutations a fuzz test makes: a thousand in all of them, and twenty thousand in `make soak`."""
    return 6_700 if os.environ.get("DISCREET_SOAK") else 350
