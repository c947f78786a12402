"""Whether the fused runtime generates the reference's tokens, and the margins at which it does not."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.decoding.decoder import Rows
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.settings import BildSettings, SpeculativeSettings, VanillaSettings
from tasks.evaluation.mismatches import first_mismatch, top_two_margin

METHODS: tuple[tuple[str, object], ...] = (
    ("vanilla_large", VanillaSettings()),
    ("speculative", SpeculativeSettings()),
    ("bild", BildSettings()),
)


@dataclass
class Agreement:
    """A comparison of the texts of both runtimes."""

    texts: int = 0
    margins: list[float] = field(default_factory=list)
    """Top-2 logit margin at the first mismatch of each differing text, by the reference; see `_margin`."""

    def as_json(self) -> dict[str, object]:
        return {"texts": self.texts, "different": len(self.margins), "widest_margin": round(max(self.margins, default=0.0), 6)}


def agreement(ours: Pair, reference: Pair, sources: Rows, limit: int) -> Agreement:
    """Compare every method of `METHODS` on every source, decoded as a batch and alone."""
    found, request = Agreement(), Request(limit)
    for method, settings in METHODS:
        expected = [one.tokens for one in decode(method, settings, reference, sources, request)]
        batched = [one.tokens for one in decode(method, settings, ours, sources, request)]
        alone = [decode(method, settings, ours, [source], request)[0].tokens for source in sources]
        for source, text, *others in zip(sources, expected, batched, alone, strict=True):
            found.texts += len(others)
            found.margins += [_margin(reference, source, text, other) for other in others if other != text]
    return found


def _margin(reference: Pair, source: list[int], text: list[int], other: list[int]) -> float:
    """The smaller margin of the two models at the first mismatch, since a text of BiLD comes from both."""
    prefix = text[: first_mismatch(other, text)]
    return min(top_two_margin(model, source, prefix) for model in (reference.small, reference.large))
