"""The papers' presets: functions that return a plan.

Each has the paper's hyper-parameters for defaults. `form="sound"` is the corrected method: give `epsilon` to have its
noise solved, or `noise` (in units of the sensitivity) to have epsilon follow. `form="paper"` is the method as it was
published, with the paper's noise unless `noise` is given, or with the noise at which the paper's own accounting says
`epsilon`: its guarantee says what is really proven, and has that claim beside it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from discreet._check import check_int, check_positive
from discreet.accounting.calibrate import calibrate
from discreet.accounting.events import Event
from discreet.errors import ConfigError
from discreet.stages.bounds import AdaptiveClip, BoundedNetwork, Clip, Encode, RadialTanh, ScaledTanh, Tanh
from discreet.stages.denoise import KolmogorovSmirnov
from discreet.stages.mechanism import Bound, Denoiser, Mechanism, Noise
from discreet.stages.noise import BandedGaussian, BLTGaussian, Gaussian, StudentT
from discreet.stages.plan import Plan, Sampler
from discreet.stages.sampling import CyclicPoisson, FixedBatches, FixedOrder, MinSeparation, Poisson

Form = Literal["sound", "paper"]

__all__ = [
    "adaptive_clipping",
    "band_mf",
    "belu",
    "dp_fedavg",
    "dp_ftrl",
    "dp_sgd",
    "encode_denoise",
    "tanh_filter",
]


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

    >>> dp_sgd(examples=60_000, batch_size=256, epochs=60, noise=1.1, delta=1e-5).steps
    14062
    """
    length = _Length(epochs, steps, usual=15)
    sampling = Poisson(examples=examples, batch_size=batch_size)
    if _published(form):
        found = _noise_of_paper(sampling, length, delta, noise, epsilon, usual=1.0)
        return length.plan(sampling, Mechanism(Clip(norm), Gaussian(found)), delta)
    return _solved(sampling, Clip(norm), Gaussian(noise), length, delta, epsilon, noise)


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

    >>> dp_fedavg(users=1_000, users_per_round=100, rounds=50, noise=1.0).guarantee().unit
    'user'
    """
    length = _Length(epochs, rounds, usual=10)
    chosen, delta = Clip(norm) if bound is None else bound, users**-1.1 if delta is None else delta
    if separation is None and most is None:
        if bands is not None:
            raise ConfigError(f"bands={bands} are for users who take part apart; give separation= and most=.")
        sampling = Poisson(examples=users, batch_size=users_per_round, unit="user")
        return _solved(sampling, chosen, Gaussian(noise), length, delta, epsilon, noise)
    if separation is None or most is None:
        raise ConfigError(f"separation={separation!r} and most={most!r}: give both, or none of them.")
    apart = MinSeparation(examples=users, batch_size=users_per_round, separation=separation, most=most)
    remembering = BLTGaussian(noise, buffers=buffers) if bands is None else BandedGaussian(noise, bands=bands)
    return _solved(apart, chosen, remembering, length, delta, epsilon, noise)


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

    >>> band_mf(examples=60_000, batch_size=256, epochs=10, noise=1.5, bands=16).charges(2344)
    147
    """
    length = _Length(epochs, steps, usual=10)
    groups = 1 if bands == "best" else bands
    sampling = CyclicPoisson(examples=examples, batch_size=batch_size, groups=groups)
    remembering = BandedGaussian(noise, bands, momentum=momentum)
    return _solved(sampling, Clip(norm), remembering, length, delta, epsilon, noise)


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

    >>> plan = dp_ftrl(examples=1_000, batch_size=10, epochs=1, noise=2.0)
    >>> plan.charges(100), round(plan.event().multiplier, 6)
    (1, 2.0)
    """
    length = _Length(epochs, steps, usual=1)
    sampling = FixedOrder(examples=examples, batch_size=batch_size)
    return _solved(sampling, Clip(norm), BLTGaussian(noise, buffers=buffers), length, delta, epsilon, noise)


def tanh_filter(
    *,
    examples: int = 60_000,
    batch_size: int = 256,
    delta: float = 1e-5,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    c: float = 1.0,
    k: float = 1.0,
    variant: Literal["radial", "clipped", "scaled"] = "radial",
    parameters: int = 26_010,
    form: Form = "sound",
) -> Plan:
    """The tanh filter (Amian 2020).

    Sound `variant`s bound the norm: "radial" bends the length of each gradient, "clipped" is the paper's filter
    followed by a clip, "scaled" the filter with its range divided by the square root of the number of parameters. As
    published (`form="paper"`) it bounds the coordinates of `parameters` parameters, one batch of fixed ones is picked
    a step, and `noise` is a standard deviation.

    >>> tanh_filter(noise=1.1).guarantee().epsilon == dp_sgd(epochs=60, noise=1.1).guarantee().epsilon
    True
    """
    length = _Length(epochs, steps, usual=60)
    if variant not in ("radial", "clipped", "scaled"):
        raise ConfigError(f"variant is {variant!r}; it must be one of radial, clipped, scaled.")
    if _published(form):
        accounted = Poisson(examples=examples, batch_size=batch_size)
        found = _noise_of_paper(accounted, length, delta, noise, epsilon, usual=1.1)
        sampling = FixedBatches(examples=examples, batch_size=batch_size)
        return length.plan(sampling, Mechanism(Tanh(c, k, size=parameters), Gaussian(std=found)), delta)
    bounds: dict[str, Callable[[], Bound]] = {
        "radial": lambda: RadialTanh(norm, k * norm),
        "clipped": lambda: Tanh(c, k, clip=norm),
        "scaled": lambda: ScaledTanh(norm, k),
    }
    sampling = Poisson(examples=examples, batch_size=batch_size)
    return _solved(sampling, bounds[variant](), Gaussian(noise), length, delta, epsilon, noise)


def belu(
    *,
    examples: int = 60_000,
    batch_size: int = 64,
    delta: float = 1e-5,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    certified: bool = False,
    alpha: float = 1.0,
    beta: float = 5.0,
    input_norm: float | None = None,
    weight_norm: float | None = None,
    widths: Sequence[int] = (1024, 32, 10),
    form: Form = "sound",
) -> Plan:
    """Networks with bounded activations (Jung et al. 2020: BELU).

    By default gradients are clipped to `norm`: then BELU is a choice of architecture, and clipping alone is the proof.
    `certified` has no per-example gradients at all: the bound follows from the network's shape, inputs cut to
    `input_norm` (1) and weights held to `weight_norm` (1). As published (`form="paper"`) the noise is `noise` times
    alpha + beta, which bounds an activation and not a gradient; what is proven is for a network of these `widths`, with
    inputs cut to 28 and weights to 1.96 (an image's largest norm, a He start's), or to fit_to(model).
    """
    length = _Length(epochs, steps, usual=10)
    sampling = Poisson(examples=examples, batch_size=batch_size)
    if not certified and form == "sound" and (input_norm is not None or weight_norm is not None):
        raise ConfigError("input_norm and weight_norm are of the certificate; say certified=True, or leave them out.")
    if _published(form):
        found = _noise_of_paper(sampling, length, delta, noise, epsilon, usual=1.0)
        shape = BoundedNetwork.of_widths(
            widths,
            alpha,
            beta,
            input_norm=28.0 if input_norm is None else input_norm,
            weight_norm=1.96 if weight_norm is None else weight_norm,
        )
        return length.plan(sampling, Mechanism(shape, Gaussian(std=found * (alpha + beta))), delta)
    bound: Bound = Clip(norm)
    if certified:
        bound = BoundedNetwork(1.0 if input_norm is None else input_norm, 1.0 if weight_norm is None else weight_norm)
    return _solved(sampling, bound, Gaussian(noise), length, delta, epsilon, noise)


def adaptive_clipping(
    *,
    examples: int = 50_000,
    batch_size: int = 128,
    delta: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    per_layer: bool = False,
    rule: Literal["quantile", "mean"] = "quantile",
    share: float = 0.01,
    question_noise: float = 2.5,
    alpha: float | None = None,
    tensors: int = 10,
    form: Form = "sound",
) -> Plan:
    """Adaptive clipping (van der Veen et al. 2018; quantiles: Andrew et al. 2021). `delta` is examples ** -1.1 unless
    it is given.

    Sound: clipping norms follow a quantile (or the mean, by `rule`) of the gradients' norms, over all parameters or
    `per_layer`; `share` of the budget pays for asking. By the rule "mean" the norm is `alpha` times the mean, 1.05
    unless it is given (the paper's experiments have 1.1, its advice is 1.0). As published (`form="paper"`) each of
    `tensors` tensors has noise `noise` (0.725) times its clipping norm, and its mean norm is asked with
    `question_noise`.
    """
    length = _Length(epochs, steps, usual=60)
    delta = check_int("examples", examples, least=2) ** -1.1 if delta is None else delta
    sampling = Poisson(examples=examples, batch_size=batch_size)
    if _published(form):
        check_positive("question_noise", question_noise)
        count = check_int("tensors", tensors, least=1)

        def summed(found: float) -> list[float]:  # each tensor and each question as if it had a batch of its own
            return [found] * count + [question_noise] * count

        found = _noise_of_paper(sampling, length, delta, noise, epsilon, usual=0.725, queries=summed)
        part = AdaptiveClip.share_of(found, question_noise)
        times = 1.1 if alpha is None else alpha
        bound = AdaptiveClip(norm, "mean", per_layer=True, factor=times, share=part, tensors=tensors)
        together = found * math.sqrt((1 - part) / tensors)
        return length.plan(sampling, Mechanism(bound, Gaussian(together), "each"), delta)
    if alpha is not None and rule != "mean":
        raise ConfigError(f'alpha is {alpha!r}, which is for rule "mean"; by {rule!r} no mean is asked for.')
    bound = AdaptiveClip(norm, rule, per_layer=per_layer, share=share)
    bound = bound if alpha is None else replace(bound, factor=alpha)
    return _solved(sampling, bound, Gaussian(noise), length, delta, epsilon, noise)


def encode_denoise(
    *,
    examples: int = 60_000,
    batch_size: int = 256,
    delta: float = 1e-5,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise: float | None = None,
    norm: float = 1.0,
    encoder: Literal["clamp", "nearest"] = "clamp",
    law: Noise | None = None,
    denoise: Denoiser | None = None,
    envelopes: int | None = None,
    parameters: int | None = None,
    form: Form = "sound",
) -> Plan:
    """Gradient encoding with any noise, and denoising (Nasr, Shokri and Houmansadr 2020).

    `law` is the noise's family, Student-t with 9 degrees of freedom unless another is given, and `denoise` what is
    done afterwards, the paper's Kolmogorov-Smirnov rule unless another is given (sound: rescaled, so that learning
    rates keep their meaning). With the number of `parameters` known, other noise than Gaussian is accounted exactly,
    and less of it is needed. Sound has one envelope. As published (`form="paper"`) they are drawn at random, 20 unless
    `envelopes` says otherwise (the paper has 1000, which are as alike as 20), for a network of 26,010 parameters, and
    the rule is not rescaled.
    """
    length = _Length(epochs, steps, usual=60)
    sampling = Poisson(examples=examples, batch_size=batch_size)
    family = StudentT(9) if law is None else law
    if isinstance(family, type) or not hasattr(family, "scaled"):
        raise ConfigError(f"law is {law!r}; give a noise, as Gaussian() or StudentT(9).")
    if family.scale is not None:
        raise ConfigError(f"law is {law!r}, which has a scale of its own; give that as noise=.")
    if _published(form):
        # the product's Rényi divergences are those of a Gaussian of the same Fisher information, to 0.1 %
        root = math.sqrt(family.law.fisher)
        usual = 1.0 / root
        scaled = None if noise is None else noise / root
        found = root * _noise_of_paper(sampling, length, delta, scaled, epsilon, usual=usual)
        size = 26_010 if parameters is None else parameters
        bound = Encode(norm, encoder, envelopes=20 if envelopes is None else envelopes, size=size)
        after = KolmogorovSmirnov() if denoise is None else denoise
        return length.plan(sampling, Mechanism(bound, family.scaled(found), denoise=after), delta)
    bound = Encode(norm, encoder, envelopes=1 if envelopes is None else envelopes, size=parameters)
    after = KolmogorovSmirnov(rescale=True) if denoise is None else denoise
    start = family if noise is None else family.scaled(noise)
    return _solved(sampling, bound, start, length, delta, epsilon, noise, denoise=after)


# --- what they share -------------------------------------------------------------------------------------------------


class _Length:
    """How long a run is: epochs or steps, or the paper's epochs if neither is said."""

    def __init__(self, epochs: float | None, steps: int | None, *, usual: float) -> None:
        if epochs is not None and steps is not None:
            raise ConfigError(f"steps={steps} and epochs={epochs} say the length twice; give one of them.")
        self._steps = steps
        self._epochs = usual if epochs is None and steps is None else epochs

    def plan(self, sampling: Sampler, mechanism: Mechanism, delta: float) -> Plan:
        steps = -1 if self._steps is None else self._steps
        return Plan(sampling=sampling, mechanism=mechanism, steps=steps, epochs=self._epochs, delta=delta)


