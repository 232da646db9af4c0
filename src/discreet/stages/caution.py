"""Words of caution where a plan is unusual: it is not wrong, but somebody should have meant it."""

import math

from discreet.stages.plan import Plan

_LARGE_EPSILON = 10.0
_FEW = 500


def cautions(plan: Plan) -> tuple[str, ...]:
    """What is unusual about a plan, each in words without a full stop; nothing of most plans.

    >>> import discreet
    >>> plan = discreet.methods.dp_sgd(examples=200, batch_size=200, epochs=5, epsilon=20, delta=1e-2)
    >>> [words.partition(":")[0] for words in cautions(plan)]
    ['δ is above 1 / n', 'ε is above 10', 'few examples', 'everybody takes part in each step']
    """
    who, found = plan.sampling.contract(), []
    examples = getattr(plan.sampling, "examples", None)
    if isinstance(examples, int) and plan.delta * examples > 1:
        found.append(
            f"δ is above 1 / n: {plan.delta:g} for {examples:,} {who.unit}s allows to publish a whole record of one "
            "of them now and then; a tenth of 1 / n or less is usual"
        )
    epsilon = plan.epsilon if plan.epsilon is not None else _epsilon(plan)
    if epsilon is not None and epsilon > _LARGE_EPSILON:
        found.append(
            f"ε is above {_LARGE_EPSILON:g}: with {epsilon:.4g} a {who.unit}'s part may be found out nearly surely, so "
            "far as this proves"
        )
    if isinstance(examples, int) and examples < _FEW:
        found.append(
            f"few examples: of {examples:,} {who.unit}s noise hides most of what could be learned; a table of counts "
            "may serve better"
        )
    if who.rate == 1 and who.scheme in ("poisson", "fixed-size"):
        found.append(
            f"everybody takes part in each step: no {who.unit} is hidden by the draw, which is most of what makes "
            "training cheap; a smaller batch needs less noise for the same ε, if all is summed at once for a reason "
            "leave it"
        )
    return tuple(found)


def _epsilon(plan: Plan) -> float | None:
    """A plan's own, if its noise is known."""
    if not plan.mechanism.noise.solved or plan.steps == 0:
        return None
    found = plan.guarantee().epsilon
    return found if math.isfinite(found) else None
