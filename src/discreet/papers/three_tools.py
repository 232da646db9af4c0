"""003, van der Veen et al. 2018: three tools for practical differential privacy.

The paper clips each of the ten tensors of a small AlexNet on its own and says epsilon 20, by moments that are added up
as if each tensor had a batch of its own. Their form here has the noise at which that accounting says 20; the sound form
is the same with the noise at which 20 is proven.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.accounting.calibrate import calibrate
from discreet.accounting.events import Event
from discreet.audit.sanity.patterns import UserSetting, point
from discreet.federated import Local
from discreet.models.networks import build
from discreet.papers import alpha
from discreet.papers.alexnet import TESTED, alexnet, images, random_noise
from discreet.papers.course import SAVED_EVERY, Pair, keep, ordinary, private, seeded, size_of_run
from discreet.papers.experiment import Case, Experiment, Measured, Paper, Place, Result, Results, Size, Stated
from discreet.papers.verdicts import QUEUED, Extent, Verdict, above, points, reached
from discreet.report.charts import Axis, Chart, Series
from discreet.stages import presets as methods
from discreet.stages.bounds import AdaptiveClip, PerLayerClip
from discreet.stages.mechanism import Mechanism
from discreet.stages.noise import Gaussian
from discreet.stages.plan import Plan
from discreet.stages.planning import solve
from discreet.stages.sampling import Poisson

SAID = 20.0  # the paper's epsilon
TENSORS = 10
_NORM = 2.0
CHUNK = 128  # rows at a time: what a cache holds
PLANNED = 60  # epochs after which the paper says epsilon 20
_EPOCHS, _ACCURACY = Axis("epochs", "number", low=0.0), Axis("accuracy on the test set", "share", low=0.0)


# --- plans -----------------------------------------------------------------------------------------------------------


def constant(
    examples: int, batch_size: int, epochs: float, form: str, *, norm: float = _NORM, planned: float | None = None
) -> Plan:
    """Each tensor clipped to 2, with noise each, so that epsilon is said, or proven, to be 20; delta is N^-1.1.

    That is after `planned` epochs, where the training is a part of those.
    """
    sampling, delta = Poisson(examples=examples, batch_size=batch_size), examples**-1.1
    rate, steps = batch_size / examples, sampling.steps_for(planned or epochs)
    each = noise_as_said(rate, steps, delta)
    mechanism = Mechanism(PerLayerClip(norm), Gaussian(each / math.sqrt(TENSORS)), "each")
    plan = Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=delta)
    return _part(plan if form == "paper" else calibrate(plan, SAID), epochs)


def _part(plan: Plan, epochs: float) -> Plan:
    """The first epochs of a plan, with its noise."""
    return replace(plan, steps=plan.sampling.steps_for(epochs))


def noise_as_said(rate: float, steps: int, delta: float, epsilon: float = SAID) -> float:
    """The noise of each tensor at which the paper's accounting says epsilon."""
    from scipy.optimize import brentq

    from discreet.accounting import rdp

    orders = tuple(float(a) for a in range(2, 34))  # those of the moments accountant

    def excess(log_noise: float) -> float:
        events = [Event(rate, math.exp(log_noise), steps)] * TENSORS
        return rdp.classic(rdp.divergences(events, orders), orders, delta) - epsilon

    return math.exp(float(brentq(excess, math.log(0.2), math.log(100.0), xtol=1e-6)))


def adaptive(model: nn.Module, case: Case) -> Plan:
    """Norms that follow the gradients' noisy means, started on random noise, at the same budget."""
    plan = methods.adaptive_clipping(
        examples=case["examples"],
        batch_size=128,
        epochs=case.get("planned", case["epochs"]),
        epsilon=SAID,
        question_noise=5.0 if case["doubled"] == "noise on norms" else 2.5,
        form="paper",
    )
    bound = plan.mechanism.bound
    assert isinstance(bound, AdaptiveClip)
    bound = replace(bound, reach=4.0 if case["doubled"] == "beta" else 2.0, factor=case.get("alpha", bound.factor))

    def on_noise(model: nn.Module) -> Tensor:
        x, y = random_noise(64, seed=0)
        return F.cross_entropy(model(x), y, reduction="none")

    plan = replace(plan, mechanism=replace(plan.mechanism, bound=bound.from_noise(model, on_noise)))
    return _part(plan if case["form"] == "paper" else calibrate(plan, SAID), case["epochs"])


