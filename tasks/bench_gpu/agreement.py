"""Whether the fused runtime gives the reference's tokens, and how close the call was where it does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tasks.bench.mismatches import first_mismatch
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.settings import BildSettings, SpeculativeSettings, VanillaSettings
from tasks.decoding.strategies import Pair, Request, decode

METHODS: tuple[tuple[str, Any], ...] = (
    ("vanilla_large", VanillaSettings()),
    ("speculative", SpeculativeSettings()),
    ("bild", BildSettings()),
)


@dataclass
class Agreement:
    """Texts of both runtimes, compared."""

    texts: int = 0
    margins: list[float] = field(default_factory=list)
    """Where a text differs: between the reference's two likeliest logits, at the first difference; see `_margin`."""

    def as_json(self) -> dict[str, Any]:
        return {"texts": self.texts, "different": len(self.margins), "widest_margin": round(max(self.margins, default=0.0), 6)}


def agreement(ours: Pair, reference: Pair, sources: Rows, limit: int) -> Agreement:
    """Every method of `METHODS` on every source, side by side and alone."""
    found, request = Agreement(), Request(limit)
    for method, settings in METHODS:
        expected = [one.tokens for one in decode(method, settings, reference, sources, request)]
        together = [one.tokens for one in decode(method, settings, ours, sources, request)]
        alone = [decode(method, settings, ours, [source], request)[0].tokens for source in sources]
        for source, text, *others in zip(sources, expected, together, alone, strict=True):
            found.texts += len(others)
            found.margins += [_margin(reference, source, text, other) for other in others if other != text]
    return found


def _margin(reference: Pair, source: list[int], text: list[int], other: list[int]) -> float:
    """At the first place where the texts differ, the smaller of the two models' margins: BiLD's text is of both."""
    same = text[: first_mismatch(text, other)]
    return min(_top_two(model, source, same) for model in (reference.small, reference.large))


def _top_two(model: Decoder, source: list[int], written: list[int]) -> float:
    [start] = model.start(model.encode([source]))
    first, second = model.forward([start + written]).last([1])[0, 0].float().topk(2).values.tolist()
    return float(first - second)
