"""A user: one SuperNode, whose node config says which user it is."""

from flwr.app import Context
from torch import Tensor

from discreet.integrations.flower import client_app
from flower_app.task import BOUND, LOCAL, make_model, rows_of


def load(context: Context) -> tuple[Tensor, Tensor]:
    return rows_of(context.node_config["partition-id"], context.node_config["num-partitions"])


app = client_app(make_model, load, LOCAL, bound=BOUND)
