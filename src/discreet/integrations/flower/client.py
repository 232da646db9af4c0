"""The app of a user: it says who it is, and trains when it is asked."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from discreet.errors import ConfigError, PrivacyError
from discreet.federated.local import Local, Loss, Pair
from discreet.integrations.flower.wire import (
    FORMAT,
    KEY,
    digest_of,
    dtype_of,
    read_request,
    state_of,
    tensors_of,
    to_array,
    xor_with_key,
)
from discreet.stages.bounds import Clip, PerLayerClip
from discreet.stages.sensitivity import Layout


def client_app(
    model: Callable[[], nn.Module],
    load: Callable[[Context], Pair],
    local: Local,
    *,
    loss: Loss | None = None,
    bound: Clip | PerLayerClip | None = None,
) -> ClientApp:
    """The app of a user's node: it says who it is, and trains when it is asked.

    Failures are told in full on this machine, and as a plain "failed" to the server.

    Args:
        model: makes the server's model; its weights come with each message.
        load: reads the user's own data. The user's number is the node's `partition-id`.
        local: what the user does with the model.
        loss: one loss for each row; by default `Local` chooses it by the targets.
        bound: the plan's own, applied here too, so that nothing longer leaves the machine; the server bounds in any
            case. Only bounds that may be applied twice are taken.

    Returns:
        The app that a SuperNode runs.

    Raises:
        ConfigError: if the bound may not be applied twice.
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
        asked = read_request(message)
        reply = {"format": FORMAT, "nonce": asked["nonce"], "user": _user(context), "parameters": digest_of(model())}
        return Message(RecordDict({"discreet": ConfigRecord(reply)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """How far this user's data move the model."""
        asked, user = read_request(message), _user(context)
        try:
            if asked.get("user") != user:
                raise PrivacyError(f"this is user {user}, and the message is for {asked.get('user')!r}.")
            number = asked["round"]
            assert isinstance(number, int)
            trained = _load_weights(model(), message.content.get("model"))
            moved = local.update(trained, load(context), in_round=number, user=user, loss=loss)
            key = secrets.token_bytes(KEY)
            arrays = {name: to_array(bits) for name, bits in xor_with_key(_bounded(moved, bound), key).items()}
        except Exception as error:  # Flower sends the words of an error to the server, and its cause to the local log
            raise PrivacyError("this user's training failed; its own log says why.") from error
        about = ConfigRecord({"format": FORMAT, "round": number, "nonce": asked["nonce"], "key": key})
        return Message(RecordDict({"discreet": about, "update": ArrayRecord(arrays)}), reply_to=message)

    return app


def _user(context: Context) -> int:
    """The node's user number."""
    user = context.node_config.get("partition-id")
    if not isinstance(user, int) or isinstance(user, bool):
        raise ConfigError(f"this node's partition-id is {user!r}; start it with --node-config 'partition-id=K'.")
    return user


def _load_weights(model: nn.Module, weights: Any) -> nn.Module:
    """The model with the server's weights, if they are its weights."""
    state = state_of(model)
    sent = tensors_of(weights, {n: (tuple(t.shape), dtype_of(t)) for n, t in state.items()})
    if sent is None:
        raise PrivacyError("the server's weights are not those of this model, by name, shape or dtype.")
    model.load_state_dict(sent)
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
