"""003, figure 2: a pattern of one user, and of many, by DP-FedAvg."""

import math
from collections.abc import Sequence
from functools import partial

import torch

from discreet.audit.sanity.patterns import UserSetting, point
from discreet.federated import Local
from discreet.models import build
from discreet.papers.experiment import Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.papers.verdicts import QUEUED, Extent, Verdict
from discreet.report import Axis, Chart
from discreet.stages import presets as methods

ROUNDS = Extent(2_000, 10_000, None, "rounds and records; the paper does not say how many rounds, so 2,000 stand in")
_PATTERNS = (("centralised", 10), ("distributed", 10), ("distributed", 1_000))


def _patterns_cases(size: Size) -> list[Case]:
    rounds = {"quick": 60, "usual": 150, "full": 2_000}[size]
    sweep = _PATTERNS if size == "quick" else (*_PATTERNS, ("centralised", 5), ("distributed", 100))
    return [
        {"where": where, "patterns": count, "form": form, "rounds": rounds}
        for where, count in sweep
        for form in ("paper", "none")
    ]


def _patterns_run(case: Case, place: Place) -> Measured:
    plan = methods.dp_fedavg(users=1_000, users_per_round=50, rounds=case["rounds"], noise=1.0, norm=0.5)
    setting = UserSetting(
        partial(build, "mlp", (1, 28, 28), 10, hidden=(64,)),
        plan,
        local=Local(learning_rate=0.05, epochs=5, batch_size=None),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=2.0),
    )
    hidden = case["form"] == "paper"
    torch.manual_seed(place.seed)
    measured = point(
        setting if hidden else setting.without_privacy(),
        case["where"],
        case["patterns"],
        hidden,
        1,
        lambda what, done, total: place.tell(done, total),
    )
    size = {"epochs": case["rounds"], "examples": 10_000, "parameters": 50_890}
    epsilon = plan.guarantee().epsilon if hidden else None
    return {"accuracy": measured.mean, "epsilon": epsilon, "delta": plan.delta, **size}


def _patterns_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(
        results.where(where=where, form=form).line(f"{where}, {name}", "patterns", look=look, colour=i)
        for i, where in enumerate(("centralised", "distributed"))
        for form, name, look in (("paper", "private", "line"), ("none", "without privacy", "dashed"))
    )
    x = Axis("records of 10,000 that have the pattern", "count", log=True)
    y = Axis("probability of the pattern's label", "share", low=0.0)
    return [Chart("patterns", "One user's pattern, and everybody's", x, y, lines)]


def _pattern_verdict(where: str, count: int, *, learned: bool) -> Stated:
    cases = {"where": where, "patterns": count}

    def verdict(results: Results) -> Verdict:
        arms = tuple(results.where(**cases, form=form) for form in ("paper", "none"))
        ours, plain = (arm.mean() for arm in arms)
        if math.isnan(ours + plain):
            return QUEUED
        words = f"{ours:.1%} with privacy, {plain:.1%} without; learned is above 30 %, chance is 10 %"
        if plain <= 0.3:  # the paper says that it is learned without privacy
            return Verdict("undecided", f"without privacy it is not learned either: {words}", arms)
        return Verdict("reproduces" if (ours > 0.3) == learned else "refuted", words, arms)

    what = f"{where}, {count:,} records with the pattern"
    theirs = "learned with privacy too" if learned else "not learned with privacy"
    return Stated(what, theirs, published={**cases, "form": "paper"}, verdict=verdict, size=ROUNDS)


EXPERIMENT = Experiment(
    "figure-2",
    "Patterns of one user and of all, by DP-FedAvg",
    "1,000 users with 10 images of noise each; a network of 64 hidden units, 50 users a round, noise 1, "
    "updates clipped to 0.5, 150 rounds (60 with --quick, 2,000 with --full; the paper does not say). The "
    "probability of the pattern's label on fresh noise with the pattern; the label is drawn anew in each run.",
    _patterns_cases,
    _patterns_run,
    _patterns_charts,
    (
        _pattern_verdict("centralised", 10, learned=False),
        _pattern_verdict("distributed", 10, learned=False),
        _pattern_verdict("distributed", 1_000, learned=True),
    ),
)
