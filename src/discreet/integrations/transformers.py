"""Hugging Face's Trainer, made private: an unmodified model, the arguments one has, and a plan.

    trainer = PrivateTrainer(model, args, plan, train_dataset=data)
    trainer.train()
    trainer.private.guarantee()

One update of the Trainer is one release of the plan. Batches are drawn by the plan's sampler and taken through the
model `per_device_train_batch_size` rows at a time; learning-rate schedules, logging, evaluation and checkpoints go by
updates, as ever. What the Trainer would tell about private data (its training loss, counts of tokens) is not told.
"""

import copy
import inspect
import math
import random
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from discreet._check import check_int
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.gradients.engine import MEMORY
from discreet.ledger import Ledger
from discreet.release.batching import Collate, length_of
from discreet.release.guards import trainable
from discreet.release.session import Private, attach
from discreet.stages.plan import Plan
from discreet.training.checkpoint import load_checkpoint, save_checkpoint
from discreet.training.losses import Reduction, label_losses, sequence_losses, unit_losses

try:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as error:
    raise ConfigError("transformers is not installed; pip install 'discreet[transformers]'.") from error

STATE = "discreet.safetensors"  # beside the model in each of the Trainer's checkpoints

Losses = Callable[[Any, Any], Tensor]


class Units(Dataset[Any]):
    """Sequences grouped by whom they belong to: one item for each owner, its first `most` sequences.

    `owners` has the owner of each sequence (a user, a document). How many sequences an owner has is private: `most` is
    declared without looking.
    """

    def __init__(self, sequences: Any, owners: Sequence[Hashable], most: int) -> None:
        if len(owners) != length_of(sequences):
            raise ConfigError(f"there are {len(owners)} owners for {length_of(sequences)} sequences; one for each.")
        self.most = check_int("the most sequences of a unit", most, least=1)
        self._sequences = sequences
        self._places: dict[Hashable, list[int]] = {}
        names: Any = owners.tolist() if isinstance(owners, (Tensor, np.ndarray)) else owners
        for place, owner in enumerate(names):
            if isinstance(owner, Tensor) or owner != owner:  # two of them are never the same key
                raise ConfigError(
                    f"the owner of sequence {place} is {owner!r}, of which no two are equal, so that its sequences "
                    "would be taken for several owners'; give names or whole numbers."
                )
            self._places.setdefault(owner, []).append(place)
        self._owners = list(self._places)

    def __len__(self) -> int:
        return len(self._owners)

    def __getitem__(self, index: int) -> list[Any]:
        return [self._sequences[place] for place in self._places[self._owners[index]][: self.most]]


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
        _check_arguments(args, plan, trainer)
        if type(self).compute_loss is not Trainer.compute_loss:
            raise ConfigError("compute_loss is not used for training here; give losses=, with one loss a row.")
        self._rows = train_dataset.most if isinstance(train_dataset, Units) else None
        _check_unit(plan, grouped=self._rows is not None)
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
        return _Batches(self.private, self.train_dataset, _Collate(collate, self._rows), self.args)

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
        found = self._checkpoint(resume_from_checkpoint)
        if found is not None:
            load_checkpoint(found / STATE, model=nn.Module(), private=self.private)
        elif not self.private.remaining:
            raise BudgetExhausted(
                f"all {self.private.plan.steps:,} steps of the plan are spent; resume from a checkpoint to get the "
                "model, or train anew with another ledger."
            )
        trained = super().train(None if found is None else str(found), ignore_keys_for_eval=ignore_keys_for_eval)
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
        model.train()
        if callable(turn := getattr(self.optimizer, "train", None)):
            turn()

        def loss_fn(chunk: tuple[Any, Tensor | None]) -> Tensor:
            with self.compute_loss_context_manager():
                return self.unit_losses(model, chunk)

        for chunk in inputs.chunks:
            if self.private.backward(loss_fn, chunk):
                break
        return torch.zeros((), device=self.args.device)  # the loss itself is private

    def unit_losses(self, model: nn.Module, chunk: tuple[Any, Tensor | None]) -> Tensor:
        """One loss for each unit of a chunk."""
        inputs, real = self._prepare_inputs(dict(chunk[0])), chunk[1]
        found = {name: inputs.pop(name) for name in self.label_names if name in inputs}
        labels = found["labels"] if list(found) == ["labels"] else found
        if _config(model, "is_encoder_decoder") and "decoder_input_ids" not in inputs and isinstance(labels, Tensor):
            base: Any = self.model
            inputs["decoder_input_ids"] = base.prepare_decoder_input_ids_from_labels(labels=labels)
        losses = self._losses(model(**inputs), labels)
        if real is None or self._rows is None:
            return losses
        losses = torch.where(real.to(losses.device), losses, 0.0)
        return unit_losses(losses, self._rows, reduction=self._reduction)

    def check_private(self, model: nn.Module) -> None:
        """Raise unless the plan is attached to exactly what this model trains."""
        self.private._check_attached()
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
    found = [place for place in folder.glob("checkpoint-*") if place.name.partition("-")[2].isdigit()]
    return sorted(found, key=lambda place: int(place.name.partition("-")[2]))


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

    def __init__(self, private: Private, dataset: Any, collate: "_Collate", args: TrainingArguments) -> None:
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


