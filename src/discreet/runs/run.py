"""A run's folder: what was asked for, what was planned, spent, measured and proven, and the trained model.

    config.toml         what was asked for, defaults included; schema.toml, what was said of a table's columns
    model.json          what the model takes, its architecture, what its outputs are called: with it, it can be used
    README.md           the model card
    ledger-extract.jsonl  the run's own lines of a data set's ledger, so that the folder can be moved
    run.json            which run it is: a random name that every line of its ledger has
    plan.toml           the plan it was resolved into, its noise solved
    ledger.jsonl        what was spent (unless the data set's own ledger counts it)
    metrics.jsonl       what was measured on the way, a line an evaluation
    checkpoint          model, optimizer and private state, replaced every so often
    model.safetensors   the trained model
    guarantee.json, guarantee.txt
    schema.found.toml   what was found, with noise, of what a table's schema marks as private
    features.safetensors  the private statistics that whiten features, where there are any; they go with the model
    audit.toml          what an audit within the run tests, declared before the first release
    coins               its coins and scores, the owner's secret, until the audit is done
    noise.json          what hides the features' statistics, the owner's secret, until these are written
    audit.json          what attacks measured
    end.json            that it has finished, and how

Each file appears whole or not at all. A run that was killed at any moment is continued by `resume`; one that has
finished says so and is left alone. One process at a time has the folder. A run that was refused before its first
release leaves nothing behind.

What is said of privacy is derived from the ledger whenever it is said; its closing line has the hashes of the model,
the metrics and the statistics. guarantee.json and end.json are compared with it, and never believed.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from discreet._documents import parse_toml
from discreet.accounting.serialization import to_toml
from discreet.audit.witness import AuditSpec, RunAuditor, declare
from discreet.data import Data
from discreet.data.download import REMOTE
from discreet.distributed.ranks import Ranks, find, refuse
from discreet.errors import ConfigError, PrivacyError
from discreet.federated.training import train_rounds
from discreet.ledger import storage
from discreet.release.batching import length_of
from discreet.runs import build
from discreet.runs import folder as run_folder
from discreet.runs.config import Config, load
from discreet.runs.features import FeaturedData
from discreet.runs.folder import COINS, write
from discreet.runs.outcome import Outcome, read_end, write_end
from discreet.runs.progress import Watch
from discreet.runs.registry import noted, registered, within_search
from discreet.runs.registry import told as told_of_data
from discreet.runs.resolve import own_stages
from discreet.runs.tables import answered, assumed_of, facts_of
from discreet.runs.trained.manifest import MANIFEST, Manifest
from discreet.runs.validation import check
from discreet.stages.caution import cautions
from discreet.stages.plan import Plan
from discreet.training.callbacks import callbacks
from discreet.training.evaluation import loss_for
from discreet.training.loop import train_loop
from discreet.training.merit import HeldOut
from discreet.training.options import Record, TrainingOptions


def train(config: Config, folder: str | Path, watch: Watch | None = None) -> Outcome:
    """Begin a run in a new folder; under torchrun all ranks train together, and the folder is rank 0's.

    Args:
        config: what is run.
        folder: is made; one that holds anything is left alone.
        watch: is told how it goes, and may stop it.

    Returns:
        How it ended.

    Raises:
        ConfigError: the config or its data is refused. That leaves no folder: nothing was released.
        PrivacyError: what is released would not be private.
    """
    ranks = find()
    with ranks.reported():
        check(config)
        if ranks.first:
            return _begin(config, Path(folder), watch or Watch(), ranks)
        settled = registered(build.settled(config), Path(folder))
        return _carry_out(settled, Path(folder), watch or Watch(), ranks)


def _begin(config: Config, folder: Path, watch: Watch, ranks: Ranks) -> Outcome:
    new_folders = run_folder.make(folder)
    try:
        with run_folder.held(folder):
            run_folder.make(folder)  # somebody may have had it until now
            run_folder.tidy(folder)
            settled = registered(build.settled(config), folder)
            try:
                run_folder.keep_config(folder, settled)
                return _carry_out(settled, folder, watch, ranks)
            except (ConfigError, PrivacyError):
                run_folder.unmake(folder, build.make_ledger(settled, folder))
                raise
    finally:
        run_folder.remove_made(new_folders)


def resume(folder: str | Path, watch: Watch | None = None) -> Outcome:
    """Continue a run where it was left, with any number of ranks; one that has finished is left alone."""
    place, ranks = Path(folder), find()
    with ranks.reported():
        run_folder.check_files(place)
        written = load(place / "config.toml")
        config = run_folder.located(written, place)
        finished = read_end(place, own_stages(config))
        ranks.agree("resume", {"view of whether the run has finished": finished is not None})
        if finished is not None:
            if ranks.first:
                run_folder.tidy_finished(place, build.make_ledger(config, place))
            return finished
        check(config)
        if not ranks.first:
            return _carry_out(config, place, watch or Watch(), ranks)
        with run_folder.held(place):
            run_folder.tidy(place)
            run_folder.check_ledger(place, build.make_ledger(config, place))
            if written.data.schema not in (None, run_folder.SCHEMA):  # it died before the folder had a copy
                run_folder.keep_config(place, written)
            return _carry_out(config, place, watch or Watch(), ranks)


def _carry_out(config: Config, folder: Path, watch: Watch, ranks: Ranks) -> Outcome:
    """From the data to the end, in a folder that is this process's own."""
    if config.audit.canaries:
        refuse("an audit within a run")
    told = callbacks(config.run.callbacks) if ranks.first else ()
    ledger, facts = noted(build.make_ledger(config, folder), folder), facts_of(config)
    asks = facts is not None and bool(facts.private)
    if asks:
        watch.stage("trying the data")
        _try(config)  # what can be refused is refused before anything is asked
        ledger = replace(ledger, run=run_folder.identity(folder))
    watch.stage("reading the data")
    data = build.read_data(answered(config, folder, ledger) if asks else config, watch.download)
    features = None if config.features is None else FeaturedData(config.pipeline(), data, watch)
    shape, augment = data.shape if features is None else features.shape, build.augmentation(config)
    model = build.make_model(config, shape, data.classes).to(build.device(config))
    torch.seed()  # what is drawn from now on (dropout, changed copies) is secret: units must not shift each other's
    build.try_model(model, shape, data.classes, augment)
    manifest = Manifest.of(config, data, shape)
    users = None if config.federated is None else build.users_of(config.federated, data, config.run.seed)
    units = length_of(data.train) if users is None else len(users)
    plan = ranks.lead("solving for the noise", lambda: _plan(config, folder, units, model, watch))
    notices: list[str] = []
    if ranks.first:
        if not asks:
            ledger = replace(ledger, run=run_folder.identity(folder))  # on disk before a line of the ledger has it
        if declared := [*([] if facts is None else assumed_of(facts)), *within_search(config)]:
            ledger.declare(declared)
        notices = [told_of_data(ledger, plan), *(f"Caution: {caution}." for caution in cautions(plan))]
        if not (folder / "plan.toml").exists():
            write(folder / "plan.toml", plan.save)
    assumes = () if features is None else features.assumptions
    if features is not None:
        data, features = features.data(folder, plan, ledger), None  # images are not needed any more
    config = config.sized(length_of(data.train))
    grown = config.beside_canaries(length_of(data.train))
    optimizer = build.make_optimizer(grown, model, plan)
    notices += build.lowered(grown, optimizer)
    auditor = _auditor(config, folder, model, data, plan)
    board = _Board(folder / "tensorboard") if config.run.tensorboard and ranks.first else None
    if ranks.first:
        write(folder / MANIFEST, manifest.to_json())
        run_folder.mend_records(folder)
    watch.stage("training")
    options = TrainingOptions(
        test=data.test,
        loss=loss_for(data.train, data.weights) if data.weights else None,
        optimizer=optimizer,
        schedule=build.make_schedule(config, optimizer, plan.steps),
        ledger=ledger,
        checkpoint=folder / "checkpoint",
        checkpoint_every=config.run.checkpoint_every,
        averaging=config.averaging.decay,
        evaluate_every=config.evaluation.every,
        evaluate_rows=config.evaluation.batch_size,
        preflight=config.run.preflight,
        stop=watch.stop,
        callbacks=told,
        assumes=assumes,
        about=HeldOut(data.class_names, manifest.target, config.evaluation.group or "", data.group_names, data.groups),
        **_told(folder, watch, board, ranks, notices),
    )
    if users is None or config.federated is None:
        options = replace(
            options,
            chunk=config.run.chunk,
            augment=augment,
            copies=config.augmentation.copies,
            memory=config.run.memory,
            audit=auditor,
            fixed=config.features is not None,
        )
        fitted = train_loop(model, data.train, plan, options)
    else:
        fitted = train_rounds(model, users, plan, options, **build.federated_settings(config.federated, users, plan))
    if board is not None:
        board.close()
    made = config, manifest
    return ranks.lead("writing down the end", lambda: write_end(fitted, folder, ledger, auditor, made))


