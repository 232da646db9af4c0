"""Networks as people write them: CASES are sound, MIXING must be refused. The modules note theirs."""

from by_hand import dense, flat, mixing  # noqa: F401 (each notes its networks)
from by_hand.case import CASES, MIXING

__all__ = ["CASES", "MIXING"]
