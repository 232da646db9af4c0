"""Numbers from outside of a run are noticed; what others do when garbage is collected is not the run's."""

import gc
import time

from discreet.release.preflight.clocks import Clocks


def test_a_clock_that_is_asked_is_noticed():
    with Clocks() as clocks:
        time.perf_counter()
    assert clocks.asked


def test_what_is_done_at_a_collection_is_not_the_runs():
    told = []

    def callback(phase, info):
        told.append(time.perf_counter())

    gc.callbacks.append(callback)
    try:
        with Clocks() as clocks:
            for _ in range(20_000):  # more than a collection waits for
                cycle = []
                cycle.append(cycle)
    finally:
        gc.callbacks.remove(callback)
    assert not clocks.asked
    assert gc.isenabled()
