"""Breaks of the check in another engine: how drafts are counted there, and when a certificate holds."""

from __future__ import annotations

from tests.mutants.patching import Break

_VERIFY = "tests/unit/verify"
_COUNTING = (f"{_VERIFY}/test_counting.py",)
_EXPORT = "tests/unit/export/test_export.py"
_GGUF = "tests/unit/export/test_gguf.py"
_ENGINE = (f"{_VERIFY}/test_transformers_engine.py",)
_OPENVINO = (f"{_VERIFY}/test_openvino_engine.py",)

BREAKS = (
    Break(
        "drafts-without-an-accepted-end", "tasks.verify.counting", "count_drafts",
        "counts.accepted += accepted", "counts.accepted += accepted - (final + accepted == len(tokens))",
        _COUNTING,
    ),
    Break(
        "drafts-begin-one-token-late", "tasks.verify.counting", "count_drafts",
        "else read[prompt:]", "else read[prompt + 1 :]",
        _COUNTING,
    ),
    Break(
        "calls-of-another-text-counted", "tasks.verify.counting", "count_drafts",
        " or read[0] != tokens[final - 1]", "",
        _COUNTING,
    ),
    Break(
        "assistant-reads-the-text-twice", "tasks.verify.transformers_engine", "TransformersEngine.decode",
        "**assisting_masks(self._large),", "",
        _ENGINE,
    ),
    Break(
        "assistant-stops-in-doubt", "tasks.verify.transformers_engine", "draft_constantly",
        "assistant_confidence_threshold = 0.0", "assistant_confidence_threshold = 0.4",
        _ENGINE,
    ),
    Break(
        "assistant-adapts-its-length", "tasks.verify.transformers_engine", "draft_constantly",
        '"constant"', '"heuristic"',
        _ENGINE,
    ),
    Break(
        "certificate-holds-for-other-texts", "tasks.verify.comparison", "Comparison.holds",
        " and not self.differing", "",
        (f"{_VERIFY}/test_comparison.py",),
    ),
    Break(
        "certificate-compared-by-another-schedule", "tasks.verify.comparison", "Comparison.reproduced",
        "self.certifiable", "self.ours",
        (f"{_VERIFY}/test_comparison.py",),
    ),
    Break(
        "calls-that-wrote-nothing-counted", "tasks.verify.counting", "count_calls",
        " or not all(written)", "",
        _COUNTING,
    ),
    Break(
        "first-token-drafted", "tasks.verify.decoding", "decode_here_from_the_second",
        "[rest] = method.run([[*source, *first.tokens]], [0], limit - 1)", "return method.run([source], [0], limit)[0]",
        _OPENVINO,
    ),
    Break(
        "openvino-future-is-seen", "tasks.models.openvino_model", "_CachedStep.forward",
        "keys <= queries[:, None]", "keys <= queries[:, None] + 1",
        ("tests/unit/models/test_openvino_model.py",),
    ),
    Break(
        "openvino-row-without-its-past", "tasks.models.openvino_model", "_continue_chosen_rows",
        "reader.replace_source_output(chosen.output(0))", "pass",
        ("tests/unit/models/test_openvino_model.py",),
    ),
    Break(
        "openvino-drafts-one-more", "tasks.verify.openvino_engine", "OpenvinoEngine.__init__",
        "settings.num_assistant_tokens = draft_length", "settings.num_assistant_tokens = draft_length + 1",
        _OPENVINO,
    ),
    Break(
        "exported-drafter-keeps-its-threshold", "tasks.export.to_transformers", "write",
        "draft_constantly(settings, source.draft_length)", "pass",
        (f"{_EXPORT}::test_the_drafter_for_transformers_drafts_as_the_certificate_says",),
    ),
    Break(
        "exported-thresholds-not-said", "tasks.export.source", "left_behind",
        "if point.method not in _KEPT_METHODS or", "if",
        (f"{_EXPORT}::test_what_is_left_behind_is_said_and_not_copied",),
    ),
    Break(
        "gguf-keeps-the-halves-of-a-rotation", "tasks.export.gguf_architectures", "_llama_weights",
        "weight if count is None else _interleaved(weight, count)", "weight",
        (f"{_GGUF}::test_llama",),
    ),
    Break(
        "gguf-forgets-scaled-positions", "tasks.export.gguf_architectures", "_llama_weights",
        '!= "default"', '== "yarn"',
        (f"{_GGUF}::test_scaled_rotary_positions_are_divisors_of_the_frequencies",),
    ),
    Break(
        "gguf-of-t5-is-not-scaled", "tasks.export.gguf_architectures", "_t5_weights",
        'weight * scale if name == "lm_head.weight" else weight', "weight",
        (f"{_GGUF}::test_t5",),
    ),
    Break(
        "gguf-of-t5-with-a-deeper-decoder", "tasks.export.gguf_architectures", "_idle_layers",
        "max(deeper, 0)", "0",
        (f"{_GGUF}::test_t5",),
    ),
    Break(
        "gguf-of-gpt2-is-not-transposed", "tasks.export.gguf_architectures", "_gpt2_weights",
        "weight.T if", "weight if",
        (f"{_GGUF}::test_gpt2",),
    ),
    Break(
        "gguf-runs-any-activation", "tasks.export.gguf_model", "architecture_of",
        "if deviations := found.deviations(config):", "if deviations := []:",
        (f"{_GGUF}::test_a_model_that_llama_cpp_does_not_run_is_one_line",),
    ),
    Break(
        "gguf-unused-rows-are-tokens", "tasks.export.gguf_tokenizer", "_add_tokens",
        "else TokenType.UNUSED for index", "else TokenType.NORMAL for index",
        (f"{_GGUF}::test_unigram_tokens_with_scores_and_kinds",),
    ),
)  # fmt: skip
