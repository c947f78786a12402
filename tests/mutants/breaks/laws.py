"""Breaks that bias what is sampled, known mistakes of engines among them; the enumeration of a law notices each."""

from tests.mutants.patching import Break

_RULES, _CASCADES, _LOOP = "tasks.decoding.rules", "tasks.decoding.cascades", "tasks.decoding.loop"
_BASE, _METHODS = "tasks.decoding.drafters.base", "tasks.decoding.methods.cascades"
_DISTRIBUTIONS = "tasks.decoding.distributions"


def _law(*cases: str) -> tuple[str, ...]:
    """The enumerations of these cases."""
    return tuple(f"tests/unit/decoding/test_enumeration.py::test_every_method_follows_its_law[{case}]" for case in cases)


BREAKS = (
    # Sampling and the loop.
    Break("temperature-ignored", _DISTRIBUTIONS, "transform", ") / sampling.temperature", ")", _law("vanilla_large")),
    Break("residual-of-the-position-before", _LOOP, "_take",
          "[(row, accepted[row]) for", "[(row, max(0, accepted[row] - 1)) for", _law("speculative plain")),
    Break("draft-and-acceptance-share-a-number", _LOOP, "_accepts",
          "Purpose.ACCEPT)", "Purpose.DRAFT, len(row.tokens))", _law("speculative plain")),
    Break("acceptance-and-residual-share-a-number", _LOOP, "_take",
          "Purpose.TARGET", "Purpose.ACCEPT", _law("speculative plain")),
    Break("draft-after-rollback-repeats-its-number", _BASE, "StepwiseDrafter._key",
          "Purpose.DRAFT, begun)", "Purpose.DRAFT)", _law("bild, fixed window")),
    # Speculative sampling.
    Break("residual-is-the-target", _RULES, "match_target.decide",
          "positive_residual(wanted - q.dist, wanted)", "positive_residual(wanted, wanted)", _law("speculative plain")),
    Break("acceptance-by-untruncated-q", _RULES, "match_target.decide",
          "acceptance_probability(wanted, q.dist", "acceptance_probability(wanted, q.scores", _law("speculative all three")),
    Break("proposals-without-probability-count-as-uniform", "tasks.decoding.drafters.look_ups",
          "DeterministicDrafter.draft", "one_hot_predictions(draft.padded(self.device), self.vocabulary, self.sampling)",
          "PredictionBlock(torch.zeros(len(drafted), max(map(len, drafted)), self.vocabulary), self.sampling)",
          _law("speculative copy", "speculative suffix", "speculative random")),
    # Lenient and lossy acceptance.
    Break("lenient-residual-of-speculative-sampling", _RULES, "lenient.decide",
          "p.dist - lenience * q.dist", "p.dist - q.dist", _law("lenient")),
    Break("lossy-acceptance-of-speculative-sampling", _RULES, "lossy.decide",
          "p.dist / (1 - alpha)", "p.dist", _law("lossy")),
    Break("tuned-beta-of-the-exact-rejection", _RULES, "tuned_beta", "(q - p / (1 - alpha))", "(q - p)", _law("lossy, tuned")),
    # BiLD and the margin.
    Break("distance-of-q", _RULES, "within_bounds", "p.surprisal(tokens)", "q.surprisal(tokens)", _law("bild, fixed window")),
    Break("correction-from-q", _RULES, "AcceptanceRule.apply",
          "(tokens, q, p)), p)", "(tokens, q, p)), q)", _law("bild, fixed window")),
    Break("margin-of-the-drafter", _RULES, "within_bounds", "p.top - p.of(tokens)", "q.top - q.of(tokens)", _law("margin")),
    Break("bild-oracle-adds-a-token", "tasks.decoding.methods.bild", "bild_oracle",
          "BonusToken.NONE", "BonusToken.TARGET", _law("bild_oracle")),
    # Cascades.
    Break("token-cascade-threshold-upside-down", _METHODS, "token_cascade", "1 - cost", "cost", _law("token_cascade, chow")),
    Break("oracle-defers-where-it-should-not", _CASCADES, "oracle", " ^ True", "", _law("diff_oracle, diff")),
    Break("deferred-answer-repeats-its-numbers", _DISTRIBUTIONS, "TokenSource.deferred",
          "+= 1", "+= 0", _law("sequence_cascade, mean")),
    Break("cascade-bonus-from-p", _LOOP, "_bonus",
          "rule.bonus is BonusToken.TARGET", "rule.bonus is not BonusToken.NONE", _law("token_v3")),
    Break("token-cascade-reads-truncated-scores", _CASCADES, "cascade_target.token_by_token",
          "q.scores, p.scores", "q.dist, p.dist", _law("token_v1")),
    Break("chow-reads-p", _CASCADES, "chow", "q.top <", "p.top <", _law("chow")),
    Break("diff-wrong-way", _CASCADES, "diff", "p.top - q.top >", "q.top - p.top >", _law("diff")),
    Break("opt-log-ignores-the-distance", _CASCADES, "opt_log", "alpha * p.total_variation(q)", "alpha", _law("opt_log")),
    Break("bild-star-expects-under-p", _CASCADES, "bild",
          "q.scores * p.log_scores", "p.scores * p.log_scores", _law("bild*")),
    Break("token-v3-absolute-bound", _CASCADES, "token_v3", "(1 - alpha) * top", "1 - alpha", _law("token_v3")),
)  # fmt: skip
