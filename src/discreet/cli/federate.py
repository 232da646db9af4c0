"""discreet federate."""

from typing import Any

from discreet.cli import options
from discreet.cli.running import begin
from discreet.errors import ConfigError

_USERS = {name: f"federated.{name}" for name in ("user", "users", "partition", "shards", "alpha")}
_BUDGET = {
    "epsilon": "budget.epsilon",
    "noise": "budget.noise",
    "delta": "budget.delta",
    "rounds": options.Flag("budget.steps", "How many rounds, each a release."),
    "epochs": options.Flag("budget.epochs", "How often each user takes part, on average."),
    "users_per_round": options.Flag("budget.batch_size", "How many users take part in a round, on average."),
}
_SERVER = {
    "optimizer": options.Flag("optimizer.name", "The server's optimizer; sgd is FedAvg."),
    "learning_rate": options.Flag("optimizer.learning_rate", "The server's learning rate."),
    "momentum": options.Flag("optimizer.momentum", "The server's momentum."),
}
_LOCAL = {f"local_{name}": f"federated.{name}" for name in ("optimizer", "learning_rate", "epochs", "batch_size")}
_RUN = {"engine": "federated.engine", "seed": "run.seed", "device": "run.device"}


@options.config_flags(
    {**options.DATA, **_USERS, **options.MODEL, **_BUDGET, **options.COUNTING, **_SERVER, **_LOCAL, **_RUN}
)
def federate(
    *,
    config: options.ConfigFile = None,
    out: options.RunFolder = None,
    flags: dict[str, Any],
    other: options.OtherFields = None,
    show: options.Show = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a model on users' data so that each user is protected, with all records together (DP-FedAvg).

    For example: discreet federate --data mnist --users 1000 --users-per-round 100 --rounds 100 --model mlp --epsilon 8
    --delta 1e-4 --out runs/users
    """
    run = options.configured(config, flags, other)
    if run.federated is None:
        raise ConfigError("whose rows are whose is missing: give --user, a table's column, or --users, how many.")
    begin(run, out, show, as_json)
