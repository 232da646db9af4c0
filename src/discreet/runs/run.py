"""A run's folder: what was asked for, what was planned, spent, measured and proven, and the trained model.

    config.toml         what was asked for, defaults included
    run.json            which run it is: a random name that every line of its ledger has
    plan.toml           the plan it was resolved into, its noise solved
    ledger.jsonl        what was spent (unless the data set's own ledger counts it)
    metrics.jsonl       what was measured on the way, a line an evaluation
    checkpoint          model, optimizer and private state, replaced every so often
    model.safetensors   the trained model
    guarantee.json, guarantee.txt
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

import copy
import hashlib
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import nn

from discreet.runs import config as configuration
from discreet import federated, _storage as storage
from discreet.runs import folder as run_folder
from discreet.accounting.guarantee import Guarantee
from discreet.audit.one_run import check_level
from discreet.audit.witness import AuditSpec, RunAuditor, declare
from discreet.training.augmentation import Images
from discreet.runs.config import EXAMPLES, Config, FederatedSection
from discreet.data import Data, load
from discreet.data.dataset import validated
from discreet.data.places import REMOTE
from discreet.accounting.serialization import to_toml
from discreet.distributed.ranks import Ranks, find, refuse
from discreet._check import check_positive, check_int
from discreet.errors import ConfigError, PrivacyError
from discreet.features.pipeline import Features, Pipeline
from discreet.features.pipeline import load as load_statistics
from discreet.features.pipeline import save as save_statistics
from discreet.federated import Local, Users
from discreet.ledger import Ledger, conclude
from discreet.ledger.file import has_hash
from discreet.release.batching import as_tensors, length_of
from discreet.models.networks import build
from discreet.stages.plan import Plan
from discreet.runs.folder import COINS, METRICS, NOISE, STATISTICS, write
from discreet.training.loop import OPTIMIZERS, FitResult, Record, fit, loss_for
from discreet.ledger.verification import verify_folder


@dataclass
class Watch:
    """Who is told how a run goes, and may stop it."""

    stage: Callable[[str], None] = lambda words: None
    begin: Callable[[int, int], None] = lambda done, steps: None
    step: Callable[[int], None] = lambda step: None
    record: Callable[[Record], None] = lambda record: None
    stop: Callable[[], bool] = lambda: False
    download: Callable[[int, int], None] | None = None
    count: Callable[[str, int, int], None] = lambda words, done, total: None


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    guarantee: Guarantee
    accuracy: float | None
    finished: bool
    lost: int
    anchor: str
    already: bool = False  # it had finished before
    audit: Mapping[str, Any] | None = None  # what canaries in it showed


def train(config: Config, folder: str | Path, watch: Watch | None = None) -> Outcome:
    """Begin a run in a new folder; one that is there already is left alone.

    A config or data that is refused leaves no folder: nothing of it was released. Under torchrun all ranks train
    together, and the folder is rank 0's.
    """
    ranks = find()
    with ranks.reported():
        check(config)
        if ranks.first:
            return _begin(config, Path(folder), watch or Watch(), ranks)
        return _carry_out(_settled(config), Path(folder), watch or Watch(), ranks)


def _begin(config: Config, folder: Path, watch: Watch, ranks: Ranks) -> Outcome:
    made = run_folder.make(folder)
    try:
        with run_folder.held(folder):
            run_folder.make(folder)  # somebody may have had it until now
            run_folder.tidy(folder)
            settled = _settled(config)
            try:
                write(folder / "config.toml", settled.to_toml())
                return _carry_out(settled, folder, watch, ranks)
            except (ConfigError, PrivacyError):
                run_folder.unmake(folder, _ledger(settled, folder))
                raise
    finally:
        run_folder.remove_made(made)


def resume(folder: str | Path, watch: Watch | None = None) -> Outcome:
    """Continue a run where it was left, with any number of ranks; one that has finished is left alone."""
    folder, ranks = Path(folder), find()
    with ranks.reported():
        return _resume(folder, watch or Watch(), ranks)


def _resume(folder: Path, watch: Watch, ranks: Ranks) -> Outcome:
    run_folder.check_files(folder)
    config = configuration.load(folder / "config.toml")
    finished = read_end(folder)
    ranks.agree("resume", {"view of whether the run has finished": finished is not None})
    if finished is not None:
        if ranks.first:
            run_folder.tidy_finished(folder)
        return finished
    check(config)
    if not ranks.first:
        return _carry_out(config, folder, watch, ranks)
    with run_folder.held(folder):
        run_folder.tidy(folder)
        run_folder.check_ledger(folder, _ledger(config, folder))
        return _carry_out(config, folder, watch, ranks)


def read_end(folder: str | Path) -> Outcome | None:
    """How a run ended, if it has: derived from its ledger, and compared with what its folder says."""
    place = Path(folder)
    end = place / "end.json"
    if not os.path.lexists(end):
        return None
    verified, own = verify_folder(place)
    try:
        values = json.loads(storage.read_text(end))
        stated = Guarantee.from_json(storage.read_text(place / "guarantee.json"))
        accuracy, lost, anchor = values["accuracy"], values["lost"], values["anchor"]
        if own.ended:
            measured = _last_accuracy(storage.read_text(place / METRICS))
            said = [("accuracy", accuracy, measured), ("lost", lost, own.lost), ("anchor", anchor, own.head)]
        else:
            said = [("anchor", has_hash(Path(verified.path), str(anchor)), True)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} has finished, but cannot be read: {error}") from error
    if not verified.old and not own.ended:
        raise PrivacyError(
            f"{folder} says that it has finished, and {verified.path} does not: it was cut short, or end.json is "
            "another run's."
        )
    for name, found, wanted in said:
        if found != wanted:
            raise PrivacyError(f"{end} was changed: its {name} is not what the run left.")
    if stated.epsilon < own.guarantee.epsilon * (1 - 1e-9) or stated.delta != own.guarantee.delta:
        raise PrivacyError(
            f"{folder}/guarantee.json says less than its ledger proves (epsilon {own.guarantee.epsilon:.4g}); it was "
            "changed."
        )
    if own.ended and stated != own.guarantee:
        raise PrivacyError(f"{folder}/guarantee.json is not what its ledger proves, word for word; it was changed.")
    return Outcome(place, own.guarantee, accuracy, True, lost, anchor, already=True)


def _last_accuracy(metrics: str) -> float | None:
    """The accuracy of the last step that was measured."""
    records = [json.loads(line) for line in metrics.splitlines()]
    return max(records, key=lambda values: values["step"], default={}).get("accuracy")


def _carry_out(config: Config, folder: Path, watch: Watch, ranks: Ranks) -> Outcome:
    if config.audit.canaries:
        refuse("an audit within a run")
    watch.stage("reading the data")
    data = read_data(config, watch.download)
    featured = None if config.features is None else _Featured(config.pipeline(), data, watch)
    shape = data.shape if featured is None else featured.shape
    torch.manual_seed(config.run.seed)
    model = build(config.model.name, shape, data.classes or 1, **config.model.settings).to(_device(config))
    torch.seed()  # what is drawn from now on (dropout, changed copies) is secret: units must not shift each other's
    changes = _changes(config)
    _try(model, shape, data.classes, changes)
    users = None if config.federated is None else users_of(config.federated, data, config.run.seed)
    units = length_of(data.train) if users is None else len(users)
    plan = ranks.lead("solving for the noise", lambda: _plan(config, folder, units, model, watch))
    ledger = _ledger(config, folder)
    if ranks.first:
        ledger = replace(ledger, run=run_folder.identity(folder))  # on disk before a line of the ledger has it
        if not (folder / "plan.toml").exists():
            write(folder / "plan.toml", plan.save)
    if featured is not None:
        data, featured = featured.data(folder, plan, ledger), None  # images are not needed any more
    optimizer = make_optimizer(config.beside_canaries(length_of(data.train)), model)
    witness = _witness(config, folder, model, data, plan)
    board = _Board(folder / "tensorboard") if config.run.tensorboard and ranks.first else None
    if ranks.first:
        run_folder.mend_records(folder)

    def record(values: Record) -> None:
        if not ranks.first:
            return
        run_folder.add_record(folder, values)
        if board is not None:
            board.add(values)
        watch.record(values)

    def begin(done: int, steps: int) -> None:
        if done and ranks.first:
            run_folder.begin(folder)
        watch.begin(done, steps)

    def step(number: int) -> None:
        if number == 1 and ranks.first:
            run_folder.begin(folder)
        watch.step(number)

    watch.stage("training")
    course: dict[str, Any] = {
        "test": data.test,
        "optimizer": optimizer,
        "schedule": make_schedule(config, optimizer, plan.steps),
        "ledger": ledger,
        "checkpoint": folder / "checkpoint",
        "checkpoint_every": config.run.checkpoint_every,
        "averaging": config.averaging.decay,
        "evaluate_every": config.evaluation.every,
        "evaluate_rows": config.evaluation.batch_size,
        "preflight": config.run.preflight,
        "on_begin": begin,
        "on_step": step,
        "on_record": record,
        "stop": watch.stop,
    }
    if users is None or config.federated is None:
        copies = config.augmentation.copies
        course |= {"chunk": config.run.chunk, "memory": config.run.memory, "fixed": config.features is not None}
        fitted = fit(model, data.train, plan, augment=changes, copies=copies, audit=witness, **course)
    else:
        fitted = federated.fit(model, users, plan, **federated_settings(config.federated, users, plan), **course)
    if board is not None:
        board.close()
    return ranks.lead("writing down the end", lambda: _conclude(fitted, folder, ledger, witness))


class _Featured:
    """Features in place of images: extracted at once, and whitened when the plan is known."""

    def __init__(self, pipeline: Pipeline, data: Data, watch: Watch) -> None:
        self._pipeline, self._data, self._watch = pipeline, data, watch
        self.shape = (self._pipeline.width(data.shape),)
        watch.stage("extracting features")
        self._train = self._extract("the training part", data.train)
        self._test = None if data.test is None else self._extract("the test part", data.test)

    def _extract(self, which: str, part: Any) -> Features:
        images, _ = as_tensors(part)
        return self._pipeline.extract(images, lambda d, n: self._watch.count(f"features of {which}", d, n))

    def data(self, folder: Path, plan: Plan, ledger: Ledger) -> Data:
        """The rows that are trained on; statistics that were released before are taken from the folder."""
        path, pipeline = folder / STATISTICS, self._pipeline
        if path.is_file():
            fitted = load_statistics(pipeline, path)
        else:
            self._watch.stage("asking for the features' statistics")
            key = self._noise(folder)
            sampling = plan.sampling
            settings: Any = {"size": sampling.largest_batch_size, "adjacency": sampling.contract().adjacency}
            fitted = pipeline.fit(self._train, ledger, key=key, **settings)
            write(path, lambda scratch: save_statistics(fitted, scratch))
        storage.remove(folder / NOISE)
        self._watch.stage("whitening features")
        data = self._data
        train = pipeline.rows(self._train, fitted), as_tensors(data.train)[1]
        test = None
        if self._test is not None and data.test is not None:
            test = pipeline.rows(self._test, fitted), as_tensors(data.test)[1]
        return Data(data.name, train, test, self.shape, data.classes, data.note)

    def _noise(self, folder: Path) -> bytes:
        """What hides the statistics: drawn once, and on disk before they are counted.

        If a crash comes before they are written, the same noise on the same data is the same answer, and not a new one.
        """
        path = folder / NOISE
        if not storage.is_file(path):
            key = os.urandom(32)
            write(path, json.dumps({"key": key.hex(), "data": self._digest(key)}), private=True)
            return key
        try:
            values = json.loads(storage.read_text(path))
            key, data = bytes.fromhex(values["key"]), values["data"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if len(key) != 32 or data != self._digest(key):
            raise PrivacyError(
                "the data is not what it was when the features' statistics were asked for, and the noise that was "
                "drawn for them hides nothing twice. Go on with the same data, or begin a new run."
            )
        return key

    def _digest(self, key: bytes) -> str:
        """Of the images and of what makes features of them; it tells nothing without the key."""
        found = hashlib.blake2b(repr(self._pipeline).encode(), key=key)
        images, _ = as_tensors(self._data.train)
        found.update(repr((images.dtype, tuple(images.shape))).encode())
        found.update(images.contiguous().numpy().data)
        return found.hexdigest()


def _witness(config: Config, folder: Path, model: nn.Module, data: Data, plan: Plan) -> RunAuditor | None:
    """The audit within a run, as it was declared in its folder, or as it is declared there now."""
    section, path = config.audit, folder / "audit.toml"
    if section.canaries == 0:
        return None
    if path.is_file():
        try:
            declared = AuditSpec.from_dict(tomllib.loads(storage.read_text(path)))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    else:
        declared = declare(model, plan, section.canaries, level=section.level, score=section.score)
        write(path, to_toml(declared.to_dict()))
    return RunAuditor(model, plan, declared, loss_for(data.train), secret=folder / COINS)


def _conclude(fitted: FitResult, folder: Path, ledger: Ledger, witness: RunAuditor | None) -> Outcome:
    """Write what a run leaves behind; the file that says it has finished comes last.

    The ledger is closed once the files are there whose hashes it has, and what is proven is what it proves.
    """
    run, end, audit = fitted.run, None, None
    run_folder.complete_records(folder, fitted.records)
    if fitted.finished:
        weights = {n: t.detach().cpu().clone().contiguous() for n, t in fitted.model.state_dict().items()}
        write(folder / "model.safetensors", lambda path: save_file(weights, path))
        names = ["model.safetensors", METRICS, STATISTICS]
        if witness is not None:
            audit = {"audited": "run"} | witness.figures(fitted.guarantee)
            write(folder / "audit.json", json.dumps(audit))
            names.append("audit.json")
        end = {"files": run_folder.digests(folder, *names), "lost": fitted.lost}
    anchor = conclude(ledger, run, fitted.rests_on, end)
    try:
        proven = verify_folder(folder)[1].guarantee
    except ConfigError:  # it was stopped before anything was counted
        proven = fitted.guarantee
    write(folder / "guarantee.json", proven.to_json())
    write(folder / "guarantee.txt", f"{proven}\n")
    if fitted.finished:
        write(folder / "end.json", json.dumps({"accuracy": fitted.accuracy, "lost": fitted.lost, "anchor": anchor}))
        if witness is not None:
            witness.forget_secret()
    return Outcome(folder, proven, fitted.accuracy, fitted.finished, fitted.lost, anchor, audit=audit)


def check(config: Config) -> None:
    """Refuse what cannot be carried out, before a folder is made and any data is read."""
    config.check()
    run = config.run
    if config.federated is not None:
        _check_federated(config, config.federated)
    if config.features is not None:
        _check_features(config)
    check_positive("[evaluation] every", config.evaluation.every)
    check_int("[evaluation] batch_size", config.evaluation.batch_size, least=1)
    check_positive("[run] checkpoint_every", run.checkpoint_every, zero=True)
    check_int("[run] seed", run.seed, least=0, most=2**63 - 1)
    if run.chunk is not None:
        check_int("[run] chunk", run.chunk, least=1)
    if not 0 <= config.averaging.decay < 1:
        raise ConfigError(f"[averaging] decay is {config.averaging.decay!r}; it must be from 0 to below 1.")
    changes = _changes(config)
    if check_int("[augmentation] copies", config.augmentation.copies, least=1) > 1 and changes is None:
        raise ConfigError(
            f"[augmentation] copies is {config.augmentation.copies}, but nothing changes them: they would all be the "
            "same; say flip or shift."
        )
    if config.audit.canaries:
        _check_audit(config)
    if run.ledger is None and (run.dataset, run.dataset_epsilon, run.dataset_delta) != (None, None, None):
        raise ConfigError("[run] dataset and its cap are of a data set's ledger; say ledger = ... where it is.")
    _ledger(config, Path())
    for section, settings, own in (
        ("data", config.data.settings, _OF_DATA),
        ("model", config.model.settings, ("name", "shape", "outputs")),
    ):
        twice = sorted(set(settings) & set(own))
        if twice:
            raise ConfigError(f"[{section}.settings] {twice[0]} is no setting: it is given by other means.")
    _device(config)
    made_up = nn.Linear(1, 1)
    make_schedule(config, make_optimizer(config, made_up), 1)
    if run.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError("[run] tensorboard needs a package: pip install 'discreet[tensorboard]'.")


def _check_features(config: Config) -> None:
    """Refuse what does not go with features."""
    config.pipeline()
    refuse("[features]")
    for wrong, words in (
        (config.federated is not None, "[federated]: their statistics are of rows, and it protects users"),
        (config.audit.canaries > 0, "[audit] canaries: these are rows of which the statistics know nothing"),
        (config.augmentation != configuration.AugmentationSection(), "[augmentation]: it changes images"),
        (config.run.ledger is not None, "[run] ledger: the run's own must count the statistics beside the training"),
    ):
        if wrong:
            raise ConfigError(f"[features] do not go with {words}; leave one of them out.")


def _check_audit(config: Config) -> None:
    """Refuse canaries where they are nothing like the units that are protected."""
    check_level(config.audit.level)
    check_int("[audit] canaries", config.audit.canaries, least=2, most=10**6)
    if config.federated is not None:
        raise ConfigError(
            "[audit] canaries are rows, and a federated run protects users; leave [audit] out, or train centrally."
        )
    if config.augmentation != configuration.AugmentationSection():
        raise ConfigError(
            "[audit] canaries have no changed copies: their gradients would not go the way of everybody's. Leave "
            "[augmentation] or [audit] out."
        )


def _check_federated(config: Config, section: FederatedSection) -> None:
    """Refuse what a federated run has no use for, or has twice."""
    if (section.user is None) == (section.users is None) and ":" not in config.data.name:
        raise ConfigError(
            f"[federated] user is {section.user!r} and users is {section.users!r}: give a table's column, or how many "
            "made-up users the rows are dealt out to."
        )
    dealt = configuration.FederatedSection()
    own = (section.partition, section.shards, section.alpha)
    if section.user is not None and own != (dealt.partition, dealt.shards, dealt.alpha):
        raise ConfigError(
            "[federated] partition, shards and alpha deal rows out to made-up users; a table has its own."
        )
    if config.augmentation != configuration.AugmentationSection():
        raise ConfigError("[augmentation] is for central training; users change their own records.")
    if config.run.chunk is not None:
        raise ConfigError("[run] chunk is for central training; users' batches are [federated] batch_size.")


# --- what a config makes ---------------------------------------------------------------------------------------------


_OF_DATA = ("name", "folder", "download", "label", "schema", "user", "test_fraction", "progress")


def read_data(config: Config, progress: Callable[[int, int], None] | None = None) -> Data:
    """The data that a config names."""
    section, federated = config.data, config.federated
    data = load(
        section.name,
        folder=section.folder,
        download=section.download,
        label=section.label,
        schema=section.schema,
        user=None if federated is None else federated.user,
        test_fraction=section.test_fraction,
        progress=progress,
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
    return Local(
        learning_rate=section.learning_rate,
        epochs=section.epochs,
        batch_size=section.batch_size,
        optimizer=section.optimizer,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
    )


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


def _plan(config: Config, folder: Path, examples: int, model: nn.Module, watch: Watch) -> Plan:
    """The plan in the folder, or a new one."""
    path = folder / "plan.toml"
    if path.is_file():
        return Plan.load(path)
    if config.federated is None and config.data.examples not in (None, examples):
        raise ConfigError(f"[data] examples is {config.data.examples}, but there are {examples:,} to train on.")
    watch.stage("solving for the noise")
    made = config.plan(examples, model)
    own_test = config.data.name in REMOTE and "limit" not in config.data.settings
    if made.sampling.contract().adjacency == "add-remove" and not own_test:
        raise ConfigError(
            "the number of examples is public here, as it decides which are held out, so nothing is proven for one "
            "added or removed; leave rate and adjacency out of [stages] sampling. (It is proven of "
            f"{', '.join(REMOTE)} without a limit, whose test parts are fixed.)"
        )
    return made


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a config names."""
    section = config.optimizer
    rate = check_positive("[optimizer] learning_rate", _learning_rate(config))
    check_positive("[optimizer] momentum", section.momentum, zero=True)
    check_positive("[optimizer] weight_decay", section.weight_decay, zero=True)
    if section.at_batch_size is not None:
        rate *= config.budget.batch_size / check_int("[optimizer] at_batch_size", section.at_batch_size, least=1)
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


