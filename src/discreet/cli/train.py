"""discreet train."""

from typing import Any

from discreet.cli import options
from discreet.cli.running import begin

_AUDIT = "Put so many canaries beside the data and measure epsilon from below, at some accuracy."
_RUN = {
    "schedule": "schedule.name",
    "averaging": "averaging.decay",
    "seed": "run.seed",
    "chunk": "run.chunk",
    "device": "run.device",
    "tensorboard": "run.tensorboard",
    "audit": options.Flag("audit.canaries", _AUDIT),
}


@options.config_flags({**options.DATA, **options.MODEL, **options.BUDGET, **options.OPTIMIZER, **_RUN})
def train(
    *,
    config: options.ConfigFile = None,
    out: options.RunFolder = None,
    flags: dict[str, Any],
    other: options.OtherFields = None,
    show: options.Show = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a model on private data to a budget: a run folder with ledger, model, guarantee and report.

    With --audit it exits with 1 if the canaries contradict what is proven.

    For example: discreet train --data digits --model cnn --epsilon 3 --epochs 40 --out runs/digits
    """
    begin(options.configured(config, flags, other), out, show, as_json)
