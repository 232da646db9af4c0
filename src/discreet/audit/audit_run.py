"""The audit of a finished run, from its folder.

A run that was trained with canaries is tested again, from what it declared and counted. Any other is attacked as it is:
its training rows are told from held-out rows by their losses. And its own code, config and plan are audited by a new
run with canaries on made-up data: training on the same data again would be a new spending. That tests the pipeline and
the plan, and says nothing of this one model.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from discreet._documents import parse_json, parse_toml
from discreet.accounting.guarantee import Guarantee
from discreet.audit import membership
from discreet.audit.canaries import for_canaries
from discreet.audit.one_run import OneRun, check_level
from discreet.audit.witness import AuditSpec, RunAuditor, declare, verdicts
from discreet.data import Data
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.ledger.verification import VerifiedRun, verify_folder
from discreet.release.batching import length_of
from discreet.runs import build
from discreet.runs.config import Config, load
from discreet.runs.folder import check_files, write
from discreet.runs.outcome import read_end
from discreet.stages.plan import Plan
from discreet.stages.sampling import Allocation, Poisson, WeightedPoisson
from discreet.training.evaluation import loss_for
from discreet.training.loop import fit
from discreet.training.options import Loss, Rows

FALSE_POSITIVES = (0.001, 0.01, 0.1)
CANARIES = 1000
MADE_UP = 500  # rows at most: an attacker who knows them all sees canaries as well beside many as beside few
Tell = Callable[[str, int, int], None]
Figures = dict[str, Any]


def audit(
    folder: str | Path,
    *,
    canaries: int | None = None,
    level: float = 0.05,
    quick: bool = False,
    tell: Tell = lambda what, done, total: None,
) -> Figures:
    """Audit a finished run and write what was measured to its audit.json; a run with canaries is only read.

    Args:
        folder: the run's.
        canaries: how many the new run has; 1,000 by default, or as many as the model has room for.
        level: the chance that a true claim is rejected.
        quick: leave the new run with canaries out.
        tell: called as tell(what, done, total) while it goes on.

    Returns:
        The figures that audit.json holds.

    Raises:
        ConfigError: if the run has not finished, is federated, or was trained on features with private statistics.
        PrivacyError: if files of a run with canaries are not what its ledger declared.
    """
    check_level(level)
    place = Path(folder)
    check_files(place)
    outcome = read_end(place)
    if outcome is None:
        raise ConfigError(f"{place} is no run that has finished; go on with: discreet resume {place}")
    config = load(place / "config.toml")
    if config.federated is not None:
        raise ConfigError(
            f"{place} is a federated run: it protects users, and neither rows nor gradient canaries are users. See "
            "docs/audit.md for games of one release."
        )
    if config.features is not None:
        raise ConfigError(
            f"{place} was trained on features with private statistics, and an audit's rows and canaries have none; "
            "audit the same plan without [features]."
        )
    run = verify_folder(place)[1]
    if config.audit.canaries or run.audit is not None:
        return again(place)
    figures: Figures = {"audited": "pipeline", "refuted": False} | _attacked(place, config, outcome.guarantee, level)
    if not quick:
        points = figures["points"]
        figures |= _pipeline(Plan.from_dict(run.plan), config, canaries, level, tell)
        figures["points"] = points + figures.pop("canary_points", [])
    write(place / "audit.json", json.dumps(figures))
    return figures


def roc(folder: str | Path, figures: Figures) -> tuple[list[list[float]], Callable[[float], float] | None]:
    """The membership attack's curve, and the most that the run's guarantee allows: None if nothing is proven."""
    curve = figures.get("membership", {}).get("roc")
    if curve is None:
        raise ConfigError(
            "there is no membership attack to plot: the run has canaries of its own, or no held-out rows."
        )
    proven = verify_folder(folder)[1].guarantee
    return curve, proven.tradeoff().power if math.isfinite(proven.epsilon) else None


# --- a run with canaries ---------------------------------------------------------------------------------------------


def again(folder: Path) -> Figures:
    """Test a run's own canaries again: what was declared must be what its ledger says, and figures must follow."""
    stated = _read_json(folder / "audit.json")
    run = _own(folder)
    declared = AuditSpec.from_dict(run.audit or {})
    if "lost" in stated:
        return stated
    try:
        told = AuditSpec(**{name: stated[name] for name in ("canaries", "guesses_in", "guesses_out", "level", "score")})
        proven = run.guarantee
        counts = int(stated["canaries"]), int(stated["guesses"]), int(stated["correct"])
        result = OneRun(*counts, proven.epsilon, proven.delta, float(stated["level"]))
        figures = stated | result.to_dict() | verdicts(result, proven)
        same = replace(told, seed=declared.seed) == declared and result.guesses == told.guesses_in + told.guesses_out
        same &= math.isclose(figures["p_value"], stated["p_value"], rel_tol=1e-6, abs_tol=1e-12)
        same &= figures["refuted"] == stated["refuted"]
        same &= math.isclose(figures["epsilon_lower_bound"], stated["epsilon_lower_bound"], abs_tol=1e-6)
    except (KeyError, TypeError, ValueError) as error:
        raise PrivacyError(f"{folder}/audit.json cannot be tested again: {error}") from error
    if not same:
        raise PrivacyError(
            f"{folder}/audit.json is not what its ledger declared, or its figures do not follow from its counts: it "
            "was changed."
        )
    return figures


