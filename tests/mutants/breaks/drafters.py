"""Breaks of drafters that look their tokens up: what they propose."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_SUFFIXES = "tasks.decoding.drafters.suffixes"
_BY_HAND = (f"{_UNIT}/test_suffixes.py::test_what_is_proposed",)

BREAKS = (
    Break(
        "suffix-draft-of-any-length", _SUFFIXES, "SuffixDrafter.propose",
        "min(budget, _DRAFT_PER_MATCH * length)", "budget",
        _BY_HAND,
    ),
    Break(
        "suffix-latest-before-most-frequent", _SUFFIXES, "SuffixNode.likeliest",
        "(len(ends), ends[-1], token)", "(ends[-1], len(ends), token)",
        _BY_HAND,
    ),
    Break(
        "suffix-score-without-the-tokens-before", _SUFFIXES, "SuffixDrafter._follow",
        "probability *= share", "probability = share",
        (f"{_UNIT}/test_suffixes.py::test_the_expected_number_of_accepted_tokens_decides",),
    ),
    Break(
        "suffix-share-of-ended-texts", _SUFFIXES, "SuffixNode.likeliest",
        "sum(number for number, _, _ in following)", "len(self._ends)",
        (f"{_UNIT}/test_suffixes.py::test_both_ways_to_the_nodes_of_a_text_agree_with_counting",),
    ),
    Break(
        "suffix-goes-on-in-the-next-output", _SUFFIXES, "outputs_tree",
        "text.append(BREAK)", "text",
        (f"{_UNIT}/test_suffixes.py::test_no_match_goes_from_one_output_into_another",),
    ),
)  # fmt: skip
