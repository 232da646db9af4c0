"""One loss for each row, as a model of the library is trained."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from discreet.errors import ConfigError
from discreet.training.losses import Reduction, label_losses, sequence_losses

Losses = Callable[[Any, Any], Tensor]
_TOKENS = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "ForTokenClassification")
_LABELS = tuple(f"For{what}Classification" for what in ("Sequence", "Image", "Video", "Audio"))


def losses_for(model: nn.Module, reduction: Reduction = "mean") -> Losses:
    """The losses a model of the library is trained with, one for each row: `losses(outputs, labels)`.

    Args:
        model: of the library transformers, whose head says which loss is its own.
        reduction: over a row's own tokens, where it has several.
    """
    inner: Any = getattr(model, "get_base_model", None)  # of adapters
    base = model if inner is None else inner()
    kind = getattr(base, "loss_type", None)
    if kind is None and type(base).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():  # GPT2LMHeadModel
        kind = "ForCausalLM"
    if kind in _TOKENS:
        causal = kind in ("ForCausalLM", "ForConditionalGeneration") and not config_of(model, "is_encoder_decoder")
        return lambda outputs, labels: sequence_losses(
            outputs.logits, _given(labels), shift=causal, reduction=reduction
        )
    if kind in _LABELS:
        several = config_of(model, "problem_type") == "multi_label_classification"
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


def config_of(model: nn.Module, name: str) -> Any:
    """A setting of the model's config, or None."""
    return getattr(getattr(model, "config", None), name, None)
