"""The Trainer whose every update is a release."""

import copy
import inspect
import math
import random
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.gradients.engine import MEMORY
from discreet.integrations.transformers.losses import Losses, config_of, losses_for
from discreet.integrations.transformers.refusals import check_arguments, check_padding, check_unit
from discreet.integrations.transformers.units import Collate, Units
from discreet.ledger import Ledger
from discreet.release.attachment import attach
from discreet.release.batching import length_of
from discreet.release.guards import trainable
from discreet.release.private import Private
from discreet.stages.plan import Plan
from discreet.training.checkpoint import load_checkpoint, save_checkpoint
from discreet.training.losses import Reduction, unit_losses

STATE = "discreet.safetensors"  # beside the model in each of the Trainer's checkpoints


class PrivateTrainer(Trainer):
    """A Trainer whose every update is a release of `plan`; it takes the Trainer's own arguments beside these.

    - `train_dataset` has one row for each unit of privacy, or is `Units`; the plan's sampler has its length.
    - `ledger` is the file that counts what is released: `ledger.jsonl` in the output folder unless it is said.
    - `losses(outputs, labels)` returns one loss a row. Left out, it is what the model's kind is trained with:
      cross-entropy of each sequence, `reduction` "mean" or "sum" over its own tokens; or of each row's label.
    - `preflight`, `memory` and `kernels` are those of `discreet.attach`. The handle is `private`.

    Guarantee: that of the plan, and an update that the plan did not release is an error: the optimizer never steps on
    a gradient of a plain backward pass. The training loss is private and is neither logged nor returned.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        plan: Plan,
        *,
        train_dataset: Any,
        ledger: str | Path | Ledger | None = None,
        losses: Losses | None = None,
        reduction: Reduction = "mean",
        preflight: bool = True,
        memory: float = MEMORY,
        kernels: Mapping[str, str] | None = None,
        **trainer: Any,
    ) -> None:
        check_arguments(args, plan, trainer)
        if type(self).compute_loss is not Trainer.compute_loss:
            raise ConfigError("compute_loss is not used for training here; give losses=, with one loss a row.")
        self._rows = train_dataset.most if isinstance(train_dataset, Units) else None
        check_unit(plan, grouped=self._rows is not None)
        plan.sampling.check_length(length_of(train_dataset))
        args = copy.copy(args)
        args.max_steps = plan.steps
        args.max_grad_norm = 0.0  # gradients were bounded one by one; this one would cut the noisy mean
        args.ignore_data_skip = True  # what was drawn before is not drawn again
        super().__init__(model=model, args=args, train_dataset=train_dataset, **trainer)
        self._losses = losses_for(model, reduction) if losses is None else losses
        self._reduction: Reduction = reduction
        self._folder = Path(args.output_dir or ".")
        ledger = self._folder / "ledger.jsonl" if ledger is None else ledger
        self.private: Private = attach(model, plan, ledger, preflight=preflight, memory=memory, kernels=kernels)
        self.add_callback(_Watch(self))

    # --- data --------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        return _Batches(self.private, self.train_dataset, Collate(collate, self._rows), self.args)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        return math.ceil(self.private.plan.sampling.batch_size)

    # --- steps -------------------------------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train to the end of the plan, from a checkpoint if one is given; steps that a crash has lost stay spent."""
        if trial is not None:
            raise ConfigError("a search over hyperparameters spends budget; declare it in the plan: discreet.Tuning.")
        folder = self._checkpoint(resume_from_checkpoint)
        if folder is not None:
            load_checkpoint(folder / STATE, model=nn.Module(), private=self.private)
        elif not self.private.remaining:
            raise BudgetExhausted(
                f"all {self.private.plan.steps:,} steps of the plan are spent; resume from a checkpoint to get the "
                "model, or train anew with another ledger."
            )
        trained = super().train(None if folder is None else str(folder), ignore_keys_for_eval=ignore_keys_for_eval)
        return trained._replace(training_loss=math.nan)

    def _checkpoint(self, asked: str | bool | None) -> Path | None:
        """The folder to continue from, if it is one of ours."""
        if asked is None or asked is False:
            return None
        places = _checkpoints(self._folder) if asked is True else [Path(asked)]
        complete = [place for place in places if (place / STATE).exists()]
        if not complete:
            where = self._folder if asked is True else asked
            raise ConfigError(f"{where} holds no checkpoint of a private run: {STATE} is not there.")
        return complete[-1]

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One logical batch, chunk by chunk: the gradients it leaves are private."""
        self.check_private(model)
        if not isinstance(inputs, _Batch):
            raise PrivacyError("the batch was not drawn by the plan; leave get_train_dataloader as it is.")
        inner: Any = self.model  # not what wraps it for several processes: gradients are summed once they are bounded
        inner.train()
        if callable(turn := getattr(self.optimizer, "train", None)):
            turn()

        def loss_fn(chunk: tuple[Any, Tensor | None]) -> Tensor:
            with self.compute_loss_context_manager():
                return self.unit_losses(inner, chunk)

        for chunk in inputs.chunks:
            if self.private.backward(loss_fn, chunk):
                break
        return torch.zeros((), device=self.args.device)  # the loss itself is private

    def unit_losses(self, model: nn.Module, chunk: tuple[Any, Tensor | None]) -> Tensor:
        """One loss for each unit of a chunk.

        Args:
            model: whose forward pass it is.
            chunk: the inputs, and which rows are real, None for all.
        """
        inputs, real = self._prepare_inputs(dict(chunk[0])), chunk[1]
        given = {name: inputs.pop(name) for name in self.label_names if name in inputs}
        labels = given["labels"] if list(given) == ["labels"] else given
        if config_of(model, "is_encoder_decoder") and "decoder_input_ids" not in inputs and isinstance(labels, Tensor):
            base: Any = self.model
            inputs["decoder_input_ids"] = base.prepare_decoder_input_ids_from_labels(labels=labels)
        losses = self._losses(model(**inputs), labels)
        if real is None or self._rows is None:
            return losses
        losses = torch.where(real.to(losses.device), losses, 0.0)
        return unit_losses(losses, self._rows, reduction=self._reduction)

    def check_private(self, model: nn.Module) -> None:
        """Raise unless the plan is attached to exactly what this model trains.

        Args:
            model: what the Trainer trains.
        """
        self.private.check_attached()
        held = {id(p) for p in self.private._parameters.values()}
        if held != {id(p) for p in trainable(model).values()}:
            raise PrivacyError(
                "the plan is attached to other parameters than this model trains (it was replaced, or parts of it were "
                "frozen, unfrozen or added); make a new PrivateTrainer for it."
            )

    # --- what is told ------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with epsilon so far and without what is private."""
        for name in ("loss", "train_loss"):
            logs.pop(name, None)
        logs["epsilon"] = self.private.spent
        super().log(logs, start_time)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing: random numbers of an earlier process are not drawn again."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: how many rows and tokens were drawn is private."""
        return 0


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in an output folder, by their steps."""
    folders = [place for place in folder.glob("checkpoint-*") if place.name.partition("-")[2].isdigit()]
    return sorted(folders, key=lambda place: int(place.name.partition("-")[2]))


class _Batch(Mapping[str, Any]):
    """One logical batch for the Trainer's loop, which looks for names in it and finds none; and its chunks."""

    def __init__(self, chunks: Iterator[Any]) -> None:
        self.chunks = chunks

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Batches:
    """A pass over the data for the Trainer's loop: as many logical batches as there are in an epoch on average."""

    def __init__(self, private: Private, dataset: Any, collate: "Collate", args: TrainingArguments) -> None:
        self.dataset, self.collate, self._private = dataset, collate, private
        self._length = max(1, private.plan.sampling.steps_for(1.0))
        self._options: dict[str, Any] = {
            "collate_fn": collate,
            "at_most": max(1, args.per_device_train_batch_size // (collate.rows or 1)),
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
        }

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Batch]:
        steps = min(self._private.remaining, self._length - self._private.released % self._length)
        chunks = self._private.batches(self.dataset, steps=steps, **self._options)
        return (_Batch(chunks) for _ in range(steps))


