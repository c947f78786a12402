"""Compares what this project's runtime accepts on some texts with what another engine accepts on the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.decoding.certificate import certified
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation, total
from tasks.decoding.inference import DecodingPair
from tasks.evaluation.mismatches import MARGIN_TOLERANCE, Mismatch, find_mismatches

_COMPARED = ("drafted", "accepted", "large_calls", "tokens")


class Engine(Protocol):
    """Another engine that runs a pair, one text at a time."""

    name: str
    tolerance: float
    """Greatest difference of the accepted share at which a certificate holds."""

    @property
    def version(self) -> str:
        """Of the engine."""

    def decode(self, source: list[int], limit: int) -> Generation:
        """Decode one source greedily, with the engine's counts."""


@dataclass(frozen=True)
class Comparison:
    """What was accepted in both on the same texts."""

    draft_length: int
    texts: int
    ours: Counts
    theirs: Counts
    mismatches: list[Mismatch]
    """Texts that differ, with the large model's top-2 logit margin at the first difference."""
    tolerance: float
    certificate: dict[str, Any] | None
    """The record of the pair folder at this draft length."""

    @property
    def difference(self) -> float:
        """Difference of the accepted shares, at least 0."""
        return abs(accepted_share(self.ours) - accepted_share(self.theirs))

    @property
    def differing(self) -> list[Mismatch]:
        """Texts that differ by more than rounding."""
        return [mismatch for mismatch in self.mismatches if mismatch.margin >= MARGIN_TOLERANCE]

    @property
    def holds(self) -> bool:
        """Whether the engine accepts what this project's runtime does and writes the same texts."""
        return self.difference <= self.tolerance and not self.differing

    @property
    def reproduced(self) -> bool | None:
        """Whether this project's counts are those of the certificate; None unless it has as many texts, so that they may be
        the same ones.
        """
        record = self.certificate
        if record is None or record["examples"] != self.texts:
            return None
        return all(record[name] == getattr(self.ours, name) for name in _COMPARED)


def accepted_share(counts: Counts) -> float:
    """Return the accepted share of the drafted tokens; 0 where none was drafted."""
    return counts.accepted / counts.drafted if counts.drafted else 0.0


def mean_accepted_length(counts: Counts) -> float:
    """Return accepted tokens for each call of the large model."""
    return counts.accepted / counts.large_calls if counts.large_calls else 0.0


def compare(
    pair: DecodingPair,
    draft_length: int,
    sources: Rows,
    ours: Sequence[Generation],
    theirs: Sequence[Generation],
    tolerance: float,
) -> Comparison:
    """Compare two runs of the same encoded sources.

    Args:
        pair: The pair in this project's runtime; its large model gives the margins of differing texts.
        draft_length: Tokens drafted at a time in both.
        sources: Token ids of each source.
        ours: Texts of greedy speculative decoding here.
        theirs: Texts of the engine.
        tolerance: Greatest difference of the accepted share, that of the engine.
    """
    return Comparison(
        draft_length,
        len(sources),
        total(ours),
        total(theirs),
        find_mismatches(pair.opened.pair.large, sources, [one.tokens for one in theirs], [one.tokens for one in ours]),
        tolerance,
        certified(pair.manifest, draft_length),
    )
