"""Which ledger counts a run: its data set's, in `datasets/` beside the runs' folders, unless something else is said."""

import getpass
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.accounting.guarantee import Condition, round_up
from discreet.data.columns import TABLES
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import Ledger, LedgerFile
from discreet.runs.config import Config
from discreet.stages.plan import Plan

REGISTRY = "datasets"  # beside the folders of runs: a ledger for each data set


def name_of_data(config: Config) -> str | None:
    """What the data set is called: the stem of its file; None of data that is public by its name, or made by code."""
    path = Path(config.data.name)
    return path.stem if path.suffix.lower() in (*TABLES, ".npz") or path.is_dir() else None


def registered(config: Config, folder: Path) -> Config:
    """The same run with the ledger of its data set, where it has no other; what is public by its name has none.

    Args:
        config: with the path of its data settled.
        folder: the run's, beside which the registry is.

    Raises:
        ConfigError: the data set's name cannot be a file's.
    """
    run = config.run
    name = run.dataset or name_of_data(config)
    if run.ledger is not None or run.alone or config.tune is not None or name is None:
        return config
    check_name(name)
    ledger = folder.absolute().parent / REGISTRY / f"{name}.jsonl"
    return msgspec.structs.replace(config, run=msgspec.structs.replace(run, ledger=str(ledger), dataset=name))


def check_name(name: str | None) -> None:
    """Refuse a data set's name that cannot be a file's."""
    if name is None:
        return
    if not name.isprintable() or name in ("", ".", "..") or set(name) & {"/", "\\"} or len(name) > 100:
        raise ConfigError(f"the data set's name is {name[:120]!r}; give it one that a file may have, with --dataset.")


def noted(ledger: Ledger, folder: Path) -> Ledger:
    """A data set's ledger that notes who begins a run, and where its folder is beside the registry."""
    if ledger.dataset is None:
        return ledger
    try:
        by = getpass.getuser()
    except (OSError, KeyError):  # nobody has that number
        by = ""
    return replace(ledger, by=by, place=os.path.relpath(folder.absolute(), Path(ledger.path).absolute().parent.parent))


def within_search(config: Config) -> list[Condition]:
    """What the guarantee of a search's trial rests on, where a data set counts the whole search."""
    if config.tune is None or config.run.dataset is None:
        return []
    words = (
        f"this is of the search over settings alone: what else was asked of data set {config.run.dataset!r} is in its "
        "ledger's guarantee, which counts the whole search"
    )
    return [Condition(words, "assumed")]


def told(ledger: Ledger, plan: Plan) -> str:
    """What a data set has spent before a run, and will have with it, in words; nothing of a ledger for one run."""
    if ledger.dataset is None:
        return ""
    book, own = LedgerFile(ledger), ledger.identity
    with book.locked():
        content = book.content
    if content.dataset is None or (own is not None and own.run in content.runs):
        return ""
    name, delta, cap = (content.dataset[key] for key in ("dataset", "delta", "epsilon"))
    runs = sum(not run.withdrawn for run in content.runs.values())
    mine = [] if own is None else content.queries_of(own.run)
    others = list(content.horizon())
    for event in mine:
        others.remove(event)
    before, after = (_total([*others, *more], delta) for more in ((), [*mine, *plan.events()]))
    many = f"{runs} runs were" if runs != 1 else "1 run was"
    capped = "it has no cap (--cap sets one)" if cap is None else f"its cap is {cap:g}"
    return (
        f"Data set {name!r}: {many} counted before, ε {before} together; with this one it is {after} at δ = {delta:g}, "
        f"and {capped}."
    )


def _total(events: Sequence[Event], delta: float) -> str:
    try:
        epsilon = cost(events, delta).epsilon
    except PrivacyError:
        epsilon = math.inf
    return "not known, as what was released does not add up" if math.isinf(epsilon) else round_up(epsilon)
