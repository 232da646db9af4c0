"""A plan carried by Lightning: a callback that attaches it, draws the batches and makes each backward pass private.

    privacy = Privacy(plan, ledger="ledger.jsonl")
    trainer = Trainer(max_epochs=-1, callbacks=[privacy])
    trainer.fit(model, privacy.loader(dataset))

The module stays as it is, but for one thing: `training_step` returns one loss per example. Lightning's loop, its
optimizers, schedules and checkpoints stay too.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from discreet._check import check_int
from discreet.accounting.guarantee import Guarantee
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.ledger import Ledger
from discreet.release.attachment import attach
from discreet.release.batching import Collate, PaddedCollate, length_of
from discreet.release.private import Private
from discreet.stages.plan import Plan

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins.precision import DoublePrecision, MixedPrecision, Precision
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError as error:
    raise ConfigError("Lightning is not installed; pip install 'discreet[lightning]'.") from error


class Privacy(Callback):
    """Trains a LightningModule by a plan.

    `ledger` and `preflight` are as in discreet.attach. A run ends when the plan's steps are spent. Lightning's
    checkpoints hold the private state: what a crash has lost stays spent, and is not repeated.

    Guarantee: every gradient that a backward pass leaves for an optimizer is one that the plan released. A batch that
    was not drawn by the plan, a batch whose losses were not made private and a plain backward pass are errors. What is
    not seen is a gradient that a module computes and assigns by itself (torch.autograd.grad).
    """

    def __init__(self, plan: Plan, ledger: str | Path | Ledger | None = None, *, preflight: bool = True) -> None:
        self._plan, self._ledger, self._preflight = plan, ledger, preflight
        self._private: Private | None = None
        self._earlier: dict[str, Any] = {}  # what an earlier fit of this callback has spent
        self._loaded: dict[str, Any] = {}  # what a checkpoint has told
        self._released = 0  # before the batch that is under way
        self._batch: tuple[Any, int] = (None, 0)

    @property
    def private(self) -> Private:
        """The plan, attached; a PrivacyError outside of a run."""
        if self._private is None:
            raise PrivacyError(
                "the plan is not attached to a model, so nothing would be private; give the callback to the trainer: "
                "Trainer(callbacks=[privacy])."
            )
        return self._private

    def guarantee(self) -> Guarantee:
        """What is proven of the run, while it lasts and afterwards."""
        return self.private.guarantee()

    # --- data ----------------------------------------------------------------------------------------------------

    def loader(
        self,
        dataset: Any,
        *,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        pin_memory: bool = False,
    ) -> DataLoader[Any]:
        """A loader whose batches are the plan's draws, for trainer.fit or a DataModule's train_dataloader.

        One pass is as many steps as an example takes part in once on average. An empty draw is one padding row.

        Args:
            dataset: a map-style data set.
            collate_fn: as torch's DataLoader takes it, and so the others.
            num_workers: processes that read rows.
            prefetch_factor: how many batches each of them draws ahead.
            pin_memory: whether batches are copied to pinned memory.
        """
        self._plan.sampling.check_length(length_of(dataset))
        ahead = check_int("num_workers", num_workers, least=0) * check_int("prefetch_factor", prefetch_factor, least=1)
        return DataLoader(
            dataset,
            batch_sampler=_Draws(self, dataset, collate_fn, max(1, self._plan.sampling.steps_for(1.0)), ahead),
            collate_fn=PaddedCollate(collate_fn or default_collate, dataset[0]),
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            pin_memory=pin_memory,
        )

    # --- Lightning's hooks ---------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot be made private, before anything is touched."""
        if stage == "fit":
            _check_trainer(trainer)
            _check_module(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the plan, now that the module is where it will be trained, and go on where the run was."""
        private = attach(pl_module, self._plan, self._ledger, preflight=self._preflight)
        try:
            for state in (self._earlier, self._loaded):  # counts never go back, whatever checkpoint is loaded
                if state:
                    private.load_state_dict(state)
            if private.remaining == 0:
                raise BudgetExhausted(f"all {self._plan.steps:,} steps of the plan are spent; there is nothing to fit.")
        except BaseException:
            private.detach()
            raise
        self._private = private
        vars(trainer.precision_plugin)["backward"] = self._backward

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Remember how much was released."""
        self._released = self.private.released
        self._batch = batch, batch_idx

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """See that the batch was released, and end the run with the plan."""
        if self.private.released != self._released + 1:
            raise PrivacyError(
                "a batch went by without a release; training_step must return one loss per example, or with manual "
                "optimisation hand it to manual_backward, once a batch."
            )
        if self.private.remaining == 0:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what the releases so far have spent."""
        pl_module.log("epsilon", self.private.spent, prog_bar=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the module go."""
        if stage == "fit":
            self._end(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let the module go."""
        self._end(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The private state, for Lightning's checkpoints."""
        return self._loaded if self._private is None else self._private.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until the plan is attached."""
        self._loaded = state_dict

    # --- in between ----------------------------------------------------------------------------------------------

    def _backward(self, tensor: Tensor, model: LightningModule, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """What the trainer calls where it would have called loss.backward()."""
        if args or kwargs:
            raise ConfigError("a private backward pass takes the losses and nothing else.")
        if not model.automatic_optimization:
            self.private.backward(tensor)
            return

        def loss_fn(batch: Any) -> Tensor:
            step: Any = model.training_step
            result = step(batch, self._batch[1]) if len(signature(step).parameters) > 1 else step(batch)
            return result["loss"] if isinstance(result, dict) else result

        with _silent(model):
            self.private.backward_of(tensor, loss_fn, self._batch[0])

    def _end(self, trainer: Trainer) -> None:
        vars(trainer.precision_plugin).pop("backward", None)
        if self._private is not None:
            self._earlier, self._loaded = self._private.state_dict(), {}
            self._private.detach()


class _Draws:
    """The plan's draws, a pass at a time, from whatever run is under way."""

    def __init__(self, privacy: Privacy, dataset: Any, collate: Collate | None, steps: int, ahead: int) -> None:
        self._privacy, self._dataset, self._collate = privacy, dataset, collate
        self._steps, self._ahead = steps, ahead

    def __iter__(self) -> Iterator[list[int]]:
        private = self._privacy.private
        private.collate(self._dataset, self._collate)  # tells it what there is to draw from, and how it is read
        yield from private.batch_sampler(steps=self._steps, ahead=self._ahead)

    def __len__(self) -> int:
        return self._steps


@contextmanager
def _silent(module: LightningModule) -> Generator[None]:
    """The module logs nothing while its step is tried again."""
    names = ("log", "log_dict")
    vars(module).update(dict.fromkeys(names, lambda *args, **kwargs: None))
    try:
        yield
    finally:
        for name in names:
            vars(module).pop(name, None)


def _check_trainer(trainer: Trainer) -> None:
    if trainer.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise ConfigError(
            f"strategy {type(trainer.strategy).__name__} on {trainer.world_size} devices spreads a batch, which is not "
            "private here; use Trainer(devices=1)."
        )
    if trainer.accumulate_grad_batches != 1:
        raise ConfigError(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}; each batch is a release of its own, so ask "
            "for a larger batch_size in the plan."
        )
    if trainer.gradient_clip_val not in (None, 0):
        raise ConfigError(
            f"gradient_clip_val is {trainer.gradient_clip_val}; it would cut the noisy sum and bound no example: that "
            "is what the plan's bound does. Leave it out."
        )
    plugin = trainer.precision_plugin
    scaled = isinstance(plugin, MixedPrecision) and plugin.scaler is not None
    if scaled or type(plugin) not in (Precision, DoublePrecision, MixedPrecision):
        why = "scales losses" if scaled else "is not tested"
        raise ConfigError(
            f"precision {plugin.precision!r} ({type(plugin).__name__}) {why}; use '32-true', '64-true' or 'bf16-mixed'."
        )


def _check_module(module: LightningModule) -> None:
    if type(module).backward is not LightningModule.backward:
        raise ConfigError(
            f"{type(module).__name__} has a backward of its own, which would take the place of the private one; leave "
            "it out."
        )


__all__ = ["Privacy"]
