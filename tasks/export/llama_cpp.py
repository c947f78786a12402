"""Writes a decoder-only model of `transformers` as a GGUF file for llama.cpp: shape, tokenizer, and weights in float32.

Keys and tensor names are those of the `gguf` package, which is a part of llama.cpp. Some settings have no key because the code
of llama.cpp holds their value. A model that has another value would write nonsense there, so it is refused.

llama.cpp has the code of each kind of tokenizer, and the file names one: `gpt2` is BPE over bytes, `t5` is SentencePiece's
unigram model. The steps that split a text before BPE are code too, and have a name of their own. llama.cpp's converter finds
that name by the hash of an encoded text; here it is found by the steps in `tokenizer.json`.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.tokenizers import load_from, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ASSUMED: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"hidden_act": ("silu",), "rope_parameters.rope_type": ("default", "linear", "llama3")},
    "gpt2": {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    },
}
"""By architecture, settings of `config.json` that no key holds, a dot before a part of one, and llama.cpp's values."""
_BYTES = {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}
_SPLITS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES],
}
"""llama.cpp's names of the steps before BPE, with the keys of `tokenizer.json` that change tokens."""
_SPACES = {"type": "Metaspace", "prepend_scheme": "always", "replacement": "▁"}
_WORDS: list[list[dict[str, Any]]] = [[_SPACES], [{"type": "WhitespaceSplit"}, _SPACES]]
"""Steps before a unigram model that llama.cpp takes: a sign for a space before every word."""
_UNUSED_SCORE, _ADDED_SCORE = -10000.0, -1000.0
"""Scores that llama.cpp's converter gives to tokens without one."""


