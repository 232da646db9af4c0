"""The plan of one trial of a search over settings: its noise is such that the best of all trials fits the budget."""

import math
from typing import TYPE_CHECKING

from msgspec import structs

from discreet._check import check_positive
from discreet.accounting import gaussian as gdp
from discreet.accounting.calibrate import calibrate_together
from discreet.accounting.events import Adjacency, Event
from discreet.accounting.tuning import Tuning
from discreet.errors import ConfigError
from discreet.runs.config import Config, merged
from discreet.runs.schema import MethodSection, TuneSection
from discreet.runs.space import Space

if TYPE_CHECKING:
    from torch import nn

    from discreet.stages.plan import Plan

METHODS = ("dp_sgd", "adaptive_clipping", "tanh_filter", "band_mf", "dp_ftrl")  # Gaussian noise by a multiplier
_SCORE_SHARE = 0.02  # of the budget, as 1 / noise^2 adds up


def tuned_plan(config: Config, tune: TuneSection, examples: int, model: "nn.Module | None") -> "Plan":
    """The plan of the trial that a config describes.

    Guarantee: the trial with the best score, of a number of trials that `tune` has drawn with settings drawn from its
    space, is released within [budget] epsilon. Every setting that could have been drawn is planned for, so that each
    trial's plan proves the same of all of it, whichever is the best.

    Args:
        config: with the settings of the trial, which are among those of the space.
        tune: the search.
        examples: how many there are to train on.
        model: the trial's.
    """
    epsilon = config.budget.epsilon
    check_tune(config, tune)
    assert epsilon is not None
    several, beside, own = [], [], None
    for number, changes in enumerate(Space.of(tune.space).costly()):
        candidate = merged(config, changes).sized(examples)
        plan = _unsolved(candidate, examples, model)
        several.append(plan)
        adjacency = plan.sampling.contract().adjacency
        score = [score_event(config, tune, adjacency)] if tune.score == "noisy" else []
        beside.append([*config.beside(plan), *score])
        if candidate == config.sized(examples):
            own = number
    if own is None:
        raise ConfigError("these settings are not in the space of [tune]; discreet tune draws them.")
    tuning = Tuning(tune.runs, tune.distribution, tune.score)
    return calibrate_together(several, epsilon, tuning, beside)[own]


def _unsolved(config: Config, examples: int, model: "nn.Module | None") -> "Plan":
    """A candidate's plan, its noise not known yet."""
    from discreet.runs.resolve import preset_plan

    bare = structs.replace(config, budget=structs.replace(config.budget, epsilon=None, noise=1.0), tune=None)
    return preset_plan(bare, config.method or MethodSection(), examples, model)


def score_noise(config: Config, tune: TuneSection) -> float:
    """The noise on the number of rows that a trial's model is right on."""
    if tune.score_noise is not None:
        return check_positive("[tune] score_noise", tune.score_noise)
    assert config.budget.epsilon is not None
    return 1 / (math.sqrt(_SCORE_SHARE) * gdp.mu(config.budget.epsilon, config.budget.delta))


def score_event(config: Config, tune: TuneSection, adjacency: Adjacency) -> Event:
    """What a noisy score costs: one row counts from 0 to 1 in one sum over the training rows."""
    return Event(rate=1.0, multiplier=score_noise(config, tune), steps=1, adjacency=adjacency)


def check_tune(config: Config, tune: TuneSection) -> None:
    """Refuse a search whose cost is not known.

    Raises:
        ConfigError: a method, a field of the space, or what stands beside it does not go with a search.
    """
    if config.budget.epsilon is None:
        raise ConfigError("a search's cost is inside [budget] epsilon; give epsilon in place of noise.")
    method = config.method or MethodSection()
    if config.stages is not None or method.name not in METHODS or method.settings.get("form", "sound") != "sound":
        raise ConfigError(
            f"[tune] is for the methods {', '.join(METHODS)} in their sound form, whose cost does not depend on the "
            "model."
        )
    for wrong, words in (
        (config.federated is not None, "[federated]"),
        (config.audit.canaries > 0, "[audit] canaries"),
        (config.run.ledger is not None, "[run] ledger: the data set's registry counts the whole search"),
    ):
        if wrong:
            raise ConfigError(f"[tune] does not go with {words}; leave one of them out.")
    if tune.score == "held-out" and tune.score_noise is not None:
        raise ConfigError("[tune] score_noise is for a noisy score; a score on held-out rows has none.")
    Tuning(tune.runs, tune.distribution, tune.score)
    space = Space.of(tune.space)
    space.costly()
    for field, values in space.choices.items():
        for value in values:
            merged(config, {field: value}).check()
    for field, ends in space.ranges.items():
        for end in (ends.low, ends.high):
            merged(config, {field: end}).check()
