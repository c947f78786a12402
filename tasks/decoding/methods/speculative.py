"""Speculative decoding (Leviathan et al., 2023), and its lossy and adaptive variants."""

from __future__ import annotations

from tasks.decoding.acceptance_rules import AcceptanceRule, speculative_sampling
from tasks.decoding.adaptive import SelfTimedMethod, with_adaptive_window
from tasks.decoding.block_verification import block_verification
from tasks.decoding.draft_length import largest_entropy
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.lenience import lenient, lossy
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.settings.speculative import (
    AdaptiveSettings,
    BlockSettings,
    ConfidentSettings,
    EntropySettings,
    ForgivingSettings,
    LenientSettings,
    LossySettings,
    MarginSettings,
    SpeculativeSettings,
)
from tasks.decoding.tolerance import found_its_way_back, near_the_top
from tasks.decoding.turn import DraftRule


def fixed_window(
    pair: Pair, settings: SpeculativeSettings, sampling: SamplingSettings, source: TokenSource, rule: AcceptanceRule
) -> SpeculativeLoop:
    """Return the loop with drafts of `settings.draft_length` tokens, verified by `rule`."""
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    return SpeculativeLoop(pair.large, rule, sampling, source, drafter, DraftRule(window=settings.draft_length))


def _speculative(pair: Pair, settings: SpeculativeSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, speculative_sampling)


def _block(pair: Pair, settings: BlockSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, block_verification)


def _lenient(pair: Pair, settings: LenientSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, lenient(settings.lenience))


def _lossy(pair: Pair, settings: LossySettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, lossy(settings.lossiness, tuned=settings.tuned))


def _margin(pair: Pair, settings: MarginSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, near_the_top(settings.margin))


def _forgiving(pair: Pair, settings: ForgivingSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, found_its_way_back(settings.min_entropy, settings.window))


def _confident(pair: Pair, settings: ConfidentSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    rule = DraftRule(window=settings.max_draft, stop_below=settings.stop_below)
    return SpeculativeLoop(pair.large, speculative_sampling, sampling, source, drafter, rule)


def _entropy(pair: Pair, settings: EntropySettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    most = largest_entropy(settings.min_acceptance, settings.entropy_factor)
    rule = DraftRule(window=settings.max_draft, max_entropy=most)
    return SpeculativeLoop(pair.large, speculative_sampling, sampling, source, drafter, rule)


def _adaptive(pair: Pair, settings: AdaptiveSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    method = SpeculativeLoop(pair.large, speculative_sampling, sampling, source, drafter, DraftRule(window=settings.max_draft))
    if settings.cost_ratio is None:
        return SelfTimedMethod(method, settings.drafter, pair.cost_ratios)
    return with_adaptive_window(method, settings.cost_ratio)


SPECS = (
    MethodSpec("speculative", "Leviathan et al., 2023, Algorithm 1", True, _speculative),
    MethodSpec("speculative_block", "Sun et al., 2024, Algorithm 2", True, _block),
    MethodSpec("speculative_lenient", "Leviathan et al., 2023, appendix A.5", False, _lenient),
    MethodSpec("speculative_lossy", "Narasimhan et al., 2024, section 2; Tran-Thien, 2023", False, _lossy),
    MethodSpec("speculative_margin", "no paper: TokenV2 of Narasimhan et al., 2024, as an acceptance rule", False, _margin),
    MethodSpec("speculative_forgiving", "Li et al., 2025 (FLy): entropy gate and deferred window", False, _forgiving),
    MethodSpec("speculative_confident", "Leviathan et al., 2023, section 3.5: the window ends in doubt", True, _confident),
    MethodSpec("speculative_entropy", "Agrawal et al., 2024 (AdaEDL), with a fixed threshold", True, _entropy),
    MethodSpec("speculative_adaptive", "Leviathan et al., 2023, Theorem 3.8", True, _adaptive),
)
