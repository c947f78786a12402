"""Rows of the tables of Kim et al., NeurIPS 2023, beyond its first: sizes, sampling, and early exit beside CALM."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.results.tables import MeasuredTableRow, PointFigures, PublishedTableRow


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The decoder of a model as BiLD's Table 2 tells it."""

    layers: int
    width: int
    feed_forward_width: int | None = None
    """None in records that do not hold it."""
    decoder_parameters: int
    """Weights of the decoder's matrices, those of cross-attention included, without embeddings and head."""


@dataclass(frozen=True, kw_only=True)
class SizesRow(DecoderShape, MeasuredTableRow):
    """One model of the pair (BiLD, Table 2)."""


@dataclass(frozen=True, kw_only=True)
class PublishedSizesRow(DecoderShape, PublishedTableRow):
    """BiLD, Table 2."""


@dataclass(frozen=True, kw_only=True)
class SampledRow(PointFigures, MeasuredTableRow):
    """Vanilla or BiLD with drawn tokens (BiLD, Table 5)."""

    temperature: float
    top_k: int = 0
    """0 keeps all tokens."""
    top_p: float


@dataclass(frozen=True, kw_only=True)
class PublishedSampledRow(PublishedTableRow):
    """BiLD, Table 5: nucleus sampling, aligned small models."""

    top_p: float
    quality: float
    quality_difference: float | None = None
    """As printed, from vanilla; None for vanilla."""
    speedup: float | None = None


@dataclass(frozen=True, kw_only=True)
class EarlyExitRow(MeasuredTableRow):
    """A point of CALM and one of BiLD that is as good, as fast, or chosen alike (BiLD, Figures 6 and 7)."""

    calm: PointFigures | None = None
    """None where nothing was found."""
    bild: PointFigures | None = None
    quality_gain: float | None = None
    """Quality of BiLD minus that of CALM, in points."""


@dataclass(frozen=True, kw_only=True)
class PublishedSpeed:
    """A speed-up without its quality."""

    speedup: float


@dataclass(frozen=True, kw_only=True)
class PublishedEarlyExitRow(PublishedTableRow):
    """What BiLD prints of Figures 6 and 7: mT5-small and its first of 8 layers."""

    calm: PublishedSpeed | None = None
    bild: PublishedSpeed
    quality_gain: float | None = None
