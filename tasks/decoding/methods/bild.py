"""Big Little Decoder (Kim et al., 2023) and its studies."""

from __future__ import annotations

import math

from tasks.decoding.acceptance_rules import BonusToken, distance_rollback, first_distance_rollback
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import BildAuthorsSettings, BildOracleSettings, BildSettings, SamplingSettings
from tasks.decoding.turn import DraftRule


def _bild(pair: Pair, settings: BildSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    rule = DraftRule(
        window=settings.max_draft,
        fallback_threshold=settings.fallback_threshold,
        ends_unverified=True,
        first_from_target=settings.large_first,
    )
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    return SpeculativeLoop(pair.large, distance_rollback(settings), sampling, source, drafter, rule)


def _bild_authors(pair: Pair, settings: BildAuthorsSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    rule = DraftRule(
        window=settings.max_draft,
        # The code falls back under the threshold; a draft rule does at it as well.
        fallback_threshold=max(0.0, math.nextafter(settings.fallback_threshold, 0.0)),
        ends_unverified=True,
        first_from_target=True,
        target_after_rollback=True,
    )
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    return SpeculativeLoop(pair.large, first_distance_rollback(settings), sampling, source, drafter, rule)


def _bild_oracle(pair: Pair, settings: BildOracleSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    """Both models at every step; the share of tokens replaced, the x of Figure 2, is rollbacks over tokens."""
    rule = distance_rollback(BildSettings(rollback_threshold=settings.rollback_threshold), bonus=BonusToken.NONE)
    drafter = make_drafter("small", pair, sampling, source)
    return SpeculativeLoop(pair.large, rule, sampling, source, drafter, DraftRule(window=1))


SPECS = (
    MethodSpec("bild", "Kim et al., 2023, Algorithm 1", False, _bild),
    MethodSpec("bild_authors", "Kim et al., 2023: the authors' code", False, _bild_authors),
    MethodSpec("bild_oracle", "Kim et al., 2023, section 3.1 and Figure 2", False, _bild_oracle),
)
