"""Breaks of drafters that look their tokens up: what they propose, and what they learn."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_SUFFIXES = "tasks.decoding.drafters.suffixes"
_BY_HAND = (f"{_UNIT}/test_suffixes.py::test_what_is_proposed",)
_TRANSLATION, _RETOKENIZED = "tasks.decoding.translation", "tasks.decoding.drafters.retokenized"
_TRANSLATED = (f"{_UNIT}/test_translation.py::test_a_cache_changes_nothing",)
_LAW = f"{_UNIT}/test_enumeration.py::test_every_method_follows_its_law"

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
    Break(
        "translated-tokens-the-wrong-way-round", _TRANSLATION, "TranslatedDecoder.forward",
        "spread(logits[..., theirs], ours,", "spread(logits[..., ours], theirs,",
        (f"{_LAW}[vanilla_small, translated]", f"{_LAW}[lenient, translated]"),
    ),
    Break(
        "translated-rewind-in-the-large-models-tokens", _TRANSLATION, "TranslatedDecoder.rewind",
        "[ends[-1] if ends else 0 for ends in self._ends]", "[len(ends) for ends in self._ends]",
        (f"{_LAW}[bild, translated]",),
    ),
    Break(
        "translated-position-of-one-token-each", _TRANSLATION, "TranslatedDecoder.feed",
        "map(len, written)", "[1] * len(written)",
        _TRANSLATED,
    ),
    Break(
        "translated-sources-as-the-large-model-reads-them", _TRANSLATION, "TranslatedDecoder.encode",
        "self.translation.sources(sources)", "sources",
        _TRANSLATED,
    ),
    Break(
        "spelled-with-the-most-tokens", "tasks.models.tokenizers", "ByteEncoder.__call__",
        "len(before) + 1 < len(best)", "len(before) + 1 > len(best)",
        ("tests/unit/models/test_spelling.py::test_the_fewest_tokens_by_hand",),
    ),
    Break(
        "retokenized-draft-stays-in-the-cache", _RETOKENIZED, "RetokenizedDrafter._write",
        "small.rewind(small.lengths)", "small.lengths",
        (f"{_UNIT}/test_translation.py::test_a_retokenized_draft_by_hand",),
    ),
    Break(
        "retokenized-written-beyond-the-budget", _RETOKENIZED, "RetokenizedDrafter._write",
        "len(written[row]) < budgets[row]", "len(written[row]) <= budgets[row]",
        (f"{_UNIT}/test_translation.py::test_a_retokenized_draft_by_hand",),
    ),
)  # fmt: skip
