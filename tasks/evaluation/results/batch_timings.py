"""What a sweep measured of its chosen points at several batch sizes, as a part of `pair.json`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.evaluation.results.codec import Settings


@dataclass(frozen=True, kw_only=True)
class VanillaBatch:
    """The large model alone at one batch size."""

    batch_size: int
    tokens_per_second: float
    """Each batch is the median of its rounds."""
    throughput: float
    """Over its own throughput at batch 1."""
    joules_per_text: float | None = None
    """Of the processor package; None where the machine does not tell."""


@dataclass(frozen=True, kw_only=True)
class BatchTiming:
    """A chosen point at one batch size."""

    method: str
    settings: Settings
    batch_size: int
    speedup: float
    """Over vanilla at the same batch size; the median of `rounds`."""
    rounds: list[float]
    """The speed-up of each round."""
    joules_per_text: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it was faster than vanilla at its batch size in every round."""
        return min(self.rounds) > 1.0


@dataclass(frozen=True, kw_only=True)
class BatchTimings:
    """The fastest chosen points and vanilla, decoding the same texts in batches of several sizes."""

    split: str
    examples: int
    vanilla: list[VanillaBatch] = field(default_factory=list)
    """By batch size, 1 first."""
    points: list[BatchTiming] = field(default_factory=list)
    """Point by point, each by batch size."""
    error: str | None = None
    """Why nothing was measured; None where it was."""

    @property
    def sizes(self) -> list[int]:
        """The batch sizes, ascending."""
        return [one.batch_size for one in self.vanilla]

    def by_point(self) -> list[list[BatchTiming]]:
        """The timings of each point, in the order of measurement."""
        found: dict[tuple[str, str], list[BatchTiming]] = {}
        for one in self.points:
            found.setdefault((one.method, str(one.settings)), []).append(one)
        return list(found.values())

    def stops_paying(self) -> int | None:
        """The batch size from which on no point was faster than vanilla in every round; None if one was at the largest."""
        last = max((one.batch_size for one in self.points if one.pays), default=0)
        return next((size for size in self.sizes if size > last), None)
