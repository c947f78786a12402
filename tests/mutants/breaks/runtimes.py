"""Breaks of the runtimes: packed weights, products, the native loop, caches."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/decoding"
_NATIVE = (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop[bild-settings0]",)
_REPLAY = (
    f"{_UNIT}/replay/test_native_replay.py::test_known_texts_are_replayed_by_the_kernel[20]",
    f"{_UNIT}/replay/test_native_replay.py::test_the_kernel_equals_the_replayer_on_random_models",
)

BREAKS = (
    Break(
        "native-drafted-are-accepted-tokens", "tasks.decoding.turn", "account",
        "drafted=turn.drafted", "drafted=turn.accepted",
        _NATIVE,
    ),
    Break(
        "native-steps-are-drafted-tokens", "tasks.decoding.turn", "account",
        "steps=turn.predicted", "steps=turn.drafted",
        _NATIVE,
    ),
    Break(
        "shared-encoder-packed-twice", "tasks.decoding.runtimes.choose", "open_pair",
        "verifier if shared else None", "None",
        (f"{_UNIT}/runtimes/test_shared_encoder.py",),
    ),
    Break(
        "shared-encoder-of-another-model-accepted", "tasks.decoding.runtimes.choose", "open_pair",
        "elif reads_large_encoder(small):", "elif False:",
        (f"{_UNIT}/runtimes/test_shared_encoder.py",),
    ),
    Break(
        "kernel-replay-shares-of-one", "tasks/decoding/runtimes/kernel/replay.h", "accepts",
        "node.score >= rule.min_share * node.large.top", "node.score >= rule.min_share",
        _REPLAY,
    ),
    Break(
        "kernel-gate-lets-the-certain-pass", "tasks/decoding/runtimes/kernel/speculative_loop.h", "examine",
        "nats() < rule.gate_entropy", "false",
        (f"{_UNIT}/runtimes/test_draft_check.py::test_a_check_equals_a_plain_run_and_the_rule",),
    ),
    Break(
        "kernel-replay-gate-of-the-drafters-entropy", "tasks/decoding/runtimes/kernel/replay.h", "verify_known",
        "return node.large.entropy;", "return node.small.entropy;",
        _REPLAY,
    ),
    Break(
        "gpu-window-of-no-tokens", "tasks.decoding.rules", "next_accepted",
        "== window", ">= 0",
        (f"{_UNIT}/runtimes/test_fused_draft_check.py::test_a_check_is_a_run_and_the_rule",),
    ),
    Break(
        "kernel-drafts-on-at-high-entropy", "tasks/decoding/runtimes/kernel/speculative_loop.h", "after",
        " || nats > max_entropy", "",
        (f"{_UNIT}/runtimes/test_greedy_continuation.py::test_a_continuation_equals_single_steps",),
    ),
    Break(
        "kernel-table-of-no-entropy", "tasks/decoding/runtimes/kernel/speculative_loop.h", "draft_by_table",
        "stops.reads_entropy() ? small.entropy[last] : 0", "0",
        (f"{_UNIT}/test_native_loop.py::test_drafts_of_a_table_equal_the_general_loop",),
    ),
    Break(
        "kernel-replay-drafts-by-the-large-entropy", "tasks/decoding/runtimes/kernel/replay.h", "propose_known",
        "small.entropy", "large.entropy",
        _REPLAY,
    ),
    Break(
        "gpu-drafts-on-at-high-entropy", "tasks/decoding/runtimes/fused.py", "_Seen.ends_in",
        " or nats > until.max_entropy", "",
        (f"{_UNIT}/runtimes/test_fused_continuation.py::test_a_continuation_equals_single_steps",),
    ),
    Break(
        "replayed-draft-of-another-entropy", "tasks.decoding.replay", "_Replayer._draft",
        "rule.max_entropy, rule", "0.0, rule", _REPLAY,
    ),
    Break(
        "kernel-check-of-the-share-alone", "tasks/decoding/runtimes/kernel/speculative_loop.h", "accepts_score",
        "score = share * highest", "score = share",
        (f"{_UNIT}/runtimes/test_draft_check.py::test_a_check_equals_a_plain_run_and_the_rule",),
    ),
    Break(
        "kernel-replay-bonus-without-a-run", "tasks/decoding/runtimes/kernel/replay.h", "verify_known",
        "turn.predicted++;", "",
        _REPLAY,
    ),
    Break(
        "kernel-replay-accepts-the-rejected", "tasks/decoding/runtimes/kernel/replay.h", "verify_known",
        "keeping.count = turn.drafted;", "keeping.count = index + 1;",
        _REPLAY,
    ),
    Break(
        "kernel-replay-loses-siblings", "tasks.decoding.predictions", "KnownPredictions._add",
        "entry.sibling, self.nodes[parent].child = self.nodes[parent].child, self._used",
        "self.nodes[parent].child = self._used",
        _REPLAY,
    ),
    Break(
        "kernel-replay-knows-no-other-score", "tasks.decoding.predictions", "PredictionCache._write_down",
        "large.of(small.argmax)", "small.of(small.best)",
        _REPLAY,
    ),
    Break(
        "kernel-replay-takes-unknown-for-zero", "tasks/decoding/runtimes/kernel/replay.h", "comparable",
        "!std::isnan(node.score)", "true",
        (f"{_UNIT}/replay/test_native_replay.py::test_a_score_that_would_take_a_run_is_not_known_to_the_kernel",),
    ),
    Break(
        "changed-pages-dropped", "tasks.decoding.runtimes.packed", "_unchanged_regions",
        "if not _CHANGED.search(fields):", "if fields:",
        (f"{_UNIT}/runtimes/test_file_pages.py::test_a_number_that_was_changed_stays",),
    ),
    Break(
        "weights-stay-mapped", "tasks.decoding.runtimes.packed", "FilePages.release",
        "mmap.MADV_DONTNEED", "mmap.MADV_WILLNEED",
        (f"{_UNIT}/runtimes/test_file_pages.py::test_an_opened_checkpoint_is_in_memory_once_and_still_computes[False]",),
    ),
    Break(
        "packed-parts-overlap", "tasks.decoding.runtimes.packed", "PackedStack._linear",
        "first += part.shape[0]", "first += 1",
        (f"{_UNIT}/runtimes/test_packing.py::test_panels_hold_the_rows_of_all_parts",),
    ),
    Break(
        "tied-embedding-off-by-a-lane", "tasks/decoding/runtimes/kernel/products.h", "unpack_row",
        "output, input)", "output + 1, input)",
        (f"{_UNIT}/runtimes/test_number_formats.py::test_a_format_is_the_reference_with_rounded_numbers",),
    ),
    Break(
        "halves-cut-off", "tasks/decoding/runtimes/kernel/arithmetic.h", "rounded_to_bfloat16",
        "bits + 0x7fff + (bits >> 16 & 1)", "bits",
        (f"{_UNIT}/runtimes/test_packing.py::test_ties_are_rounded_to_even",),
    ),
    Break(
        "sums-forgotten-between-blocks", "tasks/decoding/runtimes/kernel/products.h", "panel_product",
        "if (from > 0) {", "if (from < 0) {",
        (f"{_UNIT}/runtimes/test_products.py",),
    ),
    Break(
        "scale-of-another-token", "tasks/decoding/runtimes/kernel/products.h", "panel_product",
        "factors.scales + token + t", "factors.scales + token",
        (f"{_UNIT}/runtimes/test_products.py",),
    ),
    Break(
        "attention-adds-up-in-another-order", "tasks/decoding/runtimes/kernel/attention.h", "weigh",
        "stride, number, 2 * pair + 1)", "stride, number, 3 - 2 * pair)",
        (f"{_UNIT}/runtimes/test_to_the_bit.py",),
    ),
    Break(
        "attention-reads-what-follows", "tasks/decoding/runtimes/kernel/attention.h", "attend",
        "raise(own, queries[query].length, whole)", "raise(own, longest, whole)",
        (f"{_UNIT}/runtimes/test_to_the_bit.py",),
    ),
    Break(
        "attention-of-another-row", "tasks/decoding/runtimes/kernel/layers.h", "attend_by_head",
        "positions[token + 1].slot != slot", "false",
        (f"{_UNIT}/runtimes/test_to_the_bit.py",),
    ),
    Break(
        "vectors-copied-through-the-stack", "tasks/decoding/runtimes/kernel/arithmetic.h", "load",
        "return *reinterpret_cast<const StoredVec*>(from);",
        "StoredVec loaded; std::memcpy(&loaded, from, sizeof loaded); return loaded;",
        (f"{_UNIT}/runtimes/test_compiled_code.py",),
    ),
    Break(
        "table-forgets-what-it-drafted", "tasks/decoding/runtimes/kernel/speculative_loop.h", "draft_by_table",
        "row.text.tokens[row.end - 1]", "row.text.tokens[row.text.count - 1]",
        (f"{_UNIT}/test_native_loop.py::test_drafts_of_a_table_equal_the_general_loop",),
    ),
    Break(
        "native-cascade-bonus-from-p", "tasks/decoding/runtimes/kernel/speculative_loop.h", "replace_by_cascade",
        "row.next = q.best", "row.next = p.best",
        (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop",),
    ),
    Break(
        "native-cascade-compares-upside-down", "tasks/decoding/runtimes/kernel/speculative_loop.h", "defers",
        "p_top - q_top > bounds.max_gain", "q_top - p_top > bounds.max_gain",
        (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop",),
    ),
    Break(
        "native-entropy-forgets-the-sum", "tasks/decoding/runtimes/kernel/speculative_loop.h", "entropy",
        "weighted_sum / sum", "weighted_sum",
        (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop",),
    ),
    Break(
        "native-drafts-into-the-limit", "tasks/decoding/runtimes/kernel/speculative_loop.h", "budget_of",
        "(rules.adds_bonus && !rules.ends_unverified)", "0",
        (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop[speculative-settings7]",),
    ),
    Break(
        "native-drafts-a-token-of-high-entropy", "tasks/decoding/runtimes/kernel/speculative_loop.h", "cut_draft",
        "rules.entropy_falls_back && ", "false && ",
        (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop",),
    ),
    Break(
        "replayed-draft-of-another-stop", "tasks.decoding.replay", "_Replayer._draft",
        ", rule.entropy_falls_back", "",
        (f"{_UNIT}/replay/test_replay.py::test_drafts_that_entropy_ends_before_and_after_a_token_are_told_apart",),
    ),
    Break(
        "native-rows-read-each-others-logits", "tasks/decoding/runtimes/kernel/speculative_loop.h", "run_target",
        "row->at = positions;", "row->at = 0;",
        _NATIVE,
    ),
    Break(
        "native-reads-the-first-states-of-a-row", "tasks/decoding/runtimes/kernel/speculative_loop.h", "predict",
        "(begin[row + 1] - reads[row]) * width", "begin[row] * width",
        (f"{_UNIT}/test_native_loop.py::test_every_native_architecture_equals_the_general_loop",),
    ),
    Break(
        "native-cascade-compares-with-another-row", "tasks/decoding/runtimes/kernel/speculative_loop.h", "drafted_logits",
        "row.slot * (rules.window + 1) + index", "index",
        (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop",),
    ),
    Break(
        "native-row-drafts-on-behind-its-stop", "tasks/decoding/runtimes/kernel/speculative_loop.h", "draft_by_model",
        "sure, nats)) going.push_back(&row);", "sure, nats) || row.turn().predicted < row.budget) going.push_back(&row);",
        _NATIVE,
    ),
    Break(
        "native-batch-outlives-its-clients",
        "tasks/decoding/runtimes/kernel/kernel.cpp", "draftline_take_turns",
        "flag_count && std::all_of", "flag_count < 0 && std::all_of",
        (f"{_UNIT}/test_native_loop.py::test_the_kernel_ends_once_nobody_waits",),
    ),
    Break(
        "native-watched-text-is-told-of-old-turns", "tasks.decoding.native_loop", "_Batch.account",
        "self._known[index] = native.turn_count", "pass",
        (f"{_UNIT}/test_executors.py::test_a_watched_text_grows_by_final_tokens",),
    ),
    Break(
        "native-batch-ends-with-its-first-client",
        "tasks/decoding/runtimes/kernel/kernel.cpp", "draftline_take_turns",
        "std::all_of", "std::any_of",
        (f"{_UNIT}/test_native_loop.py::test_a_batch_goes_on_while_one_client_waits",),
    ),
    Break(
        "general-loop-outlives-its-clients", "tasks.decoding.loop", "generate",
        "require_awaited(parts.abandoned)", "",
        (f"{_UNIT}/test_native_loop.py::test_a_watched_text_ends_at_its_next_turn",),
    ),
    Break(
        "one-text-cannot-be-abandoned", "tasks.decoding.loop", "executor_for",
        "and not (native and parts.abandoned)", "",
        (f"{_UNIT}/test_native_loop.py::test_the_kernel_ends_once_nobody_waits",),
    ),
    Break(
        "native-cache-keeps-rejected-tokens", "tasks/decoding/runtimes/kernel/speculative_loop.h", "verify",
        "std::min(text.small_cached, text.count - 1)", "text.small_cached",
        _NATIVE,
    ),
    Break(
        "values-not-reordered", "tasks.decoding.runtimes.reference", "select_rows",
        "layer.keys[index], layer.values[index]", "layer.keys[index], layer.values[: len(index)]",
        (f"{_UNIT}/runtimes/test_rollbacks.py",),
    ),
    Break(
        "draft-outputs-taken-for-tokens", "tasks/decoding/runtimes/kernel/kernel.cpp", "draftline_continue",
        "best[index] = token_of(*stack, best[index]);", "",
        (f"{_UNIT}/test_draft_vocabulary.py::test_a_continuation_names_tokens_and_their_confidence",),
    ),
    Break(
        "draft-logit-of-another-output", "tasks/decoding/runtimes/kernel/layers.h", "output_of",
        "token) - stack.head_tokens", "token) - stack.head_tokens - 1",
        (f"{_UNIT}/test_draft_vocabulary.py::test_the_native_loop_equals_the_general_loop",),
    ),
    Break(
        "draft-mask-is-a-logit", "tasks.models.pruned_head", "spread",
        "-torch.inf", "0.0",
        (f"{_UNIT}/test_draft_vocabulary.py::test_logits_are_those_of_the_whole_head_and_a_mask",),
    ),
)  # fmt: skip
