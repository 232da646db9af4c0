"""Rényi accounting of Poisson-subsampled Gaussian queries, with the improved conversion to (epsilon, delta)."""

from collections.abc import Sequence

from discreet.contracts import Phase

WHOLE = [*range(2, 64), *(2**k for k in range(6, 15))]
FRACTIONS = [1 + x / 10 for x in range(6, 100) if x % 10]  # their series converge only for small rates


def epsilon(phases: Sequence[Phase], delta: float) -> float:
    """Epsilon at `delta` by Rényi divergences, which add up over steps; conversion of Canonne, Kamath, Steinke."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(sorted(WHOLE + FRACTIONS) if max(p.rate for p in phases) < 0.02 else WHOLE)
    for phase in phases:
        query = dp_event.GaussianDpEvent(phase.multiplier)
        accountant.compose(dp_event.PoissonSampledDpEvent(phase.rate, query), phase.steps)
    return float(accountant.get_epsilon(delta))
