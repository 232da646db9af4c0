"""000, figures 2 to 5: the filter beside DP-SGD, with one learning rate and with one for each."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from discreet import Plan
from discreet.papers.experiment import ACCURACY, EPOCHS, Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.papers.held_out import COPY, SHOWN, Data, chosen, gradients, in_steps, rate_of, size_of
from discreet.papers.tanh_filter.verdicts import (
    SIZES,
    improves,
    keeps_rising,
    less_stable,
    near_one,
    no_effect_of_range,
    on_all,
    other_reading,
    radial_improves,
    stabler_with_k,
    swing,
)
from discreet.papers.train_case import Pair, private
from discreet.report import Axis, Chart
from discreet.stages import presets as methods

_RANGES, _ACTIVE = (1.0, 2.0, 4.0), (1.0, 2.0, 4.0, 8.0)  # c and k; the paper's values can be seen in its figures only
_RATES = (0.15, 0.6, 2.4)  # learning rates to choose from; the first is the tutorial's
_SCALED = 0.01  # k of the scaled filter: at 1 nothing would be left of a gradient
_EPOCHS = {"mnist": {"quick": 1, "usual": 3, "full": 30}, "cifar10": {"quick": 1, "usual": 2, "full": 30}}
_GRID = (0.04, *_RATES, 9.6)  # at the full size
_LONG = 60  # epochs of the tutorial whose values Table I has; the paper names none
_SHORT = 5  # epochs at the full size after which learning rates are compared on held-out rows
_NAMES = {
    "dp-sgd": "DP-SGD",
    "paper": "the paper's filter",
    "radial": "radial tanh",
    "clipped": "filter, then clipped",
    "scaled": "filter over sqrt(n)",
}
_METHODS = tuple(_NAMES)


def _case(
    data: str,
    size: Size,
    method: str,
    *,
    c: float = 1.0,
    k: float = 1.0,
    rate: float = _RATES[0],
    epochs: float | None = None,
) -> Case:
    network = "cnn" if size == "full" else "small"
    epochs = _EPOCHS[data][size] if epochs is None else epochs
    return {
        "data": data, "network": network, "method": method, "c": c, "k": k, "learning_rate": rate, "epochs": epochs,
    }  # fmt: skip


def _figure_cases(data: str) -> Callable[[Size], list[Case]]:
    def cases(size: Size) -> list[Case]:
        if size == "full":
            return _full_cases(data)
        listed = [_case(data, size, "dp-sgd")]
        listed += [_case(data, size, "paper", c=c) for c in _RANGES]
        listed += [_case(data, size, "paper", k=k) for k in _ACTIVE[1:]]
        listed += [_case(data, size, "radial", k=k) for k in (1.0, 4.0)]
        return [*listed, _case(data, size, "clipped"), _case(data, size, "scaled", k=_SCALED)]

    return cases


def _full_cases(data: str) -> list[Case]:
    """The full network: c, both readings of k (tanh(g / k), and k tanh(g / k)), other rates, and the sound form.

    What is compared with c = k = 1 on MNIST is half as long; learning rates are constant, so the longer training is
    read at the same epoch.
    """
    long = _LONG if data == "mnist" else None
    cases = [_case(data, "full", method, epochs=long) for method in ("dp-sgd", "paper")]
    cases += [_case(data, "full", "paper", c=c) for c in _RANGES[1:]]
    cases += [_case(data, "full", "paper", k=k) for k in _ACTIVE[1:]]
    cases += [_case(data, "full", "paper", c=k, k=k) for k in _ACTIVE[1:]]
    cases += [_case(data, "full", m, rate=rate) for m in ("dp-sgd", "paper", "radial") for rate in _RATES[1:]]
    cases.append(_case(data, "full", "radial"))
    short = (_case(data, "full", m, rate=r, epochs=_SHORT) for m in ("dp-sgd", "paper", "radial") for r in _GRID)
    return [*cases, *({**case, "held_out": True} for case in short)]


def _tuned_cases(data: str) -> Callable[[Size], list[Case]]:
    def cases(size: Size) -> list[Case]:
        if size == "full":  # with the figures, whose trainings with held-out rows choose the rates
            return []
        rates = _RATES[::2] if size == "quick" else _RATES
        k = {"scaled": _SCALED}
        return [_case(data, size, m, k=k.get(m, 1.0), rate=rate) for m in _METHODS for rate in rates]

    return cases


def plan_of(case: Case, sampled: dict[str, int], parameters: int) -> Plan:
    """Table I for a case: noise 1.1, delta 1e-5, one example a microbatch."""
    common: dict[str, Any] = {**sampled, "epochs": case["epochs"], "noise": 1.1, "delta": 1e-5}
    if case["method"] == "dp-sgd":
        return methods.dp_sgd(**common)
    filtered = {"c": case["c"], "k": case["k"]}
    if case["method"] == "paper":
        return methods.tanh_filter(**common, **filtered, parameters=parameters, form="paper")
    return methods.tanh_filter(**common, **filtered, variant=case["method"])


def _figure_run(case: Case, place: Place) -> Measured:
    return _train(case, place, choose=case.get("held_out", False))


def _tuned_run(case: Case, place: Place) -> Measured:
    return _train(case, place, choose=True)


def _train(case: Case, place: Place, *, choose: bool) -> Measured:
    data = Data(case["data"], case["network"], choose=choose)
    model = data.model(place)
    plan = plan_of(case, data.sampled, size_of(model))
    every = min(1.0, case["epochs"] / 12)
    measured = private(
        model, data.train, data.test, plan, place, learning_rate=case["learning_rate"], evaluate_every=every
    )
    measured |= {"swing": swing([row[1] for row in measured["curve"]])} | data.validated(model)
    if case["method"] == "paper":
        measured["largest"] = largest_norm(model, data.train, case["c"], case["k"])
    return measured


def largest_norm(model: nn.Module, rows: Pair, c: float, k: float) -> float:
    """The largest l2 norm that a filtered gradient has, among the first 2,000 examples."""
    return max(float((c * torch.tanh(g / k)).norm(dim=1).max()) for g in gradients(model, rows))


# --- what is said of it ----------------------------------------------------------------------------------------------


def tuned(results: Results, method: str) -> Results:
    """A method at the learning rate that did best on held-out rows."""
    return chosen(results.where(method=method), "learning_rate")


def _tuned_found(results: Results) -> str:
    told = []
    for method in _METHODS:
        best = tuned(results, method)
        if best:
            told.append(f"{_NAMES[method]} {best.mean():.1%} ({rate_of(best, results.where(method=method))})")
    sound = [m for m in _METHODS[2:] if tuned(results, m)]
    if not sound or not tuned(results, "dp-sgd"):
        return "; ".join(told)
    best = max(sound, key=lambda m: tuned(results, m).mean("validation"))
    gain = tuned(results, best).mean() - tuned(results, "dp-sgd").mean()
    words = f"the best sound form, {_NAMES[best]}, is {abs(100 * gain):.1f} points "
    words += f"{'above' if gain > 0 else 'below'} DP-SGD"
    return f"With the learning rate chosen on held-out rows: {'; '.join(told)}. At equal proven epsilon {words}."


def _figure_found(results: Results) -> str:
    paper = results.where(method="paper")
    if not paper.all("epsilon") or not paper.values("claimed"):
        return other_reading(results)
    least, claimed = min(paper.all("epsilon")), max(paper.values("claimed"))
    return f"{other_reading(results)} " * bool(other_reading(results)) + (
        f"DP-SGD's accounting would say epsilon {claimed:.3g} of the paper's filter; what is proven of it is "
        f"{least:.1e} or more at delta 1e-5 (c = 1; it grows with c), as one example can move the sum by c sqrt(n)."
    )


# --- charts ----------------------------------------------------------------------------------------------------------

_STEPS = Axis("training steps", "count", low=0.0)


def _figure_charts(output: int, active: int) -> Callable[[Results], Sequence[Chart]]:
    def charts(results: Results) -> Sequence[Chart]:
        name = " and ".join(SHOWN.get(v, v) for v in results.settings("data"))
        results = _shown(results)
        base = results.where(method="dp-sgd").course("DP-SGD", colour=None)
        paper = results.where(method="paper")
        ranges = [paper.where(c=c, k=1.0).course(f"c = {c:g}", colour=i) for i, c in enumerate(_RANGES)]
        widths = [paper.where(c=1.0, k=k).course(f"tanh(g / {k:g})", colour=i) for i, k in enumerate(_ACTIVE)]
        readings = [
            paper.where(c=k, k=k).course(f"{k:g} tanh(g / {k:g})", look="dashed", colour=i)
            for i, k in enumerate(_ACTIVE)
            if k > 1
        ]
        sound = [
            results.where(method=m, k=k).course(f"{_NAMES[m]}{f', k = {k:g}' if m == 'radial' else ''}", colour=i)
            for i, (m, k) in enumerate((("radial", 1.0), ("radial", 4.0), ("clipped", 1.0), ("scaled", _SCALED)))
        ]
        data = results.settings("data")[:1] or [""]
        base, *others = (in_steps(series, data[0]) for series in (base, *ranges, *widths, *readings, *sound))
        counts = [len(_RANGES), len(_ACTIVE), len(readings)]
        ends = list(accumulate(counts))
        ranges, widths, readings, sound = (
            [s for s in others[a:b] if s.points] for a, b in zip([0, *ends], [*ends, len(others)], strict=True)
        )
        note = "The paper's form: nothing useful is proven of it. It prints no numbers to set beside."
        return [
            Chart(f"figure-{output}", f"Output range c, {name}", _STEPS, ACCURACY, (base, *ranges), note),
            Chart(f"figure-{active}", f"Active range k, {name}", _STEPS, ACCURACY, (base, *widths, *readings), note),
            Chart("sound", f"Sound forms, {name}", _STEPS, ACCURACY, (base, *sound), "All at DP-SGD's epsilon."),
        ]

    return charts


def _shown(results: Results) -> Results:
    """What the figures show: trainings on all examples at the tutorial's rate."""
    whole = on_all(results) if any("held_out" in r.case for r in results) else results
    return Results(r for r in whole if r.case["learning_rate"] == _RATES[0])


