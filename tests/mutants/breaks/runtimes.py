"""Breaks of the runtimes: packed weights, products, attention, the kernel's loop, drafts checked on a device."""

from tests.mutants.patching import Break

_UNIT, _RUNTIMES = "tests/unit/decoding", "tests/unit/decoding/runtimes"
_KERNEL = "tasks/decoding/runtimes/kernel"
_LOOP = (f"{_UNIT}/test_native_loop.py::test_rows_equal_the_general_loop",)
_DRAWN = (f"{_UNIT}/test_native_loop.py::test_sampled_rows_equal_the_general_loop",)
_KEPT = (f"{_UNIT}/test_native_loop.py::test_kept_predictions_change_nothing",)
_CHECK = (f"{_RUNTIMES}/test_fast_runtimes.py::test_a_check_equals_a_plain_run_and_the_rule",)
_SAMPLED = (f"{_RUNTIMES}/test_fused.py::test_sampled_tokens_and_counts_are_the_references",)
_CONTINUATION = (f"{_RUNTIMES}/test_fast_runtimes.py::test_a_continuation_equals_single_steps",)
_BITS = (f"{_RUNTIMES}/test_to_the_bit.py",)
_GPU = (f"{_RUNTIMES}/test_without_a_gpu.py::test_the_host_waits_for_fetched_tokens_alone[llama, llama3]",)


def _law(case: str) -> tuple[str, ...]:
    """The enumeration of this case in the kernel."""
    return (f"{_UNIT}/test_enumeration.py::test_every_method_follows_its_law_in_the_kernel[{case}]",)


