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
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet._check import check_positive
from discreet.errors import ConfigError, PrivacyError
from discreet.federated.local import Local, Loss, Pair
from discreet.federated.rounds import Rounds
from discreet.release.guards import trainable
from discreet.stages.bounds import Clip, PerLayerClip
from discreet.stages.noise.random import SecureStream
from discreet.stages.plan import Plan
from discreet.stages.sensitivity import Layout

# nothing is sent to anybody but the federation; this must be said before flwr and ray are imported
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.supercore import telemetry
except ImportError as error:
    raise ConfigError("Flower is not installed; pip install 'discreet[federated]'.") from error

FORMAT = "discreet-flower/1"
_NUMPY = "numpy.ndarray"
_KEY = 32  # bytes


# --- the server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """A plan's rounds over the nodes of a Flower grid.

    `timeout` is how many seconds a round waits for updates, `patience` how many the declared users have to connect in,
    `interval` how many pass between two looks. `after` is called with the number of rounds released, after each: to
    evaluate on public data, to save a checkpoint, to step a schedule.
    """

    rounds: Rounds
    optimizer: torch.optim.Optimizer
    timeout: float = 600.0
    patience: float = 3600.0
    interval: float = 0.5
    after: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        check_positive("a federation's timeout", self.timeout, zero=True)
        check_positive("a federation's patience", self.patience, zero=True)
        check_positive("a federation's interval", self.interval)

    def start(self, grid: Grid) -> None:
        """Wait for the plan's users, then train for the plan's remaining rounds.

        Each round asks the users that were drawn and nobody else, adds what comes back in time, releases and steps
        the optimizer. A round in which nobody was drawn, or nobody answered, releases noise like every other.
        """
        if telemetry.FLWR_TELEMETRY_ENABLED == "1":
            raise ConfigError(
                "Flower's telemetry is on in this process; set FLWR_TELEMETRY_ENABLED=0 where the SuperLink and the "
                "SuperNodes are started, or import discreet.integrations.flower before flwr."
            )
        roster = _Roster(grid, _population(self.rounds.plan), _digest(self.rounds.model))
        if self.rounds.remaining:
            self._gather(roster)
        while self.rounds.remaining:
            self._round(grid, roster)
            self.optimizer.step()
            if self.after is not None:
                self.after(self.rounds.released)

    def _gather(self, roster: "_Roster") -> None:
        """Wait until every user has announced itself."""
        deadline = time.monotonic() + self.patience
        while True:
            late = time.monotonic() >= deadline
            for node, found in roster.announcements():
                roster.enrol(node, found)
            if not roster.missing:
                return
            if late:
                there = roster.population - roster.missing
                raise ConfigError(
                    f"{there} of the plan's {roster.population} users announced themselves within {self.patience:g} "
                    f"seconds ({roster.unknown} more nodes are connected, and their own logs say what is wrong). Start "
                    "a SuperNode for each user, with --node-config 'partition-id=K' for K from 0, or raise patience=."
                )
            time.sleep(min(self.interval, max(0.0, deadline - time.monotonic())))

    def _round(self, grid: Grid, roster: "_Roster") -> None:
        """Draw, ask, add, release."""
        for node, found in roster.announcements():  # a node that left may be back as another
            roster.admit(node, found)
        model, number = self.rounds.model, self.rounds.released
        shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
        there = None
        if hasattr(self.rounds.plan.sampling, "attend"):  # who is there takes part
            there = [user for user in range(roster.population) if roster.node(user) is not None]
        cohort = self.rounds.draw(available=there)
        weights = ArrayRecord({name: _array(tensor) for name, tensor in _state(model).items()})
        post = _Post(grid)
        for user in cohort:
            node = roster.node(user)
            if node is not None:
                about = {"round": number, "user": user}
                post.send(user, node, MessageType.TRAIN, about, weights, lasting=self.timeout + 60)
        deadline = time.monotonic() + self.timeout
        while post.waiting:
            late = time.monotonic() >= deadline
            for user, nonce, reply in post.collect():
                update = _update(reply, number, nonce, shapes)
                if update is not None:
                    self.rounds.add([user], {name: moved[None] for name, moved in update.items()})
            if late or not post.waiting:
                break
            time.sleep(min(self.interval, max(0.0, deadline - time.monotonic())))
        self.rounds.release()


class _Post:
    """Messages that are out, and the first reply to each.

    Replies are pulled one by one, so that none can harm another: Flower drops those that it pulls with a bad one.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._out: dict[str, tuple[int, str]] = {}  # whose, and the nonce, by Flower's name for the message

    @property
    def waiting(self) -> bool:
        return bool(self._out)

    def send(
        self,
        whose: int,
        node: int,
        kind: str,
        about: Mapping[str, int],
        weights: ArrayRecord | None = None,
        *,
        lasting: float | None = None,
    ) -> None:
        """Send one message; `lasting` is after how many seconds Flower may forget it."""
        nonce = secrets.token_hex(16)
        content = RecordDict({"discreet": ConfigRecord({"format": FORMAT, "nonce": nonce, **about})})
        if weights is not None:
            content["model"] = weights
        message = Message(content, node, kind, ttl=lasting, group_id=str(about.get("round", "")))
        self._out.update({str(sent): (whose, nonce) for sent in self._grid.push_messages([message]) if sent})

    def collect(self) -> Iterator[tuple[int, str, Message | None]]:
        """Whose replies have come, with the nonce each must have; None is one that cannot even be unpacked."""
        for sent in list(self._out):
            replies = self._pull(sent)
            if replies:
                yield *self._out.pop(sent), replies[0]

    def _pull(self, sent: str) -> list[Message | None]:
        """Flower unpacks what a client sent before anybody has looked at it, and raises whatever that brings."""
        try:
            return list(self._grid.pull_messages([sent]))
        except Exception:
            self._grid.get_node_ids()  # if it is the grid that fails, this says so
            return [None]


