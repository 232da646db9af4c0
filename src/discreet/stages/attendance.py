"""Who took part when: what a server must remember so that nobody takes part too often, or too soon again."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    from discreet.stages.noise.random import SecureStream
    from discreet.stages.sampling import MinSeparation


class Attendance:
    """Each user's last step, and how often each took part, of a run under a MinSeparation.

    Guarantee: whoever `draw` returns took part fewer than `most` times, and in no step less than `separation` ago, also
    across restarts: in a step of which nothing is known, everybody counts as having taken part. Whoever is drawn counts
    from then on, whether an update comes or not, and also if the draw is given up; only for the same step may the same
    ones be drawn again.

    Args:
        sampler: how far apart, and how often.
        released: how many steps were released of which nothing is known.
    """

    def __init__(self, sampler: "MinSeparation", released: int = 0) -> None:
        self._sampler = sampler
        self._last = np.full(sampler.examples, -sampler.separation, np.int64)
        self._times = np.zeros(sampler.examples, np.int64)
        self._missed(0, released)

    def _missed(self, first: int, stop: int) -> None:
        """Steps were released of which nothing is known: all may have taken part, as often as is allowed.

        So may those who were drawn ahead, for a later step: that draw is given up.
        """
        if stop > first:
            self._last[:] = stop - 1
            self._times += -(-(stop - first) // self._sampler.separation)

    def draw(
        self, length: int, step: int, stream: "SecureStream", available: Sequence[int] | None = None
    ) -> npt.NDArray[np.intp]:
        """At most a batch of those who may take part in a step, at random; of `available` alone, if that is said."""
        self._sampler.check_length(length)
        again = self._last == step
        may = again | ((step - self._last >= self._sampler.separation) & (self._times < self._sampler.most))
        if available is not None:
            there = np.zeros(length, np.bool_)
            if any(not 0 <= user < length for user in available):
                raise ConfigError(f"someone is available who is none of the {length} {self._sampler.unit}s.")
            there[np.asarray(available, np.intp)] = True
            may &= there
        eligible = may.nonzero()[0]
        chosen = np.sort(eligible[stream.subset(len(eligible), self._sampler.batch_size)])
        self._times[chosen] += ~again[chosen]
        self._last[chosen] = step
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        import torch

        return {"last": torch.from_numpy(self._last.copy()), "times": torch.from_numpy(self._times.copy())}

    def check_state_dict(self, state: Any) -> None:
        """Raise unless this can be what was remembered."""
        import torch

        fits = isinstance(state, Mapping) and set(state) == {"last", "times"}
        for name in ("last", "times") if fits else ():
            tensor = state[name]
            fits &= isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int64
            fits = fits and tensor.shape == self._last.shape
        if not fits or bool((state["last"] < -self._sampler.separation).any()) or bool((state["times"] < 0).any()):
            raise PrivacyError("the state's 'attendance' does not fit the plan; load it as it was saved.")

    @staticmethod
    def digest(state: Mapping[str, Any]) -> str:
        """The same for the same state: it hides nothing from who can guess who took part, and is not to be shown."""
        return sha256(b"".join(state[name].numpy().tobytes() for name in ("last", "times"))).hexdigest()

    def load_state_dict(self, state: Mapping[str, Any], saved_at: int, released: int) -> None:
        """Take over what was remembered after `saved_at` releases, in a run that has made `released` by now."""
        self._last[:] = state["last"].numpy()
        self._times[:] = state["times"].numpy()
        self._missed(saved_at, released)
