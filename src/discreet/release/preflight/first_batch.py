"""What is probed on the first batch, once: the sums against autograd's own, and the model's calls run again."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from discreet.errors import PrivacyError
from discreet.gradients import Engine, UnitGradients
from discreet.release.preflight.exactness import Sketch, check_sums
from discreet.release.preflight.replay import Recorder, replay


class FirstBatch:
    """The probes of the first batch; the model has a hook only until they are done.

    Args:
        model: the model that a plan is attached to.
        sharded: whether its parameters are sharded over ranks, so that it cannot be copied.
    """

    def __init__(self, model: nn.Module, *, sharded: bool = False) -> None:
        self._model, self._sharded, self._sketch = model, sharded, Sketch()
        self._recorder = Recorder()
        self._hook: Any = None
        self.replayed, self.compared = False, False

    def arm(self) -> None:
        """A batch is handed out: keep the next call of the model."""
        self._recorder.calls = None
        if not self.replayed and self._hook is None:
            self._hook = self._model.register_forward_pre_hook(self._recorder, with_kwargs=True)

    def plain(self, losses: Tensor, engine: Engine) -> Mapping[str, Tensor | None] | None:
        """Sketches of autograd's own gradients, to compare with, until that is done."""
        if self.compared or not losses.requires_grad:
            return None
        try:
            return self._sketch.gradients(losses, engine)
        except PrivacyError:
            raise
        except RuntimeError:  # graphs that allow no second pass
            if self._sharded:  # the others are in it
                raise
            return None

    @torch.no_grad()
    def compare(self, gradients: UnitGradients, plain: Mapping[str, Tensor | None]) -> None:
        """Compare the sums with autograd's own."""
        check_sums(gradients, plain, self._sketch)
        self.compared = True

    @torch.no_grad()
    def replay(self, rows: int) -> None:
        """Run the call that was kept again."""
        calls, self._recorder.calls = self._recorder.calls, None
        self.remove()
        if self.replayed or calls is None or self._sharded:  # FSDP2's modules cannot be copied
            return

        def run(model: nn.Module, arguments: Any) -> Any:
            with ExitStack() as stack:
                for device, dtype in calls.autocast:
                    stack.enter_context(torch.autocast(device, dtype))
                return [model(*args, **kwargs) for args, kwargs in arguments]

        self.replayed = replay(self._model, run, calls.arguments, rows, calls.random)

    def remove(self) -> None:
        """Take the hook off the model."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
