"""Writes a model of `transformers` as a GGUF file for llama.cpp: shape, tokenizer, and weights in float32."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tasks.errors import InputError
from tasks.export.gguf_architectures import ARCHITECTURES, GGUFArchitecture
from tasks.export.gguf_tokenizer import add_tokenizer
from tasks.models.tokenizers import load_from, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def require_gguf() -> None:
    """Check that the package that writes the format is installed.

    Raises:
        InputError: it is not.
    """
    if importlib.util.find_spec("gguf") is None:
        raise InputError("this needs the package gguf, which is not installed: pip install 'draftline[gguf]'")


def architecture_of(folder: Path) -> GGUFArchitecture:
    """Return the architecture of llama.cpp that runs a model, from its configuration alone.

    Raises:
        InputError: there is none, or llama.cpp would compute something else.
    """
    from transformers import AutoConfig

    config = load_from(AutoConfig.from_pretrained, folder, "model")
    if config.model_type not in ARCHITECTURES:
        raise InputError(f"{folder} is of type {config.model_type}; GGUF is written for {', '.join(ARCHITECTURES)} alone")
    found = ARCHITECTURES[config.model_type]
    if deviations := found.deviations(config):
        raise InputError(f"{folder} has {' and '.join(deviations)}, with which llama.cpp runs no model of type {found.name}")
    return found


def write_gguf_model(folder: Path, file: Path, name: str) -> None:
    """Write the model and the tokenizer of a `transformers` folder.

    Args:
        folder: With `config.json`, safetensors and tokenizer.
        file: The file to write.
        name: What the model is called in the file.

    Raises:
        InputError: there is no loadable model or tokenizer, or GGUF has no place for a part of it.
    """
    import gguf
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    architecture, tokenizer = architecture_of(folder), load_tokenizer(folder)
    kind = AutoModelForSeq2SeqLM if architecture.name == "t5" else AutoModelForCausalLM
    model = load_from(kind.from_pretrained, folder, "model", dtype=torch.float32, use_safetensors=True).eval()
    rows = model.get_input_embeddings().weight.shape[0]
    writer = gguf.GGUFWriter(file, architecture.name)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(rows)
    architecture.describe(model.config, writer)
    add_tokenizer(writer, folder, tokenizer, rows)
    _add_weights(writer, folder, architecture, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def _add_weights(writer: Any, folder: Path, architecture: GGUFArchitecture, model: PreTrainedModel) -> None:
    """Add all weights; llama.cpp takes the embedding where there is no output matrix."""
    import gguf

    config, embedding = model.config, model.get_input_embeddings().weight
    layers = max(config.num_hidden_layers, getattr(config, "num_decoder_layers", 0))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.name.upper()], layers)
    for name, weight in architecture.weights(model):
        if name == "lm_head.weight" and torch.equal(weight, embedding):
            continue
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if written is None:
            raise InputError(f"{folder} has a weight {name}, for which GGUF has no name in a model of type {architecture.name}")
        writer.add_tensor(written, weight.contiguous().numpy())
