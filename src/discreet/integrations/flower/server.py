"""The server of a federation: it asks the users that were drawn, and takes what comes back in time."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import telemetry

from discreet._check import check_positive
from discreet.errors import ConfigError
from discreet.federated.rounds import Rounds
from discreet.integrations.flower.wire import (
    FORMAT,
    Announcement,
    digest_of,
    read_announcement,
    read_update,
    state_of,
    to_array,
)
from discreet.release.guards import trainable
from discreet.stages.plan import Plan


@dataclass(frozen=True)
class Federation:
    """A plan's rounds over the nodes of a Flower grid.

    Args:
        rounds: the plan attached to the model.
        optimizer: steps on each round's released gradient.
        timeout: how many seconds a round waits for updates.
        patience: how many seconds the declared users have to connect in.
        interval: how many seconds pass between two looks.
        after: called with the number of rounds released, after each: to evaluate on public data, to save a checkpoint,
            to step a schedule.
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
        roster = _Roster(grid, _population(self.rounds.plan), digest_of(self.rounds.model))
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
            for node, announcement in roster.announcements():
                roster.enrol(node, announcement)
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
        for node, announcement in roster.announcements():  # a node that left may be back as another
            roster.admit(node, announcement)
        model, number = self.rounds.model, self.rounds.released
        shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
        if hasattr(self.rounds.plan.sampling, "attend"):  # who is there takes part
            there = [user for user in range(roster.population) if roster.node(user) is not None]
            cohort = self.rounds.draw(available=there)
        else:
            cohort = self.rounds.draw()
        weights = ArrayRecord({name: to_array(tensor) for name, tensor in state_of(model).items()})
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
                update = read_update(reply, number, nonce, shapes)
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

    def announcements(self) -> Iterator[tuple[int, "Announcement"]]:
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
            announcement = read_announcement(reply, nonce)
            if announcement is not None and node in present:
                yield node, announcement

    def enrol(self, node: int, announcement: "Announcement") -> None:
        """Take a node for the user it says it is, or raise: before anything is spent, a mistake is worth an error."""
        user = announcement.user
        if not 0 <= user < self.population:
            raise ConfigError(
                f"a node says it is user {user}; the plan has users 0 to {self.population - 1}. Start it with "
                "--node-config 'partition-id=K', or declare as many users as there are."
            )
        if self._nodes.get(user, node) != node:
            raise ConfigError(
                f"two nodes say they are user {user}; a user counts once. Give each its own 'partition-id'."
            )
        if announcement.digest != self._digest:
            raise ConfigError(
                f"user {user}'s model has other trainable parameters than the server's, by name or shape; make "
                "both with the same function."
            )
        self._nodes[user] = node

    def admit(self, node: int, announcement: "Announcement") -> None:
        """Take a node for a user whose own has gone; anything else is let pass, as training goes on."""
        fits = 0 <= announcement.user < self.population and announcement.digest == self._digest
        if fits and announcement.user not in self._nodes:
            self._nodes[announcement.user] = node


def _population(plan: Plan) -> int:
    """How many users the plan declares."""
    users = getattr(plan.sampling, "examples", None)
    if not isinstance(users, int):
        raise ConfigError(
            f"{plan.sampling!r} names no public number of users, so nobody knows how many to wait for; use "
            "Poisson(examples=users, batch_size=..., unit='user')."
        )
    return users