def _try(config: Config) -> None:
    """Refuse what does not go together, with the data as if nothing private had been found in it."""
    data = build.read_data(config, rehearsal=True)
    model = build.make_model(config, data.shape, data.classes).to(build.device(config))
    build.try_model(model, data.shape, data.classes, build.augmentation(config))
    build.make_optimizer(config, model)


def _told(folder: Path, watch: Watch, board: "_Board | None", ranks: Ranks, notices: Sequence[str]) -> dict[str, Any]:
    """What is done as a run goes: its folder's files are rank 0's to write, and every rank's watch is told."""

    def begin(done: int, steps: int) -> None:
        if done and ranks.first:
            run_folder.begin(folder)
        for notice in notices if not done else ():
            watch.say(notice)
        watch.begin(done, steps)

    def step(number: int) -> None:
        if number == 1 and ranks.first:
            run_folder.begin(folder)
        watch.step(number)

    def record(values: Record) -> None:
        if not ranks.first:
            return
        run_folder.add_record(folder, values)
        if board is not None:
            board.add(values)
        watch.record(values)

    return {"on_begin": begin, "on_step": step, "on_record": record}


def _auditor(config: Config, folder: Path, model: nn.Module, data: Data, plan: Plan) -> RunAuditor | None:
    """The audit within a run, as it was declared in its folder, or as it is declared there now."""
    section, path = config.audit, folder / "audit.toml"
    if section.canaries == 0:
        return None
    if path.is_file():
        try:
            declared = AuditSpec.from_dict(parse_toml(storage.read_text(path)))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    else:
        declared = declare(model, plan, section.canaries, level=section.level, score=section.score)
        write(path, to_toml(declared.to_dict()))
    return RunAuditor(model, plan, declared, loss_for(data.train), secret=folder / COINS)


def _plan(config: Config, folder: Path, examples: int, model: nn.Module, watch: Watch) -> Plan:
    """The plan in the folder, or a new one."""
    path = folder / "plan.toml"
    if path.is_file():
        return Plan.load(path, own_stages(config))
    if config.federated is None and config.data.examples not in (None, examples):
        raise ConfigError(f"[data] examples is {config.data.examples}, but there are {examples:,} to train on.")
    watch.stage("solving for the noise")
    plan = config.plan(examples, model)
    own_test = config.data.name in REMOTE and "limit" not in config.data.settings
    if plan.sampling.contract().adjacency == "add-remove" and not own_test:
        raise ConfigError(
            "the number of examples is public here, as it decides which are held out, so nothing is proven for one "
            "added or removed; leave rate and adjacency out of [stages] sampling. (It is proven of "
            f"{', '.join(REMOTE)} without a limit, whose test parts are fixed.)"
        )
    return plan


class _Board:
    """TensorBoard's logs, begun with the first record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def add(self, values: Record) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in values.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, int(values["step"]))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
