"""004, figure 6: how large each noise is at equal budget."""

import math
from collections.abc import Sequence

from discreet.accounting import rdp
from discreet.papers.claims import enveloped
from discreet.papers.encoding.methods import LAWS, encoded
from discreet.papers.encoding.verdicts import least_noise
from discreet.papers.experiment import ONE_SEED, Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.report import Axis, Chart, Series

_PARAMETERS = 26_010
_EPSILON = "epsilon"


def _size_cases(size: Size) -> list[Case]:
    budgets = {"quick": (0.25, 4.0), "usual": (0.25, 1.0, 4.0), "full": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)}[size]
    laws = ("Gaussian", "Student-t", "Laplace", "Airy squared") if size == "quick" else tuple(LAWS)
    cases = [{"law": law, "budget": "D2", "value": value} for law in laws for value in budgets]
    return cases + [{"law": law, "budget": _EPSILON, "value": 1.1} for law in laws]


def _size_run(case: Case, place: Place) -> Measured:
    law = LAWS[case["law"]].law
    if case["budget"] == "D2":
        scale = scale_of_order_two(case["law"], case["value"])
        epsilon = None
    else:
        plan = encoded(case["law"], _PARAMETERS, case["value"], None, 60, 60_000, 256)
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
    family = LAWS[law].law
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
        series = (by_order.where(law=law).line(law, "value", measure, colour=i) for i, law in enumerate(LAWS))
        return tuple(line for line in series if line.points)

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


EXPERIMENT = Experiment(
    "noise-size",
    "How large each noise is at equal budget (figure 6)",
    "No training: contributions inside the half-normal envelope of norm 1 and 26,010 coordinates. The scale of "
    "each law is solved for equal Rényi divergence of order 2, as in the figure, and for equal proven epsilon.",
    _size_cases,
    _size_run,
    _size_charts,
    (Stated("Student-t noise (figure 6)", "the least overall noise", verdict=least_noise, headline=True),),
    _size_found,
    seeds=ONE_SEED,
)
