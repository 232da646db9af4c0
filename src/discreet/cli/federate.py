"""discreet federate."""

from typing import Any

from discreet.cli.options import (
    DATA,
    MODEL,
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
from discreet.errors import ConfigError

_USERS = {name: f"federated.{name}" for name in ("user", "users", "partition", "shards", "alpha")}
_BUDGET = {
    "epsilon": "budget.epsilon",
    "noise": "budget.noise",
    "delta": "budget.delta",
    "rounds": Flag("budget.steps", "How many rounds, each a release."),
    "epochs": Flag("budget.epochs", "How often each user takes part, on average."),
    "users_per_round": Flag("budget.batch_size", "How many users take part in a round, on average."),
}
_SERVER = {
    "optimizer": Flag("optimizer.name", "The server's optimizer; sgd is FedAvg."),
    "learning_rate": Flag("optimizer.learning_rate", "The server's learning rate."),
    "momentum": Flag("optimizer.momentum", "The server's momentum."),
}
_LOCAL = {f"local_{name}": f"federated.{name}" for name in ("optimizer", "learning_rate", "epochs", "batch_size")}
_RUN = {"engine": "federated.engine", "seed": "run.seed", "device": "run.device"}


@config_flags({**DATA, **_USERS, **MODEL, **_BUDGET, **_SERVER, **_LOCAL, **_RUN})
def federate(
    *,
    config: ConfigFile = None,
    out: RunFolder = None,
    flags: dict[str, Any],
    other: OtherFields = None,
    show: Show = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on users' data so that each user is protected, with all records together (DP-FedAvg).

    For example: discreet federate --data mnist --users 1000 --users-per-round 100 --rounds 100 --model mlp --epsilon 8
    --delta 1e-4 --out runs/users
    """
    run = configured(config, flags, other)
    if run.federated is None:
        raise ConfigError("whose rows are whose is missing: give --user, a table's column, or --users, how many.")
    begin(run, out, show, as_json)
