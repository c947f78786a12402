"""Breaks of decoding: acceptance rules, the loop and what repeats it, cascades, beams."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_COUNTS = (f"{_UNIT}/test_counts.py",)
_TURN = (f"{_UNIT}/test_turn.py",)
_AUTHORS = f"{_UNIT}/test_bild_authors.py"
_EXECUTORS = f"{_UNIT}/test_executors.py::test_an_executor_takes_the_written_out_turns"
_EVERY_CALLER = tuple(f"{_EXECUTORS}[{name}]" for name in ("loop", "native", "replay"))
_PYTHON_CALLERS = tuple(f"{_EXECUTORS}[{name}]" for name in ("loop", "replay"))
"""The kernel decides by itself when a draft ends."""
_REPLAY = (f"{_UNIT}/replay/test_replay.py::test_a_replay_equals_decoding_by_any_runtime",)

BREAKS = (
    Break(
        "rollback-below-threshold-only", "tasks.decoding.acceptance_rules", "distance_rollback.accept_mask",
        "<= settings.rollback_threshold", "< settings.rollback_threshold",
        (f"{_UNIT}/test_acceptance_rules.py",),
    ),
    Break(
        "agreed-tokens-rolled-back", "tasks.decoding.acceptance_rules", "distance_rollback.accept_mask",
        "near | (p.best == tokens) if settings.keep_agreed else near", "near",
        (f"{_UNIT}/test_acceptance_rules.py",),
    ),
    Break(
        "authors-examine-every-violation", "tasks.decoding.acceptance_rules", "first_rejected_agrees",
        "rejected & (rejected.cumsum(-1) == 1)", "rejected",
        (f"{_AUTHORS}::test_the_first_violation_of_a_block_by_hand",),
    ),
    Break(
        "authors-roll-back-to-the-same-token", "tasks.decoding.acceptance_rules", "deterministic_rule.apply",
        "if first_only:", "if False:",
        (f"{_AUTHORS}::test_texts_by_hand",),
    ),
    Break(
        "authors-replay-rolls-back-to-the-same-token", "tasks.decoding.replay.replayer", "_Replayer._count_accepted",
        "rule.first_only and p[accepted].best == token", "False",
        (f"{_AUTHORS}::test_it_is_the_authors_code_on_random_tables",),
    ),
    Break(
        "authors-small-model-drafts-after-a-rollback", "tasks.decoding.turn", "TurnRules.budget",
        "if self._goes_on(row):", "if False:",
        (f"{_AUTHORS}::test_texts_by_hand",),
    ),
    Break(
        "authors-end-at-a-rollback-to-the-end-token", "tasks.decoding.turn", "TurnRules.finish",
        " and not self._goes_on(row)", "",
        (f"{_AUTHORS}::test_texts_by_hand",),
    ),
    Break(
        "authors-small-model-begins", "tasks.decoding.methods.bild", "_bild_authors",
        "first_from_target=True", "first_from_target=False",
        (f"{_AUTHORS}::test_texts_by_hand",),
    ),
    Break(
        "authors-fall-back-at-the-threshold", "tasks.decoding.methods.bild", "_bild_authors",
        "max(0.0, math.nextafter(settings.fallback_threshold, 0.0))", "settings.fallback_threshold",
        (f"{_AUTHORS}::test_it_falls_back_under_the_threshold_and_algorithm_1_at_it",),
    ),
    Break(
        "residual-not-clamped", "tasks.decoding.acceptance_rules", "positive_residual",
        "difference.clamp_min(0.0)", "difference",
        (f"{_UNIT}/test_acceptance_rules.py",),
    ),
    Break(
        "acceptance-upside-down", "tasks.decoding.acceptance_rules", "acceptance_probability",
        "(probability(wanted, tokens) / probability(drafted, tokens)",
        "(probability(drafted, tokens) / probability(wanted, tokens)",
        (f"{_UNIT}/test_acceptance_rules.py",),
    ),
    Break(
        "lenience-inverted-greedy", "tasks.decoding.lenience", "lenient.accept_mask",
        "lenience * p.top", "p.top / lenience",
        (f"{_UNIT}/test_lenience.py::test_greedy_lenience_by_hand",),
    ),
    Break(
        "lenience-inverted-sampled", "tasks.decoding.lenience", "lenient.apply",
        "p.dist / lenience", "p.dist * lenience",
        (f"{_UNIT}/test_lenience.py::test_lenience_by_hand",),
    ),
    Break(
        "lossy-residual-ignores-beta", "tasks.decoding.lenience", "lossy.apply",
        "p.dist / beta - q.dist", "p.dist - q.dist",
        (f"{_UNIT}/test_lossy.py::test_lossy_by_hand",),
    ),
    Break(
        "bonus-token-from-q", "tasks.decoding.loop", "Verifier._bonus",
        "self._take(rows, p, whole, accepted)",
        "self._take(rows, draft.q.at(whole, [accepted[index] - 1 for index in whole]), whole, accepted, selected=True)",
        _COUNTS,
    ),
    Break(
        "draft-goes-on-at-high-entropy", "tasks.decoding.drafting", "DraftBuilder.add",
        "stop_below or scattered", "stop_below",
        ("tests/unit/decoding/test_draft_window.py", "tests/unit/decoding/test_adaptive.py"),
    ),
    Break(
        "entropy-bound-without-its-root", "tasks.decoding.draft_length", "largest_entropy",
        "** 2", "", ("tests/unit/decoding/test_adaptive.py",),
    ),
    Break(
        "sampled-draft-ignores-entropy", "tasks.decoding.drafters.base", "StepwiseDrafter._entropies",
        "block.entropy.squeeze(-1)", "(block.entropy * 0).squeeze(-1)", ("tests/unit/decoding/test_adaptive.py",),
    ),
    Break(
        "accepts-one-token-less", "tasks.decoding.loop", "Verifier._accept",
        "range(len(drafted))", "range(len(drafted) - 1)",
        _COUNTS,
    ),
    Break(
        "end-token-followed", "tasks.decoding.turn", "TurnRules.adds_bonus",
        " and not (drafted and drafted[-1] in self.end_tokens)", "",
        _PYTHON_CALLERS,
        every=True,
    ),
    Break(
        "rewind-one-token-short", "tasks.decoding.loop", "_verify",
        "min(cached, len(row.tokens) - 1)", "min(cached, max(0, len(row.tokens) - 2))",
        (f"{_UNIT}/test_invariants.py",),
    ),
    Break(
        "rewind-keeps-rejected-token", "tasks.decoding.loop", "_verify",
        "min(cached, len(row.tokens) - 1)", "min(cached, len(row.tokens))",
        (f"{_UNIT}/test_invariants.py",),
    ),
    Break(
        "draft-runs-past-end-token", "tasks.decoding.turn", "TurnRules.cut",
        "drafted[: end + 1]", "drafted[: end + 2]",
        _TURN,
    ),
    Break(
        "no-room-for-the-bonus-token", "tasks.decoding.turn", "TurnRules.budget",
        " - (self.bonus and not rule.ends_unverified)", "",
        _PYTHON_CALLERS,
        every=True,
    ),
    Break(
        "limit-passed-by-one", "tasks.decoding.turn", "TurnRules.finish",
        ">= self.limit", "> self.limit",
        _EVERY_CALLER,
        every=True,
    ),
    Break(
        "rollback-counted-for-whole-drafts", "tasks.decoding.turn", "TurnRules.finish",
        "kept < drafted", "kept <= drafted",
        _EVERY_CALLER,
        every=True,
    ),
    Break(
        "verified-positions-one-short", "tasks.decoding.turn", "TurnRules.finish",
        "drafted + self.bonus] += 1", "drafted] += 1",
        _EVERY_CALLER,
        every=True,
    ),
    Break(
        "fallbacks-not-counted", "tasks.decoding.turn", "TurnRules.finish",
        "counts.fallbacks += fallback", "counts.fallbacks += 0",
        _EVERY_CALLER,
        every=True,
    ),
    Break(
        "corrected-token-counted-as-large", "tasks.decoding.turn", "TurnRules.finish",
        "LARGE if kept == drafted else CORRECTED", "LARGE",
        _EVERY_CALLER,
        every=True,
    ),
    Break(
        "window-one-too-long", "tasks.decoding.turn", "TurnRules.budget",
        "min(window, left)", "min(window + 1, left)",
        _PYTHON_CALLERS,
        every=True,
    ),
    Break(
        "fallback-below-threshold-only", "tasks.decoding.drafting", "DraftBuilder.add",
        "confidence <= self._rule.fallback_threshold", "confidence < self._rule.fallback_threshold",
        (f"{_UNIT}/test_draft_window.py",),
    ),
    Break(
        "large-does-not-begin", "tasks.decoding.turn", "TurnRules.budget",
        "generated == 0", "generated == 1",
        _PYTHON_CALLERS,
        every=True,
    ),
    Break(
        "replay-counts-tokens-as-steps", "tasks.decoding.replay.replayer", "_Replayer.run",
        "steps=steps + extra_steps", "steps=len(drafted)",
        _REPLAY,
    ),
    Break(
        "replay-counts-accepted-as-drafted", "tasks.decoding.replay.replayer", "_Replayer.run",
        "next_token, drafted=count", "next_token, drafted=accepted",
        _REPLAY,
    ),
    Break(
        "every-draft-may-end-unverified", "tasks.decoding.turn", "TurnRules.ends_unverified",
        "self.draft_rule.ends_unverified and drafted", "drafted",
        _PYTHON_CALLERS,
        every=True,
    ),
    Break(
        "replay-correction-from-drafter", "tasks.decoding.replay.replayer", "_Replayer._verify",
        "return accepted, p[accepted].best, 0\n        if not self",
        "return accepted, drafted[accepted], 0\n        if not self",
        _REPLAY,
    ),
    Break(
        "replay-reads-a-stale-cache", "tasks.decoding.replay.prediction_cache", "PredictionCache._run",
        "min(_common_prefix(started.cached, tokens), len(tokens) - positions)", "len(tokens) - positions",
        _REPLAY,
    ),
    Break(
        "replay-looks-up-another-position", "tasks.decoding.replay.prediction_cache", "PredictionCache._record",
        "self._logits[node, model] = row", "self._logits[node, model] = logits[0]",
        (f"{_UNIT}/replay/test_replay.py::test_a_score_that_was_not_kept_is_looked_up_without_a_run",),
    ),
    Break(
        "replay-fails-beyond-what-was-asked", "tasks.decoding.replay.prediction_cache", "PredictionCache.read",
        "self._record(model, missing, self._run(model, missing[-1], len(missing)))", "raise",
        (f"{_UNIT}/replay/test_replay.py::test_broken_logits_beyond_what_was_asked_for_are_no_error",),
    ),
    Break(
        "replay-reads-no-further", "tasks.decoding.replay.prediction_cache", "_likely_next",
        "range(MOST_AHEAD)", "range(0)",
        (f"{_UNIT}/replay/test_replay.py::test_known_predictions_are_not_run_again",),
    ),
    Break(
        "token-cascade-spreads-nothing", "tasks.decoding.cascade_rules", "cascade_target.token_by_token",
        "q.dist - deferred + p.dist * deferred.sum(-1, keepdim=True)", "q.dist - deferred + p.dist * deferred",
        (f"{_UNIT}/test_cascade_rules.py::test_token_rules_by_hand",),
    ),
    Break(
        "cascade-defers-the-wrong-way", "tasks.decoding.cascade_rules", "cascade_target.whole",
        "p.dist, q.dist", "q.dist, p.dist",
        (f"{_UNIT}/test_cascade_rules.py::test_deferral_by_hand",),
    ),
    Break(
        "opt-ignores-the-distance", "tasks.decoding.cascade_rules", "opt",
        "alpha * p.total_variation(q)", "alpha",
        (f"{_UNIT}/test_cascade_rules.py::test_deferral_by_hand",),
    ),
    Break(
        "cascade-at-minus-infinity-keeps-all", "tasks.decoding.cascade_rules", "_in_numbers",
        "GreedyDeferral(max_entropy=alpha)", "GreedyDeferral(max_entropy=abs(alpha))",
        (f"{_UNIT}/test_cascade_limits.py::test_texts_at_the_smallest_cost_are_those_of_speculative_decoding",),
    ),
    Break(
        "diff-from-zero-only", "tasks.decoding.cascade_rules", "diff",
        "p.top - q.top > alpha", "p.top - q.top > max(0.0, alpha)",
        (f"{_UNIT}/test_cascade_limits.py::test_the_smallest_cost_is_speculative_decoding",),
    ),
    Break(
        "token-v3-from-zero-only", "tasks.decoding.cascade_rules", "token_v3",
        "(1 - alpha) * top", "(1 - max(0.0, alpha)) * top",
        (f"{_UNIT}/test_cascade_limits.py::test_the_smallest_cost_is_speculative_decoding",),
    ),
    Break(
        "mean-confidence-is-the-sum", "tasks.decoding.methods.sequential", "sequence_confidence",
        "total / len(log_probabilities) if", "total if",
        (f"{_UNIT}/test_sequence_cascade.py::test_confidence_by_hand",),
    ),
    Break(
        "sequence-cascade-defers-at-the-bound", "tasks.decoding.methods.sequential", "SequenceCascade.run",
        "confidence < 1 - ", "confidence <= 1 - ",
        (f"{_UNIT}/test_sequence_cascade.py::test_a_sequence_as_confident_as_the_bound_is_kept",),
    ),
    Break(
        "adaptive-window-without-succession", "tasks.decoding.adaptive", "adaptive_window",
        "(counts.accepted + 1) / (counts.accepted + counts.rollbacks + 2)",
        "counts.accepted / max(1, counts.accepted + counts.rollbacks)",
        (f"{_UNIT}/test_adaptive.py::test_the_window_by_hand",),
    ),
    Break(
        "longest-window-never-chosen", "tasks.decoding.draft_length", "best_draft_length",
        "range(longest + 1)", "range(longest)",
        (f"{_UNIT}/test_adaptive.py::test_best_draft_length_by_hand",),
    ),
    Break(
        "beam-score-is-not-a-mean", "tasks.decoding.beam", "Search.advance",
        "beam.score / self.generated", "beam.score",
        (f"{_UNIT}/test_beam.py::test_beam_search_equals_the_plain_search",),
    ),
    Break(
        "beam-ends-below-the-best", "tasks.decoding.beam", "Search.advance",
        "position < self.width and", "position <= self.width and",
        (f"{_UNIT}/test_beam.py::test_texts_that_end_below_the_best_beams_are_dropped",),
    ),
    Break(
        "nucleus-drops-the-crossing-token", "tasks.decoding.distributions", "_outside_nucleus",
        "ordered.cumsum(-1) - ordered >= top_p", "ordered.cumsum(-1) >= top_p",
        (f"{_UNIT}/test_distributions.py",),
    ),
    Break(
        "draws-ignore-the-example", "tasks.decoding.randomness", "TokenSource.uniform",
        "{self.seed} {example} {position}", "{self.seed} {position}",
        (f"{_UNIT}/test_stochastic.py",),
    ),
    Break(
        "steps-are-drafted-tokens", "tasks.decoding.turn", "TurnRules.finish",
        "counts.small_steps += steps", "counts.small_steps += drafted",
        _EVERY_CALLER,
        every=True,
    ),
    Break(
        "drafted-counted-as-accepted", "tasks.decoding.turn", "TurnRules.finish",
        "counts.accepted += kept", "counts.accepted += drafted",
        _EVERY_CALLER,
        every=True,
    ),
    Break(
        "prompt-counted-as-generated", "tasks.decoding.turn", "TurnRules.finish",
        "counts.tokens = generated", "counts.tokens = len(row.tokens)",
        (f"{_EXECUTORS}[loop]", f"{_EXECUTORS}[native]"),
        every=True,
    ),
)  # fmt: skip
