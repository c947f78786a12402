"""Decodes one text with an opened pair, and times the method beside vanilla."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from tasks.decoding.generation import Generation
from tasks.decoding.inference import VANILLA, DecodingPair
from tasks.decoding.pieces import Detokenise
from tasks.decoding.registry import Request
from tasks.decoding.settings.configured import ConfiguredMethod
from tasks.decoding.streaming import watched
from tasks.evaluation.timing import measure, synchronised_clock
from tasks.generate.printing import TextWriter

_COUNTS = ("tokens", "large_calls", "small_steps", "drafted", "accepted", "fallbacks", "rollbacks")


@dataclass(frozen=True)
class Decoded:
    """One text with what its decoding took."""

    source: str
    generation: Generation
    vanilla: Generation | None = None
    """None where nothing was timed."""
    times: tuple[float, float] | None = None
    """Median milliseconds of the method and of vanilla."""

    @property
    def same(self) -> bool | None:
        """Whether the text is vanilla's, token for token; None where vanilla did not decode."""
        return None if self.vanilla is None else self.generation.tokens == self.vanilla.tokens

    def as_json(self, decode: Detokenise, point: ConfiguredMethod) -> dict[str, object]:
        """Return it as plain data; counts are those of `Counts`, times in milliseconds."""
        counts = self.generation.counts
        line: dict[str, object] = {
            "source": self.source,
            "text": decode(tuple(self.generation.tokens)),
            "tokens": self.generation.tokens,
            "proposers": self.generation.proposers,
            "method": point.method,
            "settings": point.plain_settings,
            "counts": {name: getattr(counts, name) for name in _COUNTS},
            "acceptance_rate": counts.accepted / counts.drafted if counts.drafted else None,
        }
        if self.times is not None and self.vanilla is not None:
            method, vanilla = self.times
            line |= {"latency_ms": method, "vanilla_latency_ms": vanilla, "speedup": vanilla / method}
            line |= {"vanilla_text": decode(tuple(self.vanilla.tokens)), "same_as_vanilla": self.same}
        return line


def decode_text(pair: DecodingPair, source: str, rounds: int, writer: TextWriter | None = None) -> Decoded:
    """Decode one text greedily, then decode it again `rounds` times, each beside vanilla.

    Args:
        pair: The pair with its operating point.
        source: What the models read.
        rounds: Timed rounds; 0 times nothing.
        writer: Writes the text as it grows; a method of several passes writes it whole.
    """
    [row] = pair.encode([source])
    request = Request(pair.manifest.text.max_target_tokens)
    method, vanilla = (pair.method(point, request) for point in (pair.manifest.point, VANILLA))
    shown = method if writer is None else watched(method, writer.watch)
    [generation] = shown.run([row], [0], request.max_new_tokens)
    if writer is not None:
        writer.finish(generation)
    if not rounds:
        return Decoded(source, generation)
    found = measure(
        lambda _: method.run([row], [0], request.max_new_tokens)[0],
        lambda _: vanilla.run([row], [0], request.max_new_tokens)[0],
        range(rounds),
        warmup=1,
        rng=random.Random(0),  # noqa: S311 (the order of timed calls)
        clock=synchronised_clock(pair.device),
    )
    times = statistics.median(found.method), statistics.median(found.vanilla)
    return Decoded(source, generation, found.vanilla_outputs[0], times)