class _Collate:
    """Collates units: the model's inputs, and for units of several rows which of them are real.

    A unit with fewer than `rows` gets copies of its own first one, so that every unit has as many.
    """

    def __init__(self, collate: Collate, rows: int | None) -> None:
        self._collate, self.rows = collate, rows

    def __call__(self, units: list[Any]) -> tuple[Any, Tensor | None]:
        if self.rows is None:
            return self._collate(units), None
        rows = [[*unit, *[unit[0]] * (self.rows - len(unit))] for unit in units]
        real = [i < len(unit) for unit in units for i in range(self.rows)]
        return self._collate([row for unit in rows for row in unit]), torch.tensor(real)


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


# --- losses ----------------------------------------------------------------------------------------------------------

_TOKENS = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "ForTokenClassification")
_LABELS = tuple(f"For{what}Classification" for what in ("Sequence", "Image", "Video", "Audio"))


def losses_for(model: nn.Module, reduction: Reduction = "mean") -> Losses:
    """The losses a model of the library is trained with, one for each row: `losses(outputs, labels)`."""
    inner: Any = getattr(model, "get_base_model", None)  # of adapters
    base = model if inner is None else inner()
    kind = getattr(base, "loss_type", None)
    if kind is None and type(base).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():  # GPT2LMHeadModel
        kind = "ForCausalLM"
    if kind in _TOKENS:
        causal = kind in ("ForCausalLM", "ForConditionalGeneration") and not _config(model, "is_encoder_decoder")
        return lambda outputs, labels: sequence_losses(
            outputs.logits, _given(labels), shift=causal, reduction=reduction
        )
    if kind in _LABELS:
        several = _config(model, "problem_type") == "multi_label_classification"
        return lambda outputs, labels: label_losses(outputs.logits, _given(labels), several=several)
    raise ConfigError(
        f"what {type(base).__name__} (loss type {kind}) is trained with is not known for each row; give "
        "losses=, a function of outputs and labels that returns one loss a row."
    )


def _given(labels: Any) -> Tensor:
    if not isinstance(labels, Tensor):
        raise ConfigError(
            "the rows have no 'labels', of which losses are made; let the data or its collator give them."
        )
    return labels


def _config(model: nn.Module, name: str) -> Any:
    return getattr(getattr(model, "config", None), name, None)


# --- what is refused -------------------------------------------------------------------------------------------------

_CHUNKS = "the batch size is the plan's; per_device_train_batch_size says how many rows are taken at a time"
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "gradient_accumulation_steps": ((1,), _CHUNKS),
    "auto_find_batch_size": ((False,), _CHUNKS),
    "fp16": ((False,), "scaled losses would be bounded as they are scaled; use bf16=True or full precision"),
    "fp16_full_eval": ((False,), "it would turn the attached parameters into another format"),
    "bf16_full_eval": ((False,), "it would turn the attached parameters into another format"),
    "torch_compile": ((False,), "uses of parameters cannot be seen inside a compiled model"),
    "use_liger_kernel": ((False,), "its kernels hide uses of parameters"),
    "neftune_noise_alpha": ((None,), "its noise goes by the length of the whole batch, so that examples mix"),
    "label_smoothing_factor": ((0, 0.0), "give losses= with what is to be smoothed, one loss a row"),
    "train_sampling_strategy": (("random",), "batches are drawn by the plan's sampler"),
    "include_num_input_tokens_seen": (("no", False), "how many tokens were drawn is private"),
    "skip_memory_metrics": ((True,), "how much memory a batch took tells its size, which is private"),
    "deepspeed": ((None, ""), "only one process and device is supported"),
    "fsdp": ((None, "", [], False), "only one process and device is supported"),
    "world_size": ((1,), "only one process and device is supported"),
    "n_gpu": ((0, 1), "only one device is supported; show it alone to the process, with CUDA_VISIBLE_DEVICES"),
}