def proven(results: Results) -> str:
    """What is said and what is proven, in a sentence."""
    parts = [
        f"{words} {max(results.where(form=form).all('epsilon')):.4g}"
        for form, words in (("paper", "as published up to"), ("sound", "in the sound form"))
        if results.where(form=form).all("epsilon")
    ]
    return f"Epsilon is said to be {SAID:g}; proven is {' and '.join(parts)}." if parts else ""


def _longest_of_each(results: Results) -> Results:
    """Of every case the longest training: what is set beside the paper's figures."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for r in results:
        if not r.case.get("held_out") and r.case.get("norm", _NORM) == _NORM:
            groups.setdefault(tuple(sorted((k, v) for k, v in r.case.items() if k != "epochs")), []).append(r)
    return Results(r for group in groups.values() for r in longest(Results(group)))


SIZE = Extent(PLANNED, 50_000, 1_387_786)
ROUNDS = Extent(2_000, 10_000, None, "rounds and records; the paper does not say how many rounds, so 2,000 stand in")


def longest(results: Results) -> Results:
    """Those of the largest number of epochs, without those that are tested on held-out images."""
    some = Results(r for r in results if not r.case.get("held_out"))
    most = max((r.case["epochs"] for r in some), default=0)
    return Results(r for r in some if r.case["epochs"] == most)


def shorter(results: Results) -> tuple[Results, ...]:
    """The others, for their spread over seeds, grouped by length."""
    some = Results(r for r in results if not r.case.get("held_out"))
    lengths = sorted({r.case["epochs"] for r in some})[:-1]
    return tuple(some.where(epochs=epochs) for epochs in lengths)


def _compared(theirs: float, fields: Case) -> Callable[[Results], Verdict]:
    """A figure of theirs beside ours: the longest training, with the spread of shorter ones."""

    def verdict(results: Results) -> Verdict:
        ours = results.where(**fields)
        return reached(longest(ours), theirs, *shorter(ours))

    return verdict


def _said(case: Case) -> dict[str, float | None]:
    return {"claimed": SAID if case.get("form") == "paper" else None}


# --- figure 1: random labels on noise, and CIFAR-10 ------------------------------------------------------------------


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
    found: Measured
    if case["form"] == "none":
        plain: dict[str, Any] = {"optimizer": "adam", "learning_rate": 3e-4}
        if case["plain"] == "sgd":
            plain = {"learning_rate": case["rate"], "momentum": 0.9}
        found = ordinary(model, train, test, place, epochs=epochs, batch_size=128, seen=seen, **plain)
    else:
        plan = constant(case["examples"], 128, epochs, "paper", planned=case.get("planned"))
        every = 1.0 if case["plain"] == "sgd" else max(1.0, epochs / 10)
        more: dict[str, Any] = {"momentum": 0.9, "seen": seen, "evaluate_every": every, "chunk": CHUNK}
        found = private(model, train, test, plan, place, learning_rate=case["rate"], **more)
    curve: list[list[float]] = found["curve"]
    gaps = [] if seen is None else [[row[0], row[-1] - row[1]] for row in curve]
    return {**found, **_said(case), **({"gap": gaps[-1][1], "gaps": gaps} if gaps else {})}


def _memory_charts(results: Results) -> Sequence[Chart]:
    forms = (("private, said to be epsilon 20", "paper"), ("without privacy", "none"))

    def lines(data: str) -> tuple[Series, ...]:
        return tuple(results.where(data=data, form=f).course(name, colour=i) for i, (name, f) in enumerate(forms))

    gaps = tuple(
        _gaps(results.where(data="cifar10", form=f)).course(name, colour=i) for i, (name, f) in enumerate(forms)
    )
    seen, apart = Axis("accuracy on what was trained on", "share", low=0.0), Axis("training less test", "share")
    return [
        Chart("noise", "1a: random labels on noise", _EPOCHS, seen, lines("noise")),
        Chart("cifar10", "1b: CIFAR-10 (JPEG copy)", _EPOCHS, _ACCURACY, lines("cifar10")),
        Chart("gap", "1c: CIFAR-10, the gap to training", _EPOCHS, apart, gaps),
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


# --- figure 2: patterns of users -------------------------------------------------------------------------------------

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
    found = point(
        setting if hidden else setting.without_privacy(),
        case["where"],
        case["patterns"],
        hidden,
        1,
        lambda what, done, total: place.tell(done, total),
    )
    size = {"epochs": case["rounds"], "examples": 10_000, "parameters": 50_890}
    epsilon = plan.guarantee().epsilon if hidden else None
    return {"accuracy": found.mean, "epsilon": epsilon, "delta": plan.delta, **size}


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


# --- figure 3: lengths of gradients ----------------------------------------------------------------------------------


def _norms_cases(size: Size) -> list[Case]:
    examples, epochs = {"quick": (2_000, 3), "usual": (4_000, 4), "full": (50_000, 30)}[size]
    return [{"examples": examples, "epochs": epochs, "rate": 0.01}]


def _norms_run(case: Case, place: Place) -> Measured:
    """Norms of a batch's gradient by tensor, each point the mean of a twelfth of the training."""
    (x, y), test = images(case["examples"])
    model = seeded(alexnet, place)
    optimizer = torch.optim.SGD(model.parameters(), lr=case["rate"], momentum=0.9)
    steps, batch = case["epochs"] * len(x) // 128, 128
    norms, order, kept, saved = [], torch.randperm(0), place.folder / "checkpoint.pt", time.monotonic()
    if kept.is_file():
        state = torch.load(kept, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        norms, order = state["norms"], state["order"]
    for step in range(len(norms), steps):
        order = order if len(order) >= batch else torch.randperm(len(x))
        rows, order = order[:batch], order[batch:]
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        norms.append([float(p.grad.norm()) for p in model.parameters() if p.grad is not None])
        optimizer.step()
        place.tell(step + 1, steps)
        if time.monotonic() - saved > SAVED_EVERY:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "norms": norms, "order": order}
            keep(kept, state | {"random": torch.get_rng_state()})
            saved = time.monotonic()
    parts = torch.tensor(norms).tensor_split(min(12, steps))
    ends = torch.tensor([len(part) for part in parts]).cumsum(0) * batch / len(x)
    rows = [[float(end), *part.mean(0).tolist()] for end, part in zip(ends, parts, strict=True)]
    found = torch.tensor([row[1:] for row in rows])
    change = torch.maximum(found[0] / found[-1], found[-1] / found[0])
    return {
        "names": [
            f"layer {1 + i // 2}, {name.rpartition('.')[2]}" for i, (name, _) in enumerate(model.named_parameters())
        ],
        "curve": rows,
        "change": float(change.max()),  # of the tensor whose norm changed most
        "spread": float(found[-1].max() / found[-1].min()),
        "accuracy": float((model(test[0][:1000]).argmax(1) == test[1][:1000]).double().mean()),
        "epsilon": None,
        **size_of_run(model, (x, y), case["epochs"], steps),
    }


