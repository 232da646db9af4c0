"""What is refused of a config before a folder is made and any data is read."""

from importlib.util import find_spec
from pathlib import Path

from torch import nn

from discreet._check import check_int, check_positive, shown, within
from discreet.audit.one_run import check_level
from discreet.distributed.ranks import refuse
from discreet.errors import ConfigError
from discreet.ledger import storage
from discreet.runs.build import DATA_SETTINGS, augmentation, device, make_ledger, make_optimizer, make_schedule
from discreet.runs.config import Config
from discreet.runs.registry import check_name, name_of_data
from discreet.runs.schema import AugmentationSection, FederatedSection
from discreet.runs.tuned import check_tune


def check(config: Config) -> None:
    """Refuse what cannot be carried out, before a folder is made and any data is read."""
    config.check()
    run = config.run
    if config.federated is not None:
        _check_federated(config, config.federated)
    if config.features is not None:
        _check_features(config)
    if config.tune is not None:
        check_tune(config, config.tune)
    check_positive("[evaluation] every", config.evaluation.every)
    check_int("[evaluation] batch_size", config.evaluation.batch_size, least=1)
    check_positive("[run] checkpoint_every", run.checkpoint_every, zero=True)
    check_int("[run] seed", run.seed, least=0, most=2**63 - 1)
    if run.chunk is not None:
        check_int("[run] chunk", run.chunk, least=1)
    if not 0 <= config.averaging.decay < 1:
        raise ConfigError(f"[averaging] decay is {config.averaging.decay!r}; it must be from 0 to below 1.")
    changes = augmentation(config)
    copies = check_int("[augmentation] copies", config.augmentation.copies, least=1)
    within("copies", copies, f"[augmentation] copies is {copies:,}")
    if copies > 1 and changes is None:
        raise ConfigError(
            f"[augmentation] copies is {config.augmentation.copies}, but nothing changes them: they would all be the "
            "same; say flip or shift."
        )
    if config.audit.canaries:
        _check_audit(config)
    check_counting(config)
    make_ledger(config, Path())
    if run.ledger is not None:
        _check_place(run.ledger)
    for section, settings, own in (
        ("data", config.data.settings, DATA_SETTINGS),
        ("model", config.model.settings, ("name", "shape", "outputs")),
    ):
        twice = sorted(set(settings) & set(own))
        if twice:
            raise ConfigError(f"[{section}.settings] {twice[0]} is no setting: it is given by other means.")
    device(config)
    make_schedule(config, make_optimizer(config, nn.Linear(1, 1)), 1)
    if run.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError("[run] tensorboard needs a package: pip install 'discreet[tensorboard]'.")


def check_counting(config: Config) -> None:
    """Refuse a cap where nothing is counted together."""
    run = config.run
    capped = (run.dataset_epsilon, run.dataset_delta) != (None, None)
    if run.alone and (run.dataset is not None or run.ledger is not None or capped):
        raise ConfigError("[run] alone is of a run that no data set counts; leave it out, or dataset, ledger and cap.")
    if capped and run.dataset is None and (run.ledger is not None or name_of_data(config) is None):
        raise ConfigError(
            f"a cap is of all runs on a data set, and {config.data.name!r} has no file that names one; say --dataset."
        )
    if run.ledger is None and not run.alone:
        check_name(run.dataset or name_of_data(config))
    if run.dataset_epsilon is not None:
        check_positive("[run] dataset_epsilon (--cap)", run.dataset_epsilon)


def _check_place(ledger: str) -> None:
    """Refuse a data set's ledger that cannot be one, before a run's folder is made."""
    try:
        storage.is_file(ledger)
    except OSError as error:
        raise ConfigError(f"[run] ledger {shown(ledger)} cannot be used: {error}") from error


def _check_features(config: Config) -> None:
    """Refuse what does not go with features."""
    config.pipeline()
    refuse("[features]")
    for wrong, words in (
        (config.federated is not None, "[federated]: their statistics are of rows, and it protects users"),
        (config.audit.canaries > 0, "[audit] canaries: these are rows of which the statistics know nothing"),
        (config.augmentation != AugmentationSection(), "[augmentation]: it changes images"),
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
    if config.augmentation != AugmentationSection():
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
    dealt = FederatedSection()
    own = (section.partition, section.shards, section.alpha)
    if section.user is not None and own != (dealt.partition, dealt.shards, dealt.alpha):
        raise ConfigError(
            "[federated] partition, shards and alpha deal rows out to made-up users; a table has its own."
        )
    if config.augmentation != AugmentationSection():
        raise ConfigError("[augmentation] is for central training; users change their own records.")
    if config.run.chunk is not None:
        raise ConfigError("[run] chunk is for central training; users' batches are [federated] batch_size.")
