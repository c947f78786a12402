"""Breaks of drafters that look their tokens up: what they propose, and what they learn."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_SUFFIXES, _RECYCLING, _STAGED = (f"tasks.decoding.drafters.{name}" for name in ("suffixes", "recycling", "staged"))
_BY_HAND = (f"{_UNIT}/test_suffixes.py::test_what_is_proposed",)
_STAGED_BY_DRAFT = (f"{_UNIT}/test_staged.py::test_tokens_distributions_and_fallbacks_by_the_draft",)
_TRANSLATION, _RETOKENIZED = "tasks.decoding.translation", "tasks.decoding.drafters.retokenized"
_TRANSLATED = (f"{_UNIT}/test_translation.py::test_a_cache_changes_nothing",)
_LAW = f"{_UNIT}/test_enumeration.py::test_every_method_follows_its_law"
_RECYCLING_BY_HAND = f"{_UNIT}/test_recycling.py::test_"

_PREDICTED = "tasks.decoding.drafters.predicted"
_ONE_TOO_MANY = (f"{_UNIT}/test_predicted.py::test_a_draft_ends_after_the_token_that_is_one_too_many",)

BREAKS = (
    Break(
        "predicted-last-token-alone", _PREDICTED, "PredictedDrafter.next_logits",
        "self._all_accepted[row] *= accepted", "self._all_accepted[row] = accepted",
        _ONE_TOO_MANY,
    ),
    Break(
        "predicted-counts-the-token-before-the-draft", _PREDICTED, "PredictedDrafter.next_logits",
        "if active and drafted[row]", "if active",
        _ONE_TOO_MANY,
    ),
    Break(
        "predicted-rejection-taken-for-acceptance", "tasks.decoding.methods.speculative", "_predicted",
        "1 - settings.max_rejection", "settings.max_rejection",
        (f"{_UNIT}/test_predicted.py::test_its_ends_are_windows_of_one_token_and_of_all",),
    ),
    Break(
        "predicted-forgets-nothing-between-drafts", _PREDICTED, "PredictedDrafter.draft",
        "self._all_accepted = [1.0] * len(tokens)", "self._all_accepted = self._all_accepted or [1.0] * len(tokens)",
        _ONE_TOO_MANY,
    ),
    Break(
        "predicted-takes-back-the-token-that-it-doubts", "tasks.decoding.drafting", "DraftBuilder.add",
        "self.going, self.fallback = False, True", "self.tokens[-1:], self.going, self.fallback = [], False, True",
        (f"{_LAW}[predicted plain]",),
    ),
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
        "recycling-without-rejected-positions", "tasks.decoding.loop", "Verifier.predictions",
        "[row.tokens[-1], *drafted]", "[row.tokens[-1]]",
        (f"{_RECYCLING_BY_HAND}predictions_of_rejected_positions_are_recycled",),
    ),
    Break(
        "recycling-one-position-late", "tasks.decoding.loop", "Verifier.predictions",
        "[row.tokens[-1], *drafted]", "[*drafted, row.tokens[-1]]",
        (f"{_RECYCLING_BY_HAND}predictions_of_rejected_positions_are_recycled",),
    ),
    Break(
        "recycling-first-occurrence-counts", _RECYCLING, "RecyclingDrafter.recycle",
        "zip(map(self._key, tokens), predicted, strict=True)",
        "zip([*map(self._key, tokens)][::-1], predicted[::-1], strict=True)",
        (f"{_RECYCLING_BY_HAND}of_several_positions_with_one_token_the_last_one_counts",),
    ),
    Break(
        "recycling-table-of-the-batch", _RECYCLING, "RecyclingDrafter.start",
        "[{} for _ in sources]", "[{}] * len(sources)",
        (f"{_RECYCLING_BY_HAND}a_method_gives_the_same_again",),
    ),
    Break(
        "recycling-table-outlives-its-text", _RECYCLING, "RecyclingDrafter.start",
        "[{} for _ in sources]", "self._recycled if len(self._recycled) == len(sources) else [{} for _ in sources]",
        (f"{_RECYCLING_BY_HAND}a_method_gives_the_same_again",),
    ),
    Break(
        "replay-recycles-one-position-late", "tasks.decoding.replay.replayer", "_Replayer._recycle",
        "[self._text()[-1], *draft.tokens]", "[*draft.tokens, self._text()[-1]]",
        (f"{_UNIT}/replay/test_replay.py::test_a_replay_equals_decoding",),
    ),
    Break(
        "staged-keeps-what-was-not-chosen", _STAGED, "StagedDrafter._forget",
        "len(text) + len(new) - 1", "cached",
        _STAGED_BY_DRAFT,
    ),
    Break(
        "staged-goes-on-behind-what-was-not-chosen", _STAGED, "_reaches",
        " and builder.tokens[known:] == proposed[:offset]", "",
        _STAGED_BY_DRAFT,
    ),
    Break(
        "staged-drafts-what-is-proposed", _STAGED, "StagedDrafter.draft",
        "builders[row].add(token,", "builders[row].add([*proposed[row], token][min(offset, len(proposed[row]))],",
        (f"{_UNIT}/test_enumeration.py::test_every_method_follows_its_law[speculative staged]",),
    ),
    Break(
        "staged-counts-predictions-as-runs", _STAGED, "StagedDrafter.draft",
        "found[row].append(logits[row, offset])", "found[row].append(logits[row, offset]); runs[row] += offset > 0",
        (f"{_UNIT}/test_staged.py::test_the_runs_of_a_draft_by_hand",),
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
