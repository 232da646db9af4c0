"""The rounds of a plan over users, carried by Flower: a server that asks nodes for updates, and the app they run.

The server's side is `Federation(rounds, optimizer).start(grid)` in a ServerApp; the users' side is `client_app(...)`.
One node is one user. What goes over the wire, in either direction, is a ConfigRecord under "discreet" and an
ArrayRecord ("model" to the user, "update" back):

    query    nonce                       ->  nonce, the user's number, a digest of what it can train
    train    round, user, nonce, model   ->  round, nonce, key, update (float32, its bits mixed with the key's)

Guarantee: a reply counts only if it answers this round's message to this user, and has the model's names and shapes
and finite float32 numbers; everything else (an error, silence, a replay, a second reply) counts as exactly zero, and
nothing is logged or returned about it. What counts is bounded by the rounds, as in every other engine.

Why a key: Flower's SuperLink keeps what is sent under its hash, and tells any node whether it holds a given hash. Who
knows a user's data can compute the user's update, so without a fresh key one node could find out who took part.

server.py   Federation: who is asked, and what becomes of replies
client.py   the app of a user's node
wire.py     what goes over the wire
"""

import os
from importlib.util import find_spec

from discreet.errors import ConfigError

# nothing is sent to anybody but the federation; this must be said before flwr and ray are imported
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

if find_spec("flwr") is None:
    raise ConfigError("Flower is not installed; pip install 'discreet[federated]'.")

from discreet.integrations.flower.client import client_app
from discreet.integrations.flower.server import Federation

__all__ = ["Federation", "client_app"]
