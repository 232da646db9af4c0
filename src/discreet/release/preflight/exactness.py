"""The engine's sums against autograd's own, and contributions against the bound's contract."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from discreet.errors import PrivacyError
from discreet.gradients import Engine, UnitGradients
from discreet.gradients.forms import real_parts, sum_dtype
from discreet.stages.sensitivity import Block, Contract

_UNITS = 4  # units whose contributions are made one by one


class Sketch:
    """Gradients in a few thousand numbers each: multiplied by random signs and folded, which nearly keeps distances.

    So all of autograd's own gradients can be compared without being held.
    """

    SIZE = 4096

    def __init__(self) -> None:
        self._seed = torch.Generator().seed()

    def __call__(self, gradient: Tensor) -> Tensor:
        flat = real_parts(gradient.detach().to_dense()).reshape(-1)
        if len(flat) <= self.SIZE:
            return flat.clone()
        generator = torch.Generator().manual_seed(self._seed)
        found = flat.new_zeros(self.SIZE, dtype=sum_dtype(flat.dtype))
        for piece in flat.split(256 * self.SIZE):
            signs = torch.randint(2, piece.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
            signed = piece.to(found.dtype) * signs.to(piece.device)
            rest = -len(piece) % self.SIZE
            found += nn.functional.pad(signed, (0, rest)).view(-1, self.SIZE).sum(0)
        return found

    def gradients(self, losses: Tensor, engine: Engine) -> dict[str, Tensor | None]:
        """Autograd's own gradients of the losses' sum, from one pass in which each is sketched when it is made."""
        found: dict[str, Tensor | None] = dict.fromkeys(engine.parameters)
        failed: list[Exception] = []

        def keep(gradient: Tensor, name: str) -> Tensor:
            try:
                found[name] = self(gradient)
            except Exception as error:  # not to be taken for one of the pass
                failed.append(error)
            if gradient.layout != torch.strided:
                return torch.zeros_like(gradient)
            return gradient.new_zeros(()).expand(gradient.shape)  # what the pass holds instead

        hooks = [p.register_hook(partial(keep, name=name)) for name, p in engine.parameters.items()]
        try:
            targets = [torch.autograd.graph.get_gradient_edge(p) for p in engine.parameters.values()]
            engine.passes.run(losses, targets, torch.ones_like(losses), retain=True)
        finally:
            for hook in hooks:
                hook.remove()
        if failed:
            raise PrivacyError(f"autograd's own gradients cannot be compared: {failed[0]}") from failed[0]
        return found


def check_sums(gradients: UnitGradients, plain: Mapping[str, Tensor | None], sketch: Sketch) -> None:
    """The engine's sum over all units is autograd's, parameter by parameter, of which `plain` are sketches.

    Where a unit nearly cancels, autograd's own sum has lost digits, and says nothing.
    """
    norms = gradients.norms()
    if gradients.cancels:
        return
    truths = {name: truth for name, truth in plain.items() if truth is not None}
    if not all(t.isfinite().all() for t in truths.values()):
        return
    # a parameter without influence has rounding for a gradient: it is measured against the whole model's
    floor = 1e-3 * max((float(t.norm()) for t in truths.values()), default=0.0)
    for name, parameter in gradients.parameters.items():
        total = norms[name].new_zeros(parameter.shape)
        gradients.add_one(name, torch.ones_like(norms[name]), total)
        total = sketch(total)
        truth = truths[name].to(total.dtype) if name in truths else torch.zeros_like(total)
        short = parameter.dtype in (torch.float16, torch.bfloat16)
        size = max(float(truth.norm()), floor, 1e-3 * float(norms[name].nan_to_num(0, 0, 0).sum().sqrt()))
        if float((total - truth).norm()) > (0.1 if short else 0.02) * size + 1e-12:
            raise PrivacyError(
                f"the gradients of parameter {name!r} do not add up to autograd's: a bug, or an op whose backward pass "
                "depends on the whole batch. Please report it; nothing was released."
            )


def check_bound(gradients: UnitGradients, weights: Mapping[str, Tensor], contract: Contract) -> None:
    """Leaving out any one unit moves each block of the sum by at most its norm: some contributions, made one by one."""
    norms = gradients.norms()
    for block in contract.blocks:
        members = [name for name in block.members if name in gradients.forms]
        if not members:
            continue
        size = sum(weights[n].double() ** 2 * norms[n].double() for n in members)
        for unit in torch.argsort(torch.as_tensor(size), descending=True)[:_UNITS].tolist():
            total = 0.0
            for name in members:
                one = torch.linalg.vector_norm(gradients.forms[name].each(unit, unit + 1), dtype=torch.float64)
                total += float((weights[name][unit].double() * one) ** 2)
            if total > (block.norm * 1.001) ** 2:
                raise _unbounded(total**0.5, block)


def check_rows(contributions: Tensor, names: Mapping[str, tuple[int, int]], contract: Contract) -> None:
    """No contribution, one a row, is longer than its blocks' norms, or larger than the envelope anywhere.

    `names` are the columns of each parameter.
    """
    rows = contributions.double()
    for block in contract.blocks:
        pieces = [rows[:, slice(*names[name])].square().sum(1) for name in block.members if name in names]
        longest = float(torch.stack(pieces).sum(0).max().sqrt()) if pieces else 0.0
        if not longest <= block.norm * 1.001:
            raise _unbounded(longest, block)
    if contract.magnitudes is not None:
        levels, counts = contract.magnitudes.levels, contract.magnitudes.counts
        most = torch.tensor(levels).repeat_interleave(torch.tensor(counts)).sort().values
        largest = rows[:_UNITS].abs().sort(1).values.cpu()
        if not bool((largest <= most * 1.001).all()):
            raise PrivacyError(
                "one example moves a coordinate of the sum by more than the bound says; the bound does not bound. "
                "Nothing was released."
            )


def _unbounded(found: float, block: Block) -> PrivacyError:
    return PrivacyError(
        f"one example moves the sum by {found:.4g} where the bound says {block.norm:.4g} "
        f"({', '.join(block.members)}); the bound does not bound. Nothing was released."
    )