class _Roster:
    """Which node is whose."""

    def __init__(self, grid: Grid, population: int, digest: str) -> None:
        self.population, self._digest = population, digest
        self._grid, self._post = grid, _Post(grid)
        self._nodes: dict[int, int] = {}  # by user
        self._met: set[int] = set()  # nodes that were asked who they are

    @property
    def missing(self) -> int:
        return self.population - len(self._nodes)

    @property
    def unknown(self) -> int:
        """How many nodes are connected, and nobody's."""
        return len(self._met) - len(self._nodes)

    def node(self, user: int) -> int | None:
        return self._nodes.get(user)

    def announcements(self) -> Iterator[tuple[int, "_Announcement"]]:
        """Who has said who it is; while users are missing, nodes that are new are asked. Nothing is waited for."""
        present = set(self._grid.get_node_ids())
        self._nodes = {user: node for user, node in self._nodes.items() if node in present}
        self._met &= present
        if not self.missing:
            return
        for node in sorted(present - self._met):
            self._post.send(node, node, MessageType.QUERY, {})
        self._met |= present
        for node, nonce, reply in self._post.collect():
            found = _announcement(reply, nonce)
            if found is not None and node in present:
                yield node, found

    def enrol(self, node: int, found: "_Announcement") -> None:
        """Take a node for the user it says it is, or raise: before anything is spent, a mistake is worth an error."""
        if not 0 <= found.user < self.population:
            raise ConfigError(
                f"a node says it is user {found.user}; the plan has users 0 to {self.population - 1}. Start it with "
                "--node-config 'partition-id=K', or declare as many users as there are."
            )
        if self._nodes.get(found.user, node) != node:
            raise ConfigError(
                f"two nodes say they are user {found.user}; a user counts once. Give each its own 'partition-id'."
            )
        if found.digest != self._digest:
            raise ConfigError(
                f"user {found.user}'s model has other trainable parameters than the server's, by name or shape; make "
                "both with the same function."
            )
        self._nodes[found.user] = node

    def admit(self, node: int, found: "_Announcement") -> None:
        """Take a node for a user whose own has gone; anything else is let pass, as training goes on."""
        fits = 0 <= found.user < self.population and found.digest == self._digest
        if fits and found.user not in self._nodes:
            self._nodes[found.user] = node