class _Watch(TrainerCallback):
    """Sees to it that the Trainer's count is the ledger's, that no update is made without a release, and to saving."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer: Any = self._trainer
        trainer.check_private(trainer.model_wrapped)
        check_padding(trainer)
        _draw_in_secret()
        state.global_step = trainer.private.released
        _catch_up(trainer.lr_scheduler, state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        update, released = state.global_step + 1, self._trainer.private.released
        if released != update:
            raise PrivacyError(
                f"update {update} was about to be made, but {released} releases are counted: its gradients did not "
                "come from the plan. Leave training_step to PrivateTrainer."
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _draw_in_secret()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _draw_in_secret()  # checkpoints hold the generators' states, from which earlier numbers could be found
        state.epoch = self._trainer.private.plan.sampling.epochs_in(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if not self._trainer.private.writes:
            return
        save_checkpoint(folder / STATE, model=nn.Module(), private=self._trainer.private)


def _catch_up(schedule: Any, released: int) -> None:
    """Schedules go by releases: those that were lost count. One that goes by a metric waits for the next."""
    if "metrics" in inspect.signature(schedule.step).parameters:
        return
    with warnings.catch_warnings():  # that the optimizer made no step for them is known
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        while schedule.last_epoch < released:
            schedule.step()


def _draw_in_secret() -> None:
    """Seed all generators from the operating system.

    The Trainer seeds them with a number that anybody can guess. Who knows which rows' dropout would have been another's
    without some example learns more of it than the guarantee says.
    """
    torch.seed()
    random.seed()
    np.random.seed()
