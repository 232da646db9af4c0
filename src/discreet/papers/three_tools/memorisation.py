"""003, figure 1: random labels on noise, and CIFAR-10."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from discreet.papers.experiment import EPOCHS, Case, Experiment, Measured, Place, Results, Size, Stated
from discreet.papers.three_tools.alexnet import TESTED, alexnet, images, random_noise
from discreet.papers.three_tools.plans import CHUNK, PLANNED, SAID, constant
from discreet.papers.three_tools.verdicts import ACCURACY, SIZE, longest, longest_of_each, proven, said
from discreet.papers.train_case import ordinary, private, seeded
from discreet.papers.verdicts import QUEUED, Verdict
from discreet.report import Axis, Chart, Series


def _memory_cases(size: Size) -> list[Case]:
    if size == "full":  # one optimizer in both arms; a tenth of the epochs first
        return [
            {"data": data, "form": form, "examples": 50_000, "epochs": epochs, "rate": 0.01, "plain": "sgd"}
            | {"planned": PLANNED}
            for epochs in (6, 60)
            for data in ("noise", "cifar10")
            for form in ("none", "paper")
        ]
    lengths = {"quick": ((200, 30), (2_000, 3)), "usual": ((400, 40), (4_000, 4))}[size]
    rates = {"noise": 0.003, "cifar10": 0.01}
    return [
        {"data": data, "form": form, "examples": examples, "epochs": epochs, "rate": rates[data], "plain": "adam"}
        for data, (examples, epochs) in zip(rates, lengths, strict=True)
        for form in ("paper", "none")
    ]


def _memory_run(case: Case, place: Place) -> Measured:
    noise = random_noise(case["examples"], place.seed) if case["data"] == "noise" else None
    tested = None if noise is None else (noise[0][:10_000], noise[1][:10_000])
    train, test = images(case["examples"]) if noise is None or tested is None else (noise, tested)
    model, epochs = seeded(alexnet, place), case["epochs"]
    seen = None if noise is not None else (train[0][:TESTED], train[1][:TESTED])
    measured: Measured
    if case["form"] == "none":
        plain: dict[str, Any] = {"optimizer": "adam", "learning_rate": 3e-4}
        if case["plain"] == "sgd":
            plain = {"learning_rate": case["rate"], "momentum": 0.9}
        measured = ordinary(model, train, test, place, epochs=epochs, batch_size=128, seen=seen, **plain)
    else:
        plan = constant(case["examples"], 128, epochs, "paper", planned=case.get("planned"))
        every = 1.0 if case["plain"] == "sgd" else max(1.0, epochs / 10)
        more: dict[str, Any] = {"momentum": 0.9, "seen": seen, "evaluate_every": every, "chunk": CHUNK}
        measured = private(model, train, test, plan, place, learning_rate=case["rate"], **more)
    curve: list[list[float]] = measured["curve"]
    gaps = [] if seen is None else [[row[0], row[-1] - row[1]] for row in curve]
    return {**measured, **said(case), **({"gap": gaps[-1][1], "gaps": gaps} if gaps else {})}


def _memory_charts(results: Results) -> Sequence[Chart]:
    forms = (("private, said to be epsilon 20", "paper"), ("without privacy", "none"))

    def lines(data: str) -> tuple[Series, ...]:
        return tuple(results.where(data=data, form=f).course(name, colour=i) for i, (name, f) in enumerate(forms))

    gaps = tuple(
        _gaps(results.where(data="cifar10", form=f)).course(name, colour=i) for i, (name, f) in enumerate(forms)
    )
    seen, apart = Axis("accuracy on what was trained on", "share", low=0.0), Axis("training less test", "share")
    return [
        Chart("noise", "1a: random labels on noise", EPOCHS, seen, lines("noise")),
        Chart("cifar10", "1b: CIFAR-10 (JPEG copy)", EPOCHS, ACCURACY, lines("cifar10")),
        Chart("gap", "1c: CIFAR-10, the gap to training", EPOCHS, apart, gaps),
    ]


def _gaps(results: Results) -> Results:
    return Results(replace(r, measured=r.measured | {"curve": r.measured.get("gaps", [])}) for r in results)


def _prevented(results: Results) -> Verdict:
    arms = tuple(longest(results.where(data="noise", form=form)) for form in ("paper", "none"))
    ours, plain = (arm.mean() for arm in arms)
    if math.isnan(ours + plain):
        return QUEUED
    alike = all(r.case.get("plain") != "adam" for arm in arms for r in arm)
    how = "one optimizer in both" if alike else "by Adam there, so that the arms are not alike"
    words = f"{ours:.1%} with privacy, {plain:.1%} without, {how}; chance is 10 %"
    if plain < 0.2:
        return Verdict("undecided", f"without privacy it is not memorised either: {words}", arms)
    return Verdict("reproduces" if ours < 0.2 else "refuted", words, arms)


def _learned(results: Results) -> Verdict:
    arms = tuple(longest(results.where(data="cifar10", form=form)) for form in ("paper", "none"))
    ours, plain = (arm.mean() for arm in arms)
    if math.isnan(ours + plain):
        return QUEUED
    words = f"{ours:.1%} with privacy, {plain:.1%} without"
    return Verdict("reproduces" if ours > 0.2 and plain - ours < 0.15 else "refuted", words, arms)


EXPERIMENT = Experiment(
    "figure-1",
    "What is memorised: noise with random labels, and CIFAR-10",
    "The small AlexNet with ten tensors clipped to 2 each, batches of 128, SGD with momentum. The default has "
    "400 images of noise for 40 epochs and 4,000 of CIFAR-10 (a JPEG copy) for 4, --quick less; there Adam "
    "trains without privacy, as SGD memorises nothing in so few steps, so that the arms are not alike. --full "
    "has the paper's 50,000, SGD with momentum in both arms, 6 epochs and 60. The "
    "noise is that at which the paper's accounting says epsilon 20; delta is "
    "N^-1.1, zero-out.",
    _memory_cases,
    _memory_run,
    _memory_charts,
    (
        Stated(
            "random labels on noise",
            "not memorised with privacy",
            SAID,
            {"data": "noise", "form": "paper"},
            verdict=_prevented,
            size=SIZE,
            headline=True,
        ),
        Stated(
            "CIFAR-10",
            "a small reduction in performance",
            SAID,
            {"data": "cifar10", "form": "paper"},
            verdict=_learned,
            size=SIZE,
            headline=True,
        ),
    ),
    proven,
    longest_of_each,
    needs=("cifar10",),
)
