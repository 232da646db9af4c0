"""A search over settings of which only the best trial is released, at a cost that is inside the guarantee.

    tune.toml        what was asked for: a run's file with a [tune] table
    draws.json       how many trials there are, and with which settings: the owner's secret, drawn once
    scores.json      what trials were given: the owner's secret
    trials/NAME/     each trial's run, with its own ledger: not released
    best/            the run that is released: its guarantee includes the search
    report.html      all trials on a page, for whoever holds the data: not released

Guarantee (Papernot and Steinke 2021): the number of trials is drawn by a law that the theorem knows, and each trial's
settings from the space, without the data; each trial, its score included, has Rényi divergences of at most those that
the plan counts; the best is the only thing that leaves. The plan of each trial says the cost of all of it.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from discreet.accounting import cost
from discreet.accounting.events import Event
from discreet.accounting.guarantee import round_up
from discreet.distributed.ranks import refuse
from discreet.errors import ConfigError, PrivacyError
from discreet.ledger import storage
from discreet.release.batching import length_of
from discreet.report import write as write_report
from discreet.runs import build
from discreet.runs import folder as run_folder
from discreet.runs.config import Config, load, merged
from discreet.runs.folder import write
from discreet.runs.outcome import Outcome, read_end
from discreet.runs.progress import Watch
from discreet.runs.registry import registered
from discreet.runs.schema import TuneSection
from discreet.runs.tables import facts_of
from discreet.runs.tuned import score_event
from discreet.runs.validation import check
from discreet.stages.plan import Plan
from discreet.tuning.draws import DRAWS, Draws, Trial, drawn
from discreet.tuning.page import write_search
from discreet.tuning.scores import score_of
from discreet.tuning.trials import Job, carried_out

SPEC, SCORES, TRIALS, BEST = "tune.toml", "scores.json", "trials", "best"
_BEGUN = ".begun"


@dataclass(frozen=True)
class Tuned:
    """How a search ended: the run that is released, or None of a number of trials that was none.

    `finished` is whether all trials were made; `scores` are the owner's secret, by the trial's name.
    """

    folder: Path
    best: Outcome | None
    finished: bool
    trials: tuple[Trial, ...]
    scores: dict[str, float]
    already: bool = False


def tune(config: Config, folder: str | Path, watch: Watch | None = None, *, workers: int = 1) -> Tuned:
    """Begin a search in a new folder.

    Args:
        config: a run with a [tune] table; [budget] epsilon is that of everything together.
        folder: is made; one that holds anything is left alone.
        watch: is told how it goes, and may stop it: then `go_on` continues it.
        workers: how many trials are made at a time, each in a process of its own.

    Returns:
        How it ended.

    Raises:
        ConfigError: the search or its data is refused; nothing was asked of the data.
        BudgetExhausted: it does not fit under the data set's cap.
    """
    place = Path(folder)
    refuse("a search over settings")
    if config.tune is None:
        raise ConfigError("there is no [tune] table with a space; say what is to be searched.")
    check(config)
    new_folders = run_folder.make(place)
    try:
        with run_folder.held(place):
            run_folder.tidy(place)
            settled = build.settled(config)
            try:
                plan = _planned(settled, watch or Watch())
                write(place / SPEC, run_folder.keep_schema(place, settled).to_toml())
                return _carry_out(settled, place, plan, watch or Watch(), workers)
            except (ConfigError, PrivacyError):
                _unmake(place)
                raise
    finally:
        run_folder.remove_made(new_folders)


def _unmake(folder: Path) -> None:
    """Take away what a search wrote that was refused before anything was asked of the data."""
    if not (folder / _BEGUN).exists():
        for name in (SPEC, DRAWS, run_folder.SCHEMA, ".lock"):
            (folder / name).unlink(missing_ok=True)


def go_on(folder: str | Path, watch: Watch | None = None, *, workers: int = 1) -> Tuned:
    """Continue a search where it was left; nothing is drawn again, and one that has finished is left alone."""
    place = Path(folder)
    refuse("a search over settings")
    if not (place / SPEC).is_file():
        raise ConfigError(f"{place} is no search's folder: it has no {SPEC}. Begin one with: discreet tune FILE")
    config = run_folder.located(load(place / SPEC), place)
    with run_folder.held(place):
        run_folder.tidy(place)
        return _carry_out(config, place, None, watch or Watch(), workers)


def is_search(folder: Path) -> bool:
    """Whether a folder is a search's."""
    return (folder / SPEC).is_file()


def _planned(config: Config, watch: Watch) -> Plan:
    """The plan of a trial, whichever: its tuning knows what all cost. What does not go together is refused."""
    assert config.tune is not None
    watch.stage("reading the data")
    facts = facts_of(config)
    data = build.read_data(config, watch.download, rehearsal=facts is not None and bool(facts.private))
    for field, values in _space(config.tune).items():
        for value in values:
            own = merged(config, {field: value})
            model = build.make_model(own, data.shape, data.classes)
            if own.features is None:
                build.try_model(model, data.shape, data.classes, build.augmentation(own))
            build.make_optimizer(own, model)
    watch.stage("solving for the noise")
    return merged(config, _first(config.tune)).plan(length_of(data.train))


