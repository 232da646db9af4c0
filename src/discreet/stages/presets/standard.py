"""DP-SGD and DP-FedAvg, and the same with noise that remembers."""

from typing import Literal

from discreet.errors import ConfigError
from discreet.stages.bounds import Clip
from discreet.stages.mechanism import Bound, Mechanism
from discreet.stages.noise import BandedGaussian, BLTGaussian, Gaussian
from discreet.stages.plan import Plan
from discreet.stages.presets.run import Form, Run, is_published
from discreet.stages.sampling import CyclicPoisson, FixedOrder, MinSeparation, Poisson


def dp_sgd(
    *,
    examples: int = 60_000,
    batch_size: int = 256,
    delta: float = 1e-5,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    form: Form = "sound",
) -> Plan:
    """DP-SGD (Abadi et al. 2016): Poisson sampling, flat clipping, Gaussian noise. Published and sound are the same.

    Args:
        examples: their number, which is public.
        batch_size: how many take part in a step, on average.
        delta: the probability that the guarantee leaves out.
        epochs: how often each example takes part, on average; 15 unless this or `steps` is given.
        steps: the number of releases, in place of `epochs`.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`.
        norm: the norm to which gradients are clipped.
        form: "sound", or "paper" for the method as it was published.

    >>> dp_sgd(examples=60_000, batch_size=256, epochs=60, noise=1.1, delta=1e-5).steps
    14062
    """
    run = Run(delta, epsilon, noise, epochs, steps, usual_epochs=15)
    sampling = Poisson(examples=examples, batch_size=batch_size)
    if is_published(form):
        multiplier = run.noise_of_paper(sampling, usual=1.0)
        return run.plan(sampling, Mechanism(Clip(norm), Gaussian(multiplier)))
    return run.solved(sampling, Clip(norm), Gaussian(noise))


def dp_fedavg(
    *,
    users: int,
    users_per_round: int,
    rounds: int | None = None,
    epochs: float | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    bound: Bound | None = None,
    separation: int | None = None,
    most: int | None = None,
    bands: int | None = None,
    buffers: int = 3,
) -> Plan:
    """DP-FedAvg (McMahan et al. 2018): users are sampled, a user's whole update is bounded, to `norm` or by `bound`.

    For discreet.federated. The length is `rounds`, or `epochs` in which each user takes part once on average; `delta`
    is users^-1.1 unless it is given.

    Where users cannot be sampled by coins, say how often one takes part at `most`, and how many rounds apart at least
    (`separation`): then the noise is correlated, by a BLT of so many `buffers` (Choquette-Choo et al. 2024), or with
    `bands`, and `noise` is in units of one participation's sensitivity.

    Args:
        users: their number, which is public.
        users_per_round: how many take part in a round, on average.
        rounds: the number of releases, in place of `epochs`.
        epochs: how often each user takes part, on average; 10 unless this or `rounds` is given.
        delta: the probability that the guarantee leaves out; users^-1.1 unless it is given.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`; with correlated noise in units of one participation's
            sensitivity.
        norm: the norm to which updates are clipped.
        bound: another bound than `Clip(norm)`.
        separation: how many rounds apart a user's participations are at least, where nobody throws coins.
        most: how often a user takes part at most; goes with `separation`.
        bands: correlated noise by so many bands, in place of a BLT.
        buffers: of the BLT, where `separation` is given.

    >>> dp_fedavg(users=1_000, users_per_round=100, rounds=50, noise=1.0).guarantee().unit
    'user'
    """
    chosen, delta = Clip(norm) if bound is None else bound, users**-1.1 if delta is None else delta
    run = Run(delta, epsilon, noise, epochs, rounds, usual_epochs=10)
    if separation is None and most is None:
        if bands is not None:
            raise ConfigError(f"bands={bands} are for users who take part apart; give separation= and most=.")
        sampling = Poisson(examples=users, batch_size=users_per_round, unit="user")
        return run.solved(sampling, chosen, Gaussian(noise))
    if separation is None or most is None:
        raise ConfigError(f"separation={separation!r} and most={most!r}: give both, or none of them.")
    apart = MinSeparation(examples=users, batch_size=users_per_round, separation=separation, most=most)
    remembering = BLTGaussian(noise, buffers=buffers) if bands is None else BandedGaussian(noise, bands=bands)
    return run.solved(apart, chosen, remembering)


def band_mf(
    *,
    examples: int = 60_000,
    batch_size: int = 256,
    delta: float = 1e-5,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    bands: int | Literal["best"] = "best",
    momentum: float = 0.0,
) -> Plan:
    """Banded matrix factorisation with cyclic Poisson sampling (Choquette-Choo et al. 2023).

    `bands` are also the number of groups; "best" has them solved with the noise, for a given epsilon: those with the
    least `plan.rms_error`, of which one band is DP-SGD. Tune the learning rate anew: the best one grows with the bands.

    Args:
        examples: their number, which is public.
        batch_size: how many take part in a step, on average.
        delta: the probability that the guarantee leaves out.
        epochs: how often each example takes part, on average; 10 unless this or `steps` is given.
        steps: the number of releases, in place of `epochs`.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`.
        norm: the norm to which gradients are clipped.
        bands: the number of bands, and of groups; "best" has them solved with the noise.
        momentum: of the optimizer, for which the bands are then solved.

    >>> band_mf(examples=60_000, batch_size=256, epochs=10, noise=1.5, bands=16).charges(2344)
    147
    """
    run = Run(delta, epsilon, noise, epochs, steps, usual_epochs=10)
    groups = 1 if bands == "best" else bands
    sampling = CyclicPoisson(examples=examples, batch_size=batch_size, groups=groups)
    remembering = BandedGaussian(noise, bands, momentum=momentum)
    return run.solved(sampling, Clip(norm), remembering)


def dp_ftrl(
    *,
    examples: int = 60_000,
    batch_size: int = 256,
    delta: float = 1e-5,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    buffers: int = 3,
) -> Plan:
    """Training without sampling (Kairouz et al. 2021), with BLT noise in place of the tree (Dvijotham et al. 2024).

    Data are taken in one fixed order; nothing is hidden by chance. With the same epsilon it needs far more noise than
    `band_mf`, where coins can be thrown.

    Args:
        examples: their number, which is public.
        batch_size: how many take part in a step.
        delta: the probability that the guarantee leaves out.
        epochs: how often each example takes part, on average; 1 unless this or `steps` is given.
        steps: the number of releases, in place of `epochs`.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`.
        norm: the norm to which gradients are clipped.
        buffers: of the BLT: more are nearer to the best noise, and take memory.

    >>> plan = dp_ftrl(examples=1_000, batch_size=10, epochs=1, noise=2.0)
    >>> plan.charges(100), round(plan.event().multiplier, 6)
    (1, 2.0)
    """
    run = Run(delta, epsilon, noise, epochs, steps, usual_epochs=1)
    sampling = FixedOrder(examples=examples, batch_size=batch_size)
    return run.solved(sampling, Clip(norm), BLTGaussian(noise, buffers=buffers))
