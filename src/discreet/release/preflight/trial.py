"""A model and a loss, run on batches of one's own without a trace."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from discreet.errors import PrivacyError
from discreet.release.batching import Collate
from discreet.release.loss_function import LossFn
from discreet.release.preflight.clocks import Clocks
from discreet.release.preflight.coins import Coins
from discreet.release.preflight.constant_draws import ConstantDraws
from discreet.release.preflight.model_state import Random, Snapshot, differing, grown


class CannotRunError(Exception):
    """A batch that the model or the loss does not take."""


@dataclass
class TrialRun:
    """The gradients of some units in one batch, and what the model held afterwards."""

    gradients: list[Tensor]
    finite: bool  # whether all losses were
    state: dict[str, Any] = field(default_factory=dict)
    held: bool = True  # whether all random numbers were held constant
    random: Random | None = None  # where the generators stood afterwards
    together: Tensor | None = None  # the gradient of all losses' sum, if it was asked for
    asked: bool = False  # whether the clock or the system's random numbers were asked, where the state was


class Trial:
    """Runs of the model itself, each from the state that it had at first; at the end it has it again.

    Args:
        model: the model.
        loss_fn: what gives a batch's losses.
        collate: makes a batch of rows.
        data: the data set and what it is made of, which a collate function may lead to.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, collate: Collate, data: Sequence[Any] = ()) -> None:
        self._model, self._loss_fn, self._collate = model, loss_fn, collate
        self._snapshot = Snapshot({"model": model, "loss": loss_fn, "collate": collate}, data)
        self._random = Random()
        self._before: dict[str, Any] | None = None
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._change: Callable[[Tensor], Tensor] | None = None
        self._perturbed: dict[int, Tensor] = {}
        self._holding: tuple[float, int | None] | None = None
        self._coins: Coins | None = None
        self._exact = False
        modules = list(model.modules())
        self._own: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (held, dict(held)) for m in modules for held in (m._parameters, m._buffers, vars(m))
        ]

    @property
    def whole(self) -> bool:
        """Whether everything that the model holds could be put back."""
        return self._snapshot.whole

    def end(self) -> None:
        self._restore()

    def drew(self, run: TrialRun) -> bool:
        """Whether random numbers were drawn in a run."""
        return run.random is None or not run.random.equals(self._random) or self._snapshot.drew()

    def drew_since(self) -> bool:
        """Whether random numbers were drawn since the model was last put back."""
        return not self._random.same() or self._snapshot.drew()

    def _restore(self) -> None:
        """The model and the random numbers are as they were; its own weights, whatever else can be reached."""
        for held, values in self._own:
            if list(held) != list(values) or any(held[name] is not value for name, value in values.items()):
                held.clear()
                held.update(values)
        self._snapshot.restore()
        self._random.restore()

    def run(self, rows: list[Any], units: list[int], *, state: bool = False, together: bool = False) -> TrialRun:
        """The gradients of some units in a batch of these rows, and, if asked for, of all `together`."""
        self._restore()
        if state and self._before is None:
            self._before = self._snapshot.contents()
        return self._run(rows, units, state, together)

    def shared(self, rows: list[Any], shares: Tensor) -> Tensor | None:
        """The gradient of the losses' sum, each times its share; None where one is not finite."""
        self._restore()
        weights = self._swapped()
        holding = None if self._holding is None else ConstantDraws(*self._holding)
        try:
            with torch.enable_grad(), holding or nullcontext():
                losses = self._losses(rows)
                if not bool(losses.isfinite().all()):
                    return None
                return self._gradient((losses * shares.to(losses)).sum(), weights)
        except Exception as error:
            raise CannotRunError(type(error).__name__) from error

    def with_finite_losses(self, rows: list[Any]) -> list[Any]:
        """Those of some rows whose losses are finite."""
        if not rows:
            return []
        self._restore()
        try:
            with torch.no_grad():
                finite = self._losses(rows).isfinite().tolist()
        except Exception as error:
            raise CannotRunError(type(error).__name__) from error
        return [row for row, good in zip(rows, finite, strict=True) if good]

    def after(self, before: list[Any], rows: list[Any]) -> Tensor:
        """The gradient of all losses, in differing shares, where another batch came before."""
        self._restore()
        self._run(before, [], False)
        self._random.restore()
        weights = self._swapped()
        try:
            with torch.enable_grad():
                losses = self._losses(rows)
                shares = torch.linspace(1, 2, len(losses), dtype=losses.dtype, device=losses.device)
                return self._gradient((losses * shares).sum(), weights)
        except Exception as error:
            raise CannotRunError(type(error).__name__) from error

    def _run(self, rows: list[Any], units: list[int], state: bool, together: bool = False) -> TrialRun:
        weights = self._swapped()
        holding = None if self._holding is None else ConstantDraws(*self._holding)
        watching = nullcontext() if self._coins is None else self._coins.run()
        clocks = Clocks()
        try:
            with torch.enable_grad(), holding or nullcontext(), watching, clocks if state else nullcontext():
                losses = self._losses(rows)
                gradients = [self._gradient(losses[unit], weights) for unit in units]
                total = self._gradient(losses.sum(), weights) if together else None
        except PrivacyError as error:
            raise CannotRunError(str(error)) from error
        except Exception as error:
            raise CannotRunError(f"{type(error).__name__}") from error
        others = not self._random.same(torch_too=False) or self._snapshot.drew(torch_too=False)
        held = holding is None or (holding.all and not others)
        finite = bool(losses.detach().isfinite().all())
        kept = self._snapshot.contents() if state else {}
        return TrialRun(gradients, finite, kept, held, Random(), total, clocks.asked)

    def _losses(self, rows: list[Any]) -> Tensor:
        batch = self._collate(list(rows))
        if self._exact:
            batch = tree_map(_double, batch)
        losses = self._loss_fn(batch)
        if not isinstance(losses, Tensor) or losses.shape != (len(rows),):
            raise PrivacyError("one loss for each row is needed")
        return losses

    def _gradient(self, loss: Tensor, weights: list[Tensor]) -> Tensor:
        """Of one loss, as one vector."""
        found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        if all(g is None for g in found):
            raise PrivacyError("the losses lead to none of the model's parameters")
        flat = [
            (torch.zeros_like(w) if g is None else g.to_dense()).detach().reshape(-1)
            for w, g in zip(weights, found, strict=True)
        ]
        return torch.cat([v.double() if self._exact or len({f.dtype for f in flat}) > 1 else v for v in flat])

    # --- other weights -------------------------------------------------------------------------------------------

    @contextmanager
    def perturbed(self, generator: torch.Generator) -> Generator[None]:
        """The model has other weights: each moved by a tenth of their spread, or by a quarter if they are one value."""
        self._perturbed = {}
        for parameter in self._weights.values():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
            spread = float(parameter.detach().float().std()) if parameter.numel() > 1 else 0.0
            self._perturbed[id(parameter)] = parameter.detach() + noise * (0.1 * spread if spread else 0.25)
        try:
            yield
        finally:
            self._perturbed = {}

    @contextmanager
    def exact(self) -> Generator[None]:
        """The model and its batches are in float64."""
        self._exact = True
        try:
            yield
        finally:
            self._exact = False

    @contextmanager
    def constant(self, place: float | None = None, bit: int | None = None) -> Generator[None]:
        """Random numbers are constants: at this place in what may be drawn, or as they were held, or in the middle.

        With a `bit`, every draw whose number has it is at the opposite place.
        """
        before = self._holding
        self._holding = (place, bit) if place is not None else before or (0.5, None)
        try:
            yield
        finally:
            self._holding = before

    @contextmanager
    def watched(self) -> Generator[Coins]:
        """What random numbers decide is noted."""
        self._coins = Coins()
        try:
            yield self._coins
        finally:
            self._coins = None

    def _swapped(self) -> list[Tensor]:
        """Put other weights in the place of the model's, where that is asked for; what gradients are taken of."""
        if not self._exact and not self._perturbed:
            return list(self._weights.values())
        made: dict[int, Any] = {}

        def other(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                value = self._perturbed.get(id(tensor), tensor.detach())
                value = value.double() if self._exact and value.is_floating_point() else value
                if isinstance(tensor, nn.Parameter):
                    made[id(tensor)] = nn.Parameter(value, requires_grad=tensor.requires_grad)
                else:
                    made[id(tensor)] = value
            return made[id(tensor)]

        for module in self._model.modules():
            parameters: Any = module._parameters
            for held in (parameters, module._buffers, vars(module)):
                for name, value in list(held.items()):
                    if isinstance(value, Tensor) and (id(value) in self._perturbed or self._exact):
                        held[name] = other(value)
            if isinstance(module, nn.RNNBase):
                names: Any = module._flat_weights_names
                module._flat_weights = [getattr(module, name) for name in names]
        return [made.get(id(p), p) for p in self._weights.values()]

    # --- what is kept --------------------------------------------------------------------------------------------

    def written(self, one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[set[str], set[str]]:
        """What two runs changed: alike, and depending on the rows."""
        before = self._before or {}
        changed = {*differing(before, one), *differing(before, two)}
        apart = {path for path in differing(one, two) if not grown(one.get(path), two.get(path))}
        tables = {path for path in differing(one, two) if path not in apart}
        return changed - apart - tables, apart

    def saved(self, path: str) -> bool:
        """Whether a state dict holds it."""
        return path.removeprefix("model.") in self._kept_names()

    def _kept_names(self) -> set[str]:
        return {*self._model.state_dict(), *dict(self._model.named_parameters())}

    # --- whose fault it is ---------------------------------------------------------------------------------------

    def culprit(self, rows: list[Any], other: list[Any], unit: int) -> str:
        """The first module whose output for a unit differs, though its inputs for it do not."""
        try:
            for (name, inputs, outputs), (_, others, changed) in zip(
                self._traced(rows, unit), self._traced(other, unit), strict=False
            ):
                if _alike(outputs, changed):
                    continue
                where = name if _alike(inputs, others) else name.rpartition(".")[0]
                return f"module {where!r}" if where else "the model itself"
        except CannotRunError:
            pass
        return "the loss"

    def _traced(self, rows: list[Any], unit: int) -> list[tuple[str, list[Tensor], list[Tensor]]]:
        calls: list[tuple[str, list[Tensor], list[Tensor]]] = []
        count = len(rows)

        def own(value: Any) -> list[Tensor]:
            tensors = [t.detach() for t in tree_flatten(value)[0] if isinstance(t, Tensor)]
            return [t[unit].clone() if t.dim() and len(t) == count else t.clone() for t in tensors]

        self._restore()
        handles = []
        for name, module in self._model.named_modules():

            def note(module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                calls.append((name, own((args, kwargs)), own(output)))

            handles.append(module.register_forward_hook(note, with_kwargs=True))
        try:
            with torch.no_grad():
                self._losses(rows)
        except Exception as error:
            raise CannotRunError from error
        finally:
            for handle in handles:
                handle.remove()
        return calls


def _double(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(np.float64)
    return value


def seeded_apart(one: TrialRun, two: TrialRun) -> str:
    """Whether two runs gave torch's random numbers other seeds: then everybody's may depend on the others."""
    if one.random is None or two.random is None or one.random.seed == two.random.seed:
        return ""
    return "random numbers are seeded with what depends on the rows"


def equal(one: Tensor, two: Tensor) -> bool:
    """Whether two gradients are the same, bit for bit; values that are no numbers are alike."""
    return torch.equal(one, two) or bool(((one == two) | (one.isnan() & two.isnan())).all())


def _alike(one: list[Tensor], two: list[Tensor]) -> bool:
    if len(one) != len(two):
        return False
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(one, two, strict=True)
    )
