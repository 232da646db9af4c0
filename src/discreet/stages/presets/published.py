"""The papers that are reproduced here: their methods as published, and in a sound form."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from discreet._check import check_int, check_positive
from discreet.errors import ConfigError
from discreet.stages.bounds import AdaptiveClip, BoundedNetwork, Clip, Encode, RadialTanh, ScaledTanh, Tanh
from discreet.stages.denoise import KolmogorovSmirnov
from discreet.stages.mechanism import Bound, Denoiser, Mechanism, Noise
from discreet.stages.noise import Gaussian, StudentT
from discreet.stages.plan import Plan
from discreet.stages.presets.run import Form, Run, is_published
from discreet.stages.sampling import FixedBatches, Poisson


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

    Args:
        examples: their number, which is public.
        batch_size: how many take part in a step, on average.
        delta: the probability that the guarantee leaves out.
        epochs: how often each example takes part, on average; 60 unless this or `steps` is given.
        steps: the number of releases, in place of `epochs`.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`; published, a standard deviation.
        norm: the norm to which gradients are bounded.
        c: the height of the tanh.
        k: its slope at 0.
        variant: "radial", "clipped" or "scaled".
        parameters: of the network; for the published form only.
        form: "sound", or "paper" for the method as it was published.

    >>> from discreet.stages.presets import dp_sgd
    >>> tanh_filter(noise=1.1).guarantee().epsilon == dp_sgd(epochs=60, noise=1.1).guarantee().epsilon
    True
    """
    run = Run(delta, epsilon, noise, epochs, steps, usual_epochs=60)
    if variant not in ("radial", "clipped", "scaled"):
        raise ConfigError(f"variant is {variant!r}; it must be one of radial, clipped, scaled.")
    if is_published(form):
        accounted = Poisson(examples=examples, batch_size=batch_size)
        multiplier = run.noise_of_paper(accounted, usual=1.1)
        sampling = FixedBatches(examples=examples, batch_size=batch_size)
        return run.plan(sampling, Mechanism(Tanh(c, k, size=parameters), Gaussian(std=multiplier)))
    bounds: dict[str, Callable[[], Bound]] = {
        "radial": lambda: RadialTanh(norm, k * norm),
        "clipped": lambda: Tanh(c, k, clip=norm),
        "scaled": lambda: ScaledTanh(norm, k),
    }
    sampling = Poisson(examples=examples, batch_size=batch_size)
    return run.solved(sampling, bounds[variant](), Gaussian(noise))


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

    Args:
        examples: their number, which is public.
        batch_size: how many take part in a step, on average.
        delta: the probability that the guarantee leaves out.
        epochs: how often each example takes part, on average; 10 unless this or `steps` is given.
        steps: the number of releases, in place of `epochs`.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`.
        norm: the norm to which gradients are clipped.
        certified: bound gradients by the network's shape, in place of clipping.
        alpha: BELU's bound below, as published.
        beta: BELU's bound above, as published.
        input_norm: to which inputs are cut, for the certificate.
        weight_norm: to which weights are held, for the certificate.
        widths: of the layers, for the published form.
        form: "sound", or "paper" for the method as it was published.
    """
    run = Run(delta, epsilon, noise, epochs, steps, usual_epochs=10)
    sampling = Poisson(examples=examples, batch_size=batch_size)
    if not certified and form == "sound" and (input_norm is not None or weight_norm is not None):
        raise ConfigError("input_norm and weight_norm are of the certificate; say certified=True, or leave them out.")
    if is_published(form):
        multiplier = run.noise_of_paper(sampling, usual=1.0)
        shape = BoundedNetwork.of_widths(
            widths,
            alpha,
            beta,
            input_norm=28.0 if input_norm is None else input_norm,
            weight_norm=1.96 if weight_norm is None else weight_norm,
        )
        return run.plan(sampling, Mechanism(shape, Gaussian(std=multiplier * (alpha + beta))))
    bound: Bound = Clip(norm)
    if certified:
        bound = BoundedNetwork(1.0 if input_norm is None else input_norm, 1.0 if weight_norm is None else weight_norm)
    return run.solved(sampling, bound, Gaussian(noise))


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

    Args:
        examples: their number, which is public.
        batch_size: how many take part in a step, on average.
        delta: the probability that the guarantee leaves out; examples^-1.1 unless it is given.
        epochs: how often each example takes part, on average; 60 unless this or `steps` is given.
        steps: the number of releases, in place of `epochs`.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`.
        norm: the clipping norm to begin with.
        per_layer: have a clipping norm for each tensor.
        rule: what the norms follow: "quantile" or "mean".
        share: of the budget, which pays for asking.
        question_noise: the noise of a question, in the published form.
        alpha: times the mean is the norm, by the rule "mean"; 1.05 unless it is given, and 1.1 as published.
        tensors: how many the network has, for the published form.
        form: "sound", or "paper" for the method as it was published.
    """
    delta = check_int("examples", examples, least=2) ** -1.1 if delta is None else delta
    run = Run(delta, epsilon, noise, epochs, steps, usual_epochs=60)
    sampling = Poisson(examples=examples, batch_size=batch_size)
    if is_published(form):
        check_positive("question_noise", question_noise)
        count = check_int("tensors", tensors, least=1)

        def summed(one: float) -> list[float]:  # each tensor and each question as if it had a batch of its own
            return [one] * count + [question_noise] * count

        multiplier = run.noise_of_paper(sampling, usual=0.725, queries=summed)
        part = AdaptiveClip.share_of(multiplier, question_noise)
        times = 1.1 if alpha is None else alpha
        bound = AdaptiveClip(norm, "mean", per_layer=True, factor=times, share=part, tensors=tensors)
        together = multiplier * math.sqrt((1 - part) / tensors)
        return run.plan(sampling, Mechanism(bound, Gaussian(together), "each"))
    if alpha is not None and rule != "mean":
        raise ConfigError(f'alpha is {alpha!r}, which is for rule "mean"; by {rule!r} no mean is asked for.')
    bound = AdaptiveClip(norm, rule, per_layer=per_layer, share=share)
    bound = bound if alpha is None else replace(bound, factor=alpha)
    return run.solved(sampling, bound, Gaussian(noise))


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

    Args:
        examples: their number, which is public.
        batch_size: how many take part in a step, on average.
        delta: the probability that the guarantee leaves out.
        epochs: how often each example takes part, on average; 60 unless this or `steps` is given.
        steps: the number of releases, in place of `epochs`.
        epsilon: the budget, for which the noise is solved.
        noise: the noise multiplier, in place of `epsilon`.
        norm: the norm to which gradients are bounded.
        encoder: "clamp", or "nearest" as published.
        law: the noise's family; Student-t with 9 degrees of freedom unless it is given.
        denoise: what is done with the noisy sum; the paper's Kolmogorov-Smirnov rule unless it is given.
        envelopes: how many; one, and 20 as published, unless it is given.
        parameters: of the network, where they are known.
        form: "sound", or "paper" for the method as it was published.
    """
    run = Run(delta, epsilon, noise, epochs, steps, usual_epochs=60)
    sampling = Poisson(examples=examples, batch_size=batch_size)
    family = StudentT(9) if law is None else law
    if isinstance(family, type) or not hasattr(family, "scaled"):
        raise ConfigError(f"law is {law!r}; give a noise, as Gaussian() or StudentT(9).")
    if family.scale is not None:
        raise ConfigError(f"law is {law!r}, which has a scale of its own; give that as noise=.")
    if is_published(form):
        # the product's Rényi divergences are those of a Gaussian of the same Fisher information, to 0.1 %
        root = math.sqrt(family.law.fisher)
        usual = 1.0 / root
        scaled = None if noise is None else noise / root
        multiplier = root * replace(run, noise=scaled).noise_of_paper(sampling, usual=usual)
        size = 26_010 if parameters is None else parameters
        bound = Encode(norm, encoder, envelopes=20 if envelopes is None else envelopes, size=size)
        after = KolmogorovSmirnov() if denoise is None else denoise
        return run.plan(sampling, Mechanism(bound, family.scaled(multiplier), denoise=after))
    bound = Encode(norm, encoder, envelopes=1 if envelopes is None else envelopes, size=parameters)
    after = KolmogorovSmirnov(rescale=True) if denoise is None else denoise
    start = family if noise is None else family.scaled(noise)
    return run.solved(sampling, bound, start, denoise=after)
