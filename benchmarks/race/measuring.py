"""One architecture, measured: exactness against brute force, time and memory beside the step without privacy."""

import copy
import statistics
import time
import warnings
from collections import Counter
from functools import partial

import torch
from by_hand.brute_force import difference, gradient, ragged, real
from torch.profiler import ProfilerActivity, profile

import discreet
from discreet.gradients import Engine
from discreet.gradients import engine as engine_module

WARM_UP, STEPS = 17, 11  # steps 0, 1, 2, 4, 8 and 16 are probed
ALLOWED = 1e-5  # relative to an example's whole gradient, in float32
ISOLATED = 1e-3  # what a gradient may change by when its example is alone: rounding, in another order


def measured(case, *, costs=True):
    """All that is in a line of the table."""
    torch.manual_seed(0)
    model, rows, collate, loss = case.build()
    found = {"parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    alone = [by_itself(model, row, collate, loss) for row in rows]
    found |= exact(model, rows, collate, loss, alone)
    if found["outcome"] in ("refused", "mixes"):
        found |= last_resort(model, rows, collate, loss, alone, refused=found["outcome"] == "refused")
    elif found["outcome"] == "exact" and costs:
        found |= cost(model, rows, collate, loss)
    return found


def by_itself(model, row, collate, loss):
    """An example's gradient in a batch of its own; of zeros if the model takes no such batch."""
    try:
        return gradient(model, loss(model, collate([row]))[0]).nan_to_num()
    except ValueError:
        return torch.zeros(sum(real(p).numel() for p in model.parameters() if p.requires_grad), dtype=torch.float64)


def exact(model, rows, collate, loss, alone):
    """How far norms and sums are from autograd's, one loss at a time; or what the refusal says."""
    batch, units = collate(rows), len(rows)
    losses = loss(model, batch)
    if losses.shape != (units,):
        raise ValueError(f"losses of shape {tuple(losses.shape)} for {units} rows")
    try:
        each = torch.stack([gradient(model, one, retain=True) for one in losses])
    except RuntimeError:  # of a model whose graph allows one backward pass: each loss of a forward pass of its own
        each = torch.stack([gradient(model, loss(model, batch)[i]) for i in range(units)])
    changes = float(((each - torch.stack(alone)).norm(dim=1) / each.norm(dim=1).clamp(min=1e-30)).max())
    random = not torch.equal(losses, loss(model, batch))
    found = {"alone": changes, "random": random, "isolated": random or changes < ISOLATED}
    engine, errors, looks = Engine(model), [], []
    seen, one_by_one, analyse = Counter(), engine_module.OneByOne, engine_module.analyse

    def slow(node, *args):
        seen[node.name().removesuffix("Backward0")] += 1
        return one_by_one(node, *args)

    def look(*args, **more):
        looks.append(1)
        return analyse(*args, **more)

    engine_module.OneByOne, engine_module.analyse = slow, look
    try:
        for _ in range(2):  # the second time by what was learned
            seen.clear()
            looks.clear()
            losses = loss(model, batch)
            each = torch.stack([gradient(model, one, retain=True) for one in losses]) if random else each
            errors.append(
                difference(engine.gradients(losses, units, ragged=partial(ragged, batch, units)), each, engine.layout)
            )
    except discreet.PrivacyError as error:
        return {"outcome": "refused", "why": str(error), **found}
    finally:
        engine_module.OneByOne, engine_module.analyse = one_by_one, analyse
    outcome = "wrong" if max(errors) > ALLOWED else "exact" if found["isolated"] else "mixes"
    kernels = dict(Counter(engine.kernels.values()))
    return {
        "outcome": outcome,
        "error": max(errors),
        "slow": dict(seen),
        "learned": not looks,
        "kernels": kernels,
    } | found


def attached(model, rows, steps, noise, norm):
    """Every row in every step, so that both loops see the same batches."""
    size = len(rows)
    plan = discreet.Plan(
        sampling=discreet.Poisson(examples=size, batch_size=size),
        mechanism=discreet.Mechanism(discreet.Clip(norm), discreet.Gaussian(noise)),
        steps=steps,
        delta=1e-5,
    )
    return discreet.attach(model, plan, seed=0)


def last_resort(model, rows, collate, loss, alone, *, refused):
    """The same with a loss that the library can call: is it taken one example at a time, and exactly?"""
    norm = max(float(torch.stack([g.norm() for g in alone]).min()) / 2, 1e-6)
    private = attached(model, rows, 1, 1e-9, norm)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for batch in private.batches(rows, collate_fn=collate):
                private.backward(lambda some: loss(model, some), batch)
    except discreet.PrivacyError as error:
        return {"outcome": "refused", "then": str(error), "bare": "refused" if refused else "accepted"}
    found = torch.cat([real(p.grad).double().flatten() for p in model.parameters() if p.requires_grad])
    expected = sum(g * min(1, norm / float(g.norm())) for g in alone) / len(rows)
    error = float((found - expected).norm() / expected.norm())
    warned = sum("of its own from here on" in str(w.message) for w in told)
    return {"outcome": "one at a time" if error < ALLOWED else "wrong", "error": error, "warned": warned}


def cost(model, rows, collate, loss):
    """Times and peaks of memory of a step with privacy, beside the same step without."""
    twin, batch = copy.deepcopy(model), collate(rows)
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=1e-6) for m in (model, twin))

    def plain():
        other.zero_grad()
        loss(twin, batch).mean().backward()
        other.step()

    private = attached(model, rows, WARM_UP + STEPS + 1, 1.0, 1.0)
    batches = iter(private.batches(rows, collate_fn=lambda _: batch))

    def step():
        private.backward(loss(model, next(batches)))
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    for _ in range(2):
        plain()
    with_it, without = zip(*[(seconds(step), seconds(plain)) for _ in range(STEPS)], strict=True)
    memory = peak(step) / peak(plain)
    private.detach()
    ms = 1000 * statistics.median(without)
    return {"ms": ms, "ratio": 1000 * statistics.median(with_it) / ms, "memory": memory}


def seconds(function):
    started = time.process_time()
    function()
    return time.process_time() - started


def peak(function):
    """The most bytes that were allocated at once while it ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        function()
    held = most = 0
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return max(most, 1)
