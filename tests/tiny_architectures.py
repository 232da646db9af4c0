"""A tiny configuration of every architecture of the transformers library: shrunk by the names of its fields."""

import dataclasses
import importlib
import inspect
import warnings
from collections.abc import Callable
from functools import cache

import torch
from discreet.losses import label_losses, sequence_losses
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WORDS, LENGTH, CLASSES, LARGEST = 29, 6, 3, 6_000_000
KINDS = (  # what an architecture is trained as: the first of these that it has
    "CAUSAL_LM",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "IMAGE_TEXT_TO_TEXT",
)
LABELLED = ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION")


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a model and its batch are; the width is that of 4 heads."""

    width: int
    length: int  # of a text
    rows: int
    largest: int  # number of parameters

    def of(self, field):
        """A field of a configuration at this size."""
        value = BY_FIELD[field]
        if value in (16, 24) or field in HEAD:
            return value * self.width // 16
        return max(value, 2 * self.length) if value == 32 else value


TINY, WIDE = Size(16, LENGTH, 4, LARGEST), Size(256, 64, 16, 100_000_000)
HEAD = [
    *("head_dim", "d_kv", "attention_head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"),
    *("head_size", "qk_head_dim", "attention_head_size", "global_head_dim"),
]
FIELDS = {
    16: (
        "hidden_size d_model n_embd dim embed_dim decoder_hidden_size emb_dim n_embed embedding_size lru_width "
        "d_embed model_dim encoder_hidden_size input_embedding_size word_embed_proj_dim projection_dim kv_lora_rank "
        "q_lora_rank embed_dims attention_hidden_size d_inner projector_hidden_size stem_channels "
        "xvector_output_dim state_size time_step_rank classifier_proj_size output_hidden_size "
        "out_hidden_size"
    ),
    24: (
        "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim moe_intermediate_size "
        "shared_expert_intermediate_size ffn_hidden_size hidden_dim inner_dim mlp_dim block_ff_dim "
        "moe_shared_expert_intermediate_size feed_forward_size shared_intermediate_size "
        "encoder_intermediate_size "
        "dense_intermediate_size expert_ffn_hidden_size decoder_intermediate_size intermediate_size_mlp"
    ),
    2: (
        "num_hidden_layers n_layer num_layers encoder_layers decoder_layers n_layers num_encoder_layers "
        "num_decoder_layers decoder_num_layers encoder_num_hidden_layers decoder_num_hidden_layers "
        "num_key_value_heads num_kv_heads n_kv_heads decoder_num_key_value_heads encoder_num_key_value_heads n_head_kv "
        "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts num_selected_experts "
        "layers encoder_num_key_value_heads moe_top_k"
    ),
    4: (
        "num_attention_heads n_head num_heads encoder_attention_heads decoder_attention_heads n_heads "
        "decoder_num_attention_heads encoder_num_attention_heads head_dim d_kv attention_head_dim v_head_dim "
        "qk_nope_head_dim qk_rope_head_dim head_size num_local_experts num_experts n_routed_experts "
        "moe_num_experts num_buckets qk_head_dim attention_head_size global_head_dim heads"
    ),
    32: (
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions "
        "max_sequence_length sliding_window max_seq_length sample_size"
    ),
    0: (
        "hidden_dropout_prob attention_probs_dropout_prob dropout attention_dropout activation_dropout "
        "resid_pdrop embd_pdrop attn_pdrop hidden_dropout classifier_dropout layerdrop encoder_layerdrop "
        "decoder_layerdrop drop_path_rate router_aux_loss_coef router_jitter_noise "
        "num_nextn_predict_layers pad_token_id"
    ),
    1: "bos_token_id n_group topk_group first_k_dense_replace n_shared_experts num_shared_experts",
    WORDS: "vocab_size",
    CLASSES: "num_labels",
}
BY_FIELD = {field: value for value, fields in FIELDS.items() for field in fields.split()} | {"eos_token_id": 2}
LISTS = {  # stage by stage
    "depths": lambda stages: [1] * stages,
    "num_heads": lambda stages: [2 ** (i + 1) for i in range(stages)],
    "num_attention_heads": lambda stages: [2] * stages,
    "hidden_sizes": lambda stages: [16 * 2**i for i in range(stages)],
    "embed_dim": lambda stages: [16] * stages,
    "embed_dims": lambda stages: [16] * stages,
    "neck_hidden_sizes": lambda stages: [16] * stages,
    "tdnn_dim": lambda stages: [16] * stages,
    "encoder_hidden_size": lambda stages: [16] * stages,
}
WAVES = {"conv_dim": (16, 16), "conv_kernel": (10, 4), "conv_stride": (5, 4), "num_conv_pos_embeddings": 4}
WAVES |= {"num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}
LATENT = {"head_dim": 1, "num_key_value_heads": 0, "qk_head_dim": 2}  # in heads' widths; as many as there are heads
TRAINED = ("reformer", "rwkv")  # allow a backward pass in training mode alone; they have no dropout here
LONGER = {"funnel": 24}  # it is pooled twice
# what the names alone do not tell
OWN: dict[str, dict] = {
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "lsh_attn_chunk_length": 2,
        "local_attn_chunk_length": 2,
        "num_buckets": 2,
        "num_hashes": 1,
    },
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4},
    "esm": {"vocab_size": WORDS, "pad_token_id": 1, "mask_token_id": 3},
    "esmc": {"num_key_value_heads": 4},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "vivit": {"image_size": 32, "num_frames": 4},
    "timesformer": {"image_size": 32, "num_frames": 2},
    "flint": {"mlp_only_layers": [0]},
    "nllb-moe": {  # experts in every layer, without a capacity over the batch
        "encoder_sparse_step": 1,
        "decoder_sparse_step": 1,
        "second_expert_policy": "all",
        "expert_capacity": 10**9,
        "moe_eval_capacity_token_fraction": 0.0,
    },
    "switch_transformers": {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2, "expert_capacity": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}},
}


def fields_of(kind):
    """The fields of a configuration and their defaults."""
    made = kind()
    return {f.name: getattr(made, f.name, None) for f in dataclasses.fields(kind) if f.init}


def shrunk(kind, own, size=TINY):
    """What a tiny configuration of this kind is made with, and so for those inside it."""
    options, known = {}, fields_of(kind)
    for name, value in known.items():
        if isinstance(value, PretrainedConfig):
            inner = own.get(name, {})
            options[name] = type(value)(**shrunk(type(value), inner, size)) if isinstance(inner, dict) else inner
        elif isinstance(value, (list, tuple)) and name in LISTS and all(isinstance(v, int) for v in value):
            options[name] = LISTS[name](len(value))
        elif name in WAVES and "conv_dim" in known:
            options[name] = WAVES[name]
        elif name in LATENT and "qk_rope_head_dim" in known:
            options[name] = LATENT[name] * size.width // 4 or 4
        elif name in BY_FIELD and (value is None) <= (name in ("pad_token_id", "bos_token_id", "vocab_size")):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                options[name] = type(value)(size.of(name))
            elif value is None:
                options[name] = size.of(name)
    return options | {name: value for name, value in own.items() if name not in kind.sub_configs}


@cache
def architectures():
    """The kind and the class of every architecture that has one of KINDS."""
    found = {}
    for kind in KINDS:
        for name, of in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES").items():
            found.setdefault(name, (kind, of if isinstance(of, str) else of[0]))
    return dict(sorted(found.items()))


def config_of(name, size=TINY, **more):
    own = {**OWN.get(name, {}), **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = CONFIG_MAPPING[name]
        own = own | ({"num_labels": CLASSES} if architectures()[name][0] in LABELLED else {})
        return kind(**shrunk(kind, own, size))


def model_of(name, size=TINY, **more):
    """A small model with random weights, in evaluation mode where that can be trained."""
    config = config_of(name, size, **more)
    kind = getattr(importlib.import_module("transformers"), architectures()[name][1])
    model = kind(config).train(name in TRAINED)
    count = sum(p.numel() for p in model.parameters())
    if count > size.largest:
        raise ValueError(f"{name} is not so small: {count:,} parameters")
    return model


def sizes_of(config):
    """Channels and the side of a picture that a configuration is for."""
    inner = getattr(config, "vision_config", None) or config
    side = getattr(inner, "image_size", None) or 32
    return getattr(inner, "num_channels", None) or 3, side[0] if isinstance(side, (list, tuple)) else side


def rows_of(name, model, rows=4, shortest=LENGTH):
    """Examples as a list of dictionaries of tensors; texts are of unequal length under a mask."""
    takes, kind, config = inspect.signature(model.forward).parameters, architectures()[name][0], model.config
    length = max(LONGER.get(name, LENGTH), shortest)
    words, mask = torch.randint(3, WORDS, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    for row in range(0, rows if "attention_mask" in takes else 0, 2):
        mask[row, length - 1 - row % 3 :] = 0
    inputs, main = {}, getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        channels, side = sizes_of(config)
        frames = (getattr(config, "num_frames", 2),) if "VIDEO" in kind else ()
        inputs[main] = torch.randn(rows, *frames, channels, side, side)
    elif main == "input_values":
        inputs[main] = torch.randn(rows, 800)
    elif main == "input_features":
        inner = getattr(config, "encoder_config", None) or config
        mel = getattr(inner, "num_mel_bins", None) or getattr(inner, "feature_size", None) or 16
        inputs[main] = torch.randn(rows, *((mel, 64) if "whisper" in name else (64, mel)))
    else:
        inputs["input_ids"] = words.masked_fill(mask == 0, 0)
        if "attention_mask" in takes:
            inputs["attention_mask"] = mask
        if "bbox" in takes:
            corner = torch.randint(0, 8, (rows, length, 2))
            inputs["bbox"] = torch.cat([corner, corner + 4], 2)
    if "SEQ" in kind and "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = torch.randint(3, WORDS, (rows, shortest))
        inputs["labels"] = torch.randint(3, WORDS, (rows, shortest))
    elif kind in LABELLED:
        inputs["labels"] = torch.randint(CLASSES, (rows,))
    elif main == "input_ids":
        inputs["labels"] = words.masked_fill(mask == 0, -100)
    return [{field: value[row] for field, value in inputs.items()} for row in range(rows)]


def loss_of(name):
    """One loss for each row: what the kind is trained with, and of speech the mean square of what comes out."""
    kind = architectures()[name][0]

    def loss(model, batch):
        batch = dict(batch)
        labels = batch.pop("labels", None)
        logits = model(**batch).logits
        if labels is None:
            return logits.float().flatten(1).square().mean(1)
        if kind in LABELLED:
            return label_losses(logits, labels)
        return sequence_losses(logits, labels, shift=kind in ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT"))

    return loss


@dataclasses.dataclass(frozen=True)
class Case:
    """How an architecture's model, its examples, their batches and its losses are made."""

    name: str
    group: str
    build: Callable[[], tuple[torch.nn.Module, list, Callable, Callable]]


def case_of(name, size=TINY):
    def build():
        model = model_of(name, size)
        return model, rows_of(name, model, size.rows, size.length), torch.utils.data.default_collate, loss_of(name)

    return Case(name, "transformers", build)


def cases(size=TINY):
    return [case_of(name, size) for name in architectures()]
