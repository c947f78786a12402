"""The native runtime gives the reference's tokens with every method."""

from __future__ import annotations

import pytest

from tasks.decoding.decoder import REFERENCE
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS, decode, decode_all
from tasks.decoding.runtimes.native import NativeDecoder
from tests.architectures import FAST, pair_of
from tests.methods import LAYERED, SETTINGS
from tests.toys import toy_sources

SOURCES = toy_sources(8, seed=2)
REQUEST = Request(12)


def what_was_decided(generations: list[Generation]) -> list[tuple[object, ...]]:
    """Tokens, the proposer of each, and all counts."""
    return [(one.tokens, one.proposers, one.counts) for one in generations]


# Every method on an encoder-decoder and a decoder-only model, and every architecture with two methods.
COVERING = [
    *((name, method) for name in ("t5", "llama") for method in sorted(METHODS.keys() - LAYERED)),
    *((name, method) for name in FAST if name not in ("t5", "llama") for method in ("bild", "speculative_beam")),
]


@pytest.mark.parametrize(("name", "method"), COVERING)
def test_every_method_decides_as_on_the_reference(name: str, method: str) -> None:
    """Both models native, in a batch and one text at a time; and only the small model native."""
    native, reference = pair_of(name), pair_of(name, REFERENCE)
    assert isinstance(native.small, NativeDecoder)
    assert not isinstance(reference.small, NativeDecoder)
    mixed = Pair(native.small, reference.large)
    for settings in SETTINGS[method]:
        expected = what_was_decided(decode(method, settings, reference, SOURCES, REQUEST))
        assert what_was_decided(decode(method, settings, native, SOURCES, REQUEST)) == expected
        assert what_was_decided(decode_all(method, settings, native, SOURCES, REQUEST, 1)) == expected
        assert what_was_decided(decode_all(method, settings, mixed, SOURCES, REQUEST, 1)) == expected


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_a_native_large_model_checks_a_reference_drafter(name: str) -> None:
    native, reference = pair_of(name), pair_of(name, REFERENCE)
    settings = SpeculativeSettings(draft_length=4)
    expected = decode("speculative", settings, reference, SOURCES, REQUEST)
    mixed = decode("speculative", settings, Pair(reference.small, native.large), SOURCES, REQUEST)
    assert what_was_decided(mixed) == what_was_decided(expected)
