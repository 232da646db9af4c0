"""Tiny unmodified models of the transformers library, with rows of unequal length and their losses."""

import torch
import transformers
from discreet.transformers import losses_for
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS, LENGTH = 29, 6
SMALL = {"hidden_size": 16, "intermediate_size": 18, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 16}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2(**more):
    more = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16, **ENDS, **more}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **more))


def llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=WORDS, **LLAMA, **ENDS, **more))


def qwen2(**more):
    more = {"tie_word_embeddings": True, **ENDS, **more}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(vocab_size=WORDS, **LLAMA, **more))


def qwen3(**more):
    more = {"head_dim": 4, **ENDS, **more}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(vocab_size=WORDS, **LLAMA, **more))


def bert(**more):
    more = {"num_labels": 3, "max_position_embeddings": 16, **more}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=WORDS, **SMALL, **more))


def masked_bert(**more):
    return transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=16, **SMALL, **more)
    )


def vit(**more):
    more = {"num_labels": 3, "image_size": 8, "patch_size": 4, "num_channels": 1, **more}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, **more))


def t5(**more):
    more = {"d_model": 12, "d_ff": 14, "d_kv": 4, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0, **more}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=WORDS, **{**ENDS, "bos_token_id": None}, **more)
    )


FAMILIES = {
    "GPT-2": gpt2,
    "Llama": llama,
    "Qwen2": qwen2,
    "Qwen3": qwen3,
    "BERT": bert,
    "masked BERT": masked_bert,
    "ViT": vit,
    "T5": t5,
}
ADAPTED = {
    "GPT-2": ["c_attn", "c_proj", "c_fc"],
    "BERT": ["query", "value", "dense"],
    "masked BERT": ["query", "value"],
    "T5": ["q", "v", "wi", "wo"],
}


def lora(model, family, *, started=True, **more):
    """The model with adapters; `started` gives their second matrices, which are zero at first, random values."""
    options = {"r": 2, "lora_dropout": 0.0, "fan_in_fan_out": family == "GPT-2"}
    options["target_modules"] = ADAPTED.get(family, ["q_proj", "v_proj"])
    adapted = get_peft_model(model, LoraConfig(**(options | more)))
    for name, parameter in adapted.named_parameters():
        if started and "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return adapted


def tokens(rows, length=LENGTH):
    """Sequences of unequal lengths, their masks, and labels that leave the padding out."""
    words, mask = torch.randint(3, WORDS, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    for row in range(rows):
        mask[row, length - row % 4 :] = 0
    words = words.masked_fill(mask == 0, 0)
    return {"input_ids": words, "attention_mask": mask}, words.masked_fill(mask == 0, -100)


def batch(family, rows=5):
    """A family's inputs, without and with labels."""
    if family == "ViT":
        return {"pixel_values": torch.randn(rows, 1, 8, 8)}, torch.randint(3, (rows,))
    inputs, labels = tokens(rows)
    if family == "BERT":
        return inputs, torch.randint(3, (rows,))
    if family == "T5":
        inputs["decoder_input_ids"] = torch.randint(3, WORDS, (rows, LENGTH))
        inputs["decoder_attention_mask"] = inputs["attention_mask"].flip(0)
        labels = tokens(rows)[1].flip(0)
    return inputs, labels


def losses_of(model, inputs, labels, reduction="mean"):
    return losses_for(model, reduction)(model(**inputs), labels)


def tokenizer(**more):
    """A tokenizer of as many words as the models have."""
    special = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
    words = [*special.values(), *(f"w{i}" for i in range(WORDS - len(special)))]
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special, **more)
