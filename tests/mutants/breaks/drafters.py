"""Breaks of drafters: what look-ups propose, and when drafts stop."""

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_LOOK_UPS = "tasks.decoding.drafters.look_ups"
_SUFFIXES = f"{_UNIT}/test_look_ups.py::test_"

BREAKS = (
    Break("draft-goes-on-at-high-entropy", "tasks.decoding.draft_rule", "DraftBuilder.add",
          " or entropy > self._rule.max_entropy", "", (f"{_UNIT}/test_cascades.py",)),
    Break("draft-goes-on-in-doubt", "tasks.decoding.draft_rule", "DraftBuilder.add",
          "ended or unsure", "ended", (f"{_UNIT}/test_draft_lengths.py",)),
    Break("fallback-below-threshold-only", "tasks.decoding.draft_rule", "DraftBuilder.add",
          "confidence <= self._rule", "confidence < self._rule",
          (f"{_UNIT}/test_executors.py::test_bild_falls_back_at_the_threshold",)),
    Break("suffix-draft-of-any-length", _LOOK_UPS, "SuffixDrafter.propose",
          "min(budget, _DRAFT_PER_MATCH * length)", "budget", (f"{_SUFFIXES}what_is_proposed",)),
    Break("suffix-score-without-the-tokens-before", _LOOK_UPS, "SuffixDrafter._follow",
          "probability *= share", "probability = share",
          (f"{_SUFFIXES}the_expected_number_of_accepted_tokens_decides",)),
    Break("suffix-goes-on-in-the-next-output", _LOOK_UPS, "outputs_tree",
          "text.append(BREAK)", "text", (f"{_SUFFIXES}no_match_goes_from_one_output_into_another",)),
)  # fmt: skip
