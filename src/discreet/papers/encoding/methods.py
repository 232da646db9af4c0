"""004, its methods: bounds, laws of noise and denoisers, at noise that proves one epsilon for all."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from discreet import (
    AirySquared,
    Cauchy,
    Encode,
    Gaussian,
    JamesStein,
    Kalman,
    KolmogorovSmirnov,
    Laplace,
    Logistic,
    Mechanism,
    Plan,
    Score,
    Sech,
    StudentT,
    VarianceGamma,
    calibrate,
)
from discreet.papers.encoding.distances import DistanceFromNoise
from discreet.papers.encoding.fitted_envelope import FittedEncode, public_shape
from discreet.papers.experiment import Case, Measured, Place, Results, Size
from discreet.papers.held_out import Data, chosen, size_of
from discreet.papers.train_case import private
from discreet.stages import presets as methods
from discreet.stages.mechanism import Denoiser

LAWS = {
    "Gaussian": Gaussian(),
    "Student-t": StudentT(9),
    "Laplace": Laplace(),
    "Cauchy": Cauchy(),
    "variance-gamma": VarianceGamma(),
    "sech": Sech(),
    "logistic": Logistic(),
    "Airy squared": AirySquared(),
}
_DENOISERS: dict[str, Denoiser | None] = {
    "none": None,
    "KS": KolmogorovSmirnov(rescale=True),
    "KS as published": KolmogorovSmirnov(),
    "James-Stein": JamesStein(),
    "Kalman": Kalman(gain=0.4),
    "score": Score(),
    "Wasserstein": DistanceFromNoise("Wasserstein", rescale=True),
    "Cramér-von Mises": DistanceFromNoise("Cramér-von Mises", rescale=True),
    "Kuiper": DistanceFromNoise("Kuiper", rescale=True),
}
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)  # learning rates to choose from
RATE = 2.0  # the middle of those, where only one is tried
_DELTA = 1e-5

USED = (
    "Delta 1e-5, sampling rate that of batches of 256, zero-out adjacency, PLD; every method is given the noise that "
    "proves the epsilon of the Gaussian it is compared with. Below size full a network of 8 filters on halved images "
    "(2,218 parameters for MNIST) and fewer epochs than the paper's 60 (100 for CIFAR-10), as encoding sorts every "
    "gradient. The paper names no learning rate; here the last 10,000 training rows are kept out, and learning rates "
    "are chosen on them. The Kolmogorov-Smirnov rule is rescaled, so that learning rates keep their meaning; as "
    "published it makes steps far shorter. "
)


def plan_of(case: Case, sampled: Mapping[str, int], parameters: int) -> Plan:
    """Clipped or encoded, with the denoiser of the case; its noise proves the case's `budget`, or, where that is None,
    the epsilon of a Gaussian of the case's `noise`. Where more epochs are `planned` than run, it is for those."""
    length = (case.get("planned", case["epochs"]), sampled["examples"], sampled["batch_size"])
    if case["bound"] == "clipped":
        plan = _gaussian(case["noise"], case["budget"], *length)
    elif case["bound"] != "fitted":
        plan = encoded(case["law"], parameters, case["noise"], case["budget"], *length)
    else:
        plan = _fitted(case["data"], case["network"], case["law"], parameters, case["noise"], case["budget"], *length)
    if case["bound"] == "nearest":  # equation (3): a gradient is replaced by the preselected vector
        bound = plan.mechanism.bound
        assert isinstance(bound, Encode)
        plan = replace(plan, mechanism=replace(plan.mechanism, bound=replace(bound, encoder="nearest")))
    if "planned" in case:
        plan = replace(plan, steps=plan.sampling.steps_for(case["epochs"]), epsilon=None)
    return replace(plan, mechanism=replace(plan.mechanism, denoise=_DENOISERS[case["denoiser"]]))


@lru_cache(maxsize=64)
def _gaussian(noise: float | None, budget: float | None, epochs: float, examples: int, batch_size: int) -> Plan:
    return methods.dp_sgd(
        examples=examples, batch_size=batch_size, epochs=epochs, noise=noise, epsilon=budget, delta=_DELTA
    )


