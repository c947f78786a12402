"""Which runtime a model needs, and two models as a pair."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.runtimes.causal import CausalDecoder
from tasks.decoding.runtimes.fsmt import FsmtDecoder
from tasks.decoding.runtimes.per_row import PerRowDecoder
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.decoding.strategy import Pair
from tasks.errors import InputError

_PROBE = 16
_ATTENTION = {"full_attention", "sliding_attention"}


def open_decoder(model: Any, name: str, vocabulary: int | None = None) -> Decoder:
    """The runtime for a model of `transformers`, chosen by its configuration.

    Args:
        model: In evaluation mode, with its head.
        name: What messages call it.
        vocabulary: Ids from this one on, which padding adds to a model, are never predicted; none: the model's own number.

    Raises:
        InputError: the model has no end token, or keeps something else than keys and values, which cannot be wound back.
    """
    _require_rewindable(model, name)
    takes = inspect.signature(model.forward).parameters
    if model.config.model_type == "fsmt":
        return PerRowDecoder(FsmtDecoder(model, name, vocabulary))
    if model.config.is_encoder_decoder:
        runtime = TransformersDecoder(model, name, vocabulary)
        return runtime if hasattr(model.config, "relative_attention_num_buckets") else PerRowDecoder(runtime)
    causal = CausalDecoder(model, name, vocabulary)
    return causal if "position_ids" in takes else PerRowDecoder(causal)


def _require_rewindable(model: Any, name: str) -> None:
    odd = set(getattr(model.config, "layer_types", None) or ()) - _ATTENTION
    if odd or "past_key_values" not in inspect.signature(model.forward).parameters:
        what = f"layers of {', '.join(sorted(odd))}" if odd else "no cache of keys and values"
        raise InputError(
            f"the {name} model is of type {model.config.model_type}, with {what}, and cannot be wound back; "
            "name one with attention alone"
        )


def open_pair(small: Any, large: Any, vocabulary: int | None = None, calibration: Rows | None = None) -> Pair:
    """Two models of `transformers` as a pair; what they share is found out here.

    Args:
        small: The drafter.
        large: The verifier, of the same architecture and vocabulary (`models.pair` checks).
        vocabulary: The number of ids that both predict over; none: each model's own number.
        calibration: Target tokens of the calibration set, for drafters that are tables.

    Raises:
        InputError: a model that cannot be decoded with here.
    """
    return Pair(
        open_decoder(small, "small", vocabulary),
        open_decoder(large, "large", vocabulary),
        calibration=[] if calibration is None else calibration,
        shares_encoder=shares_encoder(small, large),
    )


@torch.inference_mode()
def shares_encoder(small: Any, large: Any) -> bool:
    """Whether two encoder-decoders have one encoder: the same weights, and the same output, to the bit, for a probe.

    The probe tells encoders of equal weights apart that do not read them alike (heads, activation).
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
