"""Hugging Face's Trainer, made private: an unmodified model, the arguments one has, and a plan.

    trainer = PrivateTrainer(model, args, plan, train_dataset=data)
    trainer.train()
    trainer.private.guarantee()

One update of the Trainer is one release of the plan. Batches are drawn by the plan's sampler and taken through the
model `per_device_train_batch_size` rows at a time; learning-rate schedules, logging, evaluation and checkpoints go by
updates, as ever. What the Trainer would tell about private data (its training loss, counts of tokens) is not told.

trainer.py    PrivateTrainer
units.py      sequences by whom they belong to
losses.py     one loss a row, for each kind of model
refusals.py   what cannot be private here
"""

from importlib.util import find_spec

from discreet.errors import ConfigError

if find_spec("transformers") is None:
    raise ConfigError("transformers is not installed; pip install 'discreet[transformers]'.")

from discreet.integrations.transformers.losses import losses_for
from discreet.integrations.transformers.trainer import STATE, PrivateTrainer
from discreet.integrations.transformers.units import Units

__all__ = ["STATE", "PrivateTrainer", "Units", "losses_for"]
