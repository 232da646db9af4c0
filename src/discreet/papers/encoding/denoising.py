"""004, figures 4, 5 and 7: does denoising help? And all laws of noise, with and without it."""

from collections.abc import Callable, Iterable, Sequence

from discreet.papers.encoding.fitted_envelope import PUBLIC
from discreet.papers.encoding.methods import LAWS, LOOK, METHODS, RATE, RATES, USED, case_of, train, tuned
from discreet.papers.encoding.verdicts import (
    SIZES,
    against_dp_sgd,
    other_distances,
    own_rate,
    sooner,
    student_best,
    whole,
)
from discreet.papers.experiment import ACCURACY, EPOCHS, Case, Experiment, Results, Size, Stated, headline
from discreet.papers.held_out import COPY, SHOWN, in_steps, rate_of
from discreet.report import Axis, Chart, Series

_TRAINED = tuple(LAWS)[:6]  # those that the paper trains with
_GRIDS = {  # for a network with larger gradients, the rule that lengthens steps needs lower ones
    "mnist": {"quick": (0.5, 2.0, 8.0), "usual": RATES, "full": RATES},
    "cifar10": {"quick": (0.125, 0.5, 2.0), "usual": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0), "full": (0.125, 0.25, *RATES)},
}
_ENCODED = {  # where gradients are encoded, which is slow
    "mnist": {"quick": (2.0,), "usual": (1.0, 2.0, 4.0), "full": RATES},
    "cifar10": {"quick": (0.125,), "usual": (0.0625, 0.125, 0.25), "full": (0.0625, 0.125, 0.25, *RATES)},
}
_LEARNING_RATE = Axis("learning rate", "number", log=True)


def _family_cases(size: Size) -> list[Case]:
    epochs = {"quick": 0.25, "usual": 0.75, "full": 60}[size]
    laws = _TRAINED[:3] if size == "quick" else _TRAINED
    rates = {"quick": (RATE,), "usual": (0.5, 2.0), "full": RATES}[size]
    pairs = [(law, denoiser) for law in laws for denoiser in ("none", "KS")]
    return [
        case_of("mnist", size, f"{law} | {denoiser}", epochs=epochs, rate=rate)
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
        Chart("plain", "All noises, nothing denoised", EPOCHS, ACCURACY, lines("none"), note),
        Chart("denoised", "All noises, Kolmogorov-Smirnov", EPOCHS, ACCURACY, lines("KS"), note),
    ]


def _family_found(results: Results) -> str:
    told = []
    for law in results.settings("law"):
        plain, denoised = (_of_family(results, law, d).mean() for d in ("none", "KS"))
        told.append(f"{law} {plain:.1%}, {denoised:.1%}")
    return f"Accuracy without and with the Kolmogorov-Smirnov rule: {'; '.join(told)}."


def _denoise_cases(data: str) -> Callable[[Size], list[Case]]:
    def cases(size: Size) -> list[Case]:
        if size == "full":
            return _full_cases(data)
        mnist = data == "mnist"
        epochs = {"quick": 0.5, "usual": 2 if mnist else 1}[size]
        plain = tuple(m for m in METHODS if "encoded" not in m)[: None if mnist else 2]
        rates, some = _GRIDS[data][size], {"Gaussian, KS as published": _ENCODED[data][size]}
        plain_cases = [case_of(data, size, m, epochs=epochs, rate=rate) for m in plain for rate in some.get(m, rates)]
        return plain_cases + [
            case_of(data, size, "Student-t, encoded, KS", epochs=epochs, rate=rate) for rate in _ENCODED[data][size]
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
    cases: list[Case] = [
        case_of(data, "full", method, epochs=short, rate=rate) | {"held_out": True}
        for method in (*clipped, *encoded, "Algorithm 1 as printed")
        for rate in rates
    ]
    for rate in (TUTORIAL, *(r for r in rates if r != TUTORIAL)):
        cases += [
            case_of(data, "full", method, epochs=long if method in clipped else half, rate=rate) | {"held_out": False}
            for method in (*clipped[:2], *encoded, "Algorithm 1 as printed")
        ]
    return cases


def common_rate(results: Results) -> float:
    """The learning rate that did best on held-out rows on average over methods, among those that all were given."""
    methods = [results.where(method=method) for method in results.settings("method")]
    shared = [r for r in results.settings("learning_rate") if all(m.where(learning_rate=r) for m in methods)]

    def average(rate: float) -> float:
        return sum(m.where(learning_rate=rate).held_out() for m in methods)

    return max(shared, key=average, default=RATE)


def _denoise_charts(results: Results) -> Sequence[Chart]:
    name = " and ".join(SHOWN.get(v, v) for v in results.settings("data"))
    data = results.settings("data")[:1] or [""]
    run = [m for m in METHODS if results.where(method=m)]
    held = Results(r for r in results if r.case.get("held_out", True))
    full = bool(whole(results))
    common = TUTORIAL if full else common_rate(results)
    same = (whole(results) if full else results).where(learning_rate=common)
    rates = (held.where(method=m).line(m, "learning_rate", colour=LOOK[m]) for m in run)
    untuned = (same.where(method=m).course(m, colour=LOOK[m]) for m in run)
    best = (_at_own_rate(results, m).course(m, colour=LOOK[m]) for m in run if "published" not in m)
    note = "All at the same proven epsilon. The paper's figures print no numbers."
    steps = Axis("training steps", "count", low=0.0)

    def drawn(key: str, title: str, lines: Iterable[Series]) -> Chart:
        return Chart(key, title, steps, ACCURACY, tuple(in_steps(s, data[0]) for s in lines if s.points), note)

    seen = tuple(line for line in rates if line.points)
    return [
        Chart("rates", f"Accuracy by learning rate, {name}, short trainings", _LEARNING_RATE, ACCURACY, seen, note),
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
    for method in METHODS:
        best = tuned(results, method)
        if best and "published" not in method:
            told.append(f"{method} {best.mean():.1%} ({rate_of(best, results.where(method=method))})")
    return f"At the learning rate that did best on held-out rows: {'; '.join(told)}."


def _denoising(data: str) -> Experiment:
    return Experiment(
        f"denoising-{data}",
        f"Does denoising help on {SHOWN[data]} once DP-SGD's learning rate is tuned as well? (figures 4, 5 and 7)",
        ("" if data == "mnist" else COPY) + USED,
        _denoise_cases(data),
        train,
        _denoise_charts,
        (
            headline(
                "encoded Student-t noise with KS against DP-SGD (figure 4)",
                "noticeably higher accuracies",
                against_dp_sgd("Student-t, encoded, KS", "encoded Student-t, KS"),
                SIZES[data],
            ),
            headline(
                "denoising of Gaussian noise (text with figure 2)",
                "outperforms DPSGD",
                against_dp_sgd("Gaussian, KS", "Gaussian, KS"),
                SIZES[data],
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


EXPERIMENTS = (
    Experiment(
        "families",
        "All noises, with and without denoising (text with figure 2)",
        f"{USED}By default from 0.5 and 2; with --quick all have {RATE:g}.",
        _family_cases,
        train,
        _family_charts,
        (Stated("Student-t among all noises", "performed best", verdict=student_best, size=SIZES["mnist"]),),
        _family_found,
        needs=("mnist",),
    ),
    _denoising("mnist"),
    _denoising("cifar10"),
)
