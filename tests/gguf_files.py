"""Tiny GGUF files: a Llama of random weights with a tokenizer of letters and a chat template."""

from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from tokenizers.pre_tokenizers import ByteLevel

from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings

SHAPE = ModelSettings(architecture="llama", d_model=32, d_ff=64, d_kv=8, heads=4, decoder_layers=2, seed=4)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
UNKNOWN, START, END = range(3)
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "th", "the"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def llama() -> Any:
    """The model that the file holds."""
    return initial_model(SHAPE, len(TOKENS), pad=END, end=END)


def write_gguf(
    file: Path,
    *,
    model: Any = None,
    architecture: str = "llama",
    template: str | None = TEMPLATE,
    scaling: str | None = None,
    kind: Any = gguf.GGMLQuantizationType.F32,
) -> Path:
    """Write a Llama as llama.cpp's converter does, its matrices in the format `kind`, and return the file."""
    model = model or llama()
    config, writer = model.config, gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    if scaling is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", scaling)
    _write_tokenizer(writer, template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied to the embedding
            _write_tensor(
                writer, f"{names.get_name(name.removesuffix('.weight'))}.weight", _rearranged(name, weight, config), kind
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_tokenizer(writer: Any, template: str | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_pad_token_id(END)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def _rearranged(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
    """Return the weight as llama.cpp lays it out: queries and keys interleave the two halves that rotate together."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            return weight.reshape(count, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    return weight


def _write_tensor(writer: Any, name: str, weight: torch.Tensor, kind: Any) -> None:
    values = weight.float().contiguous().numpy()
    if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, numpy.asarray(gguf.quantize(values, kind)), raw_dtype=kind)