@lru_cache(maxsize=64)
def encoded(
    law: str, parameters: int, noise: float | None, budget: float | None, epochs: float, examples: int, batch_size: int
) -> Plan:
    """Solving takes seconds, so a process does it once for all learning rates and seeds."""
    clipped = _gaussian(noise, budget, epochs, examples, batch_size)
    same = law == "Gaussian"  # needs no more noise than clipped gradients
    return methods.encode_denoise(
        examples=examples,
        batch_size=batch_size,
        epochs=epochs,
        law=LAWS[law],
        delta=_DELTA,
        parameters=parameters,
        noise=clipped.mechanism.noise.scale if same else None,
        epsilon=None if same else clipped.guarantee().epsilon,
    )


@lru_cache(maxsize=4)
def _fitted(
    data: str,
    network: str,
    law: str,
    parameters: int,
    noise: float | None,
    budget: float | None,
    epochs: float,
    examples: int,
    batch_size: int,
) -> Plan:
    """The same for an envelope that is fitted to public gradients."""
    clipped = _gaussian(noise, budget, epochs, examples, batch_size)
    shape = public_shape(data, network)
    bound = FittedEncode(size=parameters, heights=shape.levels, counts=shape.counts)
    start = LAWS[law].scaled(clipped.mechanism.noise.scale or 1.0)
    plan = replace(clipped, mechanism=Mechanism(bound, start), epsilon=None)
    return calibrate(plan, clipped.guarantee().epsilon)


def case_of(
    data: str, size: Size, method: str, *, epochs: float, rate: float, budget: float | None = None
) -> dict[str, Any]:
    """`method` is one of METHODS, or a law and a denoiser with a stroke between them."""
    bound, law, denoiser = METHODS[method] if method in METHODS else ("encoded", *method.split(" | "))
    network = "cnn" if size == "full" else "small"
    return {
        "data": data, "network": network, "method": method, "bound": bound, "law": law, "denoiser": denoiser,
        "noise": 1.1 if budget is None else None, "budget": budget, "epochs": epochs, "learning_rate": rate,
    }  # fmt: skip


METHODS = {
    "DP-SGD": ("clipped", "Gaussian", "none"),
    "Gaussian, KS": ("clipped", "Gaussian", "KS"),
    "Gaussian, KS as published": ("clipped", "Gaussian", "KS as published"),
    "Gaussian, James-Stein": ("clipped", "Gaussian", "James-Stein"),
    "Gaussian, Kalman": ("clipped", "Gaussian", "Kalman"),
    "Student-t, encoded, KS": ("encoded", "Student-t", "KS"),
    "Student-t, encoded": ("encoded", "Student-t", "none"),
    "Algorithm 1 as printed": ("nearest", "Student-t", "KS as published"),
    "Student-t, fitted envelope, KS": ("fitted", "Student-t", "KS"),
    "Gaussian, Wasserstein": ("clipped", "Gaussian", "Wasserstein"),
    "Gaussian, Cramér-von Mises": ("clipped", "Gaussian", "Cramér-von Mises"),
    "Gaussian, Kuiper": ("clipped", "Gaussian", "Kuiper"),
}
LOOK = {m: None if i == 0 else i - 1 for i, m in enumerate(METHODS)}


def train(case: Case, place: Place) -> Measured:
    """A training by the plan of the case, with held-out rows unless the case has none."""
    full = case["network"] == "cnn"
    data = Data(case["data"], case["network"], choose=case.get("held_out", True))
    model = data.model(place)
    sampled = data.sampled | ({"batch_size": case["batch_size"]} if "batch_size" in case else {})
    plan = plan_of(case, sampled, size_of(model))
    # Algorithm 1 takes the sum, not the mean: its learning rate is that of the mean times the batch
    summed = sampled["batch_size"] if case["bound"] == "nearest" else 1
    measured = private(
        model,
        data.train,
        data.test,
        plan,
        place,
        learning_rate=case["learning_rate"] * summed,
        evaluate_every=1.0 if full else max(case["epochs"] / 8, 0.125),
    )
    return measured | data.validated(model)


def tuned(results: Results, method: str, *more: str) -> Results:
    """A method at the learning rate (and whatever else is named) that did best on held-out rows."""
    return chosen(results.where(method=method), "learning_rate", *more)
