"""Backward passes over a model that FSDP2 shards: all ranks make each of them together.

In a pass FSDP2 gathers a module's parameters when the gradient of its output arrives, and frees them when the module is
done; gradients are taken apart from inputs and outputs, which are there. Gathering takes all ranks, so all make equally
many passes, each through all sharded modules: a rank that has nothing to look for makes an empty one while another
looks. Where the values of parameters are needed between passes, or saved values are recomputed, all are made whole.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _autograd
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_leaves

from discreet.distributed.ranks import Ranks
from discreet.gradients.graph import ArrivedGradients, FreePasses


class GatheringPasses(FreePasses):
    """The passes of one chunk after another; `whole()` has all parameters whole until it is left."""

    waits = True

    def __init__(
        self, modules: Iterable[nn.Module], ranks: Ranks, whole: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._modules, self._ranks, self._whole = list(modules), ranks, whole
        self._edges: list[GradientEdge] = []  # the outputs of sharded modules: what reaches them has them gathered
        self._hooks: list[Any] = []
        self._noting: Callable[[], bool] = lambda: False
        self._losses: Tensor | None = None  # of the open chunk
        self._stack = ExitStack()
        self._free = self._is_last = False

    def watch(self, noting: Callable[[], bool]) -> None:
        """Take note of the sharded modules' outputs while `noting()`: while a batch is open."""
        self._noting = noting
        self._hooks = [module.register_forward_hook(self._note) for module in self._modules]

    def _note(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._noting() and self._losses is None and torch.is_grad_enabled():
            self._edges += [GradientEdge(t.grad_fn, t.output_nr) for t in _tensors(output) if t.grad_fn is not None]

    def forget(self) -> None:
        """Nothing that was run before counts."""
        self._edges = []

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        self.forget()

    @contextmanager
    def opened(self, losses: Any) -> Generator[None]:
        """A chunk's passes; to be entered by all ranks alike, with losses that are still to be looked at."""
        self._losses, self._free, self._is_last = losses, False, False
        try:
            with ExitStack() as self._stack:
                self._free_if("beginning", isinstance(losses, Tensor) and recomputing(losses.grad_fn))
                yield
        finally:
            self._losses = None
            self.forget()

    def run(
        self, losses: Tensor, targets: Sequence[GradientEdge], weights: Tensor, *, retain: bool
    ) -> ArrivedGradients:
        if self._free:
            return super().run(losses, targets, weights, retain=retain)
        if not self._is_last:
            self._meet(("looking", False))
        return super().run(losses, [*targets, *self._edges], weights, retain=retain)[: len(targets)]

    def last(self, *, reads: bool) -> None:
        """Come to the last pass: with others' passes before it, until all have come to it."""
        if self._free:
            return
        said = self._meet(("last", reads))
        while any(where == "looking" for where, _ in said):
            self._empty(retain=True)
            said = self._meet(("last", reads))
        self._is_last = True
        if any(theirs for _, theirs in said):
            self._be_free()

    def taken(self, *, reads: Callable[[], bool]) -> None:
        self._free_if("taken apart", reads())

    def follow(self) -> None:
        """Make all passes as the others do, for nothing: this rank has no unit."""
        self.last(reads=False)
        if not self._free:
            self._empty(retain=False)
        self.taken(reads=lambda: False)

    def _meet(self, said: tuple[str, bool]) -> list[tuple[str, bool]]:
        return self._ranks.exchange("a backward pass", said)

    def _empty(self, *, retain: bool) -> None:
        assert self._losses is not None
        super().run(self._losses, self._edges, torch.zeros_like(self._losses), retain=retain)

    def _free_if(self, place: str, reads: bool) -> None:
        if not self._free and any(self._ranks.exchange(place, reads)):
            self._be_free()

    def _be_free(self) -> None:
        self._stack.enter_context(self._whole())
        self._free = True


def _tensors(output: Any) -> list[Tensor]:
    """The tensors that a module returns, also in data classes."""
    found: list[Tensor] = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif is_dataclass(leaf):
            found += _tensors(list(vars(leaf).values()))
    return found


def recomputing(root: Any) -> bool:
    """Whether some op below takes what it saved from a hook: it is recomputed (checkpointing), or kept elsewhere.

    True too where torch does not tell.
    """
    if not hasattr(_autograd.SavedTensor, "unpack_hook"):
        return True
    nodes, seen = [root] if root is not None else [], {root}
    for node in nodes:  # grows while it is walked
        for name in _RAW.setdefault(type(node), tuple(n for n in dir(type(node)) if n.startswith("_raw_saved_"))):
            saved = getattr(node, name)
            for one in saved if isinstance(saved, (tuple, list)) else (saved,):
                if getattr(one, "unpack_hook", None) is not None:
                    return True
        below = [child for child, _ in node.next_functions if child is not None and child not in seen]
        seen.update(below)
        nodes += dict.fromkeys(below)
    return False


_RAW: dict[type, tuple[str, ...]] = {}
