"""What a config names: data, users, model, optimizer, schedule, ledger, device."""

import copy
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from discreet._check import check_int, check_positive
from discreet.data import NAMES, Data, load
from discreet.data.columns import TABLES
from discreet.data.dataset import validated
from discreet.data.schema import schema_beside
from discreet.data.tables import rehearsed
from discreet.errors import ConfigError
from discreet.federated import Local, Users
from discreet.ledger import Ledger
from discreet.models.networks import build as build_model
from discreet.release.batching import as_tensors
from discreet.runs.config import Config
from discreet.runs.resolve import own_stages
from discreet.runs.schema import FederatedSection
from discreet.stages.plan import Plan
from discreet.stages.sensitivity import Layout
from discreet.training.augmentation import Images
from discreet.training.options import OPTIMIZERS

DATA_SETTINGS = ("name", "folder", "download", "label", "schema", "user", "test_fraction", "progress")


def read_data(config: Config, progress: Callable[[int, int], None] | None = None, *, rehearsal: bool = False) -> Data:
    """The data that a config names; in a rehearsal as if nothing private had been found of a table."""
    section, federated = config.data, config.federated
    by: dict[str, Any] = {"group": config.evaluation.group, "groups": config.evaluation.groups}
    if rehearsal:
        own: dict[str, Any] = {"label": section.label, "schema": section.schema, "test_fraction": section.test_fraction}
        return rehearsed(section.name, **own, **by)
    data = load(
        section.name,
        folder=section.folder,
        download=section.download,
        label=section.label,
        schema=section.schema,
        user=None if federated is None else federated.user,
        test_fraction=section.test_fraction,
        progress=progress,
        **by,
        **section.settings,
    )
    return validated(data, section.validation) if section.validation else data


def users_of(section: FederatedSection, data: Data, seed: int) -> Users:
    """The users that a config names: a table's own, or made-up ones."""
    x, y = as_tensors(data.train)
    if data.owners is not None:
        return Users.of(x, y, data.owners)
    if section.users is None:
        raise ConfigError(
            "whose rows are whose is not known: say [federated] user, a table's column, or users, how many made-up "
            "ones the rows are dealt out to."
        )
    shares = {"shards": section.shards, "alpha": section.alpha, "seed": seed}
    return Users.dealt(x, y, section.users, section.partition, **shares)


def local_of(section: FederatedSection) -> Local:
    """What users do, as a config says it."""
    names = ("learning_rate", "epochs", "batch_size", "optimizer", "momentum", "weight_decay")
    return Local(**{name: getattr(section, name) for name in names})


def federated_settings(section: FederatedSection, users: Users, plan: Plan) -> dict[str, Any]:
    """What federated training takes beside what all training takes."""
    settings: dict[str, Any] = {"local": local_of(section), "engine": section.engine}
    if section.full_weight is not None:
        full = check_int("[federated] full_weight", section.full_weight, least=1)
        settings["weights"] = [min(1.0, len(rows) / full) for rows in users.rows]
    if section.total_weight is not None:
        total = check_positive("[federated] total_weight", section.total_weight)
        settings["denominator"] = total * plan.sampling.batch_size / len(users)
    return settings


def make_model(config: Config, shape: tuple[int, ...], classes: int | None) -> nn.Module:
    """The model that a config names, for examples of a shape; its first weights follow from the seed."""
    torch.manual_seed(config.run.seed)
    return build_model(config.model.name, shape, classes or 1, **config.model.settings)