def write_gguf_model(folder: Path, file: Path, name: str) -> None:
    """Write the model and the tokenizer of a `transformers` folder.

    Args:
        folder: With `config.json`, safetensors and tokenizer.
        file: The file to write.
        name: What the model is called in the file.

    Raises:
        InputError: the package `gguf` is not installed, there is no loadable model or tokenizer, or llama.cpp would compute
            something else.
    """
    if importlib.util.find_spec("gguf") is None:
        raise InputError("this needs the package gguf, which is not installed: pip install 'draftline[gguf]'")
    import gguf
    from transformers import AutoConfig, AutoModelForCausalLM

    config = load_from(AutoConfig.from_pretrained, folder, "model")
    kind = config.model_type
    if kind not in ASSUMED:
        raise InputError(f"{folder} is of type {kind}; GGUF is written for {', '.join(ASSUMED)} alone")
    found = {setting: _setting(config, setting) for setting in ASSUMED[kind]}
    if deviations := [f"{one} {value!r}" for one, value in found.items() if value not in ASSUMED[kind][one]]:
        raise InputError(f"{folder} has {' and '.join(deviations)}, with which llama.cpp runs no model of type {kind}")
    tokenizer = load_tokenizer(folder)
    model = load_from(AutoModelForCausalLM.from_pretrained, folder, "model", dtype=torch.float32, use_safetensors=True).eval()
    rows = model.get_input_embeddings().weight.shape[0]
    writer = gguf.GGUFWriter(file, kind)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(rows)
    {"llama": _describe_llama, "gpt2": _describe_gpt2}[kind](model.config, writer)
    add_tokenizer(writer, folder, tokenizer, rows)
    _add_weights(writer, folder, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _setting(config: Any, name: str) -> Any:
    name, _, part = name.partition(".")
    value = getattr(config, name)
    return value[part] if part else value


# --- shape and weights ----------------------------------------------------------------------------------------------------


def _describe_llama(config: Any, writer: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _describe_gpt2(config: Any, writer: Any) -> None:
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd if config.n_inner is None else config.n_inner)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


@torch.no_grad()
def _add_weights(writer: Any, folder: Path, model: PreTrainedModel) -> None:
    """Add all weights; llama.cpp takes the embedding where there is no output matrix."""
    import gguf

    config, embedding = model.config, model.get_input_embeddings().weight
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    for name, weight in (_llama_weights if config.model_type == "llama" else _gpt2_weights)(model):
        if name == "lm_head.weight" and torch.equal(weight, embedding):
            continue
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if written is None:
            said = f"for which GGUF has no name in a model of type {config.model_type}"
            raise InputError(f"{folder} has a weight {name}, {said}")
        writer.add_tensor(written, weight.contiguous().numpy())


def _llama_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Give the weights of a Llama by their names in `transformers`, with the layout of GGUF."""
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        count = heads.get(name.split(".")[-2])
        yield name, weight if count is None else _interleaved(weight, count)
    if config.rope_parameters["rope_type"] != "default":
        # llama.cpp divides each rotary frequency by this, (width / 2): the unscaled frequency over the model's own.
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        yield "rope_freqs.weight", config.rope_parameters["rope_theta"] ** -exponents / model.get_decoder().rotary_emb.inv_freq


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key projection: rotary pairs are neighbours in GGUF.

    Args:
        weight: (heads * width, inputs), or a bias, (heads * width); in transformers, a pair is half a head apart.
        heads: Heads of the projection.
    """
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _gpt2_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Give the weights of a GPT-2, whose layers in transformers hold their matrices as (inputs, outputs)."""
    for name, weight in model.state_dict().items():
        yield name, weight.T if ".h." in name and weight.dim() == 2 else weight


# --- tokenizer ------------------------------------------------------------------------------------------------------------


def add_tokenizer(writer: Any, folder: Path, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Add a tokenizer to a `gguf.GGUFWriter`.

    Args:
        writer: Receives the keys.
        folder: The folder that the tokenizer was loaded from, for messages.
        tokenizer: The tokenizer of that folder.
        rows: Rows of the model's embedding. Those beyond the vocabulary become unused tokens.

    Raises:
        InputError: llama.cpp has no such tokenizer.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise InputError(f"the tokenizer of {folder} has no tokenizer.json, from which GGUF is written")
    found = json.loads(fast.to_str())
    model, normalizer, first = found["model"], found["normalizer"], found["pre_tokenizer"]
    kind, scores = model["type"], None
    if kind not in ("Unigram", "BPE") or model.get("byte_fallback"):
        raise InputError(f"{folder} has a tokenizer ({kind}) that is neither a unigram model nor BPE over bytes")
    steps = [] if first is None else first["pretokenizers"] if first["type"] == "Sequence" else [first]
    split = next((name for name, expected in _SPLITS.items() if _are(steps, expected)), None)
    known = any(_are(steps, expected) for expected in _WORDS) if kind == "Unigram" else split and not model.get("ignore_merges")
    if not known:
        names = ", ".join(step["type"] for step in steps) or "no step"
        raise InputError(f"the tokenizer of {folder} splits text by {names}, with settings that have no name in GGUF here")
    if normalizer is not None and (kind, normalizer["type"]) != ("Unigram", "Precompiled"):
        raise InputError(f"the tokenizer of {folder} normalises text by {normalizer['type']}, for which GGUF has no key")
    if kind == "Unigram":
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        if normalizer is not None:
            writer.add_precompiled_charsmap(base64.b64decode(normalizer["precompiled_charsmap"]))
        tokens, scores = {index: text for index, (text, _) in enumerate(model["vocab"])}, [score for _, score in model["vocab"]]
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(split)
        writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
        tokens = {index: text for text, index in model["vocab"].items()}
    _add_tokens(writer, tokens, scores, {one["id"]: one for one in found["added_tokens"]}, rows, model.get("unk_id"))
    _add_special_tokens(writer, tokenizer)


def _are(steps: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Whether steps have the expected types and settings; settings that are not expected do not count."""
    return len(steps) == len(expected) and all(
        all(step.get(key) == value for key, value in wanted.items()) for step, wanted in zip(steps, expected, strict=True)
    )


def _add_tokens(
    writer: Any, tokens: dict[int, str], scores: list[float] | None, added: dict[int, Any], rows: int, unknown: int | None
) -> None:
    """Add the text, the kind and the score, if the model has scores, of every row of the embedding."""
    from gguf import TokenType

    texts = [added[index]["content"] if index in added else tokens.get(index, f"[PAD{index}]") for index in range(rows)]
    kinds = [TokenType.NORMAL if index in tokens else TokenType.UNUSED for index in range(rows)]
    for index, one in added.items():
        if index < rows:  # others are tokens that the model cannot read
            kinds[index] = TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED
    if unknown is not None:
        kinds[unknown] = TokenType.UNKNOWN
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    if scores is not None:
        unscored = [_UNUSED_SCORE if kind == TokenType.UNUSED else _ADDED_SCORE for kind in kinds[len(scores) :]]
        writer.add_token_scores([*scores, *unscored][:rows])


def _add_special_tokens(writer: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add special tokens, the chat template, and whether a text is encoded with a start or end token."""
    for name in ("bos", "eos", "unk", "pad"):
        index = getattr(tokenizer, f"{name}_token_id")
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    encoded = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(encoded[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(encoded[-1:] == [tokenizer.eos_token_id])
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)
