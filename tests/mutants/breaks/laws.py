"""Breaks that bias what is sampled: two or more for each acceptance rule, known mistakes of engines among them."""

from __future__ import annotations

from tests.mutants.patching import Break

_RULES, _BLOCK, _LENIENCE, _TOLERANCE, _CASCADES = (
    f"tasks.decoding.{name}" for name in ("acceptance_rules", "block_verification", "lenience", "tolerance", "cascade_rules")
)
_LOOP, _SEQUENTIAL = "tasks.decoding.loop", "tasks.decoding.methods.sequential"
_FILE = "tests/unit/decoding/test_enumeration.py"


def _law(*cases: str) -> tuple[str, ...]:
    """The enumerations of these cases."""
    return tuple(f"{_FILE}::test_every_method_follows_its_law[{case}]" for case in cases)


BREAKS = (
    # Sampling and the loop.
    Break("temperature-ignored", "tasks.decoding.distributions", "transform",
          ") / sampling.temperature", ")", _law("vanilla_large")),
    Break("top-k-one-short", "tasks.decoding.distributions", "transform",
          "logits < smallest", "logits <= smallest", _law("vanilla_large")),
    Break("residual-of-the-position-before", _LOOP, "Verifier._take",
          "[(row, accepted[row]) for", "[(row, max(0, accepted[row] - 1)) for", _law("speculative plain")),
    Break("acceptance-of-the-first-position", _LOOP, "Verifier._accept",
          "row, probabilities)", "row, [probabilities[0]] * len(probabilities))", _law("speculative plain")),
    Break("draft-and-acceptance-share-a-number", _LOOP, "Verifier._accepts",
          '"accept" if', 'f"draft from {len(row.tokens)}" if', _law("speculative plain")),
    Break("acceptance-and-residual-share-a-number", _LOOP, "Verifier._take",
          '"target"', '"accept"', _law("speculative plain")),
    Break("rejected-token-skipped", _LOOP, "_verify",
          "drafted[:accepted],", "drafted[:accepted] + drafted[accepted + 1 :],", _law("speculative plain")),
    Break("rejected-token-kept", _LOOP, "_verify",
          "drafted[:accepted],", "drafted[: accepted + 1],", _law("speculative plain")),
    Break("draft-after-rollback-repeats-its-number", "tasks.decoding.drafters.base", "StepwiseDrafter._choose",
          'f"draft from {len(tokens[row])}"', '"draft"', _law("bild, fixed window")),
    # Speculative sampling.
    Break("residual-is-the-target", _RULES, "match_target.apply",
          "positive_residual(wanted - q.dist, wanted)", "positive_residual(wanted, wanted)", _law("speculative plain")),
    Break("residual-of-absolute-differences", _RULES, "positive_residual",
          "difference.clamp_min(0.0)", "difference.abs()", _law("speculative plain")),
    Break("acceptance-by-untruncated-q", _RULES, "match_target.apply",
          "acceptance_probability(wanted, q.dist", "acceptance_probability(wanted, q.scores", _law("speculative all three")),
    Break("residual-of-untruncated-q", _RULES, "match_target.apply",
          "wanted - q.dist", "wanted - q.scores", _law("speculative all three")),
    Break("proposals-without-probability-count-as-uniform", "tasks.decoding.drafters.deterministic",
          "DeterministicDrafter.draft", "one_hot_predictions(draft.padded(self.device), self.vocabulary, self.sampling)",
          "PredictionBlock(torch.zeros(len(drafted), max(map(len, drafted)), self.vocabulary), self.sampling)",
          _law("speculative copy", "speculative suffix", "speculative recycling", "speculative random")),
    # Lenient and lossy acceptance.
    Break("lenient-residual-of-speculative-sampling", _LENIENCE, "lenient.apply",
          "p.dist - lenience * q.dist", "p.dist - q.dist", _law("lenient")),
    Break("lenient-acceptance-of-speculative-sampling", _LENIENCE, "lenient.apply",
          "p.dist / lenience, q.dist", "p.dist, q.dist", _law("lenient")),
    Break("lossy-acceptance-of-speculative-sampling", _LENIENCE, "lossy.apply",
          "p.dist / (1 - alpha)", "p.dist", _law("lossy")),
    Break("tuned-beta-of-the-exact-rejection", _LENIENCE, "tuned_beta",
          "(q - p / (1 - alpha))", "(q - p)", _law("lossy, tuned")),
    # Block verification.
    Break("block-reach-beyond-one", _BLOCK, "_reach", ".clamp_max(1.0)", "", _law("block plain, 2")),
    Break("block-residual-of-token-verification", _BLOCK, "_apply",
          "reach[:, :-1, None] * p.dist - q.dist", "p.dist - q.dist", _law("block plain, 2")),
    Break("block-last-length-as-likely-as-others", _BLOCK, "_apply",
          "torch.cat([inner, reach[:, -1:]], -1)", "torch.cat([inner, inner[:, -1:]], -1)", _law("block plain, 2")),
    Break("block-length-without-those-before", _BLOCK, "_apply",
          "at_least[:, 1:] / at_least[:, :-1].clamp_min(_SMALLEST)", "at_least[:, 1:]", _law("block plain, 3")),
    Break("block-reads-padding", "tasks.decoding.loop", "Verifier._accept",
          "if self.parts.acceptance.joint and", "if False and", ("tests/unit/decoding/test_block_verification.py",)),
    # Tolerant acceptance.
    Break("typical-of-the-score-alone", _TOLERANCE, "typical.accept_mask",
          "p.surprisal(tokens) - p.entropy", "p.surprisal(tokens)", _law("typical")),
    Break("typical-by-both-bounds", _TOLERANCE, "typical.accept_mask",
          ">= min_score) | (p.surprisal", ">= min_score) & (p.surprisal", _law("typical")),
    Break("margin-of-the-drafter", _TOLERANCE, "near_the_top.accept_mask",
          "p.top - p.of(tokens)", "q.top - q.of(tokens)", _law("margin")),
    Break("margin-of-surprisals", _TOLERANCE, "near_the_top.accept_mask",
          "p.top - p.of(tokens)", "p.surprisal(tokens) - p.surprisal(p.best)", _law("margin")),
    Break("certain-mismatches-are-pardoned", "tasks.decoding.decoder", "Pardon.count",
          "entropy(index) < self.min_entropy", "False", _law("forgiving")),
    Break("a-second-mismatch-is-pardoned-at-once", "tasks.decoding.decoder", "Pardon.count",
          "waiting or entropy", "entropy", _law("forgiving, any entropy")),
    Break("what-is-drafted-again-meets-the-same-number", _LOOP, "Verifier._accepts",
          'f"accept from {len(row.tokens)}"', '"accept"', _law("forgiving, any entropy")),
    # BiLD and cascades without verification.
    Break("bild-distance-of-q", _RULES, "distance_rollback.accept_mask",
          "p.surprisal(tokens)", "q.surprisal(tokens)", _law("bild, fixed window")),
    Break("bild-corrects-from-q", _RULES, "masked",
          "q, p)), p)", "q, p)), q)", _law("bild, fixed window")),
    Break("authors-code-goes-on-drafting-after-a-rollback", "tasks.decoding.turn", "TurnRules.budget",
          "self._goes_on(row)", "False", _law("bild_authors")),
    Break("authors-code-examines-every-token", _RULES, "deterministic_rule.apply",
          "if first_only", "if not first_only", _law("bild_authors")),
    Break("bild-oracle-adds-a-token", "tasks.decoding.methods.bild", "_bild_oracle",
          "BonusToken.NONE", "BonusToken.TARGET", _law("bild_oracle")),
    Break("bild-oracle-doubles-the-threshold", "tasks.decoding.methods.bild", "_bild_oracle",
          "=settings.rollback_threshold", "=2 * settings.rollback_threshold", _law("bild_oracle")),
    Break("token-cascade-verifies-the-end", _SEQUENTIAL, "_token_cascade",
          "ends_unverified=True", "ends_unverified=False", _law("token_cascade")),
    Break("token-cascade-threshold-upside-down", _SEQUENTIAL, "_token_cascade",
          "1 - settings.deferral_cost", "settings.deferral_cost", _law("token_cascade")),
    Break("oracle-defers-where-it-should-not", _SEQUENTIAL, "oracle",
          "deferral(q, p, alpha) ^ True", "deferral(q, p, alpha)", _law("diff_oracle")),
    Break("oracle-adds-a-token", _SEQUENTIAL, "oracle",
          "BonusToken.NONE", "BonusToken.TARGET", _law("diff_oracle")),
    Break("deferred-answer-repeats-its-numbers", _SEQUENTIAL, "_SecondSource.draw",
          'f"deferred {purpose}"', "purpose", _law("sequence_cascade, mean")),
    Break("sequence-cascade-keeps-what-it-should-defer", _SEQUENTIAL, "SequenceCascade.run",
          "confidence < 1", "confidence > 1", _law("sequence_cascade, mean")),
    # Speculative cascades.
    Break("cascade-bonus-from-p", _LOOP, "Verifier._bonus",
          "rule.bonus is BonusToken.TARGET", "rule.bonus is not BonusToken.NONE", _law("token_v3")),
    Break("token-cascade-reads-truncated-scores", _CASCADES, "cascade_target.token_by_token",
          "q.scores, p.scores", "q.dist, p.dist", _law("token_v1")),
    Break("chow-reads-p", _CASCADES, "chow", "q.top <", "p.top <", _law("chow")),
    Break("chow-threshold-upside-down", _CASCADES, "chow", "1 - alpha", "alpha", _law("chow")),
    Break("chow-log-reads-p", _CASCADES, "chow_log", "q.entropy >", "p.entropy >", _law("chow_log")),
    Break("chow-log-wrong-way", _CASCADES, "chow_log", "q.entropy >", "q.entropy <", _law("chow_log")),
    Break("diff-reads-p-alone", _CASCADES, "diff", "p.top - q.top >", "p.top >", _law("diff")),
    Break("diff-wrong-way", _CASCADES, "diff", "p.top - q.top >", "q.top - p.top >", _law("diff")),
    Break("diff-log-wrong-way", _CASCADES, "diff_log",
          "q.entropy - p.entropy", "p.entropy - q.entropy", _law("diff_log")),
    Break("diff-log-reads-q-alone", _CASCADES, "diff_log", "q.entropy - p.entropy", "q.entropy", _law("diff_log")),
    Break("opt-rewards-distance", _CASCADES, "opt", "> alpha * p", "> -alpha * p", _law("opt")),
    Break("opt-log-ignores-the-distance", _CASCADES, "opt_log", "alpha * p.total_variation(q)", "alpha", _law("opt_log")),
    Break("opt-log-wrong-way", _CASCADES, "opt_log",
          "q.entropy - p.entropy", "p.entropy - q.entropy", _law("opt_log")),
    Break("bild-star-expects-under-p", _CASCADES, "bild",
          "q.scores * p.log_scores", "p.scores * p.log_scores", _law("bild*")),
    Break("bild-star-greedy-distance-when-sampling", _CASCADES, "bild",
          "not q.sampling.greedy", "q.sampling.greedy", _law("bild*")),
    Break("token-v1-reads-p", _CASCADES, "token_v1", "top - q >", "top - p >", _law("token_v1")),
    Break("token-v1-wrong-way", _CASCADES, "token_v1", "top - q >", "q - top >", _law("token_v1")),
    Break("token-v2-reads-q", _CASCADES, "token_v2", "top - p >", "top - q >", _law("token_v2")),
    Break("token-v2-ignores-alpha", _CASCADES, "token_v2", "> alpha", "> 0", _law("token_v2")),
    Break("token-v3-absolute-bound", _CASCADES, "token_v3", "(1 - alpha) * top", "1 - alpha", _law("token_v3")),
    Break("token-v3-reads-q", _CASCADES, "token_v3", "return p <", "return q <", _law("token_v3")),
)  # fmt: skip
