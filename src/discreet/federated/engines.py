"""Many users' updates on one machine: all of them in one vectorised pass, or one after the other."""

import copy
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from discreet.attachment import trainable
from discreet.errors import ConfigError, PrivacyError
from discreet.federated.local import Local, Loss, Pair

Kind = Literal["auto", "vectorised", "loop"]
Updates = dict[str, Tensor]

_BYTES = 1 << 28  # that the weights of users who are trained at once may take, with gradients and an optimizer's state


class Engine(Protocol):
    """What makes users' updates: for each parameter a tensor [users, *shape], how far each one's weights moved."""

    def updates(self, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates: ...


class Loop:
    """One user after the other, on one copy of the model: for any model."""

    def __init__(self, model: nn.Module, local: Local, loss: Loss) -> None:
        self._model, self._local, self._loss = model, local, loss
        self._twin = copy.deepcopy(model)

    def updates(self, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates:
        own, start = trainable(self._twin), trainable(self._model)
        found = {n: p.detach().new_zeros(len(users), *p.shape) for n, p in start.items()}
        for i, (pair, user) in enumerate(zip(data, users, strict=True)):
            self._twin.load_state_dict(self._model.state_dict())
            self._local.train(self._twin, own, pair, self._loss, in_round=in_round, user=user)
            for name, parameter in own.items():
                torch.sub(parameter.detach(), start[name].detach(), out=found[name][i])
        return found


class Vectorised:
    """All users at once: their weights are stacked, and one pass takes a step for each; for models of plain functions.

    Users may have different numbers of records: short batches are padded with rows that count for nothing, and users
    who have made all their steps rest.
    """

    def __init__(self, model: nn.Module, local: Local, loss: Loss) -> None:
        self._model, self._local, self._loss = model, local, loss
        self._twin = copy.deepcopy(model)

    def updates(self, data: Sequence[Pair], users: Sequence[int], in_round: int) -> Updates:
        start = {n: p.detach() for n, p in trainable(self._model).items()}
        # those who have most to do come first, so that whoever still works is a stretch from the beginning
        busy = [i for i in range(len(users)) if len(data[i][0])]
        busy.sort(key=lambda i: -self._local.steps(len(data[i][0])))
        size = _users_at_once(start)
        parts = [busy[first : first + size] for first in range(0, len(busy), size)]
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

        def outputs(weights: Updates, x: Tensor) -> Any:
            return functional_call(self._twin, (weights, buffers), (x,))

        every = vmap(outputs, randomness="different")
        working = len(users)
        for step in range(steps[0]):
            which = torch.arange(working, device=device)[:, None]
            x, y = inputs[which, rows[:working, step]], targets[which, rows[:working, step]]
            optimizer.zero_grad()
            with torch.enable_grad():
                weights = stacked if working == len(users) else {n: p[:working] for n, p in stacked.items()}
                made = every(weights, x)
                losses = self._loss(made.flatten(0, 1), y.flatten(0, 1)).view(x.shape[:2])
                counted = real[:working, step]
                means = torch.where(counted, losses, 0.0).sum(1) / counted.sum(1)
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


def engine_for(kind: Kind, model: nn.Module, local: Local, loss: Loss, example: Pair) -> tuple[Engine, bool]:
    """The engine for a model, and whether it was probed that no user has influence on another's update.

    `example` is one record, of which only shapes and types are looked at: made-up users are trained. Engine "auto" is
    the vectorised one where it makes the same updates as the loop; a model that carries something from one user to
    the next is refused by either.
    """
    if kind not in get_args(Kind):
        raise ConfigError(f"the engine is {kind!r}; it must be one of {', '.join(get_args(Kind))}.")
    made_up = _made_up(example, local)
    if kind != "loop":
        why = _differs(model, local, loss, made_up)
        if why is None:
            return _probed(lambda: Vectorised(model, local, loss), made_up)
        if kind == "vectorised":
            raise ConfigError(f"the vectorised engine cannot train this model: {why}. Use engine='loop'.")
    return _probed(lambda: Loop(model, local, loss), made_up)


def _made_up(example: Pair, local: Local) -> list[Pair]:
    """Four users with records of noise, as many as make full and short batches, and one without any."""
    generator = torch.Generator().manual_seed(0)

    def noise(like: Tensor, count: int) -> Tensor:
        shape = (count, *like.shape)
        if like.is_floating_point():
            return torch.rand(shape, generator=generator, dtype=torch.float64).to(like.dtype)
        return torch.randint(2, shape, generator=generator).to(like.dtype)

    size = min(local.batch_size or 3, 16)
    return [(noise(example[0], count), noise(example[1], count)) for count in (size + 2, 1, 0, 2 * size)]


@contextmanager
def _same_random_numbers() -> Generator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def _differs(model: nn.Module, local: Local, loss: Loss, made_up: list[Pair]) -> str | None:
    """Why the vectorised engine is not to be used, or None: it makes the loop's updates, dropout aside."""
    still = copy.deepcopy(model)
    for module in still.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    users = range(len(made_up))
    try:
        with _same_random_numbers():
            wanted = Loop(still, local, loss).updates(made_up, users, 0)
            found = Vectorised(still, local, loss).updates(made_up, users, 0)
    except Exception as error:  # whatever an op has against being vectorised
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    far = [name for name in wanted if not _close(found[name], wanted[name])]
    return f"its update of {far[0]!r} is not the loop's" if far else None


def _probed(make: Callable[[], Engine], made_up: list[Pair]) -> tuple[Engine, bool]:
    """An engine, and whether it was seen that a user's update depends on nobody else's data, of this round or the last.

    Raises if it does; False where that cannot be told, as the same data does not give the same update twice.
    """
    users = range(len(made_up))
    other = [made_up[-1], *made_up[1:]]

    def run(data: list[Pair]) -> list[Tensor]:
        engine = make()
        with _same_random_numbers():
            others = [moved[1:].clone() for moved in engine.updates(data, users, 0).values()]
            return [*others, *engine.updates(made_up, users, 1).values()]

    mine, again, theirs = run(made_up), run(made_up), run(other)
    if not all(map(_close, mine, again)):
        return make(), False
    if not all(map(_close, mine, theirs)):
        raise PrivacyError(
            "a user's update depends on another user's data: the model carries something from one user, or one round, "
            "to the next. Keep no state of the data in it."
        )
    return make(), True


def _close(a: Tensor, b: Tensor) -> bool:
    size = float(b.detach().abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * size + 1e-7, equal_nan=True)


def _padded(parts: Sequence[Tensor], value: float = 0) -> Tensor:
    """Tensors of different lengths as one, with rows of a constant behind the shorter ones."""
    length = max(len(part) for part in parts)
    if all(len(part) == length for part in parts):
        return torch.stack(list(parts))
    found = parts[0].new_full((len(parts), length, *parts[0].shape[1:]), value)
    for i, part in enumerate(parts):
        found[i, : len(part)] = part
    return found


def _users_at_once(parameters: Updates) -> int:
    one = sum(math.prod(p.shape) * p.element_size() for p in parameters.values())
    return max(1, _BYTES // (4 * one))