BREAKS = (
    Break("native-drafted-are-accepted-tokens", "tasks.decoding.native_loop", "account", "drafted=turn.drafted",
          "drafted=turn.accepted", _LOOP),
    Break("shared-encoder-packed-twice", "tasks.decoding.runtimes.choose", "open_decoders", "verifier if shared else None",
          "None", (f"{_RUNTIMES}/test_shared_encoder.py",)),
    Break("gpu-draws-all-tokens-with-one-number", "tasks.decoding.runtimes.fused", "TokenLoop._record",
          "index_select(0, self._step))", "index_select(0, 0 * self._step))", _SAMPLED),
    Break("gpu-token-by-the-number-of-an-acceptance", "tasks.decoding.loop", "_decide", "uniforms[count:].index_select",
          "uniforms.index_select", _SAMPLED),
    Break("kernel-drafts-on-at-high-entropy", f"{_KERNEL}/speculative_loop.h", "after", " || nats > max_entropy", "",
          _CONTINUATION),
    Break("kernel-check-of-the-share-alone", f"{_KERNEL}/speculative_loop.h", "accepts_score",
          "score = share * highest", "score = share", _CHECK),
    Break("changed-pages-dropped", "tasks.decoding.runtimes.packed", "FilePages._regions",
          'changed == swapped == "0"', 'swapped == "0"',
          (f"{_RUNTIMES}/test_packed.py::test_a_number_that_was_changed_stays",)),
    Break("weights-stay-mapped", "tasks.decoding.runtimes.packed", "FilePages.release", "mmap.MADV_DONTNEED",
          "mmap.MADV_WILLNEED",
          (f"{_RUNTIMES}/test_packed.py::test_an_opened_checkpoint_is_in_memory_once_and_still_computes[False]",)),
    Break("packed-parts-overlap", "tasks.decoding.runtimes.packed", "PackedStack._linear", "first += part.shape[0]",
          "first += 1", (f"{_RUNTIMES}/test_packed.py::test_panels_hold_the_rows_of_all_parts",)),
    Break("tied-embedding-off-by-a-lane", f"{_KERNEL}/products.h", "unpack_row", "output, input)", "output + 1, input)",
          (f"{_RUNTIMES}/test_native.py::test_a_format_is_the_reference_with_rounded_numbers",)),
    Break("halves-cut-off", f"{_KERNEL}/arithmetic.h", "rounded_to_bfloat16", "bits + 0x7fff + (bits >> 16 & 1)",
          "bits", (f"{_RUNTIMES}/test_packed.py::test_ties_are_rounded_to_even",)),
    Break("sums-forgotten-between-blocks", f"{_KERNEL}/products.h", "panel_product", "if (from > 0) {",
          "if (from < 0) {", (f"{_RUNTIMES}/test_packed.py::test_a_product_is_that_of_rounded_numbers",)),
    Break("attention-adds-up-in-another-order", f"{_KERNEL}/attention.h", "weigh", "stride, number, 2 * pair + 1)",
          "stride, number, 3 - 2 * pair)", _BITS),
    Break("attention-reads-what-follows", f"{_KERNEL}/attention.h", "attend",
          "- skipped, length, whole)", "- skipped, longest, whole)", _BITS),
    Break("attention-of-another-row", f"{_KERNEL}/layers.h", "attend_by_head", "positions[token + 1].slot != slot",
          "false", _BITS),
    Break("kernel-window-reads-a-token-less", f"{_KERNEL}/layers.h", "attend_by_head", "length - window)",
          "length - window + 1)", (f"{_RUNTIMES}/test_fast_runtimes.py::test_random_operations_are_the_references",)),
    Break("vectors-copied-through-the-stack", f"{_KERNEL}/arithmetic.h", "load",
          "return *reinterpret_cast<const StoredVec*>(from);",
          "StoredVec loaded; std::memcpy(&loaded, from, sizeof loaded); return loaded;",
          (f"{_RUNTIMES}/test_compiled.py::test_no_vector_of_a_product_passes_through_the_stack",)),
    Break("native-cascade-bonus-from-p", f"{_KERNEL}/speculative_loop.h", "replace_by_cascade", "row.next = q.best",
          "row.next = p.best", _LOOP),
    Break("native-entropy-forgets-the-sum", f"{_KERNEL}/sampling.h", "entropy", "weighted_sum / sum",
          "weighted_sum", _LOOP),
    Break("kernel-residual-not-clamped", f"{_KERNEL}/sampling.h", "positive", "value > 0 ? value : Vec{}", "value",
          _law("speculative plain")),
    Break("kernel-lenience-forgets-the-residual", f"{_KERNEL}/sampling.h", "decide", "1, value, here.p", "1, 1, here.p",
          _law("lenient")),
    Break("kernel-draft-after-rollback-repeats-its-number", f"{_KERNEL}/speculative_loop.h", "draw_draft",
          "kDraft, row.text.count", "kDraft, 0", _DRAWN),
    Break("kernel-acceptance-by-another-number", f"{_KERNEL}/sampling.h", "accepts", "number(position, kAccept, 0)",
          "number(position, kTarget, 0)", _DRAWN),
    Break("kept-of-another-source", f"{_KERNEL}/kept.h", "beginnings", "step(0, source)", "step(0, 0)", _KEPT),
    Break("kept-slot-holds-rejected-tokens", f"{_KERNEL}/kept.h", "begin", "&& here[known] == tokens[known]", "", _KEPT),
    Break("kept-of-the-last-batch", "tasks.decoding.runtimes.native", "NativeDecoder.start",
          "encoder_output is self._kept.started", "True", _KEPT),
    Break("kept-slots-after-runs-from-python", "tasks.decoding.runtimes.native", "NativeDecoder.start",
          "clean = not any(self.lengths)", "clean = True", _KEPT),
    Break("kept-for-nothing", f"{_KERNEL}/kept.h", "keep", "if (best < 0 ||", "if (best >= 0 ||",
          (f"{_UNIT}/test_native_loop.py::test_what_is_kept_is_not_computed_again",)),
    Break("native-drafts-into-the-limit", f"{_KERNEL}/speculative_loop.h", "budget_of",
          " - !rules.ends_unverified", "", _LOOP),
    Break("native-rows-read-each-others-logits", f"{_KERNEL}/speculative_loop.h", "run_target", "row->at = positions;",
          "row->at = 0;", _LOOP),
    Break("native-cache-keeps-rejected-tokens", f"{_KERNEL}/speculative_loop.h", "verify",
          "std::min(text.small_cached, text.count - 1)", "text.small_cached", _LOOP),
    Break("values-not-reordered", "tasks.decoding.runtimes.reference", "select_rows",
          "layer.keys[own], layer.values[own]", "layer.keys[own], layer.values[: len(own)]",
          (f"{_RUNTIMES}/test_fast_runtimes.py::test_random_operations_are_the_references",)),
    Break("draft-mask-is-a-logit", "tasks.models.pruned_head", "spread", "-torch.inf", "0.0",
          (f"{_UNIT}/test_draft_vocabulary.py::test_logits_are_those_of_the_whole_head_and_a_mask",)),
    Break("gpu-columns-on-the-host", "tasks.decoding.runtimes.fused_stack", "FusedStack.fit",
          "torch.arange(longest, device=self._device)", "torch.arange(longest)", _GPU),
    Break("gpu-hidden-read-in-a-step", "tasks.decoding.runtimes.fused_stack", "FusedStack.predict",
          "self.shape.head_scale == 1", "hidden.sum() == 1", _GPU),
    Break("gpu-check-waits-to-copy", "tasks.decoding.runtimes.fused", "DraftChecker._check",
          ".to(self._inputs.device, non_blocking=True)", ".to(self._inputs.device)", _GPU),
)  # fmt: skip
