"""Compares what this project's runtime accepts on some texts with what another engine accepts on the same texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation, total
from tasks.decoding.inference import DecodingPair
from tasks.decoding.pair_folder import certified
from tasks.evaluation.mismatches import MARGIN_TOLERANCE, Mismatch, find_mismatches

_COMPARED = ("drafted", "accepted", "large_calls", "tokens")


@dataclass(frozen=True)
class Measure:
    """What of two runs is compared."""

    name: str
    of: Callable[[Counts], float]


def accepted_share(counts: Counts) -> float:
    """Return the accepted share of the drafted tokens; 0 where none was drafted."""
    return counts.accepted / counts.drafted if counts.drafted else 0.0


def mean_accepted_length(counts: Counts) -> float:
    """Return accepted tokens for each call of the large model."""
    return counts.accepted / counts.large_calls if counts.large_calls else 0.0


def tokens_per_call(counts: Counts) -> float:
    """Return tokens for each call of the large model: those that it accepts and one of its own.

    A drafted end token that is accepted has no token of the large model after it, and counts as that token.
    """
    return counts.tokens / counts.large_calls if counts.large_calls else 0.0


ACCEPTED_SHARE = Measure("accepted share", accepted_share)
TOKENS_PER_CALL = Measure("number of tokens per call of the large model", tokens_per_call)


class Engine(Protocol):
    """Another engine that runs a pair, one text at a time."""

    name: str
    tolerance: float
    """Greatest difference of the measure at which a certificate holds."""
    measure: Measure
    """What its counts allow to compare."""
    drafts_on_prompt: bool
    """Whether the call of the large model that reads the prompt also verifies a draft, as it does here."""

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
    certifiable: Counts
    """This project's counts as a certificate has them: of drafts from the first call on."""
    ours: Counts
    """This project's counts where it drafts from the call on from which the engine does."""
    theirs: Counts
    mismatches: list[Mismatch]
    """Texts that differ, with the large model's top-2 logit margin at the first difference."""
    measure: Measure
    tolerance: float
    certificate: dict[str, Any] | None
    """The record of the pair folder at this draft length."""

    @property
    def difference(self) -> float:
        """Difference of the measure, at least 0."""
        return abs(self.measure.of(self.ours) - self.measure.of(self.theirs))

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
        return all(record[name] == getattr(self.certifiable, name) for name in _COMPARED)


def compare(
    pair: DecodingPair,
    draft_length: int,
    sources: Rows,
    certifiable: Sequence[Generation],
    ours: Sequence[Generation],
    theirs: Sequence[Generation],
    engine: Engine,
) -> Comparison:
    """Compare two runs of the same encoded sources.

    Args:
        pair: The pair in this project's runtime; its large model gives the margins of differing texts.
        draft_length: Tokens drafted at a time in both.
        sources: Token ids of each source.
        certifiable: Texts of greedy speculative decoding here.
        ours: The same, drafted from the call on from which the engine drafts.
        theirs: Texts of the engine.
        engine: The engine, for its measure and tolerance.
    """
    return Comparison(
        draft_length,
        len(sources),
        total(certifiable),
        total(ours),
        total(theirs),
        find_mismatches(pair.opened.pair.large, sources, [one.tokens for one in theirs], [one.tokens for one in ours]),
        engine.measure,
        engine.tolerance,
        certified(pair.manifest, draft_length),
    )
