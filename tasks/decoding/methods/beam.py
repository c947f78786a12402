"""Beam search with the large model, with and without a draft."""

from __future__ import annotations

from tasks.decoding.beam import BeamSearch
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import BeamSettings, SamplingSettings, SpeculativeBeamSettings
from tasks.decoding.speculative_beam import SpeculativeBeamSearch
from tasks.errors import InputError


def _require_greedy(name: str, sampling: SamplingSettings) -> None:
    if not sampling.greedy:
        raise InputError(f"{name} draws no tokens, and the temperature is {sampling.temperature}; set it to 0")


def _beam(pair: Pair, settings: BeamSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    _require_greedy("beam_large", sampling)
    return BeamSearch(pair.large, settings.beams)


def _speculative(
    pair: Pair, settings: SpeculativeBeamSettings, sampling: SamplingSettings, source: TokenSource
) -> DecodingMethod:
    _require_greedy("speculative_beam", sampling)
    lengths = (settings.beams, settings.draft_beams, settings.draft_length)
    return SpeculativeBeamSearch(pair.small, pair.large, *lengths, shares_encoder=pair.shares_encoder)


SPECS = (
    MethodSpec("beam_large", "beam search with the large model alone", True, _beam),
    MethodSpec("speculative_beam", "Leviathan et al., 2023, appendix A.4", True, _speculative),
)
