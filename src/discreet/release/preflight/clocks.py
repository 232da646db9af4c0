"""Numbers from outside of a run: the clock, and the system's own random numbers. No test can hold them."""

import datetime
import gc
import os
import random
import sys
import time
from types import FrameType, TracebackType
from typing import Any

from discreet.release.preflight.reachable import CLOSED

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
_OUTSIDE = {getattr(time, name + unit, None) for name in _CLOCKS for unit in ("", "_ns")}
_OUTSIDE |= {time.localtime, time.gmtime, time.ctime, time.strftime, os.times, os.urandom}
_OUTSIDE |= {getattr(os, "getrandom", None)}  # which not every system has
_TODAY = {"now", "today", "utcnow"}


class Clocks:
    """Whether code asks for such numbers while this is entered; the packages that serve training may."""

    def __init__(self) -> None:
        self.asked = False
        self._watching = self._collects = False

    def __enter__(self) -> "Clocks":
        self._watching = sys.getprofile() is None  # another profiler goes on
        if self._watching:
            self._collects = gc.isenabled()
            gc.disable()  # what others have done when garbage is collected may ask the clock, and is not the run's
            sys.setprofile(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watching:
            sys.setprofile(None)
            if self._collects:
                gc.enable()

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or self.asked or not _is_outside(argument):
            return
        self.asked = frame.f_globals.get("__name__", "").partition(".")[0] not in CLOSED


def _is_outside(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        return issubclass(owner, datetime.date) and function.__name__ in _TODAY
    return isinstance(owner, random.Random) or function in _OUTSIDE
