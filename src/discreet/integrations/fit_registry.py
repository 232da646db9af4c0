"""Which rows were fitted in this process, and where that is counted: no row is fitted twice without one ledger.

What is kept of a row is a digest under a key that is drawn anew in each process and never leaves it.
"""

import hashlib
import multiprocessing
import os
import secrets
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.errors import PrivacyError

_ROWS = 4096  # at a time
_REMEDY = (
    "Give every fit the ledger of the data set, ledger=discreet.Ledger(path, dataset=..., epsilon=..., delta=...), "
    "which adds them up; or say repeat='alone', and each guarantee is of its own fit alone."
)


class Register:
    """Rows by their digests, each with the ledger under which it was fitted (None: without one).

    Rows are the same if all their features are, as float32: then they may be of one person. Two people who are alike
    are taken for one, which can only refuse too much.
    """

    def __init__(self) -> None:
        self._key, self._process, self._lock = secrets.token_bytes(32), os.getpid(), Lock()
        self._counted_in: dict[bytes, str | None] = {}

    def enter(self, rows: npt.NDArray[Any], ledger: str | None, *, alone: bool = False) -> set[bytes]:
        """Take note that rows are to be fitted, or raise a PrivacyError; the digests of those that are new here.

        A fit that is to be counted `alone` is not refused, but later ones on the same rows know of it.
        """
        if ledger is None and not alone:
            self._check_process()
        digests = self._digests(rows)
        with self._lock:
            fitted = digests & self._counted_in.keys()
            apart = {digest for digest in fitted if ledger is None or self._counted_in[digest] != ledger}
            if apart and not alone:
                raise PrivacyError(
                    "rows like some of these were fitted before in this process, and no ledger adds the two up, so "
                    f"that together they would cost more than either says. {_REMEDY}"
                )
            new = digests - fitted
            self._counted_in.update(dict.fromkeys(new, ledger) | dict.fromkeys(apart, None))
        return new

    def leave(self, digests: set[bytes]) -> None:
        """Forget rows of which nothing was released after all."""
        with self._lock:
            for digest in digests:
                self._counted_in.pop(digest, None)

    def _check_process(self) -> None:
        if multiprocessing.parent_process() is not None or os.getpid() != self._process:
            raise PrivacyError(
                "this is a worker process, which cannot know what others fit on the same rows (n_jobs=, a fork). "
                f"{_REMEDY}"
            )

    def _digests(self, rows: npt.NDArray[Any]) -> set[bytes]:
        digests: set[bytes] = set()
        for start in range(0, len(rows), _ROWS):
            with np.errstate(over="ignore"):
                block = rows[start : start + _ROWS].astype(np.float32) + np.float32(0.0)  # no minus zero
            digests.update(hashlib.blake2b(row.tobytes(), key=self._key, digest_size=16).digest() for row in block)
        return digests


REGISTER = Register()
