"""The papers' presets: functions that return a plan."""

from discreet.accounting.calibrate import calibrate
from discreet.bounds import Clip
from discreet.errors import ConfigError
from discreet.mechanism import Mechanism
from discreet.noise import Gaussian
from discreet.plan import Plan
from discreet.sampling import Poisson


def dp_sgd(
    *,
    examples: int,
    batch_size: int,
    delta: float,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
) -> Plan:
    """DP-SGD (Abadi et al. 2016): Poisson sampling, flat clipping, Gaussian noise.

    Give `epsilon` to have the noise solved, or `noise` (the multiplier) to have epsilon follow.

    >>> dp_sgd(examples=60_000, batch_size=256, epochs=60, noise=1.1, delta=1e-5).steps
    14062
    """
    if (epsilon is None) == (noise is None):
        raise ConfigError(f"epsilon={epsilon!r} and noise={noise!r}: give one of them.")
    plan = Plan(
        sampling=Poisson(examples=examples, batch_size=batch_size),
        mechanism=Mechanism(Clip(norm), Gaussian(noise)),
        steps=-1 if steps is None else steps,
        epochs=epochs,
        delta=delta,
    )
    return plan if epsilon is None else calibrate(plan, epsilon)