def _tuned_charts(results: Results) -> Sequence[Chart]:
    name = " and ".join(SHOWN.get(v, v) for v in results.settings("data"))
    look = {"dp-sgd": None} | {m: i for i, m in enumerate(_METHODS[1:])}
    against = Axis("learning rate", "number", log=True)
    rates = (results.where(method=m).line(_NAMES[m], "learning_rate", colour=look[m]) for m in _METHODS)
    along = (tuned(results, m).course(_NAMES[m], colour=look[m]) for m in _METHODS)
    note = "All but the paper's filter at equal proven epsilon."
    return [
        Chart("rates", f"Accuracy by learning rate, {name}", against, ACCURACY, tuple(rates), note),
        Chart("tuned", f"At the learning rate chosen, {name}", EPOCHS, ACCURACY, tuple(along), note),
    ]


_USED = (
    "Table I: noise 1.1, delta 1e-5, batches of 256, microbatches of 1; learning rate 0.15 is that of the TensorFlow "
    "Privacy tutorial whose other values Table I has, as the paper names none, nor its epochs or its network. Below "
    "size full a network of 8 filters on halved images, and fewer epochs. Epsilon by PLD, zero-out adjacency. "
)


def _figures(data: str, output: int, active: int) -> Experiment:
    first = "" if data == "mnist" else COPY
    return Experiment(
        data,
        f"Output range c and active range k on {SHOWN[data]} (figures {output} and {active})",
        first + _USED,
        _figure_cases(data),
        _figure_run,
        _figure_charts(output, active),
        (
            Stated(
                f"filter against DP-SGD (figure {output})",
                "better",
                published=_PAPER,
                verdict=improves,
                size=SIZES[data],
                headline=True,
            ),
            Stated("radial tanh, which is sound", "not there", sound=_SOUND, verdict=radial_improves, size=SIZES[data]),
            Stated(f"stability (figure {output})", "some instability", verdict=less_stable, size=SIZES[data]),
            Stated(
                f"output range c (figure {output})",
                "no significant effect",
                verdict=no_effect_of_range,
                size=SIZES[data],
            ),
            Stated(
                f"larger k (figure {active})", "more stable, lower accuracy", verdict=stabler_with_k, size=SIZES[data]
            ),
            Stated(
                f"saturation, and larger k (figure {active})",
                "retains the ascending trend",
                verdict=keeps_rising,
                size=SIZES[data],
            ),
            Stated("norms of filtered gradients", "unity is not far from reality", verdict=near_one, size=SIZES[data]),
        ),
        _figure_found,
        _shown,
        needs=(data,),
    )


def _tuned(data: str) -> Experiment:
    first = "" if data == "mnist" else COPY
    return Experiment(
        f"{data}-tuned",
        f"Sound forms and DP-SGD at equal proven epsilon on {SHOWN[data]}, a learning rate for each",
        first + _USED + "Trained without the last 10,000 training rows, at the same sampling rate; learning rates are "
        f"chosen on those rows from {', '.join(f'{r:g}' for r in _RATES)}.",
        _tuned_cases(data),
        _tuned_run,
        _tuned_charts,
        (),
        _tuned_found,
        needs=(data,),
    )


_PAPER, _SOUND = {"method": "paper", "c": 1.0, "k": 1.0}, {"method": "radial", "k": 1.0}


EXPERIMENTS = (_figures("mnist", 2, 4), _figures("cifar10", 3, 5), _tuned("mnist"), _tuned("cifar10"))
