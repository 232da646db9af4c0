"""A device made in Python: its tensors say they are elsewhere; kernels of the CPU compute them.

It refuses what an accelerator refuses (tensors of two devices in one operation, generators of the CPU), and counts the
operations at which a host waits for a device: `waits`.
"""

import contextlib
import copy
from collections import Counter

import torch
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("elsewhere")
torch.elsewhere.get_rng_state = lambda device=None: torch.get_rng_state()  # its coins are the CPU's
torch.elsewhere.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
torch.elsewhere.get_amp_supported_dtype = lambda: [torch.float16]
DEVICE = torch.device("elsewhere", 0)
aten = torch.ops.aten
WAITS = {  # the host needs a value, or the size of what comes out
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten._unique2,
    aten.unique_dim, aten.unique_consecutive, aten.repeat_interleave, aten.bincount, aten.allclose, aten.item,
}  # fmt: skip
MOVES = {aten._to_copy, aten.copy_, aten._copy_from}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}  # by numbers that may be on the host
counts = Counter()
_known = {}


class Elsewhere(torch.Tensor):
    """A tensor of the device; `raw` has its values."""

    @staticmethod
    def __new__(cls, raw):
        raw = raw.resolve_conj().resolve_neg()  # of which nothing outside would tell
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        made.raw = raw
        return made

    def __repr__(self):
        return f"{self.raw!r} elsewhere"

    def untyped_storage(self):  # a device has addresses, too
        return self.raw.untyped_storage()

    def data_ptr(self):
        return self.raw.data_ptr()

    def __deepcopy__(self, memo):
        memo[id(self)] = there(self)
        return memo[id(self)]

    def tolist(self):
        counts["tolist"] += 1
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def there(value):
    """A copy of a tensor, or of a model with all its tensors (what is tied stays tied), on the device."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value, {id(t): there(t) for t in (*value.parameters(), *value.buffers())})
    made = Elsewhere(value.detach().clone())
    made = torch.nn.Parameter(made) if isinstance(value, torch.nn.Parameter) else made
    return made.requires_grad_(value.requires_grad)


def compute(func, args, kwargs):
    """An operation of the device, or between it and the host."""
    packet, inputs = func.overloadpacket, list(tree_iter((args, kwargs)))
    here = any(type(x) is torch.Tensor and x.dim() for x in inputs)
    there = any(isinstance(x, Elsewhere) for x in inputs)
    moves = packet in MOVES
    if here and there and not moves and packet not in INDEXED:
        raise RuntimeError(f"{func}: tensors of two devices, elsewhere:0 and cpu")
    if any(isinstance(x, torch.Generator) for x in inputs):
        raise RuntimeError(f"{func}: a generator of the cpu, and a tensor that is elsewhere")
    if packet is aten._to_copy:
        home = (kwargs.get("device") or DEVICE).type == "cpu"
    else:
        home = packet is aten.copy_ and not isinstance(args[0], Elsewhere)
    by_mask = packet in INDEXED and any(getattr(x, "dtype", None) in (torch.bool, torch.uint8) for x in inputs[1:])
    if packet in WAITS or home or (packet is aten.index and by_mask):
        counts[str(func)] += 1
    found = func(*tree_map(_raw, args), **tree_map(_raw, kwargs))
    if home or func is aten._local_scalar_dense.default:
        return args[0] if packet is aten.copy_ else found
    if func._schema.is_mutable and found is not None and isinstance(args[0], Elsewhere) and packet.__name__[-1] == "_":
        return args[0]
    outs = {id(x.raw): x for x in inputs if isinstance(x, Elsewhere)} if func._schema.is_mutable else {}
    return tree_map(lambda x: outs.get(id(x), Elsewhere(x)) if isinstance(x, torch.Tensor) else x, found)


def _raw(value):
    if isinstance(value, Elsewhere):
        return value.raw
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


_library = torch.library.Library("_", "IMPL")
_library.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs), "PrivateUse1")  # what has no tensor yet


@contextlib.contextmanager
def waits():
    """Counts, within, the operations at which the host waits."""
    counts.clear()
    yield counts
