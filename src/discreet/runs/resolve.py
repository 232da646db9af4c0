"""From a config to a plan: the preset or the stages that it names, with the noise that its budget needs."""

import inspect
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from discreet.accounting import gaussian as gdp
from discreet.accounting.calibrate import calibrate
from discreet.errors import ConfigError
from discreet.runs.config import Config
from discreet.runs.schema import MethodSection, StagesSection
from discreet.stages import presets
from discreet.stages.custom import by_class_name, named_here
from discreet.stages.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from discreet.features.pipeline import Pipeline


def plan(config: Config, examples: int, model: "nn.Module | None" = None) -> Plan:
    """The plan of a config, for its examples and its canaries.

    Args:
        config: has been checked.
        examples: how many there are to train on; or users.
        model: whose number of parameters a preset may need.

    Returns:
        A plan with its noise solved.

    Raises:
        ConfigError: the method or a stage cannot be made of its settings.
    """
    if config.tune is not None:
        from discreet.runs.tuned import tuned_plan

        planned = tuned_plan(config, config.tune, examples, model)
        return planned if model is None else planned.fit_to(model)
    grown, rows = config.beside_canaries(examples), examples + config.audit.canaries
    if config.stages is not None:
        planned = _staged(grown, config.stages, rows)
    else:
        planned = preset_plan(grown, config.method or MethodSection(), rows, model)
    if config.federated is not None and planned.sampling.contract().unit == "example":
        sampling: Any = planned.sampling
        planned = replace(planned, sampling=replace(sampling, unit="user"))
    return planned if model is None else planned.fit_to(model)


def own_stages(config: Config) -> tuple[type[Any], ...]:
    """The classes of one's own that a config's stages name, imported."""
    stages = config.stages
    return () if stages is None else named_here([stages.sampling, stages.bound, stages.noise, stages.denoise])


def pipeline(config: Config) -> "Pipeline":
    """What makes features, with the noise that its statistics have at this budget."""
    from discreet.features.pipeline import Pipeline

    if config.features is None:
        raise ConfigError("there are no [features] in this run.")
    features, share, budget = Pipeline.of(config.features), config.features.share, config.budget
    if share is None:
        return features
    if budget.epsilon is None or not 0 < share < 1:
        raise ConfigError(
            f"[features] share is {share}: it must be between 0 and 1, a part of [budget] epsilon, which is "
            f"{budget.epsilon}; or leave it out and say the noises."
        )
    return features.spending(math.sqrt(share) * gdp.mu(budget.epsilon, budget.delta))


def preset_plan(config: Config, method: MethodSection, examples: int, model: "nn.Module | None") -> "Plan":
    """A preset's plan, solved for the budget beside all else that is asked of the data."""
    preset = getattr(presets, method.name)
    budget = config.budget
    length = {"epochs": budget.epochs} if budget.steps is None else {"steps": budget.steps}
    own = {
        "examples": examples,
        "batch_size": budget.batch_size,
        "delta": budget.delta,
        "epsilon": budget.epsilon,
        "noise": budget.noise,
        **length,
    }
    settings = set(inspect.signature(preset).parameters) - {*own, "epochs", "steps"}
    wrong = set(method.settings) - settings
    if wrong:
        raise ConfigError(
            f"{method.name} has no setting {', '.join(sorted(wrong))}; it has {', '.join(sorted(settings))}, and "
            "[budget] has the rest."
        )
    if model is not None:
        sizes = [p.numel() for p in model.parameters() if p.requires_grad]
        facts = {"parameters": sum(sizes), "tensors": len(sizes)}
        own |= {k: v for k, v in facts.items() if k in settings and k not in method.settings}
    alone = config.features is None and not _asks_of_table(config)
    total = None if alone else budget.epsilon
    if total is not None:  # solved below, beside the statistics of features or what is asked of a table
        own |= {"epsilon": None, "noise": 1.0}
    try:
        plan = preset(**own, **method.settings)
        return plan if total is None else calibrate(plan, total, beside=config.beside(plan))
    except TypeError as error:
        raise ConfigError(f"{method.name} cannot be made of {method.settings!r}: {error}") from error


def _asks_of_table(config: Config) -> bool:
    """Whether a table's schema leaves something open that is asked for."""
    from discreet.runs.tables import facts_of

    facts = facts_of(config)
    return facts is not None and bool(facts.private)


def _staged(config: Config, stages: StagesSection, examples: int) -> "Plan":
    budget = config.budget
    named = by_class_name(stages.sampling)
    sampling = {**named, "batch_size": budget.batch_size}
    if "rate" not in sampling:
        sampling["examples"] = examples
    if sampling.get("type") == "WeightedPoisson":  # each of whose strata has its own
        sampling = named
    elif sampling.get("type") == "Allocation" and "batches" in sampling:
        del sampling["batch_size"]
    elif sampling.get("type") == "Allocation":
        sampling["batches"] = max(1, round(examples / sampling.pop("batch_size")))
    values: dict[str, Any] = {
        "format": "discreet-plan/1",
        "steps": 0 if budget.steps is None else budget.steps,
        "delta": budget.delta,
        "sampling": sampling,
        "bound": by_class_name(stages.bound),
        "noise": by_class_name(stages.noise),
        "allocation": stages.allocation,
        "microbatch": stages.microbatch,
        "hardening": stages.hardening,
        **({} if stages.denoise is None else {"denoise": by_class_name(stages.denoise)}),
    }
    plan = Plan.from_dict(values, own_stages(config))
    if budget.steps is None:
        plan = replace(plan, steps=plan.sampling.steps_for(budget.epochs))
    if stages.noise_schedule:
        plan = replace(plan, noise_schedule=tuple(stages.noise_schedule))
    if budget.epsilon is not None:
        return calibrate(plan, budget.epsilon, beside=config.beside(plan))
    assert budget.noise is not None
    return replace(plan, mechanism=plan.mechanism.with_scale(budget.noise))