def _published(form: Form) -> bool:
    if form not in get_args(Form):
        raise ConfigError(f"form is {form!r}; it must be one of {', '.join(get_args(Form))}.")
    return form == "paper"


def _solved(
    sampling: Sampler,
    bound: Bound,
    family: Noise,
    length: _Length,
    delta: float,
    epsilon: float | None,
    noise: float | None,
    denoise: Denoiser | None = None,
) -> Plan:
    if (epsilon is None) == (noise is None):
        raise ConfigError(f"epsilon={epsilon!r} and noise={noise!r}: give one of them.")
    plan = length.plan(sampling, Mechanism(bound, family, denoise=denoise), delta)
    return plan if epsilon is None else calibrate(plan, epsilon)


def _noise_of_paper(
    sampling: Poisson,
    length: _Length,
    delta: float,
    noise: float | None,
    epsilon: float | None,
    *,
    usual: float,
    queries: Callable[[float], list[float]] = lambda found: [found],
) -> float:
    """The noise that is given or usual, or that at which the papers' accounting says epsilon: Rényi divergences of
    Poisson samples, as if the sensitivity were 1, added up over `queries`, and Mironov's conversion."""
    if epsilon is None:
        return usual if noise is None else check_positive("noise", noise)
    if noise is not None:
        raise ConfigError(f"epsilon={epsilon!r} and noise={noise!r}: give one of them.")
    from scipy.optimize import brentq

    from discreet.accounting import rdp

    steps = length.plan(sampling, Mechanism(Clip(1.0), Gaussian(1.0)), delta).steps
    rate, target = sampling.contract().rate, check_positive("epsilon", epsilon)

    def excess(log_noise: float) -> float:
        events = [Event(rate, multiplier, steps) for multiplier in queries(math.exp(log_noise))]
        return rdp.classic(rdp.divergences(events), rdp.ORDERS, delta) - target

    low, high = math.log(0.05), math.log(1e4)
    if not excess(high) <= 0 <= excess(low):
        raise ConfigError(f"no noise from 0.05 to 10,000 has epsilon {epsilon:g} by the papers' accounting.")
    return math.exp(float(brentq(excess, low, high, xtol=1e-6)))