def _ledger(config: Config, folder: Path) -> Ledger:
    run = config.run
    path = folder / "ledger.jsonl" if run.ledger is None else run.ledger
    return Ledger(path, dataset=run.dataset, epsilon=run.dataset_epsilon, delta=run.dataset_delta, reserve=run.reserve)


def _device(config: Config) -> torch.device:
    name, place = config.run.device, os.environ.get("LOCAL_RANK")
    try:
        device = torch.device(f"cuda:{place}" if name == "cuda" and place is not None else name)
        torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"[run] device {name!r} cannot be used here: {why}") from error
    return device


def _changes(config: Config) -> Images | None:
    section = config.augmentation
    made = Images(section.flip, section.shift)
    return made if section.flip or section.shift else None


def _try(model: nn.Module, shape: tuple[int, ...], classes: int | None, changes: Images | None) -> None:
    """Refuse a model that cannot take the data, before anything is counted: a copy of it gets two made-up rows."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    rows = torch.zeros(2, *shape, device=device)
    if changes is not None:
        rows = changes(rows)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            outputs = copy.deepcopy(model)(rows)
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"the model cannot take examples of shape {shape}: {words}") from error
    wanted = (2, classes or 1)
    made = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if made != wanted and not (classes is None and made == (2,)):
        raise ConfigError(f"of two examples the model makes {made}; outputs of shape {wanted} are needed.")


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


def _settled(config: Config) -> Config:
    """The same with whole paths and every number, so that it means the same wherever it is continued from."""

    def found(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    data, run = config.data, config.run
    named = data.name not in EXAMPLES and os.path.exists(data.name)
    name = str(found(data.name)) if named else data.name
    data = msgspec.structs.replace(data, name=name, folder=found(data.folder), schema=found(data.schema))
    optimizer = msgspec.structs.replace(config.optimizer, learning_rate=_learning_rate(config))
    run = msgspec.structs.replace(run, ledger=found(run.ledger))
    return msgspec.structs.replace(config, data=data, optimizer=optimizer, run=run)
