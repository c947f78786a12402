"""Writes a decoder-only model in OpenVINO's format, as its GenAI pipelines open it: network, tokenizer and configuration.

GenAI reads a *stateful* network: keys and values of past tokens are variables inside of it, and `beam_idx` says which row of
them each row of the input continues. The network is converted by OpenVINO's own PyTorch frontend. `openvino.convert_model`
would do the same and report to a server that it was used.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.tokenizers import load_from, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PACKAGES = ("openvino", "openvino_genai", "openvino_tokenizers")
NETWORK, TOKENIZER, DETOKENIZER = "openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml"
"""Names by which GenAI finds the files of a folder."""
_KINDS = ("gpt2", "llama")
_ROTARY = ("default", "linear", "llama3")
"""Kinds of rotary positions whose frequencies do not depend on the length of the text."""
_LOWEST = torch.finfo(torch.float32).min


def require_openvino() -> None:
    """Check that OpenVINO GenAI is installed.

    Raises:
        InputError: a package is missing.
    """
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise InputError("this needs OpenVINO GenAI, which is not installed: pip install 'draftline[openvino]'")


def check_convertible(folder: Path, config: dict[str, Any]) -> None:
    """Check that a model can be written in this format, before anything is loaded.

    Args:
        folder: The model's folder, for messages.
        config: Its `config.json`.

    Raises:
        InputError: it cannot.
    """
    kind = config.get("model_type")
    if config.get("is_encoder_decoder"):
        raise InputError(
            f"OpenVINO GenAI has no speculative decoding for an encoder-decoder such as {kind}; take transformers instead"
        )
    if kind not in _KINDS:
        raise InputError(f"{folder} is a model of type {kind}; OpenVINO's form is written for {' and '.join(_KINDS)} alone")
    rotary = (config.get("rope_parameters") or config.get("rope_scaling") or {}).get("rope_type", "default")
    if rotary not in _ROTARY:
        raise InputError(
            f"{folder} has rotary positions of type {rotary}, which depend on the length of the text; OpenVINO's form is "
            f"written for {', '.join(_ROTARY)}"
        )


def write_openvino_model(folder: Path, out: Path) -> None:
    """Write the model and the tokenizer of a `transformers` folder, in float32.

    Args:
        folder: With `config.json`, safetensors and tokenizer.
        out: The folder to write. `config.json` and `generation_config.json` are copied as they are.

    Raises:
        InputError: there is no loadable model or tokenizer, or OpenVINO does not convert it.
    """
    import openvino
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    model = load_from(load, folder, "model", dtype=torch.float32, use_safetensors=True, attn_implementation="sdpa").eval()
    out.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder, out)
    traced = _traced(model)  # alive until the network is saved, which reads its weights
    openvino.save_model(_stateful(model, traced), out / NETWORK, compress_to_fp16=False)
    model.config.save_pretrained(out)
    model.generation_config.save_pretrained(out)


def _write_tokenizer(folder: Path, out: Path) -> None:
    import openvino
    from openvino_tokenizers import convert_tokenizer

    tokenizer = load_tokenizer(folder)
    try:
        both = convert_tokenizer(tokenizer, with_detokenizer=True)
    except Exception as error:  # noqa: BLE001 (it raises whatever its steps raise on a tokenizer that it does not know)
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"OpenVINO does not convert the tokenizer of {folder}: {reason}") from None
    for network, name in zip(both, (TOKENIZER, DETOKENIZER), strict=True):
        openvino.save_model(network, out / name)


class _CachedStep(torch.nn.Module):
    """A step of a model as a function of tensors alone, for tracing."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Return logits (B, N, V), then keys and values of each layer (B, heads, P + N, width).

        Args:
            input_ids: int64 (B, N).
            attention_mask: int64 (B, P + N), 0 for padding.
            position_ids: int64 (B, N).
            past: Keys and values of each layer in turn, float32 (B, heads, P, width).
        """
        keys = torch.arange(attention_mask.shape[1])
        queries = keys[attention_mask.shape[1] - input_ids.shape[1] :]
        # The mask is made here because that of transformers is traced as a constant.
        seen = (keys <= queries[:, None])[None, None] & (attention_mask[:, None, None] != 0)
        found = self.model(
            input_ids=input_ids,
            attention_mask=torch.where(seen, 0.0, _LOWEST),
            position_ids=position_ids,
            past_key_values=_cache_of(past),
            use_cache=True,
        )
        return found.logits, *_states(found.past_key_values)


def _cache_of(past: Sequence[Tensor]) -> Any:
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache()
    for keys, values in zip(past[::2], past[1::2], strict=True):
        layer = DynamicLayer()
        # Set by hand: an update of an empty layer would trace the concatenation with an empty tensor of one dimension.
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def _states(cache: Any) -> tuple[Tensor, ...]:
    return tuple(state for layer in cache.layers for state in (layer.keys, layer.values))


def _stateful(model: PreTrainedModel, traced: Any) -> Any:
    """Return the network of a traced step with its past inside."""
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation, apply_moc_transformations
    from openvino.frontend import FrontEndManager

    frontend, past = FrontEndManager().load_by_framework("pytorch"), _short_past(model)
    network = frontend.convert(frontend.load(traced))
    layers = range(len(past) // 2)
    inputs = [f"past_key_values.{layer}.{part}" for layer in layers for part in ("key", "value")]
    outputs = [f"present.{layer}.{part}" for layer in layers for part in ("key", "value")]
    for port, state in zip(network.inputs[3:], past, strict=True):
        port.get_node().set_partial_shape(openvino.PartialShape([-1, state.shape[1], -1, state.shape[3]]))
    for port in network.inputs[:3]:
        port.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
    network.validate_nodes_and_infer_types()
    # Without these simplifications GenAI does not recognise the attention of grouped queries.
    apply_moc_transformations(network, cf=False, smart_reshape=False)
    for port, name in zip(network.inputs, ["input_ids", "attention_mask", "position_ids", *inputs], strict=True):
        port.get_node().set_friendly_name(name)
        port.get_tensor().set_names({name})
    for port, name in zip(network.outputs, ["logits", *outputs], strict=True):
        port.get_tensor().set_names({name})
    _continue_chosen_rows(network)
    apply_make_stateful_transformation(network, dict(zip(inputs, outputs, strict=True)))
    _begin_empty(network)
    return network


@torch.no_grad()
def _short_past(model: PreTrainedModel) -> tuple[Tensor, ...]:
    """Return keys and values of two rows of two tokens, for their shapes."""
    return _states(model(input_ids=torch.zeros(2, 2, dtype=torch.long), use_cache=True).past_key_values)


def _traced(model: PreTrainedModel) -> Any:
    """Trace a step of three tokens after a short past, for OpenVINO's frontend."""
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    past, new = _short_past(model), 3
    before = past[0].shape[2]
    mask = torch.ones(2, before + new, dtype=torch.long)
    positions = torch.arange(before, before + new).repeat(2, 1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # branches on the number of tokens, which are those of several
        step = torch.jit.trace(  # type: ignore[no-untyped-call]
            _CachedStep(model), (torch.zeros(2, new, dtype=torch.long), mask, positions, *past), check_trace=False
        )
    return TorchScriptPythonDecoder(step)


def _continue_chosen_rows(network: Any) -> None:
    """Add the input `beam_idx`, int32 (B,): the row of the past that each row continues."""
    import openvino
    from openvino import opset13

    rows = opset13.parameter(openvino.PartialShape([-1]), openvino.Type.i32, name="beam_idx")
    rows.output(0).get_tensor().set_names({"beam_idx"})
    past = network.inputs[3:]
    network.add_parameters([rows])
    for port in past:
        readers = port.get_target_inputs()
        chosen = opset13.gather(port, rows, opset13.constant(0))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    network.validate_nodes_and_infer_types()


def _begin_empty(network: Any) -> None:
    """Make every variable start with no token, for as many rows as the input has."""
    from openvino import opset13

    shape = opset13.shape_of(network.input("input_ids"), output_type="i64")
    rows = opset13.gather(shape, opset13.constant([0]), opset13.constant(0))
    for node in network.get_ops():
        if node.get_type_name() == "ReadValue":
            rest = [size.get_length() if size.is_static else 0 for size in list(node.get_output_partial_shape(0))[1:]]
            empty = opset13.concat([rows, opset13.constant(rest, dtype="int64")], axis=0)
            node.set_arguments([opset13.broadcast(opset13.constant(0.0, dtype=node.get_output_element_type(0)), empty)])
    network.validate_nodes_and_infer_types()
