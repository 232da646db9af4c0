"""How many rows fit into memory at a time."""

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn

_LARGEST = 8192
_GUESS = 64
_SHARE = 0.25  # of the memory that is free


def chunk_that_fits(model: nn.Module, row: Tensor, copies: int, batch_size: float) -> int:
    """The largest number of rows a step should take at a time: what one row keeps for its backward pass is measured on
    a copy of the model with made-up inputs, and a few times that must fit. No data is looked at.

    `row` is one example's inputs, of which only shape and type matter. A model that cannot be copied gets a guess.
    """
    try:
        twin = copy.deepcopy(model)
    except (RuntimeError, TypeError, AssertionError):
        return min(_GUESS, math.ceil(2 * batch_size))
    kept = 0
    seen: set[int] = set()

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept += tensor.nbytes
        return tensor

    parameters = {p.data_ptr() for p in twin.parameters()}
    seen |= parameters
    inputs = torch.zeros((2 * copies, *row.shape), dtype=row.dtype, device=next(twin.parameters()).device)
    try:
        with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = twin(inputs)
    except (RuntimeError, MemoryError) as error:
        if ran_out(error):
            return 1
        raise
    made = outputs.nbytes if isinstance(outputs, Tensor) else 0
    a_row = max(1, kept // 2 + made // 2 + row.nbytes * copies)
    # activations, their gradients, and both once more where they are taken apart
    most = int(_SHARE * free_memory(inputs.device) / (4 * a_row))
    return max(1, min(most, _LARGEST, math.ceil(2 * batch_size)))


def free_memory(device: torch.device) -> int:
    """Bytes that may still be used."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [8 << 30]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in lines:
            limits = [1024 * int(lines["MemAvailable"].split()[0])]
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limits.append(int(Path(most).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such limit
            continue
    return max(1 << 26, min(limits))


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    words = ("out of memory", "not enough memory", "can't allocate memory", "alloc_cpu")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(w in str(error).lower() for w in words)
