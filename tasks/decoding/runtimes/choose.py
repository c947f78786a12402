"""Opens a model in a suitable runtime, and two models as a pair."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from tasks.decoding.decoder import AUTO, Decoder, Rows, Runtime
from tasks.decoding.method import Pair
from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.cuda_graphs import CudaGraphRecorder
from tasks.decoding.runtimes.fused import EACH_STEP, ONE_AHEAD, FusedDecoder
from tasks.decoding.runtimes.fused_stack import FORMATS as FUSED_FORMATS
from tasks.decoding.runtimes.layout import FORMATS
from tasks.decoding.runtimes.native import NativeDecoder
from tasks.decoding.runtimes.reference import CausalDecoder, FsmtDecoder, PerRowDecoder, TransformersDecoder
from tasks.errors import InputError
from tasks.models.layers import keep_encoder_once, reads_large_encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE = 16
_ATTENTION = {"full_attention", "sliding_attention"}


def open_decoder(
    model: PreTrainedModel,
    name: str,
    vocabulary: int | None = None,
    runtime: Runtime = AUTO,
    large: Decoder | None = None,
) -> Decoder:
    """Return a runtime for a model of `transformers`.

    Args:
        model: In evaluation mode, with its head.
        name: The model's name in messages.
        vocabulary: Ids from this one on, which pad the embedding matrix, are never predicted; none: the model's own number.
        runtime: The runtime; `auto` is the fastest one that supports this model on its device, else the reference.
        large: A decoder whose model has the same encoder, in the same tensors; the native runtime then keeps it once.

    Raises:
        InputError: the model has no end token, or caches something other than keys and values, which cannot be rewound; or
            the requested runtime does not support it.
    """
    _require_rewindable(model, name)
    opened: NativeDecoder | FusedDecoder | None = None
    if runtime.name in ("auto", "native"):
        opened = _native(model, name, vocabulary, runtime, large)
    if opened is None and not runtime.int8 and runtime.name in ("auto", "fused"):
        opened = _fused(model, name, vocabulary, runtime)
    if opened is not None:
        opened.runtime = runtime
        return opened
    if runtime.int8:
        raise InputError(
            f"int8 takes the native runtime, which does not take the {name} model here; set machine.dtype to float32"
        )
    return _reference(model, name, vocabulary)


def _native(
    model: PreTrainedModel, name: str, vocabulary: int | None, runtime: Runtime, large: Decoder | None
) -> NativeDecoder | None:
    """Return none if this runtime does not support the model and another one may."""
    number_format = "int8" if runtime.int8 else str(model.dtype).removeprefix("torch.")
    here = model.device.type == "cpu"
    blueprint = blueprint_of(model) if here else None
    functions = compiled.library() if blueprint is not None else None
    lacking = (
        "runs on a CPU"
        if not here
        else f"takes float32, bfloat16 and int8, not {number_format}"
        if number_format not in FORMATS
        else f"does not know models of type {model.config.model_type} configured like the {name} one"
        if blueprint is None
        else "needs a C++ compiler, and found none that works (CXX names one)"
        if functions is None
        else None
    )
    if lacking is None and blueprint is not None and functions is not None:
        beside = large if isinstance(large, NativeDecoder) else None
        return NativeDecoder(model, blueprint, functions, name, vocabulary, number_format, beside)
    if runtime.name == "native":
        raise InputError(f"the native runtime {lacking}; set machine.runtime to auto")
    return None


def _fused(model: PreTrainedModel, name: str, vocabulary: int | None, runtime: Runtime) -> FusedDecoder | None:
    """Return none if this runtime does not support the model and another one may."""
    asked, on_gpu = runtime.name == "fused", model.device.type == "cuda"
    if not asked and model.device.type not in ("cuda", "cpu"):
        return None
    number_format, blueprint = str(model.dtype).removeprefix("torch."), blueprint_of(model)
    if blueprint is not None and number_format in FUSED_FORMATS:
        recorder = CudaGraphRecorder(model.device) if on_gpu else None
        return FusedDecoder(
            model, blueprint, name, vocabulary, recorder=recorder, sync_policy=ONE_AHEAD if on_gpu else EACH_STEP
        )
    if asked:
        lacking = (
            f"does not know models of type {model.config.model_type} configured like the {name} one"
            if blueprint is None
            else f"takes {' and '.join(FUSED_FORMATS)}, not {number_format}"
        )
        raise InputError(f"the fused runtime {lacking}; set machine.runtime to auto")
    return None


def _reference(model: PreTrainedModel, name: str, vocabulary: int | None) -> Decoder:
    """Return the reference runtime, which supports any architecture."""
    takes = inspect.signature(model.forward).parameters
    if model.config.model_type == "fsmt":
        return PerRowDecoder(FsmtDecoder(model, name, vocabulary))
    if model.config.is_encoder_decoder:
        runtime = TransformersDecoder(model, name, vocabulary)
        return runtime if hasattr(model.config, "relative_attention_num_buckets") else PerRowDecoder(runtime)
    causal = CausalDecoder(model, name, vocabulary)
    return causal if "position_ids" in takes else PerRowDecoder(causal)


def _require_rewindable(model: PreTrainedModel, name: str) -> None:
    odd = set(getattr(model.config, "layer_types", None) or ()) - _ATTENTION
    if odd or "past_key_values" not in inspect.signature(model.forward).parameters:
        what = f"layers of {', '.join(sorted(odd))}" if odd else "no cache of keys and values"
        raise InputError(
            f"the {name} model is of type {model.config.model_type}, with {what}, and cannot be wound back; "
            "name one with attention alone"
        )


def open_pair(
    small: PreTrainedModel,
    large: PreTrainedModel,
    vocabulary: int | None = None,
    calibration: Rows | None = None,
    runtime: Runtime = AUTO,
) -> Pair:
    """Open two models of `transformers` as a pair, and find out whether they share an encoder.

    Args:
        small: The drafter.
        large: The verifier, of the same architecture and vocabulary (`models.pair` checks).
        vocabulary: The number of ids that both predict over; none: each model's own number.
        calibration: Target tokens of the calibration set, for drafters without a model.
        runtime: The runtime of both.

    Raises:
        InputError: a model cannot be decoded with on this machine, or the small one was trained on another model's encoder.
    """
    shared = shares_encoder(small, large)  # before opening, which lets go of weights that this reads
    if shared:
        keep_encoder_once(small, large)
    elif reads_large_encoder(small):
        raise InputError(
            "the small model was trained on the frozen encoder of its large model, but the encoder of this large model is "
            "another; name the large model that it was made of"
        )
    verifier = open_decoder(large, "large", vocabulary, runtime)
    return Pair(
        open_decoder(small, "small", vocabulary, runtime, verifier if shared else None),
        verifier,
        calibration=[] if calibration is None else calibration,
        shares_encoder=shared,
    )


@torch.inference_mode()
def shares_encoder(small: PreTrainedModel, large: PreTrainedModel) -> bool:
    """Return whether two encoder-decoders have the same encoder: equal weights, and identical output for a probe.

    The probe detects encoders with equal weights and different configurations (heads, activation).
    """
    if not (small.config.is_encoder_decoder and large.config.is_encoder_decoder):
        return False
    encoders = [model.get_encoder() for model in (small, large)]
    ours, theirs = (encoder.state_dict() for encoder in encoders)
    if ours.keys() != theirs.keys() or not all(torch.equal(ours[name], theirs[name]) for name in ours):
        return False
    known = small.get_input_embeddings().weight.shape[0]
    probe = torch.arange(_PROBE, device=small.device)[None] % known
    mask = torch.ones_like(probe)
    one, other = (encoder(input_ids=probe, attention_mask=mask).last_hidden_state for encoder in encoders)
    return torch.equal(one, other)
