"""Opens a model in a suitable runtime, and two models as a pair."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tasks.console import log
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
from tasks.models.layers import keep_encoder_once, reads_large_encoder, shares_encoder
from tasks.models.spread import places_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTENTION = {"full_attention", "sliding_attention"}


def open_decoder(
    model: PreTrainedModel, name: str, vocabulary: int | None = None, runtime: Runtime = AUTO, large: Decoder | None = None
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
    if places := places_of(model):
        if runtime.name not in ("auto", "reference") or runtime.int8:
            fix = "set machine.runtime to auto and machine.dtype to bfloat16 or float32"
            raise InputError(f"the {name} model is spread over {places}, where the reference runtime alone decodes; {fix}")
        return _reference(model, name, vocabulary)
    opened: NativeDecoder | FusedDecoder | str
    for kind in ("native", "fused"):
        # int8 exists in the native runtime alone.
        if runtime.name not in ("auto", kind) or (runtime.int8 and kind == "fused"):
            continue
        if kind == "native":
            opened = _native(model, name, vocabulary, int8=runtime.int8, large=large)
        else:
            opened = _fused(model, name, vocabulary, asked=runtime.name == kind)
        if not isinstance(opened, str):
            # Remembered for a second decoder over parts of the model, such as its first layers.
            opened.runtime = runtime
            return opened
        if runtime.name == kind:
            raise InputError(f"the {kind} runtime {opened}; set machine.runtime to auto")
    if runtime.int8:
        fix = "set machine.dtype to float32 (and machine.drafter_dtype to same)"
        raise InputError(f"int8 takes the native runtime, which does not take the {name} model here; {fix}")
    if runtime.name == "auto":
        log.info("the %s runtime %s; the %s model runs in the reference runtime", kind, opened, name)
    return _reference(model, name, vocabulary)


def _native(
    model: PreTrainedModel, name: str, vocabulary: int | None, *, int8: bool, large: Decoder | None
) -> NativeDecoder | str:
    """Return the native runtime, or why it does not support the model."""
    number_format = "int8" if int8 else str(model.dtype).removeprefix("torch.")
    if model.device.type != "cpu":
        return "runs on a CPU"
    if number_format not in FORMATS:
        return f"takes float32, bfloat16 and int8, not {number_format}"
    blueprint = blueprint_of(model)
    if blueprint is None:
        return _unknown(model, name)
    functions = compiled.library()
    if functions is None:
        return "needs a C++ compiler, and found none that works (CXX names one)"
    # Packed weights can be shared with another native decoder alone.
    sharing = large if isinstance(large, NativeDecoder) else None
    return NativeDecoder(model, blueprint, functions, name, vocabulary, number_format, sharing)


def _fused(model: PreTrainedModel, name: str, vocabulary: int | None, *, asked: bool) -> FusedDecoder | str:
    """Return the fused runtime, or why it does not support the model; without being asked for, it runs on CPUs and CUDA."""
    number_format, device = str(model.dtype).removeprefix("torch."), model.device.type
    if not asked and device not in ("cuda", "cpu"):
        return f"was not tried on {device}"
    blueprint = blueprint_of(model)
    if blueprint is None:
        return _unknown(model, name)
    if number_format not in FUSED_FORMATS:
        return f"takes {' and '.join(FUSED_FORMATS)}, not {number_format}"
    if device != "cuda":
        # A CPU computes at once: looking at each token costs nothing.
        return FusedDecoder(model, blueprint, name, vocabulary, sync_policy=EACH_STEP)
    # A GPU is given the next step while the host looks at the last token.
    return FusedDecoder(model, blueprint, name, vocabulary, recorder=CudaGraphRecorder(model.device), sync_policy=ONE_AHEAD)


def _unknown(model: PreTrainedModel, name: str) -> str:
    return f"does not know models of type {model.config.model_type} configured like the {name} one"


def _reference(model: PreTrainedModel, name: str, vocabulary: int | None) -> Decoder:
    """Return the reference runtime, which supports any architecture."""
    takes = inspect.signature(model.forward).parameters
    if model.config.model_type == "fsmt":
        return PerRowDecoder(FsmtDecoder(model, name, vocabulary))
    if model.config.is_encoder_decoder:
        runtime = TransformersDecoder(model, name, vocabulary)
        # Padding on the left moves absolute positions: only relative ones can be batched.
        return runtime if hasattr(model.config, "relative_attention_num_buckets") else PerRowDecoder(runtime)
    causal = CausalDecoder(model, name, vocabulary)
    return causal if "position_ids" in takes else PerRowDecoder(causal)


def _require_rewindable(model: PreTrainedModel, name: str) -> None:
    # A state that is summed up over the text (Mamba, linear attention) has no earlier version to return to.
    odd = set(getattr(model.config, "layer_types", None) or ()) - _ATTENTION
    if odd or "past_key_values" not in inspect.signature(model.forward).parameters:
        what = f"layers of {', '.join(sorted(odd))}" if odd else "no cache of keys and values"
        fix = "name one with attention alone"
        raise InputError(f"the {name} model is of type {model.config.model_type}, with {what}, and cannot be wound back; {fix}")


def open_decoders(
    small: PreTrainedModel,
    large: PreTrainedModel,
    vocabulary: int | None = None,
    calibration: Rows | None = None,
    runtime: Runtime = AUTO,
    drafter_runtime: Runtime | None = None,
    opened: Decoder | None = None,
) -> Pair:
    """Open two models of `transformers` as a pair, and find out whether they share an encoder.

    Args:
        small: The drafter.
        large: The verifier, of the same architecture and vocabulary (`models.pair` checks).
        vocabulary: The number of ids that both predict over; none: each model's own number.
        calibration: Target tokens of the calibration set, for drafters without a model.
        runtime: The runtime of both.
        drafter_runtime: The small model's, if it is another one.
        opened: The large model's decoder in another pair, whose models share no encoder; none: it is opened.

    Raises:
        InputError: a model cannot be decoded with on this machine, or the small one was trained on another model's encoder.
    """
    # Before opening, which lets go of weights that this reads.
    shared = opened is None and not places_of(large) and shares_encoder(small, large)
    if shared:
        keep_encoder_once(small, large)
    elif reads_large_encoder(small):
        said = "the small model was trained on the frozen encoder of its large model"
        raise InputError(f"{said}, but the encoder of this large model is another; name the large model that it was made of")
    verifier = opened or open_decoder(large, "large", vocabulary, runtime)
    return Pair(
        open_decoder(small, "small", vocabulary, drafter_runtime or runtime, verifier if shared else None),
        verifier,
        calibration=[] if calibration is None else calibration,
        shares_encoder=shared,
    )