def try_model(model: nn.Module, shape: tuple[int, ...], classes: int | None, augment: Images | None) -> None:
    """Refuse a model that cannot take the data, before anything is counted: a copy of it gets two made-up rows."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    rows = torch.zeros(2, *shape, device=device)
    if augment is not None:
        rows = augment(rows)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            outputs = copy.deepcopy(model)(rows)
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"the model cannot take examples of shape {shape}: {words}") from error
    wanted = (2, classes or 1)
    shown = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shown != wanted and not (classes is None and shown == (2,)):
        raise ConfigError(f"of two examples the model makes {shown}; outputs of shape {wanted} are needed.")


def make_optimizer(config: Config, model: nn.Module, plan: Plan | None = None) -> torch.optim.Optimizer:
    """The optimizer that a config names; with the plan, its learning rate so low that noise moves the model little."""
    section = config.optimizer
    rate = _rate(config)
    check_positive("[optimizer] momentum", section.momentum, zero=True)
    check_positive("[optimizer] weight_decay", section.weight_decay, zero=True)
    if section.noise_walk is not None:
        most = check_positive("[optimizer] noise_walk", section.noise_walk)
        if section.name != "sgd" or not section.momentum < 1:
            raise ConfigError("[optimizer] noise_walk is for sgd with a momentum below 1; leave it out.")
        if plan is not None:
            rate = min(rate, most * (1 - section.momentum) / noise_length(plan, model))
    settings: dict[str, Any] = {"lr": rate, "weight_decay": section.weight_decay, **section.settings}
    if section.momentum:
        if section.name not in ("sgd", "rmsprop"):
            raise ConfigError(f"[optimizer] momentum is for sgd and rmsprop; {section.name} has settings of its own.")
        settings["momentum"] = section.momentum
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    try:
        return OPTIMIZERS[section.name](model.parameters(), **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"[optimizer] {section.name} cannot be made of {settings}: {error}") from error


def lowered(config: Config, optimizer: torch.optim.Optimizer) -> list[str]:
    """What is to be said of a learning rate that is lower than it was asked for, because of noise_walk."""
    asked, rate = _rate(config), optimizer.param_groups[0]["lr"]
    return [f"The learning rate is {rate:.3g}, not {asked:g}, as noise weighs more here."] if rate < asked else []


def _rate(config: Config) -> float:
    section, rate = config.optimizer, check_positive("[optimizer] learning_rate", _learning_rate(config))
    if section.at_batch_size is None:
        return rate
    return rate * config.budget.batch_size / check_int("[optimizer] at_batch_size", section.at_batch_size, least=1)


def noise_length(plan: Plan, model: nn.Module) -> float:
    """How far noise alone moves a model by plain SGD with a learning rate of 1, over all steps: the length expected.

    sqrt(T * sum over blocks of d_l s_l^2) / B for T steps, batches of B and noise of scale s_l on d_l parameters, as if
    each step's noise were independent of the others'. Momentum m makes it 1 / (1 - m) times as long. It is a public
    number: no data is in it.
    """
    named = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    contract = plan.mechanism.contract_for(Layout(tuple(named), tuple(named.values())))
    assert contract is not None
    scales = zip(contract.blocks, plan.mechanism.scales(contract), strict=True)
    squares = math.fsum(block.size * scale**2 for block, scale in scales if not block.share)
    return math.sqrt(plan.steps * squares) / plan.sampling.batch_size


def _learning_rate(config: Config) -> float:
    """The optimizer's, or the usual one: a federated run's server takes whole steps."""
    given = config.optimizer.learning_rate
    return given if given is not None else 0.5 if config.federated is None else 1.0


def make_schedule(
    config: Config, optimizer: torch.optim.Optimizer, steps: int
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """The learning rate's course that a config names."""
    section = config.schedule
    if section.name == "constant" and not section.warmup:
        return None
    if not 0 <= section.warmup < 1:
        raise ConfigError(f"[schedule] warmup is {section.warmup}; it is a part of the run, from 0 to below 1.")
    warm = section.warmup * steps

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / (warm + 1)
        left = 1 - (step - warm) / max(1.0, steps - warm)
        return {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[section.name]

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def make_ledger(config: Config, folder: Path) -> Ledger:
    """The data set's ledger that a config names, or the run's own in its folder."""
    run = config.run
    path = folder / "ledger.jsonl" if run.ledger is None else run.ledger
    if run.dataset is None or run.ledger is None:  # which registry.py says, where there is to be one
        return Ledger(path, reserve=run.reserve, stages=own_stages(config), alone=run.alone)
    delta = config.budget.delta if run.dataset_delta is None else run.dataset_delta
    caps: dict[str, Any] = {"dataset": run.dataset, "epsilon": run.dataset_epsilon, "delta": delta}
    return Ledger(path, **caps, reserve=run.reserve, stages=own_stages(config))


def device(config: Config) -> torch.device:
    """The device that a config names, tried; under torchrun "cuda" is the rank's own."""
    name, place = config.run.device, os.environ.get("LOCAL_RANK")
    try:
        device = torch.device(f"cuda:{place}" if name == "cuda" and place is not None else name)
        torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"[run] device {name!r} cannot be used here: {why}") from error
    return device


def augmentation(config: Config) -> Images | None:
    """How copies of an example are changed, if they are."""
    section = config.augmentation
    images = Images(section.flip, section.shift)  # refuses a negative shift
    return images if section.flip or section.shift else None


def settled(config: Config) -> Config:
    """The same with whole paths and every number, so that it means the same wherever it is continued from."""

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    data, run = config.data, config.run
    named = data.name not in NAMES and os.path.exists(data.name)
    name = str(absolute(data.name)) if named else data.name
    schema = data.schema
    if schema is None and Path(name).suffix.lower() in TABLES and schema_beside(name).is_file():
        schema = str(schema_beside(name))
    data = msgspec.structs.replace(data, name=name, folder=absolute(data.folder), schema=absolute(schema))
    optimizer = msgspec.structs.replace(config.optimizer, learning_rate=_learning_rate(config))
    run = msgspec.structs.replace(run, ledger=absolute(run.ledger))
    return msgspec.structs.replace(config, data=data, optimizer=optimizer, run=run)
