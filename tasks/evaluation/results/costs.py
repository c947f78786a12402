"""What a token costs the two models, in weights and in milliseconds, as `pair.json` records it."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AliasChoices, Field


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """What one token costs a model. Weights are those of matrices; a matrix that runs twice counts twice."""

    parameters: int
    """All of the model, embeddings and additionally trained parts included; shared ones once."""
    encoder_parameters: int
    """Weights that each source token is multiplied with in the encoder; 0 without an encoder."""
    memory_parameters: int
    """Weights that each source token is multiplied with in the decoder: keys and values of cross-attention."""
    decoder_parameters: int
    """Weights that each token is multiplied with when it is decoded, the head's included."""
    head_parameters: int
    """Weights of the head alone."""
    encoder_layers: int
    layers: int
    """Of the decoder."""
    width: int
    attention_width: int
    """Heads times head width: numbers of a query."""
    cache_width: int
    """Numbers that a layer caches for a position: its key and its value."""
    weight_bytes: int
    """Bytes of a weight."""
    cache_bytes: int
    """Bytes of a cached number."""
    feed_forward_width: int | None = None
    """Of the decoder's inner layers; None in older records, and where the configuration does not name it."""


@dataclass(frozen=True, kw_only=True)
class PairSizes:
    """Sizes of both models, and of the sources that they were measured on."""

    small: ModelSizes | None = None
    large: ModelSizes | None = None
    source_tokens: float | None = None
    """Mean length of a source of the validation split."""
    shares_encoder: bool = False
    """Whether the small model decodes from the large model's encoder output."""
    shared_parameters: int = 0
    """Parameters of the small model that are the large model's own and in memory once."""

    @property
    def decoder_ratio(self) -> float | None:
        """ĉ: the weights that a token is multiplied with in the small decoder over those in the large one."""
        if self.small is None or self.large is None or not self.large.decoder_parameters:
            return None
        return self.small.decoder_parameters / self.large.decoder_parameters


@dataclass(frozen=True, kw_only=True)
class MethodOverhead:
    """Milliseconds that a method takes besides its model runs."""

    text: float
    """For each text."""
    call: float
    """For each call of the large model."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCosts:
    """Milliseconds of the parts that decoding one example is made of."""

    encode_small_ms: float | None = None
    """0 where the large model's encoder serves both."""
    encode_large_ms: float | None = None
    small_step_ms: float | None = None
    verify_ms: dict[int, float] | None = None
    """A run of the large model by the number of positions that it verifies."""
    overhead_ms: Annotated[
        dict[str, MethodOverhead] | None, Field(validation_alias=AliasChoices("overhead_ms", "beside_ms"))
    ] = None
    """By method; files without a version call it `beside_ms`."""
    small_step_slowdown: float | None = None
    """How much longer a small step takes beside the large model than alone, as a share; fitted."""
    cost_ratio: float | None = None
    """c: a run of the small model over one of the large (SD, Definition 3.7)."""

    def check_cost(self, positions: int) -> float | None:
        """A run of the large model over so many positions, in its steps; None where it was not measured."""
        if not self.verify_ms or 1 not in self.verify_ms:
            return None
        return interpolated(self.verify_ms, positions) / self.verify_ms[1]


def interpolated(milliseconds: Mapping[int, float], positions: int) -> float:
    """The time of a run over `positions` tokens from those of other widths; linear, also beyond the widest."""
    widths = sorted(milliseconds)
    above = bisect.bisect_left(widths, positions)
    if above < len(widths) and widths[above] == positions:
        return milliseconds[positions]
    low, high = widths[max(0, min(above, len(widths) - 1) - 1)], widths[min(max(above, 1), len(widths) - 1)]
    slope = (milliseconds[high] - milliseconds[low]) / (high - low) if high > low else 0.0
    return milliseconds[low] + slope * (positions - low)
