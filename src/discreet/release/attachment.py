"""`attach`: a plan on a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from discreet.distributed.fsdp import sharding_of
from discreet.distributed.ranks import Group, facts, find
from discreet.errors import ConfigError
from discreet.gradients import Engine
from discreet.gradients.engine import MEMORY
from discreet.ledger import Ledger, named
from discreet.release.guards import ready
from discreet.release.private import Private
from discreet.stages.plan import Plan


def attach(
    model: nn.Module | Sequence[nn.Module],
    plan: Plan,
    ledger: str | Path | Ledger | None = None,
    *,
    preflight: bool = True,
    seed: int | None = None,
    audit: Mapping[str, Any] | None = None,
    memory: float = MEMORY,
    kernels: Mapping[str, str] | None = None,
    group: Group = None,
    noise_shares: bool = False,
    run: str | None = None,
    assumes: Sequence[str] = (),
) -> Private:
    """Attach a plan to an unmodified model, and return the handle that draws batches and makes gradients private.

    Under torchrun, or where a process group has been begun, the ranks train together: every one of them calls attach,
    and then the same methods as often as the others (discreet.distributed).

    Args:
        model: what is trained; it is not wrapped, and `detach()` leaves it as it was. Or several modules, whose
            parameters are bounded and noised together, and are named by the module's place: "0.weight".
        plan: who takes part, the bound, the noise, how many steps.
        ledger: a file that counts what is released (None: in memory), or a Ledger, which can cap a whole data set.
        preflight: whether the first batch, and later ones now and then, are probed for what would break the guarantee;
            that costs about two steps, once.
        seed: makes noise and sampling reproducible. Whoever knows it can take the noise off again, so the guarantee
            says that it is broken.
        audit: written down beside the plan before anything is released: what will be tested cannot be chosen later.
        memory: how much a step may take, as a multiple of what an ordinary step takes (math.inf: whatever is fastest).
        kernels: how a parameter's gradients are made, by its name (`private.kernels` shows what was chosen). Neither
            this nor `memory` changes what is released.
        group: another process group than the default one, or False for a process that is to be alone.
        noise_shares: whether each rank draws a share of the noise, so that no rank knows all of it.
        run: the run that is continued or begun, `private.run` of an earlier handle. Without, a file of one run
            continues it; in a data set's ledger a new run begins, unless a state is loaded before its first release.
        assumes: what is assumed beside, in words: each is a condition of the guarantee. What the model's modules say of
            themselves (`assumes`, a text: what public weights were trained on) is added.

    Returns:
        The handle: `batches`, `backward`, `guarantee`, `detach`.

    Raises:
        ConfigError: the plan does not fit the model, or an argument makes no sense.
        PrivacyError: the model cannot be made private as it is, or has a plan attached already.
        BudgetExhausted: the plan's steps would spend more than its limit, or the data set's cap.
    """
    model = _as_one(model)
    ledger = named(ledger, run)
    ranks = find(group, noise_shares=noise_shares)
    with ranks.reported():
        plan = ready(model, plan)
        asked = {"seed": seed, "preflight": preflight, "audit": audit, "noise_shares": noise_shares}
        if not ranks.alone:
            ranks.agree("attach", facts(model, plan, **asked))
        sharding = sharding_of(model, ranks, plan.mechanism)
        parameters = None if sharding is None else sharding.parameters
        engine = Engine(model, memory=memory, kernels=kernels, parameters=parameters)
        if sharding is not None and sharding.passes is not None:
            engine.passes = sharding.passes
        private = Private(model, plan, ledger, preflight, seed, audit, engine, ranks, sharding)
        private.assume(model, assumes)
    try:
        ranks.exchange("attached")
    except BaseException:
        private.detach()
        raise
    return private


def _as_one(model: Any) -> Any:
    """Several modules as one; anything else as it is."""
    if not isinstance(model, Sequence) or isinstance(model, str):
        return model
    for i, module in enumerate(model):
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model {i} is a {type(module).__name__}, which is no torch.nn.Module.")
    if len({id(module) for module in model}) < len(model) or not model:
        raise ConfigError("of several models each is given once, and one at least.")
    return nn.ModuleList(model)