def _own(folder: Path) -> VerifiedRun:
    """This run in its ledger, which declared what is tested."""
    own = verify_folder(folder)[1]
    declared = json.loads(json.dumps(AuditSpec.from_dict(_toml(folder / "audit.toml")).to_dict()))
    if own.audit != declared:
        raise PrivacyError(
            f"{folder}/audit.toml is not what the ledger declared before the first release: it was changed."
        )
    return own


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return parse_toml(storage.read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> Figures:
    try:
        values = parse_json(storage.read_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no table of figures.")
    return values


# --- any other run ---------------------------------------------------------------------------------------------------


def _attacked(folder: Path, config: Config, proven: Guarantee, level: float) -> Figures:
    """How well the model's losses tell training rows from held-out ones, beside what its guarantee allows."""
    data = build.read_data(config)
    if data.test is None:
        return {"points": [], "membership": {"refused": "there are no held-out rows to tell training rows from"}}
    model = _trained(folder, config, data)
    loss = loss_for(data.train)
    inside, outside = (losses_of(model, rows, loss, config.evaluation.batch_size) for rows in (data.train, data.test))
    members = np.arange(len(inside) + len(outside)) < len(inside)
    curve = proven.tradeoff() if math.isfinite(proven.epsilon) else None
    scores = membership.by_loss(np.nan_to_num(np.concatenate((inside, outside)), nan=1e300, posinf=1e300))
    attack = membership.judge("loss", scores, members, tradeoff=curve, false_positives=FALSE_POSITIVES, level=level)
    values = attack.to_dict()
    points = values.pop("points")
    values["at"] = [
        {
            "false_positives": p.false_positives,
            "true_positives": p.true_positives,
            "low": p.low,
            "high": p.high,
            "reached": p.reached,
            "most": p.most,
            "allowed": p.allowed,
            "disproves": p.disproves,
        }
        for p in attack.points
    ]
    values["roc"] = _thinned(*membership.roc(scores, members))
    return {"points": points, "membership": values}


def _thinned(false_positives: np.ndarray, true_positives: np.ndarray, most: int = 200) -> list[list[float]]:
    """So many points of a curve at most, evenly spread on a logarithmic axis."""
    least = max(1e-9, float(false_positives[false_positives > 0].min(initial=1.0)))
    wanted = np.searchsorted(false_positives, np.geomspace(least, 1.0, most), side="right") - 1
    places = np.unique(np.concatenate(([0], wanted.clip(0), [len(false_positives) - 1])))
    return [[float(false_positives[i]), float(true_positives[i])] for i in places]


def _trained(folder: Path, config: Config, data: Data) -> nn.Module:
    """The run's model, with its weights."""
    model = build.make_model(config, data.shape, data.classes)
    path = folder / "model.safetensors"
    try:
        model.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(f"{path} is not the weights of the run's model: {error}") from error
    return model


@torch.no_grad()
def losses_of(model: nn.Module, rows: Rows, loss: Loss, batch_size: int) -> np.ndarray:
    """The loss of each row, by a model that is not being trained."""
    training = model.training
    model.eval()
    try:
        loader = DataLoader(TensorDataset(*rows) if isinstance(rows, tuple) else rows, batch_size=batch_size)
        return torch.cat([loss(model(x), y).double() for x, y in loader]).numpy()
    finally:
        model.train(training)


def _pipeline(saved: Plan, config: Config, canaries: int | None, level: float, tell: Tell) -> Figures:
    """One new run of the same code and plan with canaries, on uniform noise of the data's shape with random labels."""
    data = build.read_data(config)
    inputs, targets = made_up(data)
    model = build.make_model(config, data.shape, data.classes).to(config.run.device)
    count = min(CANARIES, sum(p.numel() for p in model.parameters())) if canaries is None else canaries
    try:
        plan = _room(saved, len(inputs), count)
        declared = declare(model, plan, count, level=level)
    except ConfigError as error:
        return {"pipeline": {"refused": str(error)}}
    optimizer = build.make_optimizer(config, model, plan)
    witness = RunAuditor(model, plan, declared, loss_for((inputs, targets)))
    fitted = fit(
        model,
        (inputs, targets),
        plan,
        optimizer=optimizer,
        schedule=build.make_schedule(config, optimizer, plan.steps),
        averaging=config.averaging.decay,
        evaluate_every=max(1.0, plan.sampling.epochs_in(plan.steps)),
        chunk=config.run.chunk,
        preflight=config.run.preflight,
        on_step=lambda step: tell("canaries", step, plan.steps),
        audit=witness,
    )
    measured = witness.figures(fitted.guarantee)
    points = measured.pop("points")
    own = [p | {"label": "canaries beside made-up data, guessed to be in"} for p in points]
    bound = {"epsilon_lower_bound": measured["epsilon_lower_bound"], "refuted": measured["refuted"]}
    data_used = {"rows": len(inputs), "data": "uniform noise, random labels"}
    return bound | {"pipeline": measured | data_used, "canary_points": own}


def made_up(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in the data's shape that nobody is behind: uniform noise, and random targets."""
    generator = torch.Generator().manual_seed(0)
    rows = min(MADE_UP, length_of(data.train))
    inputs = torch.rand((rows, *data.shape), generator=generator)
    if data.classes is None:
        return inputs, torch.randn(rows, 1, generator=generator)
    return inputs, torch.randint(data.classes, (rows,), generator=generator)


def _room(plan: Plan, rows: int, canaries: int) -> Plan:
    """The same plan for so many rows and canaries: at its rate, or in proportion where it needs their number."""
    sampling: Any = plan.sampling
    if isinstance(sampling, Poisson) and sampling.cap is None and sampling.adjacency != "replace":
        return for_canaries(plan)
    total = rows + canaries
    if isinstance(sampling, WeightedPoisson):
        raise ConfigError(f"{sampling!r} fixes which rows are in which stratum, and canaries are in none.")
    if isinstance(sampling, Allocation):
        return replace(plan, sampling=replace(sampling, examples=total), epsilon=None)
    size = max(1, min(total, round(sampling.batch_size * total / sampling.examples)))
    return replace(plan, sampling=replace(sampling, examples=total, batch_size=size), epsilon=None)
