"""What goes over the wire, written and read: nothing that another machine sent is taken on trust."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor, nn

from discreet.errors import ConfigError, PrivacyError
from discreet.release.guards import trainable
from discreet.stages.noise.random import SecureStream

FORMAT = "discreet-flower/1"
KEY = 32  # bytes
_NUMPY = "numpy.ndarray"


@dataclass(frozen=True)
class Announcement:
    """Who a node says it is, and what it can train."""

    user: int
    digest: str


def read_request(message: Message) -> ConfigRecord:
    """What a server's message says of itself."""
    about = message.content.get("discreet")
    if not isinstance(about, ConfigRecord) or about.get("format") != FORMAT or not isinstance(about.get("nonce"), str):
        raise PrivacyError(f"the message is not of {FORMAT!r}; server and users need the same version of discreet.")
    return about


def read_announcement(reply: Message | None, nonce: str) -> Announcement | None:
    """Who a node says it is, if that is what its reply says."""
    about = _content(reply).get("discreet")
    if not isinstance(about, ConfigRecord) or about.get("format") != FORMAT or about.get("nonce") != nonce:
        return None
    user, digest = about.get("user"), about.get("parameters")
    if not isinstance(user, int) or isinstance(user, bool) or not isinstance(digest, str):
        return None
    return Announcement(user, digest)


def read_update(
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
    values = tensors_of(content.get("update"), {name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()})
    if values is None or not isinstance(key, bytes) or len(key) != KEY:
        return None
    update = xor_with_key(values, key)
    return update if all(bool(t.isfinite().all()) for t in update.values()) else None


def _content(reply: Message | None) -> Mapping[str, Any]:
    """What a reply holds; nothing, if it is an error or no message at all."""
    if not isinstance(reply, Message) or not reply.has_content() or not isinstance(reply.content, RecordDict):
        return {}
    return reply.content


def tensors_of(record: Any, expected: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> dict[str, Tensor] | None:
    """A record's tensors, if they are exactly those that are expected: no name, shape, type or byte more or less."""
    if not isinstance(record, ArrayRecord) or set(record) != set(expected):
        return None
    tensors: dict[str, Tensor] = {}
    for name, (shape, dtype) in expected.items():
        header, array = _header(shape, dtype), record[name]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        declared = array.stype, array.dtype, tuple(array.shape)
        if declared != (_NUMPY, str(dtype), shape) or len(array.data) != len(header) + size:
            return None
        if not array.data.startswith(header):  # compared, not parsed: nothing that a client sent is interpreted
            return None
        values = np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape)
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


def xor_with_key(tensors: Mapping[str, Tensor], key: bytes) -> dict[str, Tensor]:
    """Tensors of float32 with their bits mixed with a key's; mixing again gives them back."""
    stream, mixed = SecureStream(key), {}
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name].detach().cpu().numpy())
        octets = values.view(np.uint8).reshape(-1)
        bits = (octets ^ stream.octets(octets.size)).view(np.float32)
        mixed[name] = torch.from_numpy(bits.reshape(tuple(tensors[name].shape)))
    return mixed


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """How numpy begins the file of an array of this kind."""
    buffer = BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


def to_array(tensor: Tensor) -> Array:
    """A tensor as Flower sends it."""
    values = tensor.detach().cpu()
    if values.dtype == torch.bfloat16:  # which numpy does not know; float32 holds it exactly
        values = values.float()
    return Array(np.ascontiguousarray(values.numpy()).reshape(tuple(tensor.shape)))


def dtype_of(tensor: Tensor) -> np.dtype:
    """The type in which a tensor is sent."""
    like = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
    return torch.empty(0, dtype=like).numpy().dtype


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Everything of a model that is sent: parameters, trained or frozen, and buffers."""
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"the model's state has {name!r}, which is no tensor and cannot be sent to users.")
    return state


def digest_of(model: nn.Module) -> str:
    """A fingerprint of the trainable parameters' names and shapes."""
    listed = sorted((name, tuple(p.shape)) for name, p in trainable(model).items())
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