def _check_arguments(args: TrainingArguments, plan: Plan, trainer: Mapping[str, Any]) -> None:
    """Refuse what would break the guarantee, or what would be asked for and not done."""
    if not isinstance(plan, Plan):
        raise ConfigError(f"{plan!r} is not a Plan; make one with discreet.Plan or discreet.methods.")
    for name, (allowed, why) in _REFUSED.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}, which cannot be private here: {why}.")
    optimizer = str(getattr(args.optim, "value", args.optim))
    if "lomo" in optimizer or "layerwise" in optimizer:
        raise ConfigError(f"optim {optimizer!r} steps inside the backward pass, before any noise; use another.")
    if args.max_steps > 0 and args.max_steps != plan.steps:
        raise ConfigError(f"max_steps is {args.max_steps}, the plan has {plan.steps:,} steps; leave max_steps out.")
    for name, remedy in (("compute_loss_func", "give losses="), ("model_init", "give the model itself")):
        if trainer.get(name) is not None:
            raise ConfigError(f"{name} is not used by PrivateTrainer; {remedy}.")


def _check_unit(plan: Plan, *, grouped: bool) -> None:
    """Refuse a unit of privacy that is not what the data has a row for."""
    unit = plan.sampling.contract().unit
    if grouped and unit in ("example", "sequence"):
        raise ConfigError(
            f"the data is grouped by owner, but the plan protects each {unit}; say what an owner is: "
            "Poisson(..., unit='user')."
        )
    if not grouped and unit == "user":
        raise ConfigError(
            "the plan protects each user, but the data has one sequence a row; group it: Units(data, owners, most=...)."
        )


_LOOKED_AT = 32  # units among which a short and a long one are looked for


def check_padding(trainer: PrivateTrainer) -> None:
    """Raise if a row's loss depends on how far the others in its batch make it be padded.

    Then one example would change what all others contribute. Nothing can be told where all rows looked at are of one
    length, or where the collator draws at random.
    """
    data: Any = trainer.train_dataset
    collate = trainer.get_train_dataloader().collate
    places = sorted({round(i * (len(data) - 1) / _LOOKED_AT) for i in range(_LOOKED_AT + 1)})
    short, long = _shortest_and_longest([data[i] for i in places], collate)
    if short is None or not _same(collate([short]), collate([short])):
        return
    model: Any = trainer.model_wrapped
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            alone = trainer.unit_losses(model, collate([short])).double()
            beside = trainer.unit_losses(model, collate([short, long])).double()
    finally:
        for module, training in modes:
            module.training = training
    if (alone.shape, beside.shape) != ((1,), (2,)):  # which is refused, in so many words, when it is to be bounded
        return
    if not torch.isclose(alone[0], beside[0], rtol=2e-2 if trainer.args.bf16 else 1e-4, atol=1e-5):
        raise PrivacyError(
            "a row's loss is another one beside a longer row than alone: padding changes it, so examples mix. Pad on "
            "the right, with an attention_mask and labels -100; or pad all to one length."
        )


def _shortest_and_longest(units: Sequence[Any], collate: "_Collate") -> tuple[Any, Any]:
    """Two units whose batches have different shapes; None where there are none."""
    sizes = [sum(t.numel() for t in _tensors(collate([unit]))) for unit in units]
    if min(sizes) == max(sizes):
        return None, None
    return units[sizes.index(min(sizes))], units[sizes.index(max(sizes))]


def _same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _tensors(batch: tuple[Any, Tensor | None]) -> list[Tensor]:
    return [value for value in dict(batch[0]).values() if isinstance(value, Tensor)]


__all__ = ["PrivateTrainer", "Units", "losses_for"]
