"""Speculative decoding (Leviathan et al., 2023), and its lossy and adaptive variants."""

from __future__ import annotations

import math

from tasks.decoding.acceptance_rules import AcceptanceRule, speculative_sampling
from tasks.decoding.adaptive import SelfTimedMethod, with_adaptive_window
from tasks.decoding.block_verification import block_verification
from tasks.decoding.draft_length import largest_entropy
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.drafters.predicted import predicted_drafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.judging import judge_of_pair, judged
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
    FuzzySettings,
    JudgeSettings,
    LenientSettings,
    LossySettings,
    MarginSettings,
    PredictedSettings,
    SeveralDraftsSettings,
    SpeculativeSettings,
    TopKSettings,
    TypicalSettings,
)
from tasks.decoding.several_drafts import CopySource, SeveralDrafts
from tasks.decoding.tolerance import among_the_best, found_its_way_back, near_the_top, typical, within_divergence
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


def _several(pair: Pair, settings: SeveralDraftsSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter = make_drafter(settings.drafter, pair, sampling, CopySource(source, settings.drafts))
    return SeveralDrafts(pair.large, drafter, sampling, source, settings.draft_length, settings.drafts)


def _lenient(pair: Pair, settings: LenientSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, lenient(settings.lenience))


def _lossy(pair: Pair, settings: LossySettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, lossy(settings.lossiness, tuned=settings.tuned))


def _typical(pair: Pair, settings: TypicalSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    typicality = settings.typicality or math.sqrt(settings.min_score)
    return fixed_window(pair, settings, sampling, source, typical(settings.min_score, typicality))


def _margin(pair: Pair, settings: MarginSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, near_the_top(settings.margin))


def _top_k(pair: Pair, settings: TopKSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, among_the_best(settings.accepted_tokens))


def _fuzzy(pair: Pair, settings: FuzzySettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, within_divergence(settings.divergence, settings.max_divergence))


def _forgiving(pair: Pair, settings: ForgivingSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, found_its_way_back(settings.min_entropy, settings.window))


def _judge(pair: Pair, settings: JudgeSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, judged(judge_of_pair(pair), settings.min_judgement))


def _confident(pair: Pair, settings: ConfidentSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    rule = DraftRule(window=settings.max_draft, stop_below=settings.stop_below)
    return SpeculativeLoop(pair.large, speculative_sampling, sampling, source, drafter, rule)


def _entropy(pair: Pair, settings: EntropySettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter = make_drafter(settings.drafter, pair, sampling, source)
    most = largest_entropy(settings.min_acceptance, settings.entropy_factor)
    rule = DraftRule(window=settings.max_draft, max_entropy=most)
    return SpeculativeLoop(pair.large, speculative_sampling, sampling, source, drafter, rule)


def _predicted(pair: Pair, settings: PredictedSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    drafter = predicted_drafter(pair.small, sampling, source, shares_encoder=pair.shares_encoder)
    # A draft stops at or under its threshold, this rule only under 1 - h: the next number below is the same bound.
    under = math.nextafter(1 - settings.max_rejection, -math.inf)
    rule = DraftRule(window=settings.max_draft, fallback_threshold=under)
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
    MethodSpec("speculative_several", "Sun et al., 2023 (SpecTr), Algorithms 2 and 3", True, _several),
    MethodSpec("speculative_lenient", "Leviathan et al., 2023, appendix A.5", False, _lenient),
    MethodSpec("speculative_lossy", "Narasimhan et al., 2024, section 2; Tran-Thien, 2023", False, _lossy),
    MethodSpec("speculative_typical", "Cai et al., 2024 (Medusa), section 2.3.1", False, _typical),
    MethodSpec("speculative_margin", "no paper: TokenV2 of Narasimhan et al., 2024, as an acceptance rule", False, _margin),
    MethodSpec("speculative_top_k", "no paper: acceptance of any of the k likeliest tokens", False, _top_k),
    MethodSpec("speculative_fuzzy", "Holsman et al., 2025 (FSD); beyond the threshold speculative sampling", False, _fuzzy),
    MethodSpec("speculative_forgiving", "Li et al., 2025 (FLy): entropy gate and deferred window", False, _forgiving),
    MethodSpec("speculative_judge", "Bachmann et al., 2025 (Judge Decoding), with labels of our own", False, _judge),
    MethodSpec("speculative_confident", "Leviathan et al., 2023, section 3.5: the window ends in doubt", True, _confident),
    MethodSpec("speculative_entropy", "Agrawal et al., 2024 (AdaEDL), with a fixed threshold", True, _entropy),
    MethodSpec("speculative_predicted", "Huang et al., 2024 (SpecDec++), Algorithm 1", True, _predicted),
    MethodSpec("speculative_adaptive", "Leviathan et al., 2023, Theorem 3.8", True, _adaptive),
)
