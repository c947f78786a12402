"""The registry of methods: each names its paper, its settings and how its parts are put together for the one loop."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.drafting import DraftRule, ModelDrafter, NoDrafter
from tasks.decoding.generation import SMALL, Counts, Generation
from tasks.decoding.loop import Method, generate
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import BildSettings, SamplingSettings, SpeculativeSettings, VanillaSettings
from tasks.decoding.verdicts import always_final, distance_rollback, speculative


@dataclass(frozen=True)
class Pair:
    """A small model and the large one that it drafts for."""

    small: Decoder
    large: Decoder


@dataclass(frozen=True)
class Request:
    """What is asked of a method besides its own settings."""

    max_new_tokens: int
    sampling: SamplingSettings = dataclasses.field(default_factory=SamplingSettings)
    seed: int = 0


Compose = Callable[[Pair, Any, SamplingSettings, TokenSource], Method]


@dataclass(frozen=True)
class Entry:
    """One method of the registry."""

    name: str
    paper: str
    lossless: bool
    """True if what it gives is the large model's own: token for token when greedy, in distribution when sampling."""
    compose: Compose


def _vanilla(pick: Callable[[Pair], Decoder]) -> Compose:
    def compose(pair: Pair, settings: VanillaSettings, sampling: SamplingSettings, source: TokenSource) -> Method:
        return Method(pick(pair), always_final, sampling, source, NoDrafter(), DraftRule(window=0))

    return compose


def _bild(pair: Pair, settings: BildSettings, sampling: SamplingSettings, source: TokenSource) -> Method:
    rule = DraftRule(
        window=settings.max_draft,
        fallback_threshold=settings.fallback_threshold,
        ends_unverified=True,
        first_from_target=settings.large_first,
    )
    drafter = ModelDrafter(pair.small, sampling, source)
    return Method(pair.large, distance_rollback(settings), sampling, source, drafter, rule)


def _speculative(pair: Pair, settings: SpeculativeSettings, sampling: SamplingSettings, source: TokenSource) -> Method:
    drafter = ModelDrafter(pair.small, sampling, source)
    return Method(pair.large, speculative, sampling, source, drafter, DraftRule(window=settings.draft_length))


METHODS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("vanilla_large", "the large model alone", True, _vanilla(lambda pair: pair.large)),
        Entry("vanilla_small", "the small model alone", False, _vanilla(lambda pair: pair.small)),
        Entry("bild", "Kim et al., 2023, Algorithm 1", False, _bild),
        Entry("speculative", "Leviathan et al., 2023, Algorithm 1", True, _speculative),
    )
}


def decode(
    name: str, settings: Any, pair: Pair, sources: Rows, request: Request, examples: Sequence[int] | None = None
) -> list[Generation]:
    """Runs a method of the registry on sources, side by side.

    Args:
        name: A key of `METHODS`.
        settings: An instance of that entry's settings.
        pair: The two models.
        sources: Token ids of each source.
        request: Length limit, sampling and seed.
        examples: A number for each source that keys its random draws; their order where none is given.
    """
    method = METHODS[name].compose(pair, settings, request.sampling, TokenSource(request.seed))
    numbers = range(len(sources)) if examples is None else examples
    generations = generate(method, sources, numbers, request.max_new_tokens)
    return [_as_small(one) for one in generations] if name == "vanilla_small" else generations


def _as_small(generation: Generation) -> Generation:
    """The loop counts its target's runs as the large model's; alone, the small model is the target."""
    counts = generation.counts
    renamed = Counts(tokens=counts.tokens, small_steps=counts.large_calls, verified=Counter())
    return Generation(generation.tokens, SMALL * counts.tokens, renamed)
