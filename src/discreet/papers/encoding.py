"""004, Nasr, Shokri and Houmansadr: encoded gradients, any noise, and denoising."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from scipy.stats import kurtosis, norm

from discreet.accounting import rdp
from discreet.accounting.calibrate import calibrate
from discreet.papers.claims import enveloped
from discreet.papers.course import private
from discreet.papers.distances import DistanceFromNoise
from discreet.papers.encoding_verdicts import (
    SIZES,
    against_dp_sgd,
    at_budget,
    dearer_points,
    gaussian_gradients,
    least_noise,
    other_distances,
    own_rate,
    sooner,
    student_best,
    whole,
)
from discreet.papers.experiment import Case, Experiment, Measured, Paper, Place, Results, Size, Stated
from discreet.papers.fitted import PUBLIC, FittedEncode, public_shape
from discreet.papers.small import COPY, SHOWN, Data, chosen, gradients, in_steps, rate_of, size_of
from discreet.papers.verdicts import Extent
from discreet.report.charts import Axis, Chart, Series
from discreet.stages import presets as methods
from discreet.stages.bounds import Encode
from discreet.stages.denoise import JamesStein, Kalman, KolmogorovSmirnov, Score
from discreet.stages.mechanism import Denoiser, Mechanism
from discreet.stages.noise import AirySquared, Cauchy, Gaussian, Laplace, Logistic, Sech, StudentT, VarianceGamma
from discreet.stages.plan import Plan

_LAWS = {
    "Gaussian": Gaussian(),
    "Student-t": StudentT(9),
    "Laplace": Laplace(),
    "Cauchy": Cauchy(),
    "variance-gamma": VarianceGamma(),
    "sech": Sech(),
    "logistic": Logistic(),
    "Airy squared": AirySquared(),
}
_TRAINED = tuple(_LAWS)[:6]  # those that the paper trains with
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
_RATES = (0.5, 1.0, 2.0, 4.0, 8.0)  # learning rates to choose from
_GRIDS = {  # for a network with larger gradients, the rule that lengthens steps needs lower ones
    "mnist": {"quick": (0.5, 2.0, 8.0), "usual": _RATES, "full": _RATES},
    "cifar10": {"quick": (0.125, 0.5, 2.0), "usual": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0), "full": (0.125, 0.25, *_RATES)},
}
_ENCODED = {  # where gradients are encoded, which is slow
    "mnist": {"quick": (2.0,), "usual": (1.0, 2.0, 4.0), "full": _RATES},
    "cifar10": {"quick": (0.125,), "usual": (0.0625, 0.125, 0.25), "full": (0.0625, 0.125, 0.25, *_RATES)},
}
_FIRST = 2.0  # the middle of those, where only one is tried
_DELTA = 1e-5


# --- plans of equal epsilon ------------------------------------------------------------------------------------------


def plan_of(case: Case, sampled: Mapping[str, int], parameters: int) -> Plan:
    """Clipped or encoded, with the denoiser of the case; its noise proves the case's `budget`, or, where that is None,
    the epsilon of a Gaussian of the case's `noise`. Where more epochs are `planned` than run, it is for those."""
    length = (case.get("planned", case["epochs"]), sampled["examples"], sampled["batch_size"])
    if case["bound"] == "clipped":
        plan = _gaussian(case["noise"], case["budget"], *length)
    elif case["bound"] != "fitted":
        plan = _encoded(case["law"], parameters, case["noise"], case["budget"], *length)
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
def _encoded(
    law: str, parameters: int, noise: float | None, budget: float | None, epochs: float, examples: int, batch_size: int
) -> Plan:
    """Solving takes seconds, so a process does it once for all learning rates and seeds."""
    clipped = _gaussian(noise, budget, epochs, examples, batch_size)
    same = law == "Gaussian"  # needs no more noise than clipped gradients
    return methods.encode_denoise(
        examples=examples,
        batch_size=batch_size,
        epochs=epochs,
        law=_LAWS[law],
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
    start = _LAWS[law].scaled(clipped.mechanism.noise.scale or 1.0)
    plan = replace(clipped, mechanism=Mechanism(bound, start), epsilon=None)
    return calibrate(plan, clipped.guarantee().epsilon)


def _case(
    data: str, size: Size, method: str, *, epochs: float, rate: float, budget: float | None = None
) -> dict[str, Any]:
    """`method` is one of _METHODS, or a law and a denoiser with a stroke between them."""
    bound, law, denoiser = _METHODS[method] if method in _METHODS else ("encoded", *method.split(" | "))
    network = "cnn" if size == "full" else "small"
    return {
        "data": data, "network": network, "method": method, "bound": bound, "law": law, "denoiser": denoiser,
        "noise": 1.1 if budget is None else None, "budget": budget, "epochs": epochs, "learning_rate": rate,
    }  # fmt: skip


_METHODS = {
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
_LOOK = {m: None if i == 0 else i - 1 for i, m in enumerate(_METHODS)}


def _train(case: Case, place: Place) -> Measured:
    full = case["network"] == "cnn"
    data = Data(case["data"], case["network"], choose=case.get("held_out", True))
    model = data.model(place)
    sampled = data.sampled | ({"batch_size": case["batch_size"]} if "batch_size" in case else {})
    plan = plan_of(case, sampled, size_of(model))
    # Algorithm 1 takes the sum, not the mean: its learning rate is that of the mean times the batch
    summed = sampled["batch_size"] if case["bound"] == "nearest" else 1
    found = private(
        model,
        data.train,
        data.test,
        plan,
        place,
        learning_rate=case["learning_rate"] * summed,
        evaluate_every=1.0 if full else max(case["epochs"] / 8, 0.125),
    )
    return found | data.validated(model)


def tuned(results: Results, method: str, *more: str) -> Results:
    """A method at the learning rate (and whatever else is named) that did best on held-out rows."""
    return chosen(results.where(method=method), "learning_rate", *more)


_ALONG, _ACCURACY = Axis("epochs", "number", low=0.0), Axis("accuracy on the test set", "share")
_AGAINST = Axis("learning rate", "number", log=True)


# --- figure 1: gradients ---------------------------------------------------------------------------------------------


def _gradient_cases(size: Size) -> list[Case]:
    epochs = {"quick": 1, "usual": 1, "full": 5}[size]
    return [_case(data, size, "DP-SGD", epochs=epochs, rate=_FIRST) for data in ("mnist", "cifar10")]


def _gradient_run(case: Case, place: Place) -> Measured:
    data = Data(case["data"], case["network"], choose=False)
    model = data.model(place)
    plan = plan_of(case, data.sampled, size_of(model))
    found = private(model, data.train, data.test, plan, place, learning_rate=case["learning_rate"])
    values = torch.cat([g.flatten() for g in gradients(model, data.train, 500)]).double()
    values = (values - values.mean()) / values.std()
    counts = torch.histc(values, 81, -4.05, 4.05) / len(values) / 0.1
    return found | {
        "kurtosis": float(kurtosis(values.numpy())),
        "distance": distance_from_normal(values),
        "histogram": [[-4.0 + 0.1 * i, float(c)] for i, c in enumerate(counts)],
    }


def distance_from_normal(values: torch.Tensor) -> float:
    """The largest difference between the distribution function of these values and the standard normal one."""
    ordered = values.sort().values
    steps = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return float((torch.special.ndtr(ordered) - steps).abs().max())


def _gradient_charts(results: Results) -> Sequence[Chart]:
    def density(data: str, colour: int) -> Series:
        rows = [r.measured["histogram"] for r in results.where(data=data)]
        places = zip(*rows, strict=True)
        return Series(
            SHOWN.get(data, data), tuple((p[0][0], sum(y for _, y in p) / len(p)) for p in places), colour=colour
        )

    grid = [-4.0 + 0.1 * i for i in range(81)]
    fitted = Series("fitted Gaussian", tuple((x, float(norm.pdf(x))) for x in grid), colour=None)
    lines = (density(data, i) for i, data in enumerate(results.settings("data")))
    x, y = Axis("gradient value, in standard deviations", "number"), Axis("density", "number")
    return [Chart("figure-1", "Values of gradients", x, y, (*lines, fitted))]


# --- figure 6: how large the noise is --------------------------------------------------------------------------------

_PARAMETERS = 26_010
_EPSILON = "epsilon"


def _size_cases(size: Size) -> list[Case]:
    budgets = {"quick": (0.25, 4.0), "usual": (0.25, 1.0, 4.0), "full": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)}[size]
    laws = ("Gaussian", "Student-t", "Laplace", "Airy squared") if size == "quick" else tuple(_LAWS)
    found = [{"law": law, "budget": "D2", "value": value} for law in laws for value in budgets]
    return found + [{"law": law, "budget": _EPSILON, "value": 1.1} for law in laws]


def _size_run(case: Case, place: Place) -> Measured:
    law = _LAWS[case["law"]].law
    if case["budget"] == "D2":
        scale = scale_of_order_two(case["law"], case["value"])
        epsilon = None
    else:
        plan = _encoded(case["law"], _PARAMETERS, case["value"], None, 60, 60_000, 256)
        epsilon = plan.guarantee().epsilon
        scale = plan.mechanism.noise.scale or 0.0
    gaussian = 1 / math.sqrt(case["value"]) if case["budget"] == "D2" else case["value"]
    l1, l2 = law.mean_size * scale, math.sqrt(law.variance) * scale
    return {
        "scale": scale,
        "l1": l1,
        "l2": l2,
        "l1_ratio": l1 / (gaussian * math.sqrt(2 / math.pi)),
        "l2_ratio": l2 / gaussian,
        "epsilon": epsilon,
    }


def scale_of_order_two(law: str, budget: float) -> float:
    """The scale at which one release has Rényi divergence `budget` of order 2; that falls about as 1 / scale^2."""
    family = _LAWS[law].law
    scale = math.sqrt(family.fisher / budget)
    for _ in range(4):
        divergence = float(rdp.divergences([enveloped(family, scale, _PARAMETERS, 1.0, 1)], (2.0,))[0])
        if abs(divergence / budget - 1) < 1e-6:
            break
        scale *= math.sqrt(divergence / budget)
    return scale


def _size_charts(results: Results) -> Sequence[Chart]:
    by_order = results.where(budget="D2")
    x = Axis("Rényi divergence of order 2, a release", "number", log=True)

    def lines(measure: str) -> tuple[Series, ...]:
        found = (by_order.where(law=law).line(law, "value", measure, colour=i) for i, law in enumerate(_LAWS))
        return tuple(line for line in found if line.points)

    note = "Cauchy noise has no mean size and no variance, so it is not drawn."
    return [
        Chart(
            "figure-6", "Mean size of the noise (figure 6)", x, Axis("l1, a coordinate", "number"), lines("l1"), note
        ),
        Chart("l1", "l1, as a multiple of Gaussian", x, Axis("ratio", "number"), lines("l1_ratio"), note),
        Chart("l2", "l2, as a multiple of Gaussian", x, Axis("ratio", "number"), lines("l2_ratio"), note),
    ]


def _size_found(results: Results) -> str:
    equal = results.where(budget=_EPSILON)
    told = []
    for law in equal.settings("law"):
        one, two = (equal.where(law=law).mean(name) for name in ("l1_ratio", "l2_ratio"))
        if law != "Gaussian":
            told.append(f"{law} {one:.4f} and {two:.4f}" if math.isfinite(one) else f"{law} infinite")
    epsilons = equal.values("epsilon")
    if not epsilons:
        return ""
    return (
        f"At equal proven epsilon (at most {max(epsilons):.4f}, delta 1e-5, PLD, 60 epochs of 60,000 at 256) the "
        f"noise's l1 and l2 are, as multiples of the Gaussian's: {'; '.join(told)}. By Cramér and Rao no law is "
        "below 1 in l2 where dimensions are many."
    )


# --- all families, trained -------------------------------------------------------------------------------------------


def _family_cases(size: Size) -> list[Case]:
    epochs = {"quick": 0.25, "usual": 0.75, "full": 60}[size]
    laws = _TRAINED[:3] if size == "quick" else _TRAINED
    rates = {"quick": (_FIRST,), "usual": (0.5, 2.0), "full": _RATES}[size]
    pairs = [(law, denoiser) for law in laws for denoiser in ("none", "KS")]
    return [
        _case("mnist", size, f"{law} | {denoiser}", epochs=epochs, rate=rate)
        for law, denoiser in pairs
        for rate in rates
    ]


def _of_family(results: Results, law: str, denoiser: str) -> Results:
    return tuned(results, f"{law} | {denoiser}")


def _family_charts(results: Results) -> Sequence[Chart]:
    def lines(denoiser: str) -> tuple[Series, ...]:
        laws = enumerate(results.settings("law"))
        return tuple(_of_family(results, law, denoiser).course(law, colour=i) for i, law in laws)

    note = "Encoded gradients, equal proven epsilon."
    return [
        Chart("plain", "All noises, nothing denoised", _ALONG, _ACCURACY, lines("none"), note),
        Chart("denoised", "All noises, Kolmogorov-Smirnov", _ALONG, _ACCURACY, lines("KS"), note),
    ]


def _family_found(results: Results) -> str:
    told = []
    for law in results.settings("law"):
        plain, denoised = (_of_family(results, law, d).mean() for d in ("none", "KS"))
        told.append(f"{law} {plain:.1%}, {denoised:.1%}")
    return f"Accuracy without and with the Kolmogorov-Smirnov rule: {'; '.join(told)}."


# --- does denoising help? figures 4, 5 and 7 -------------------------------------------------------------------------


def _denoise_cases(data: str) -> Callable[[Size], list[Case]]:
    def cases(size: Size) -> list[Case]:
        if size == "full":
            return _full_cases(data)
        mnist = data == "mnist"
        epochs = {"quick": 0.5, "usual": 2 if mnist else 1}[size]
        plain = tuple(m for m in _METHODS if "encoded" not in m)[: None if mnist else 2]
        rates, some = _GRIDS[data][size], {"Gaussian, KS as published": _ENCODED[data][size]}
        found = [_case(data, size, m, epochs=epochs, rate=rate) for m in plain for rate in some.get(m, rates)]
        return found + [
            _case(data, size, "Student-t, encoded, KS", epochs=epochs, rate=rate) for rate in _ENCODED[data][size]
        ]

    return cases


TUTORIAL = 0.15  # the learning rate of the tutorial that the paper points to


def _full_cases(data: str) -> list[Case]:
    """The paper's network: short trainings with held-out rows, by which rates are chosen, and long ones without.

    Where gradients are encoded the long ones have half the paper's epochs, which is what a verdict needs at least.
    """
    mnist = data == "mnist"
    long, half, short = (60, 30, 6) if mnist else (100, 50, 5)
    rates = (TUTORIAL, 0.5, 1.0, 2.0, 4.0) if mnist else (0.05, TUTORIAL, 0.5, 1.0, 2.0)
    distances = ("Gaussian, Wasserstein", "Gaussian, Cramér-von Mises", "Gaussian, Kuiper")
    clipped, encoded = ("DP-SGD", "Gaussian, KS", *distances), ("Student-t, encoded, KS", "Student-t, encoded")
    encoded += ("Student-t, fitted envelope, KS",) if data in PUBLIC else ()
    found: list[Case] = [
        _case(data, "full", method, epochs=short, rate=rate) | {"held_out": True}
        for method in (*clipped, *encoded, "Algorithm 1 as printed")
        for rate in rates
    ]
    for rate in (TUTORIAL, *(r for r in rates if r != TUTORIAL)):
        found += [
            _case(data, "full", method, epochs=long if method in clipped else half, rate=rate) | {"held_out": False}
            for method in (*clipped[:2], *encoded, "Algorithm 1 as printed")
        ]
    return found


def common_rate(results: Results) -> float:
    """The learning rate that did best on held-out rows on average over methods, among those that all were given."""
    methods = [results.where(method=method) for method in results.settings("method")]
    shared = [r for r in results.settings("learning_rate") if all(m.where(learning_rate=r) for m in methods)]

    def average(rate: float) -> float:
        return sum(m.where(learning_rate=rate).held_out() for m in methods)

    return max(shared, key=average, default=_FIRST)


def _denoise_charts(results: Results) -> Sequence[Chart]:
    name = " and ".join(SHOWN.get(v, v) for v in results.settings("data"))
    data = results.settings("data")[:1] or [""]
    run = [m for m in _METHODS if results.where(method=m)]
    held = Results(r for r in results if r.case.get("held_out", True))
    full = bool(whole(results))
    common = TUTORIAL if full else common_rate(results)
    same = (whole(results) if full else results).where(learning_rate=common)
    rates = (held.where(method=m).line(m, "learning_rate", colour=_LOOK[m]) for m in run)
    untuned = (same.where(method=m).course(m, colour=_LOOK[m]) for m in run)
    best = (_at_own_rate(results, m).course(m, colour=_LOOK[m]) for m in run if "published" not in m)
    note = "All at the same proven epsilon. The paper's figures print no numbers."
    steps = Axis("training steps", "count", low=0.0)

    def drawn(key: str, title: str, lines: Iterable[Series]) -> Chart:
        return Chart(key, title, steps, _ACCURACY, tuple(in_steps(s, data[0]) for s in lines if s.points), note)

    seen = tuple(line for line in rates if line.points)
    return [
        Chart("rates", f"Accuracy by learning rate, {name}, short trainings", _AGAINST, _ACCURACY, seen, note),
        drawn("same-rate", f"All at learning rate {common:g}, {name} (figures 4, 5)", untuned),
        drawn("tuned", f"A learning rate chosen for each, {name} (figure 7)", best),
    ]


def _at_own_rate(results: Results, method: str) -> Results:
    """A method at the rate that it did best with on held-out rows; on all examples where there are such trainings."""
    rate = own_rate(results, method)
    if rate is None:
        return Results()
    some = results.where(method=method, learning_rate=rate)
    return whole(some) if whole(results) else some


def _denoise_found(results: Results) -> str:
    told = []
    for method in _METHODS:
        best = tuned(results, method)
        if best and "published" not in method:
            told.append(f"{method} {best.mean():.1%} ({rate_of(best, results.where(method=method))})")
    return f"At the learning rate that did best on held-out rows: {'; '.join(told)}."


# --- accuracy for a budget: figures 2 and 3 --------------------------------------------------------------------------

_SWEPT = ("DP-SGD", "Gaussian, KS", "Student-t, encoded, KS")


def _full_budgets() -> list[Case]:
    """Figures 2 and 3 at the paper's lengths: each printed pair of epsilons, on both data sets; and larger batches."""
    found: list[Case] = []
    for data, epochs, budgets in (("mnist", 60, (2.5, 3.2, 5.0, 6.0)), ("cifar10", 100, (3.0, 3.6, 4.2, 5.0))):
        for method in _SWEPT:
            encoded = "encoded" in method
            length = epochs // 2 if encoded else epochs
            found += [
                _case(data, "full", method, epochs=length, rate=rate, budget=budget)
                | {"held_out": False, "planned": epochs}
                for budget in (budgets[:2] if encoded else budgets)
                for rate in (TUTORIAL, 0.5, 1.0, 2.0)
            ]
        found += [
            _case(data, "full", "DP-SGD", epochs=epochs, rate=rate, budget=budgets[0])
            | {"held_out": False, "batch_size": 1024}
            for rate in (0.5, 2.0)
        ]
    return found


def _budget_cases(size: Size) -> list[Case]:
    if size == "full":
        return _full_budgets()
    budgets = {"quick": (1.0,), "usual": (0.5, 1.0, 2.0)}[size]
    lengths = {"quick": (0.25, 0.5), "usual": (0.5, 1.5)}[size]
    rates = {"quick": (_FIRST,), "usual": (0.25, 1.0, 4.0)}[size]
    found = [
        _case("mnist", size, method, budget=budget, epochs=epochs, rate=rate)
        for method in _SWEPT[:2]
        for budget in budgets
        for epochs in lengths
        for rate in rates
    ]
    return found + [
        _case("mnist", size, _SWEPT[2], budget=budget, epochs=lengths[0], rate=rate)
        for budget in budgets
        for rate in rates
    ]


def _budgets(results: Results) -> list[Results]:
    return [results.where(budget=budget) for budget in results.settings("budget")]


_PRINTED = {  # figures 2 and 3: (epsilon, accuracy) of the method and of DP-SGD, as far as the text has numbers
    "mnist": ((((2.5, 0.96), (3.2, 0.961)), _SWEPT[2]), (((5.0, 0.96), (6.0, 0.961)), _SWEPT[0])),
    "cifar10": ((((3.6, 0.555), (3.0, 0.55)), _SWEPT[2]), (((5.0, 0.555), (4.2, 0.55)), _SWEPT[0])),
}


def _budget_charts(results: Results) -> Sequence[Chart]:
    """Accuracy for a budget on each data set, at the common rate and at the best that was tried."""
    x = Axis("proven epsilon at delta 1e-5", "epsilon")
    charts = []
    for data in results.settings("data"):
        here = results.where(data=data)
        lines = []
        for method in _SWEPT:
            some = here.where(method=method)
            for look, words in (("dashed", "one rate"), ("line", "best rate tried")):
                groups = [_picked(group, one=look == "dashed") for group in _budgets(some)]
                dots = sorted((g.mean("epsilon"), g.mean()) for g in groups if g)
                if dots:
                    lines.append(Series(f"{method}, {words}", tuple(dots), look, _LOOK[method]))
        for dots, method in _PRINTED.get(data, ()):
            colour = 0 if _LOOK[method] is None else _LOOK[method]
            lines.append(Series(f"{method}, the paper's", tuple(sorted(dots)), "hollow", colour))
        title = f"Figures 2 and 3: accuracy for a budget, {SHOWN.get(data, data)}"
        charts.append(Chart(f"budgets-{data}", title, x, _ACCURACY, tuple(lines)))
    return charts


def _picked(results: Results, *, one: bool) -> Results:
    rates = results.settings("learning_rate")
    if one:
        return results.where(learning_rate=TUTORIAL if TUTORIAL in rates else min(rates, default=0.0))
    return max((results.where(learning_rate=r) for r in rates), key=lambda g: g.mean(), default=Results())


# --- the paper -------------------------------------------------------------------------------------------------------

_USED = (
    "Delta 1e-5, sampling rate that of batches of 256, zero-out adjacency, PLD; every method is given the noise that "
    "proves the epsilon of the Gaussian it is compared with. Below size full a network of 8 filters on halved images "
    "(2,218 parameters for MNIST) and fewer epochs than the paper's 60 (100 for CIFAR-10), as encoding sorts every "
    "gradient. The paper names no learning rate; here the last 10,000 training rows are kept out, and learning rates "
    "are chosen on them. The Kolmogorov-Smirnov rule is rescaled, so that learning rates keep their meaning; as "
    "published it makes steps far shorter. "
)


def _denoising(data: str) -> Experiment:
    return Experiment(
        f"denoising-{data}",
        f"Does denoising help on {SHOWN[data]} once DP-SGD's learning rate is tuned as well? (figures 4, 5 and 7)",
        ("" if data == "mnist" else COPY) + _USED,
        _denoise_cases(data),
        _train,
        _denoise_charts,
        (
            Stated(
                "encoded Student-t noise with KS against DP-SGD (figure 4)",
                "noticeably higher accuracies",
                verdict=against_dp_sgd("Student-t, encoded, KS", "encoded Student-t, KS"),
                size=SIZES[data],
                headline=True,
            ),
            Stated(
                "denoising of Gaussian noise (text with figure 2)",
                "outperforms DPSGD",
                verdict=against_dp_sgd("Gaussian, KS", "Gaussian, KS"),
                size=SIZES[data],
                headline=True,
            ),
            Stated(
                "Algorithm 1 exactly as printed against DP-SGD",
                "outperforms DPSGD",
                verdict=against_dp_sgd("Algorithm 1 as printed", "Algorithm 1"),
                size=SIZES[data],
            ),
            Stated("steps to an accuracy (figures 4 and 7)", "fewer than DPSGD", verdict=sooner, size=SIZES[data]),
            Stated("KS among distances", "KS achieved the best results", verdict=other_distances, size=SIZES[data]),
        ),
        _denoise_found,
        needs=(data,),
    )


PAPER = Paper(
    "004",
    "Improving deep learning with differential privacy using gradient encoding and denoising (Nasr et al. 2020)",
    (
        Experiment(
            "gradients",
            "The distribution of gradients (figure 1)",
            f"{COPY}Values of 500 examples' gradients after a private epoch (five at size full), beside a Gaussian of "
            "the same mean and variance.",
            _gradient_cases,
            _gradient_run,
            _gradient_charts,
            (
                Stated(
                    "gradients (figure 1)",
                    "can be fitted to a Gaussian",
                    verdict=gaussian_gradients,
                    size=Extent(5, 50_000, 26_010),
                ),
            ),
            needs=("mnist", "cifar10"),
        ),
        Experiment(
            "noise-size",
            "How large each noise is at equal budget (figure 6)",
            "No training: contributions inside the half-normal envelope of norm 1 and 26,010 coordinates. The scale of "
            "each law is solved for equal Rényi divergence of order 2, as in the figure, and for equal proven epsilon.",
            _size_cases,
            _size_run,
            _size_charts,
            (Stated("Student-t noise (figure 6)", "the least overall noise", verdict=least_noise, headline=True),),
            _size_found,
            seeds={"quick": 1, "usual": 1, "full": 1},
        ),
        Experiment(
            "families",
            "All noises, with and without denoising (text with figure 2)",
            f"{_USED}By default from 0.5 and 2; with --quick all have {_FIRST:g}.",
            _family_cases,
            _train,
            _family_charts,
            (Stated("Student-t among all noises", "performed best", verdict=student_best, size=SIZES["mnist"]),),
            _family_found,
            needs=("mnist",),
        ),
        _denoising("mnist"),
        _denoising("cifar10"),
        Experiment(
            "budgets",
            "Accuracy for a budget (figures 2 and 3)",
            f"{_USED}MNIST alone below size full; there encoded Student-t noise has half the epochs, at the noise for "
            "all of them.",
            _budget_cases,
            _train,
            _budget_charts,
            (
                *(
                    Stated(
                        f"{shown}, {figure}",
                        f"{accuracy:.1%} at {e:g}, DPSGD at {later:g}",
                        e,
                        verdict=at_budget(data, e, later, accuracy),
                        size=SIZES[data],
                        headline=True,
                    )
                    for data, shown, figure, e, later, accuracy in (
                        ("mnist", "MNIST", "constant epochs (figure 2)", 2.5, 5.0, 0.96),
                        ("mnist", "MNIST", "best of all settings (figure 3)", 3.2, 6.0, 0.961),
                        ("cifar10", "CIFAR-10", "constant epochs (figure 2)", 3.6, 5.0, 0.555),
                        ("cifar10", "CIFAR-10", "best of all settings (figure 3)", 3.0, 4.2, 0.55),
                    )
                ),
                Stated(
                    "a further point of accuracy", "costs more and more ε", verdict=dearer_points, size=SIZES["mnist"]
                ),
            ),
            needs=("mnist",),
        ),
    ),
)