@dataclass(frozen=True)
class _Announcement:
    """Who a node says it is, and what it can train."""

    user: int
    digest: str


def _population(plan: Plan) -> int:
    """How many users the plan declares."""
    found = getattr(plan.sampling, "examples", None)
    if not isinstance(found, int):
        raise ConfigError(
            f"{plan.sampling!r} names no public number of users, so nobody knows how many to wait for; use "
            "Poisson(examples=users, batch_size=..., unit='user')."
        )
    return found


# --- the user --------------------------------------------------------------------------------------------------------


def client_app(
    model: Callable[[], nn.Module],
    load: Callable[[Context], Pair],
    local: Local,
    *,
    loss: Loss | None = None,
    bound: Clip | PerLayerClip | None = None,
) -> ClientApp:
    """The app of a user's node: it says who it is, and trains when it is asked.

    `model` makes the server's model (its weights come with each message), `load` the user's own data, `local` and
    `loss` say what is done with them. The user's number is the node's `partition-id`. `bound`, the plan's own, is
    applied here too, so that nothing longer leaves the machine; the server bounds in any case. Only bounds that may be
    applied twice are taken. Failures are told in full on this machine, and as a plain "failed" to the server.
    """
    if bound is not None and not isinstance(bound, (Clip, PerLayerClip)):
        raise ConfigError(
            f"{bound!r} applied by the user and again by the server is not what it is once; use bound=None, or "
            "a plan with Clip or PerLayerClip."
        )
    app = ClientApp()

    @app.query()
    def announce(message: Message, context: Context) -> Message:
        """Who this is, and what it can train. No data is read."""
        asked = _about(message)
        reply = {"format": FORMAT, "nonce": asked["nonce"], "user": _user(context), "parameters": _digest(model())}
        return Message(RecordDict({"discreet": ConfigRecord(reply)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """How far this user's data move the model."""
        asked, user = _about(message), _user(context)
        try:
            if asked.get("user") != user:
                raise PrivacyError(f"this is user {user}, and the message is for {asked.get('user')!r}.")
            number = asked["round"]
            assert isinstance(number, int)
            trained = _load_weights(model(), message.content.get("model"))
            moved = local.update(trained, load(context), in_round=number, user=user, loss=loss)
            key = secrets.token_bytes(_KEY)
            arrays = {name: _array(mixed) for name, mixed in _mixed(_bounded(moved, bound), key).items()}
        except Exception as error:  # Flower sends the words of an error to the server, and its cause to the local log
            raise PrivacyError("this user's training failed; its own log says why.") from error
        about = ConfigRecord({"format": FORMAT, "round": number, "nonce": asked["nonce"], "key": key})
        return Message(RecordDict({"discreet": about, "update": ArrayRecord(arrays)}), reply_to=message)

    return app


def _about(message: Message) -> ConfigRecord:
    """What a server's message says of itself."""
    found = message.content.get("discreet")
    if not isinstance(found, ConfigRecord) or found.get("format") != FORMAT or not isinstance(found.get("nonce"), str):
        raise PrivacyError(f"the message is not of {FORMAT!r}; server and users need the same version of discreet.")
    return found


def _user(context: Context) -> int:
    """The node's user number."""
    found = context.node_config.get("partition-id")
    if not isinstance(found, int) or isinstance(found, bool):
        raise ConfigError(f"this node's partition-id is {found!r}; start it with --node-config 'partition-id=K'.")
    return found


def _load_weights(model: nn.Module, weights: Any) -> nn.Module:
    """The model with the server's weights, if they are its weights."""
    state = _state(model)
    found = _tensors(weights, {n: (tuple(t.shape), _dtype(t)) for n, t in state.items()})
    if found is None:
        raise PrivacyError("the server's weights are not those of this model, by name, shape or dtype.")
    model.load_state_dict(found)
    return model


@torch.no_grad()
def _bounded(update: Mapping[str, Tensor], bound: Clip | PerLayerClip | None) -> dict[str, Tensor]:
    """The update, no longer than the bound allows."""
    if bound is None:
        return {name: t.float() for name, t in update.items()}
    layout = Layout(tuple(update), tuple(tuple(t.shape) for t in update.values()))
    norms = {name: t.double().square().sum().reshape(1) for name, t in update.items()}
    state: Any = bound.start(layout)
    weights = bound.apply(norms, state)
    return {name: (t.double() * weights[name]).reshape(t.shape).float() for name, t in update.items()}


# --- what goes over the wire -----------------------------------------------------------------------------------------


def _announcement(reply: Message | None, nonce: str) -> _Announcement | None:
    """Who a node says it is, if that is what its reply says."""
    about = _content(reply).get("discreet")
    if not isinstance(about, ConfigRecord) or about.get("format") != FORMAT or about.get("nonce") != nonce:
        return None
    user, digest = about.get("user"), about.get("parameters")
    if not isinstance(user, int) or isinstance(user, bool) or not isinstance(digest, str):
        return None
    return _Announcement(user, digest)


def _update(
    reply: Message | None, number: int, nonce: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor] | None:
    """A user's update, or None if the reply is anything else."""
    content = _content(reply)
    about = content.get("discreet")
    if not isinstance(about, ConfigRecord) or about.get("format") != FORMAT:
        return None
    if about.get("round") != number or about.get("nonce") != nonce:
        return None
    key = about.get("key")
    found = _tensors(content.get("update"), {name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()})
    if found is None or not isinstance(key, bytes) or len(key) != _KEY:
        return None
    update = _mixed(found, key)
    return update if all(bool(t.isfinite().all()) for t in update.values()) else None


def _content(reply: Message | None) -> Mapping[str, Any]:
    """What a reply holds; nothing, if it is an error or no message at all."""
    if not isinstance(reply, Message) or not reply.has_content() or not isinstance(reply.content, RecordDict):
        return {}
    return reply.content


def _tensors(record: Any, expected: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> dict[str, Tensor] | None:
    """A record's tensors, if they are exactly those that are expected: no name, shape, type or byte more or less."""
    if not isinstance(record, ArrayRecord) or set(record) != set(expected):
        return None
    found: dict[str, Tensor] = {}
    for name, (shape, dtype) in expected.items():
        header, array = _header(shape, dtype), record[name]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        declared = array.stype, array.dtype, tuple(array.shape)
        if declared != (_NUMPY, str(dtype), shape) or len(array.data) != len(header) + size:
            return None
        if not array.data.startswith(header):  # compared, not parsed: nothing that a client sent is interpreted
            return None
        values = np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape)
        found[name] = torch.from_numpy(values.copy())
    return found


def _mixed(tensors: Mapping[str, Tensor], key: bytes) -> dict[str, Tensor]:
    """Tensors of float32 with their bits mixed with a key's; mixing again gives them back."""
    stream, found = SecureStream(key), {}
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name].detach().cpu().numpy())
        octets = values.view(np.uint8).reshape(-1)
        mixed = (octets ^ stream.octets(octets.size)).view(np.float32)
        found[name] = torch.from_numpy(mixed.reshape(tuple(tensors[name].shape)))
    return found


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """How numpy begins the file of an array of this kind."""
    buffer = BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


def _array(tensor: Tensor) -> Array:
    """A tensor as Flower sends it."""
    values = tensor.detach().cpu()
    if values.dtype == torch.bfloat16:  # which numpy does not know; float32 holds it exactly
        values = values.float()
    return Array(np.ascontiguousarray(values.numpy()).reshape(tuple(tensor.shape)))


def _dtype(tensor: Tensor) -> np.dtype:
    """The type in which a tensor is sent."""
    like = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
    return torch.empty(0, dtype=like).numpy().dtype


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Everything of a model that is sent: parameters, trained or frozen, and buffers."""
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"the model's state has {name!r}, which is no tensor and cannot be sent to users.")
    return state


def _digest(model: nn.Module) -> str:
    """A fingerprint of the trainable parameters' names and shapes."""
    listed = sorted((name, tuple(p.shape)) for name, p in trainable(model).items())
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


__all__ = ["Federation", "client_app"]
