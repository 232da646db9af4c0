"""Many users' updates on one machine: all of them in one vectorised pass, or one after the other."""

import copy
import hashlib
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from discreet.errors import ConfigError, PrivacyError
from discreet.federated.local import Local, Loss, Pair
from discreet.release.guards import trainable

Kind = Literal["auto", "vectorised", "loop"]
Updates = dict[str, Tensor]

_BYTES = 1 << 28  # that the weights of users who are trained at once may take, with gradients and an optimizer's state


class Engine(Protocol):
    """What makes users' updates: for each parameter a tensor [users, *shape], how far each one's weights moved."""

    def updates(self, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates: ...


class Loop:
    """One user after the other, each on a copy of the model of its own: for any model."""

    def __init__(self, model: nn.Module, local: Local, loss: Loss, key: int | None = None) -> None:
        self._model, self._local, self._loss = model, local, loss
        self._twin, self._key = copy.deepcopy(model), secret() if key is None else key

    def updates(self, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates:
        start = trainable(self._model)
        found = {n: p.detach().new_zeros(len(users), *p.shape) for n, p in start.items()}
        self._twin.load_state_dict(self._model.state_dict())
        for i, (pair, user) in enumerate(zip(data, users, strict=True)):
            twin = copy.deepcopy(self._twin)  # nothing that a model keeps reaches the next user
            own = trainable(twin)
            with _seeded(self._key, in_round, user):
                self._local.train(twin, own, pair, self._loss, in_round=in_round, user=user)
            for name, parameter in own.items():
                torch.sub(parameter.detach(), start[name].detach(), out=found[name][i])
        return found


class Vectorised:
    """All users at once: their weights are stacked, and one pass takes a step for each; for models of plain functions.

    Users may have different numbers of records: short batches are padded with rows that count for nothing, and users
    who have made all their steps rest.
    """

    def __init__(self, model: nn.Module, local: Local, loss: Loss, key: int | None = None) -> None:
        self._model, self._local, self._loss = model, local, loss
        self._twin, self._key = copy.deepcopy(model), secret() if key is None else key

    def updates(self, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates:
        start = {n: p.detach() for n, p in trainable(self._model).items()}
        # those who have most to do come first, so that whoever still works is a stretch from the beginning
        busy = [i for i in range(len(users)) if len(data[i][0])]
        busy.sort(key=lambda i: -self._local.steps(len(data[i][0])))
        parts, weights = [], 4 * sum(p.numel() * p.element_size() for p in start.values())
        while busy:  # users' weights with gradients and an optimizer's state, and records as many as the longest has
            longest = data[busy[0]][0]
            size = max(1, _BYTES // (weights + longest.numel() * longest.element_size()))
            parts, busy = [*parts, busy[:size]], busy[size:]
        if parts == [list(range(len(users)))]:
            return self._train(start, data, users, in_round)
        found = {n: p.new_zeros(len(users), *p.shape) for n, p in start.items()}
        for part in parts:
            made = self._train(start, [data[i] for i in part], [users[i] for i in part], in_round)
            for name, moved in made.items():
                found[name][part] = moved
        return found

    def _train(self, start: Updates, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates:
        device = next(iter(start.values())).device
        inputs, targets = _padded([x for x, _ in data]).to(device), _padded([y for _, y in data]).to(device)
        rows, real, steps = self._schedule([len(x) for x, _ in data], users, in_round)
        rows, real = rows.to(device), real.to(device)
        stacked = {n: p.expand(len(users), *p.shape).clone().requires_grad_() for n, p in start.items()}
        moved = {n: torch.empty_like(p) for n, p in stacked.items()}
        optimizer = self._local.make_optimizer(stacked.values())
        self._twin.load_state_dict(self._model.state_dict())
        buffers = dict(self._twin.named_buffers()) | {
            n: p.detach() for n, p in self._twin.named_parameters() if n not in start
        }

        def losses(weights: Updates, x: Tensor, y: Tensor) -> Tensor:  # of one user's batch, a row each
            return self._loss(functional_call(self._twin, (weights, buffers), (x,)), y)

        every = vmap(losses, randomness="different")
        working = len(users)
        for step in range(steps[0]):
            which = torch.arange(working, device=device)[:, None]
            x, y = inputs[which, rows[:working, step]], targets[which, rows[:working, step]]
            counted = real[:working, step]
            optimizer.zero_grad()
            with torch.enable_grad(), _seeded(self._key, in_round, users[0], step):
                weights = stacked if working == len(users) else {n: p[:working] for n, p in stacked.items()}
                means = torch.where(counted, every(weights, x, y), 0.0).sum(1) / counted.sum(1)
                means.sum().backward()
            optimizer.step()
            still = sum(count > step + 1 for count in steps)
            if still < working:  # the others have made their last step, and are not to be moved on
                for name, weight in stacked.items():
                    torch.sub(weight.detach()[still:working], start[name], out=moved[name][still:working])
                working = still
        return moved

    def _schedule(
        self, records: Sequence[int], users: Sequence[int], in_round: int
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Which rows each user takes in each step [users, steps, batch], which of them are real, and steps by user."""
        steps = [self._local.steps(count) for count in records]
        width = max(self._local.size(count) for count in records)
        each: list[Tensor] = []
        for count, user in zip(records, users, strict=True):
            orders, size = self._local.orders(count, in_round=in_round, user=user), self._local.size(count)
            short = -count % size  # what the last batch of an epoch lacks
            batches = (F.pad(orders, (0, short), value=-1) if short else orders).reshape(-1, size)
            each.append(batches if size == width else F.pad(batches, (0, width - size), value=-1))
        rows = _padded(each, -1)
        real = rows >= 0
        rows.clamp_(min=0)
        return rows, real, steps


@dataclass(frozen=True)
class ProbedEngine:
    """An engine, and what was seen of it before it is used."""

    engine: Engine
    alone: bool  # whether it was probed that no user has influence on another's update

    def updates(self, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates:
        """What its engine makes."""
        return self.engine.updates(data, users, in_round)


def engine_for(kind: Kind, model: nn.Module, local: Local, loss: Loss, example: Pair) -> ProbedEngine:
    """The engine for a model, and whether it was probed that no user has influence on another's update.

    Args:
        kind: "vectorised", "loop", or "auto": the vectorised one where it makes the same updates as the loop.
        model: a model that carries something from one user to the next is refused by either.
        local: what a user does with it.
        loss: one value a row.
        example: one record, of which only shapes and types are looked at: made-up users are trained.
    """
    if kind not in get_args(Kind):
        raise ConfigError(f"the engine is {kind!r}; it must be one of {', '.join(get_args(Kind))}.")
    made_up = _made_up(example, local)
    if kind != "loop":
        still = _without_dropout(model)  # whose masks, one draw for all users, are secret and independent anyway
        why = _differs(still, local, loss, made_up)
        if why is None:
            probed = _probed(lambda: Vectorised(still, local, loss, key=0), made_up)
            return ProbedEngine(Vectorised(model, local, loss), probed)
        if kind == "vectorised":
            raise ConfigError(f"the vectorised engine cannot train this model: {why}. Use engine='loop'.")
    return ProbedEngine(Loop(model, local, loss), _probed(lambda: Loop(model, local, loss, key=0), made_up))


def _made_up(example: Pair, local: Local) -> list[Pair]:
    """Four users with records of noise, as many as make full and short batches, and one without any."""
    generator = torch.Generator().manual_seed(0)

    def noise(like: Tensor, count: int) -> Tensor:
        shape = (count, *like.shape)
        if like.is_floating_point():
            return torch.rand(shape, generator=generator, dtype=torch.float64).to(like.dtype)
        return torch.randint(2, shape, generator=generator).to(like.dtype)

    size = min(local.batch_size or 3, 16)
    inputs, target = example
    none = torch.zeros_like(target) if not target.is_floating_point() else None  # a label that every model has
    return [
        (noise(inputs, count), noise(target, count) if none is None else none.expand(count, *target.shape))
        for count in (size + 2, 1, 0, 2 * size)
    ]


def secret() -> int:
    """A key that nobody knows: what a model draws for a user must not be known, nor depend on who else is there."""
    return secrets.randbits(62)


@contextmanager
def _seeded(*numbers: int) -> Generator[None]:
    """Torch's random numbers follow from these alone, for a while."""
    words = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    with torch.random.fork_rng():
        torch.manual_seed(int.from_bytes(words, "big") >> 1)
        yield


def _without_dropout(model: nn.Module) -> nn.Module:
    still = copy.deepcopy(model)
    for module in still.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return still


def _differs(still: nn.Module, local: Local, loss: Loss, made_up: list[Pair]) -> str | None:
    """Why the vectorised engine is not to be used, or None: it makes the loop's updates."""
    users = range(len(made_up))
    try:
        wanted = Loop(still, local, loss).updates(made_up, users, 0)
        vectorised = Vectorised(still, local, loss).updates(made_up, users, 0)
    except Exception as error:  # whatever an op has against being vectorised
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    far = [name for name in wanted if not _close(vectorised[name], wanted[name])]
    return f"its update of {far[0]!r} is not the loop's" if far else None


def _probed(make: Callable[[], Engine], made_up: list[Pair]) -> bool:
    """Whether it was seen that a user's update depends on nobody else's data, of this round or the last.

    One user is emptied, and given so many records that more steps are made. Raises if another's update changes; False
    where that cannot be told, as the same data does not give the same update twice.
    """
    users, many = range(len(made_up)), made_up[-1]
    more = (torch.cat([many[0]] * 2), torch.cat([many[1]] * 2))
    none = (many[0][:0], many[1][:0])

    def run(first: Pair) -> list[Tensor]:
        engine = make()
        others = [moved[1:].clone() for moved in engine.updates([first, *made_up[1:]], users, 0).values()]
        return [*others, *engine.updates(made_up, users, 1).values()]

    mine = run(made_up[0])
    if not all(map(_close, mine, run(made_up[0]))):
        return False
    if not all(all(map(_close, mine, run(other))) for other in (many, none, more)):
        raise PrivacyError(
            "a user's update depends on another user's data: the model carries something from one user, or one round, "
            "to the next. Keep no state of the data in it."
        )
    return True


def _close(a: Tensor, b: Tensor) -> bool:
    size = float(b.detach().abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * size + 1e-7, equal_nan=True)


def _padded(parts: Sequence[Tensor], value: float = 0) -> Tensor:
    """Tensors of different lengths as one, with rows of a constant behind the shorter ones."""
    length = max(len(part) for part in parts)
    assert len({part.dtype for part in parts}) == 1  # one's type must not change how others are read
    if all(len(part) == length for part in parts):
        return torch.stack(list(parts))
    padded = parts[0].new_full((len(parts), length, *parts[0].shape[1:]), value)
    for i, part in enumerate(parts):
        padded[i, : len(part)] = part
    return padded