def _norms_charts(results: Results) -> Sequence[Chart]:
    names = results[0].measured["names"]
    lines = tuple(results.course(name, 0, i + 1, colour=i) for i, name in enumerate(names))
    y = Axis("norm of a batch's gradient", "number", log=True)
    return [Chart("norms", "Lengths of gradients by tensor, without privacy", _EPOCHS, y, lines)]


def _factor(measure: str, words: str) -> Stated:
    def verdict(results: Results) -> Verdict:
        found = results.mean(measure)
        if math.isnan(found):
            return QUEUED
        return Verdict("reproduces" if found >= 2 else "refuted", f"by a factor of {found:.1f}", (results,))

    return Stated(words, "very different" if measure == "change" else "may differ", verdict=verdict, size=SIZE)


# --- figure 4: clipping that adapts ----------------------------------------------------------------------------------


def _full_clipping() -> list[Case]:
    """The norm searched for on held-out images, then 60 epochs; and three seeds of six epochs, with all variants."""
    common = {"examples": 50_000, "rate": 0.01, "planned": PLANNED}
    fixed, moving = {"clipping": "constant", "norm": 2.0}, {"clipping": "adaptive"}
    made: list[Case] = [
        {"clipping": "constant", "form": "paper", "doubled": "nothing", "norm": norm, "held_out": 10_000, "epochs": 3}
        | common
        for norm in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    for epochs in (6, 60):
        made += [
            {**which, "form": form, "doubled": "nothing", "epochs": epochs} | common
            for form in ("paper", "sound")
            for which in (fixed, *({"clipping": "constant", "norm": n} for n in (0.5, 1.0, 4.0)), moving)
        ]
    made += [{**moving, "form": "paper", "doubled": d, "epochs": 6} | common for d in ("beta", "noise on norms")]
    return made


def _clipping_cases(size: Size) -> list[Case]:
    if size == "full":
        return _full_clipping()
    length = _length(size)
    made: list[Case] = [
        {"clipping": clipping, "form": form, "doubled": "nothing"} | length
        for clipping in ("constant", "adaptive")
        for form in (("paper",) if size == "quick" else ("paper", "sound"))
    ]
    return made


def _clipped(clipping: str, form: str, doubled: str = "nothing") -> dict[str, str]:
    return {"clipping": clipping, "form": form, "doubled": doubled}


def _length(size: Size) -> dict[str, float]:
    """Examples, epochs and the learning rate at a batch size of 128."""
    examples, epochs, rate = {"quick": (4_000, 1, 0.1), "usual": (10_000, 1, 0.1), "full": (50_000, 30, 0.01)}[size]
    return {"examples": examples, "epochs": epochs, "rate": rate}


def _clipping_run(case: Case, place: Place) -> Measured:
    train, test = images(case["examples"], case.get("held_out", 0))
    model, examples = seeded(alexnet, place), len(train[0])
    more = {"norm": case.get("norm", _NORM), "planned": case.get("planned")}
    fixed = case["clipping"] == "constant"
    plan = constant(examples, 128, case["epochs"], case["form"], **more) if fixed else adaptive(model, case)
    return _trained(model, train, test, plan, place, case["rate"]) | _said(case)


def _trained(model: nn.Module, train: Pair, test: Pair, plan: Plan, place: Place, rate: float) -> Measured:
    epochs = plan.sampling.epochs_in(plan.steps)
    every = 1.0 if len(train[0]) >= 40_000 else max(0.25, epochs / 20)
    return private(model, train, test, plan, place, learning_rate=rate, evaluate_every=every, chunk=CHUNK)


def _clipping_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(
        longest(results.where(**_clipped(clipping, form))).course(f"{clipping}, {name}", look=look, colour=i)
        for i, clipping in enumerate(("constant", "adaptive"))
        for form, name, look in (("paper", "as published", "line"), ("sound", "epsilon 20 proven", "dashed"))
        if longest(results.where(**_clipped(clipping, form)))
    )
    printed = tuple(
        Series(f"{name}, the paper's", ((float(PLANNED), told),), "hollow", i)
        for i, (name, told) in enumerate((("constant", 0.616), ("adaptive", 0.635)))
    )
    title = "Figure 4: clipping norms that adapt, CIFAR-10 (JPEG copy)"
    return [Chart("clipping", title, _EPOCHS, _ACCURACY, (*lines, *printed))]


def chosen_norm(results: Results) -> float:
    """The constant norm that is best on held-out images; 2 where none was searched for."""
    held = Results(r for r in results if r.case.get("held_out"))
    return max(held.settings("norm"), key=lambda norm: held.where(norm=norm).mean(), default=_NORM)


def _at_norm(results: Results, form: str) -> Results:
    """Constant clipping to the norm that was chosen, or to 2 where that has not been run."""
    some = Results(r for r in results.where(**_clipped("constant", form)) if not r.case.get("held_out"))
    best = Results(r for r in some if r.case.get("norm", _NORM) == chosen_norm(results))
    return best or Results(r for r in some if r.case.get("norm", _NORM) == _NORM)


def _better(results: Results) -> Verdict:
    fixed, moving = _at_norm(results, "paper"), results.where(**_clipped("adaptive", "paper"))
    if not fixed or not moving:
        return QUEUED
    ours, base = longest(moving), longest(fixed)
    gain = ours.mean() - base.mean()
    norm = base[0].case.get("norm", _NORM)
    words = f"adaptive {ours.mean():.1%}, constant norm {norm:g} {base.mean():.1%}: {points(gain)}"
    if ours[0].case["epochs"] != base[0].case["epochs"]:
        return Verdict("undecided", f"{words}, of unequal lengths so far", (ours, base))
    higher = above(ours, base, *shorter(moving), *shorter(fixed))
    if higher is None:
        return Verdict("undecided", f"{words}, within the seeds' spread or without one", (ours, base))
    return Verdict("reproduces" if higher else "refuted", words, (ours, base))


def _robust(what: str) -> Stated:
    case = _clipped("adaptive", "paper", what)

    def verdict(results: Results) -> Verdict:
        ours, base = results.where(**case), results.where(**_clipped("adaptive", "paper"))
        if not ours or not base:
            return QUEUED
        base = base.where(epochs=ours[0].case["epochs"])
        off = ours.mean() - base.mean()
        words = f"{points(off)} after {ours[0].case['epochs']:g} epochs"
        return Verdict("reproduces" if abs(off) < 0.02 else "refuted", words, (ours, base))

    return Stated(f"{what} doubled", "very similar", published=case, verdict=verdict, size=SIZE)


# --- figure 5: noise an example --------------------------------------------------------------------------------------


def _sizes_cases(size: Size) -> list[Case]:
    powers = range(4, 14, 3) if size == "quick" else range(4, 15)
    return [{"epsilon": epsilon, "batch_size": 2**k} for epsilon in (1.0, 4.0) for k in powers]


def _sizes_run(case: Case, place: Place) -> Measured:
    plan = solve(examples=60_000, batch_size=case["batch_size"], epochs=10, epsilon=case["epsilon"], delta=60_000**-1.1)
    noise = plan.mechanism.noise.scale
    assert noise is not None
    return {"noise": noise, "per_example": noise / case["batch_size"], "epsilon": plan.guarantee().epsilon}


def _sizes_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(
        results.where(epsilon=e).line(f"epsilon {e:g}", "batch_size", "per_example", colour=i)
        for i, e in enumerate(results.settings("epsilon"))
    )
    x, y = Axis("batch size", "count", log=True), Axis("noise multiplier / batch size", "number", log=True)
    return [Chart("noise-per-example", "Noise an example, 10 epochs of 60,000", x, y, lines)]


def _dramatically(results: Results) -> Verdict:
    least, most = min(results.settings("batch_size")), max(results.settings("batch_size"))
    ratios = [
        results.where(epsilon=e, batch_size=least).mean("per_example")
        / results.where(epsilon=e, batch_size=most).mean("per_example")
        for e in results.settings("epsilon")
    ]
    if any(math.isnan(r) for r in ratios):
        return QUEUED
    words = f"{min(ratios):.0f} times less at {most:,} than at {least}"
    return Verdict("reproduces" if min(ratios) > 2 else "refuted", words, (results,))


# --- table 1: batch sizes --------------------------------------------------------------------------------------------

_BATCHES = ((128, True, 0.616), (512, True, 0.642), (1024, True, 0.669), (1024, False, 0.472))


def _batches_cases(size: Size) -> list[Case]:
    if size == "full":  # half the paper's epochs, at the noise of its 60; and the spread of shorter ones
        return [
            {"batch_size": b, "scaled": scaled, "form": form, "examples": 50_000, "rate": 0.01}
            | {"epochs": epochs, "planned": PLANNED}
            for epochs in (6, 30)
            for form in ("paper", "sound")
            for b, scaled, _ in _BATCHES
        ]
    made: list[Case] = [
        {"batch_size": b, "scaled": scaled, "form": "paper"} | _length(size) for b, scaled, _ in _BATCHES
    ]
    if size != "quick":
        made += [{"batch_size": b, "scaled": True, "form": "sound"} | _length(size) for b in (128, 1024)]
    return made


def _batches_run(case: Case, place: Place) -> Measured:
    train, test = images(case["examples"])
    length = (case["examples"], case["batch_size"], case["epochs"])
    plan = constant(*length, case["form"], planned=case.get("planned"))
    rate = case["rate"] * (case["batch_size"] / 128 if case["scaled"] else 1)
    return _trained(seeded(alexnet, place), train, test, plan, place, rate) | _said(case)


def _batches_charts(results: Results) -> Sequence[Chart]:
    lines = tuple(
        longest(results.where(scaled=scaled, form=form)).line(name, "batch_size", look=look, colour=i)
        for i, (scaled, form, name, look) in enumerate(
            (
                (True, "paper", "learning rate scaled, as published", "line"),
                (False, "paper", "learning rate not scaled", "points"),
                (True, "sound", "learning rate scaled, epsilon 20 proven", "dashed"),
            )
        )
        if results.where(scaled=scaled, form=form)
    )
    x = Axis("batch size", "count", log=True)
    scaled = tuple((float(b), told) for b, with_rate, told in _BATCHES if with_rate)
    printed = (
        Series("learning rate scaled, the paper's", scaled, "hollow", 0),
        Series("learning rate not scaled, the paper's", ((1024.0, 0.472),), "hollow", 1),
    )
    title = "Table 1: batch size, CIFAR-10 (JPEG copy)"
    return [Chart("batch-sizes", title, x, _ACCURACY, (*lines, *printed))]


def _large(results: Results) -> Verdict:
    groups = [
        results.where(batch_size=b, scaled=s, form="paper") for b, s in ((128, True), (1024, True), (1024, False))
    ]
    if not all(groups):
        return QUEUED
    small, large, base = (longest(group) for group in groups)
    told = f"{small.mean():.1%} at 128, {large.mean():.1%} at 1,024, {base.mean():.1%} at 1,024 with the base rate"
    if len({group[0].case["epochs"] for group in (small, large, base)}) > 1:
        return Verdict("undecided", f"{told}, of unequal lengths so far", (small, large, base))
    spread = [part for group in groups for part in shorter(group)]
    wins = [above(large, other, *spread) for other in (small, base)]
    if any(win is None for win in wins):
        return Verdict("undecided", f"{told}: within the seeds' spread, or none is known", (small, large, base))
    return Verdict("reproduces" if all(wins) else "refuted", told, (small, large, base))


_SHORT = (
    "The small AlexNet on the middle 28 x 28 pixels of CIFAR-10 (a JPEG copy), each image scaled by itself, SGD "
    "without momentum. The default is one epoch of 10,000 examples, --quick of 4,000, with a learning rate of 0.1 at "
    "128, ten times the paper's for a training so short; --full has the paper's 50,000 with 0.01, 60 epochs in figure "
    "4 and half of them in Table 1, at the noise of 60. In each the noise is that at which epsilon is said (as "
    "published) or proven to be 20; delta is N^-1.1, zero-out. Short trainings are tested on 2,500 images."
)

PAPER = Paper(
    "003",
    "Three tools for practical differential privacy (van der Veen et al. 2018)",
    (
        Experiment(
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
            _longest_of_each,
            needs=("cifar10",),
        ),
        Experiment(
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
        ),
        Experiment(
            "figure-3",
            "Lengths of gradients over a training",
            "The small AlexNet without privacy on CIFAR-10 (a JPEG copy), SGD with momentum, batches of 128; 4 epochs "
            "of 4,000 examples (3 of 2,000 with --quick, 30 of 50,000 with --full).",
            _norms_cases,
            _norms_run,
            _norms_charts,
            (
                _factor("change", "norms at the beginning and at the end"),
                _factor("spread", "norms of one tensor and of another"),
            ),
            needs=("cifar10",),
        ),
        Experiment(
            "figure-4",
            "Clipping norms that adapt, against constant ones",
            _SHORT
            + " With --full the constant norm is searched for on held-out images, as the paper did; otherwise it is 2.",
            _clipping_cases,
            _clipping_run,
            _clipping_charts,
            (
                *(
                    Stated(
                        f"{name} norms",
                        theirs,
                        SAID,
                        _clipped(name, "paper"),
                        _clipped(name, "sound"),
                        verdict=_compared(theirs, _clipped(name, "paper")),
                        size=SIZE,
                    )
                    for name, theirs in (("constant", 0.616), ("adaptive", 0.635))
                ),
                Stated("adaptive against constant", "from 61.6 % to 63.5 %", verdict=_better, size=SIZE, headline=True),
                _robust("beta"),
                _robust("noise on norms"),
            ),
            proven,
            _longest_of_each,
            needs=("cifar10",),
        ),
        Experiment(
            "alpha",
            "alpha of the adaptive clipping on three data sets",
            "The tutorials' CNN by the paper's rule and noise, one norm a tensor, batches of 256, three epochs (fewer "
            "below size full) without the last 10,000 training rows, which choose the learning rate of each alpha. "
            "CIFAR-100 is not here; Fashion-MNIST stands in for it.",
            alpha.cases,
            alpha.run,
            alpha.charts,
            (Stated("alpha = 1.0", "near the optimum for all data sets", verdict=alpha.near_optimum, size=alpha.SIZE),),
            seeds={"quick": 1, "usual": 1, "full": 1},
            needs=("mnist",),
        ),
        Experiment(
            "figure-5",
            "Noise an example against batch size",
            "10 epochs of 60,000 examples, the noise solved by privacy-loss distributions (the paper: the moments "
            "accountant) for epsilon 1 and 4, as the paper does not say which; delta is N^-1.1. Nothing is trained.",
            _sizes_cases,
            _sizes_run,
            _sizes_charts,
            (Stated("larger batches", "dramatically less noise an example", verdict=_dramatically),),
            seeds={"quick": 1, "usual": 1, "full": 1},
        ),
        Experiment(
            "table-1",
            "Batch size against accuracy",
            _SHORT,
            _batches_cases,
            _batches_run,
            _batches_charts,
            (
                *(
                    Stated(
                        f"{b:,}{'' if scaled else ' (base learning rate)'}",
                        theirs,
                        SAID,
                        {"batch_size": b, "scaled": scaled, "form": "paper"},
                        {"batch_size": b, "scaled": True, "form": "sound"} if scaled and b != 512 else None,
                        verdict=_compared(theirs, {"batch_size": b, "scaled": scaled, "form": "paper"}),
                        size=SIZE,
                    )
                    for b, scaled, theirs in _BATCHES
                ),
                Stated(
                    "large batches",
                    "beneficial if the learning rate is scaled",
                    verdict=_large,
                    size=SIZE,
                    headline=True,
                ),
            ),
            proven,
            _longest_of_each,
            needs=("cifar10",),
        ),
    ),
)
