"""discreet train."""

from typing import Any

from discreet.cli.options import (
    BUDGET,
    DATA,
    MODEL,
    OPTIMIZER,
    AsJson,
    ConfigFile,
    Flag,
    OtherFields,
    RunFolder,
    Show,
    config_flags,
    configured,
)
from discreet.cli.running import begin

_AUDIT = "Put so many canaries beside the data and measure epsilon from below, at some accuracy."
_RUN = {
    "schedule": "schedule.name",
    "averaging": "averaging.decay",
    "seed": "run.seed",
    "chunk": "run.chunk",
    "device": "run.device",
    "tensorboard": "run.tensorboard",
    "audit": Flag("audit.canaries", _AUDIT),
}


@config_flags({**DATA, **MODEL, **BUDGET, **OPTIMIZER, **_RUN})
def train(
    *,
    config: ConfigFile = None,
    out: RunFolder = None,
    flags: dict[str, Any],
    other: OtherFields = None,
    show: Show = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on private data to a budget: a run folder with ledger, model, guarantee and report.

    With --audit it exits with 1 if the canaries contradict what is proven.

    For example: discreet train --data digits --model cnn --epsilon 3 --epochs 40 --out runs/digits
    """
    begin(configured(config, flags, other), out, show, as_json)