def _space(tune: TuneSection) -> dict[str, tuple[Any, ...]]:
    """Each field with what is tried of it: its list, or the ends of its range."""
    from discreet.runs.space import Space

    space = Space.of(tune.space)
    return {**space.choices, **{field: (ends.low, ends.high) for field, ends in space.ranges.items()}}


def _first(tune: TuneSection) -> dict[str, Any]:
    return {field: values[0] for field, values in _space(tune).items()}


def _carry_out(config: Config, folder: Path, plan: Plan | None, watch: Watch, workers: int) -> Tuned:
    """From the draws to the best, in a folder that is this process's own."""
    assert config.tune is not None
    draws = drawn(folder, config.tune, begun=(folder / _BEGUN).exists())
    if (folder / BEST).is_dir():
        return Tuned(folder, read_end(folder / BEST), True, draws.trials, _scores(folder), already=True)
    if not (folder / _BEGUN).exists():
        _count(config, folder, draws, plan or _planned(config, watch), watch)
        write(folder / _BEGUN, b"")
    jobs = {trial.name: _job(trial, config, folder) for trial in draws.trials}
    trials, scores, made = {trial.name: trial for trial in draws.trials}, _scores(folder), 0
    for job, finished in carried_out([jobs[name] for name in jobs if name not in scores], workers, watch):
        if finished:
            name, made = job.folder.name, made + 1
            own = merged(config, trials[name].settings)
            scores[name] = score_of(trials[name], job.folder, own, config.tune)
            write(folder / SCORES, json.dumps(scores), private=True)
            watch.stage(f"{len(scores)} of {len(trials)} trials")
    if len(scores) < len(trials):
        return Tuned(folder, None, False, draws.trials, scores)
    if not trials:
        return Tuned(folder, None, True, draws.trials, scores)
    name = max(trials, key=lambda name: scores[name])
    ended = read_end(folder / TRIALS / name)
    if ended is not None:
        settings = {trial.name: trial.settings for trial in draws.trials}
        write_search(folder, settings, scores, name, ended.guarantee, _all_of(config, folder, draws))
    _release(folder, name)
    write_report([folder / BEST])
    return Tuned(folder, read_end(folder / BEST), True, draws.trials, scores)


def _job(trial: Trial, config: Config, folder: Path) -> Job:
    own = merged(config, trial.settings)
    dataset = registered(structs.replace(config, tune=None), folder).run.dataset
    run = structs.replace(own.run, dataset=dataset, dataset_epsilon=None, dataset_delta=None)
    return Job(folder / TRIALS / trial.name, to_builtins(structs.replace(own, run=run)))


def _count(config: Config, folder: Path, draws: Draws, plan: Plan, watch: Watch) -> None:
    """Count the whole search in its data set's ledger, once, before the first trial: it fits under the cap, or not."""
    from discreet.runs.registry import noted

    whole = registered(structs.replace(config, tune=None), folder)
    if whole.run.ledger is None or plan.tuning is None:
        return
    ledger = noted(build.make_ledger(whole, folder), folder)
    watch.say(f"The search is counted in {whole.run.ledger}.")
    what = f"the best of {plan.tuning.runs:g} trials on average, {ledger.place}"
    ledger.query(what, Event.of_best(plan.tuning), answer=draws.search)


def _all_of(config: Config, folder: Path, draws: Draws) -> str:
    """What it would cost to show all trials, in words: they then compose, one by one, with their scores."""
    assert config.tune is not None
    events: list[Event] = []
    for trial in draws.trials:
        ended = read_end(folder / TRIALS / trial.name)
        if ended is not None:
            score = score_event(config, config.tune, ended.guarantee.events[0].adjacency)
            events += [*ended.guarantee.events, *([score] if config.tune.score == "noisy" else [])]
    epsilon = round_up(cost(events, config.budget.delta).epsilon)
    return f"If all {len(draws.trials)} trials were shown, with their scores, ε would be {epsilon}."


def _scores(folder: Path) -> dict[str, float]:
    path = folder / SCORES
    if not path.is_file():
        return {}
    try:
        return {str(name): float(score) for name, score in json.loads(storage.read_text(path)).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _release(folder: Path, name: str) -> None:
    """Copy the best trial's run to where it is released from, in one move; nothing in it tells which one it was."""
    source, target = folder / TRIALS / name, folder / BEST
    half = folder / f".{BEST}"
    try:
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(source, half, ignore=shutil.ignore_patterns(".*", "checkpoint", "*.lock", "report*"))
        card = half / "README.md"
        if card.is_file():
            storage.replace(card, card.read_text(encoding="utf-8").replace(name, BEST))
        half.rename(target)
    except OSError as error:
        raise ConfigError(f"the best trial cannot be copied to {target}: {error}") from error


__all__ = ["BEST", "DRAWS", "SCORES", "SPEC", "TRIALS", "Tuned", "go_on", "is_search", "tune"]
