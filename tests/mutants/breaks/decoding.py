"""Breaks of decoding: acceptance rules, the loop and what repeats it, caches, cascades, beams."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_COUNTS = (f"{_UNIT}/test_counts.py",)
_REPLAY = (f"{_UNIT}/replay/test_replay.py::test_played_is_decoded_by_any_runtime",)
_NATIVE = (f"{_UNIT}/test_duet.py::test_rows_side_by_side_go_through_the_loop",)

BREAKS = (
    Break(
        "rollback-below-threshold-only", "tasks.decoding.verdicts", "distance_rollback.stays",
        "<= settings.rollback_threshold", "< settings.rollback_threshold",
        (f"{_UNIT}/test_verdicts.py",),
    ),
    Break(
        "agreed-tokens-rolled-back", "tasks.decoding.verdicts", "distance_rollback.stays",
        "near | (p.best == tokens) if settings.keep_agreed else near", "near",
        (f"{_UNIT}/test_verdicts.py",),
    ),
    Break(
        "residual-not-clamped", "tasks.decoding.verdicts", "left_over",
        "difference.clamp_min(0.0)", "difference",
        (f"{_UNIT}/test_verdicts.py",),
    ),
    Break(
        "acceptance-upside-down", "tasks.decoding.verdicts", "acceptance",
        "(probability(wanted, tokens) / probability(drafted, tokens)",
        "(probability(drafted, tokens) / probability(wanted, tokens)",
        (f"{_UNIT}/test_verdicts.py",),
    ),
    Break(
        "lenience-inverted-greedy", "tasks.decoding.lenience", "lenient.stays",
        "lenience * p.top", "p.top / lenience",
        (f"{_UNIT}/test_lenience.py::test_greedy_lenience_by_hand",),
    ),
    Break(
        "lenience-inverted-sampled", "tasks.decoding.lenience", "lenient.judge",
        "p.dist / lenience", "p.dist * lenience",
        (f"{_UNIT}/test_lenience.py::test_lenience_by_hand",),
    ),
    Break(
        "lossy-residual-ignores-beta", "tasks.decoding.lenience", "lossy.judge",
        "p.dist / beta - q.dist", "p.dist - q.dist",
        (f"{_UNIT}/test_lenience.py::test_lossy_by_hand",),
    ),
    Break(
        "bonus-token-from-q", "tasks.decoding.judging", "Judge._following",
        "self._chosen(rows, p, whole, kept)",
        "self._chosen(rows, draft.q.at(whole, [kept[index] - 1 for index in whole]), whole, kept, alone=True)",
        _COUNTS,
    ),
    Break(
        "accepts-one-token-less", "tasks.decoding.judging", "Judge._kept",
        "while count < len(new) and", "while count < len(new) - 1 and",
        _COUNTS,
    ),
    Break(
        "end-token-followed", "tasks.decoding.judging", "Judge._following",
        " and not (new and new[-1] in ends)", "",
        _COUNTS,
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
        "draft-runs-past-end-token", "tasks.decoding.drafting", "Draft.until",
        "row[: place + 1]", "row[: place + 2]",
        (f"{_UNIT}/test_duet.py::test_a_token_that_ends_a_text_for_the_large_model_alone", f"{_UNIT}/test_bild.py"),
    ),
    Break(
        "no-room-for-the-bonus-token", "tasks.decoding.loop", "Method.room",
        " - (not unfollowed)", "",
        _COUNTS,
    ),
    Break(
        "limit-passed-by-one", "tasks.decoding.loop", "_drop_finished",
        ">= limit", "> limit",
        _COUNTS,
    ),
    Break(
        "rollback-counted-for-whole-drafts", "tasks.decoding.generation", "Counts.judge",
        "kept < drafted", "kept <= drafted",
        _COUNTS,
    ),
    Break(
        "verified-positions-one-short", "tasks.decoding.loop", "_verify",
        "row.counts.verified[positions[index]]", "row.counts.verified[len(new)]",
        _COUNTS,
    ),
    Break(
        "fallbacks-not-counted", "tasks.decoding.loop", "_draft",
        "row.counts.fallbacks += fallback", "row.counts.fallbacks += 0",
        _COUNTS,
    ),
    Break(
        "corrected-token-counted-as-large", "tasks.decoding.loop", "_verify",
        "LARGE if count == len(new) else CORRECTED", "LARGE",
        _COUNTS,
    ),
    Break(
        "window-one-too-long", "tasks.decoding.drafting", "DraftRule.budget",
        "min(window, room)", "min(window + 1, room)",
        _COUNTS,
    ),
    Break(
        "fallback-below-threshold-only", "tasks.decoding.drafting", "Window.see",
        "confidence <= self._rule.fallback_threshold", "confidence < self._rule.fallback_threshold",
        (f"{_UNIT}/test_draft_window.py",),
    ),
    Break(
        "large-does-not-begin", "tasks.decoding.drafting", "DraftRule.budget",
        "generated == 0", "generated == 1",
        (f"{_UNIT}/test_bild.py",),
    ),
    Break(
        "replay-counts-tokens-as-steps", "tasks.decoding.replay.play", "Player._draft",
        "self.counts.small_steps += draft.steps", "self.counts.small_steps += len(draft.tokens)",
        _REPLAY,
    ),
    Break(
        "replay-verifies-one-position-less", "tasks.decoding.replay.play", "Player._verify",
        "self.counts.verified[positions]", "self.counts.verified[len(new)]",
        _REPLAY,
    ),
    Break(
        "replay-ends-in-unverified-draft", "tasks.decoding.replay.play", "Player.play",
        "if unverified and new and", "if new and",
        _REPLAY,
    ),
    Break(
        "replay-correction-from-drafter", "tasks.decoding.replay.play", "Player._verify",
        "self._add(p[kept].best, CORRECTED, p[kept])", "self._add(new[kept], CORRECTED, p[kept])",
        _REPLAY,
    ),
    Break(
        "replay-reads-a-stale-cache", "tasks.decoding.replay.notebook", "Notebook._run",
        "min(_common(model.cached, tokens), len(tokens) - positions)", "len(tokens) - positions",
        _REPLAY,
    ),
    Break(
        "native-verified-one-short", "tasks.decoding.duet", "_generation",
        "counts.verified[turn.drafted + 1]", "counts.verified[turn.drafted]",
        _NATIVE,
    ),
    Break(
        "native-steps-are-drafted-tokens", "tasks.decoding.duet", "_generation",
        "counts.small_steps += turn.seen", "counts.small_steps += turn.drafted",
        _NATIVE,
    ),
    Break(
        "native-drafts-into-the-limit", "tasks/decoding/runtimes/kernel/duet.h", "propose",
        "(rules.ends_unverified ? 0 : 1)", "0",
        (f"{_UNIT}/test_duet.py::test_a_token_that_ends_a_text_for_the_large_model_alone", *_NATIVE),
    ),
    Break(
        "native-cache-keeps-rejected-tokens", "tasks/decoding/runtimes/kernel/duet.h", "verify",
        "std::min(text.small_cached, text.count - 1)", "text.small_cached",
        _NATIVE,
    ),
    Break(
        "values-not-reordered", "tasks.decoding.runtimes.cached", "select_rows",
        "layer.keys[index], layer.values[index]", "layer.keys[index], layer.values[: len(index)]",
        (f"{_UNIT}/runtimes/test_rollbacks.py",),
    ),
    Break(
        "token-cascade-spreads-nothing", "tasks.decoding.targets", "cascade.token_by_token",
        "q.dist - deferred + p.dist * deferred.sum(-1, keepdim=True)", "q.dist - deferred + p.dist * deferred",
        (f"{_UNIT}/test_targets.py::test_token_rules_by_hand",),
    ),
    Break(
        "cascade-defers-the-wrong-way", "tasks.decoding.targets", "cascade.whole",
        "p.dist, q.dist", "q.dist, p.dist",
        (f"{_UNIT}/test_targets.py::test_deferral_by_hand",),
    ),
    Break(
        "opt-ignores-the-distance", "tasks.decoding.targets", "opt",
        "alpha * p.apart(q)", "alpha",
        (f"{_UNIT}/test_targets.py::test_deferral_by_hand",),
    ),
    Break(
        "mean-confidence-is-the-sum", "tasks.decoding.methods.sequential", "sequence_confidence",
        "total / len(log_probabilities) if", "total if",
        (f"{_UNIT}/test_sequential.py::test_confidence_by_hand",),
    ),
    Break(
        "sequence-cascade-defers-at-the-bound", "tasks.decoding.methods.sequential", "SequenceCascade.run",
        "confidence < 1 - ", "confidence <= 1 - ",
        (f"{_UNIT}/test_sequential.py::test_a_confidence_that_equals_the_bound_is_kept",),
    ),
    Break(
        "adaptive-window-without-succession", "tasks.decoding.adaptive", "adaptive_window",
        "(counts.accepted + 1) / (counts.accepted + counts.rollbacks + 2)",
        "counts.accepted / max(1, counts.accepted + counts.rollbacks)",
        (f"{_UNIT}/test_adaptive.py::test_the_window_by_hand",),
    ),
    Break(
        "longest-window-never-chosen", "tasks.decoding.adaptive", "best_draft_length",
        "range(longest + 1)", "range(longest)",
        (f"{_UNIT}/test_adaptive.py::test_best_draft_length_by_hand",),
    ),
    Break(
        "beam-score-is-not-a-mean", "tasks.decoding.beam", "Search.advance",
        "beam.score / self.generated", "beam.score",
        (f"{_UNIT}/test_beam.py::test_beam_search_is_the_slow_one",),
    ),
    Break(
        "beam-ends-below-the-best", "tasks.decoding.beam", "Search.advance",
        "place < self.width and", "place <= self.width and",
        (f"{_UNIT}/test_beam.py::test_what_ends_under_the_best_w_is_dropped",),
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
)  # fmt: skip
