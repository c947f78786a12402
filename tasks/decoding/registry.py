"""The registry of decoding methods, and the functions that build and run one of them."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair, Request
from tasks.decoding.methods import beam, bild, cascades, early_exit, sequential, speculative, vanilla
from tasks.decoding.randomness import TokenSource

__all__ = ["METHODS", "MethodSpec", "Pair", "Request", "build_method", "decode"]

METHODS: dict[str, MethodSpec] = {
    spec.name: spec for family in (vanilla, bild, speculative, sequential, cascades, beam, early_exit) for spec in family.SPECS
}


def build_method(name: str, settings: object, pair: Pair, request: Request) -> DecodingMethod:
    """Put the parts of the method `name` together; raise `InputError` where the pair or the sampling does not fit it."""
    return METHODS[name].build(pair, settings, request.sampling, TokenSource(request.seed))


def decode(
    name: str, settings: object, pair: Pair, sources: Rows, request: Request, examples: Sequence[int] | None = None
) -> list[Generation]:
    """Run a method of the registry on sources, side by side.

    Args:
        name: A key of `METHODS`.
        settings: An instance of that method's settings.
        pair: The two models.
        sources: Token ids of each source.
        request: Length limit, sampling and seed.
        examples: A number for each source that keys its random draws; by default its position.
    """
    numbers = range(len(sources)) if examples is None else examples
    return build_method(name, settings, pair, request).run(sources, numbers, request.max_new_tokens)
