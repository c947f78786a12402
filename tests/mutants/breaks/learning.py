"""Breaks of training, models and corpora."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_CHECKPOINTS = (f"{_UNIT}/training/test_checkpoints.py",)

_ACCEPTANCE_HEAD = "tasks.alignment.acceptance_head"
_JUDGE, _LABELS = "tasks.alignment.judge", "tasks.alignment.judge_labels"
_JUDGE_TESTS = f"{_UNIT}/alignment/test_judge.py"
_JUDGE_BY_HAND = (f"{_JUDGE_TESTS}::test_states_and_labels_are_those_of_single_runs",)
_HEAD_BY_HAND = (f"{_UNIT}/alignment/test_acceptance_head.py::test_states_and_labels_are_those_of_single_runs",)

BREAKS = (
    Break(
        "acceptance-head-reads-the-state-before", "tasks.training.predictions", "TargetPositions.after",
        "values[:, 1:]", "values[:, :-1]",
        _HEAD_BY_HAND,
    ),
    Break(
        "acceptance-head-learns-p-over-q-upside-down", _ACCEPTANCE_HEAD, "TokenDrafts.along",
        "probability(p, drawn) / probability(q, drawn)", "probability(q, drawn) / probability(p, drawn)",
        _HEAD_BY_HAND,
    ),
    Break(
        "acceptance-head-reads-the-large-model-s-text", _ACCEPTANCE_HEAD, "TokenDrafts.along",
        "torch.where(kept, written, drawn)", "written",
        _HEAD_BY_HAND,
    ),
    Break(
        "acceptance-head-of-unbalanced-classes", _ACCEPTANCE_HEAD, "balanced_loss_sum",
        "rejection_weight * (1 - accepted)", "(1 - accepted)",
        (f"{_UNIT}/alignment/test_acceptance_head.py::test_the_loss_by_hand",),
    ),
    Break(
        "control-head-learns-from-references", _ACCEPTANCE_HEAD, "_calibration",
        "if job.train_file == job.paths.calibration_set:", "if True:",
        (f"{_UNIT}/alignment/test_spec.py",),
    ),
    Break(
        "judge-labels-ignore-the-tolerance", _LABELS, "MismatchLabeller._label",
        "own[one.text] - references.tolerance", "own[one.text]",
        _JUDGE_BY_HAND,
    ),
    Break(
        "judge-labels-of-the-large-model-s-own-token", _LABELS, "MismatchLabeller._label",
        "one.token]", "texts[one.text][one.position]]",
        _JUDGE_BY_HAND,
    ),
    Break(
        "judge-learns-from-agreement", _LABELS, "MismatchLabeller.mismatches",
        "!= own", ">= 0",
        (f"{_JUDGE_TESTS}::test_mismatches_are_the_drafter_s_tokens_along_a_text",),
    ),
    Break(
        "judge-of-unbalanced-kinds", _JUDGE, "balanced_loss",
        "functional.softplus(-logits[good]).mean()", "functional.softplus(-logits[good]).sum()",
        (f"{_JUDGE_TESTS}::test_the_loss_by_hand",),
    ),
    Break(
        "judge-keeps-the-mean-of-its-states", _JUDGE, "fit",
        "bias - (weight * mean / scale).sum()", "bias",
        (f"{_JUDGE_TESTS}::test_a_judge_is_fitted_to_its_optimum",),
    ),
    Break(
        "judge-learns-from-held-out-texts", _JUDGE, "judge_trainer",
        "read_jsonl(paths.control_set)", "read_jsonl(reference_file(context.job))",
        (f"{_UNIT}/alignment/test_spec.py::test_a_judge_learns_from_the_calibration_set_and_is_measured_on_held_out_texts",),
    ),
    Break(
        "judge-of-other-weights-kept", "tasks.models.extras", "drop_heads_of_drafts",
        "(_ACCEPTANCE, _JUDGE)", "(_ACCEPTANCE,)",
        (f"{_JUDGE_TESTS}::test_training_a_model_drops_the_judge_of_its_old_weights",),
    ),
    Break(
        "acceptance-head-of-other-weights-kept", "tasks.training.objective", "_prepare",
        "drop_heads_of_drafts(model)", "pass",
        (f"{_UNIT}/alignment/test_acceptance_head.py::test_training_a_model_drops_the_head_of_its_old_weights",),
    ),
    Break(
        "loss-over-padded-tokens", "tasks.training.losses", "total_weight",
        "(batch.labels != IGNORED).sum()", "batch.labels.numel()",
        (f"{_UNIT}/training/test_objective.py::test_without_anything_else_it_is_the_model_s_loss",),
    ),
    Break(
        "loss-counts-of-one-part", "tasks.training.objective", "Objective.own_counts",
        ".sum(0)", "[0]",
        (f"{_UNIT}/training/test_sources.py",),
    ),
    Break(
        "warmup-starts-at-zero", "tasks.training.optimizers", "rate_factor",
        "(step + 1) / settings.warmup_steps", "step / settings.warmup_steps",
        (f"{_UNIT}/training/test_optimizers.py::test_the_rate_rises_and_falls",),
    ),
    Break(
        "decay-ends-too-late", "tasks.training.optimizers", "rate_factor",
        "(settings.steps - settings.warmup_steps)", "settings.steps",
        (f"{_UNIT}/training/test_optimizers.py::test_the_rate_rises_and_falls",),
    ),
    Break(
        "weight-decay-ignored", "tasks.training.optimizers", "make_optimizer",
        "rate, decay = settings.learning_rate, settings.weight_decay", "rate, decay = settings.learning_rate, 0.0",
        (f"{_UNIT}/training/test_optimizers.py::test_the_settings_choose_the_optimizer_and_its_parameters",),
    ),
    Break(
        "damaged-checkpoint-loaded", "tasks.training.checkpoints", "_holds",
        "file.is_file() and checksum(file) == known", "file.is_file()",
        _CHECKPOINTS,
    ),
    Break(
        "checkpoint-not-sealed", "tasks.training.checkpoints", "_sealed",
        '"step*/{_SEAL}"', '"step*/*"',
        _CHECKPOINTS,
    ),
    Break(
        "worst-weights-kept", "tasks.training.best_weights", "BestWeights.update",
        "value < self._value if", "value > self._value if",
        (f"{_UNIT}/training/test_best_weights.py",),
    ),
    Break(
        "patience-one-longer", "tasks.training.best_weights", "BestWeights.out_of_patience",
        "self._waited >= self._patience", "self._waited > self._patience",
        (f"{_UNIT}/training/test_best_weights.py",),
    ),
    Break(
        "shares-overlap", "tasks.training.batching", "partition",
        "indices[part::parts]", "indices[part :: max(1, parts - 1)]",
        (f"{_UNIT}/training/test_batching.py",),
    ),
    Break(
        "text-not-cut-to-the-limit", "tasks.models.tokenizers", "encode",
        "[*row[: limit - 1], end]", "[*row, end]",
        (f"{_UNIT}/training/test_causal_data.py",),
    ),
    Break(
        "frozen-trunk-has-dropout", "tasks.training.objective", "Objective.train",
        "if self.frozen:", "if not self.frozen:",
        (f"{_UNIT}/training/test_objective.py",),
    ),
    Break(
        "shared-encoder-trained", "tasks.training.objective", "_prepare",
        "if reads_large_encoder(model):", "if False:",
        (f"{_UNIT}/models/test_large_encoder.py",),
    ),
    Break(
        "shared-encoder-has-dropout", "tasks.training.objective", "Objective.train",
        "self.model.get_encoder().eval()", "self.model.get_decoder().eval()",
        (f"{_UNIT}/models/test_large_encoder.py",),
    ),
    Break(
        "copied-head-overwrites-the-embedding", "tasks.models.from_layers", "model_from_layers",
        "_untie_head(small)", "pass",
        (f"{_UNIT}/models/test_large_encoder.py",),
    ),
    Break(
        "source-tokens-are-labels", "tasks.training.data", "TokenDataset.batch",
        "[[IGNORED] * length + target", "[[0] * length + target",
        (f"{_UNIT}/training/test_causal_data.py",),
    ),
    Break(
        "unlabelled-inputs-of-a-split-kept", "tasks.prepare", "load_corpus",
        " if text not in labelled", "",
        (f"{_UNIT}/test_prepare.py",),
    ),
    Break(
        "stages-keep-the-time-of-earlier-ones", "tasks.bench.pipeline", "Cost.__sub__",
        "Cost(self.processor - other.processor,", "Cost(self.processor,",
        (f"{_UNIT}/bench/test_pipeline.py::test_stages_of_both_revisions_are_measured",),
    ),
    Break(
        "impossible-drafters-found-late", "tasks.consistency", "_point",
        'if drafter == "heads" and not', 'if drafter == "none" and not',
        (f"{_UNIT}/test_consistency.py::test_a_contradiction_is_named_with_its_place",),
    ),
    Break(
        "references-never-vary", "tasks.corpora.translation.choices", "Sampled.__call__",
        ">= self._variation", ">= 0.0",
        (f"{_UNIT}/corpora/translation/test_corpus.py::test_variation_changes_the_training_references_alone",),
    ),
    Break(
        "bfloat16-wherever-auto", "tasks.training.objective", "multiplies_bfloat16",
        "return any(", "return True or any(",
        (f"{_UNIT}/training/test_objective.py::test_native_bfloat16_is_read_from_the_processor",),
    ),
    Break(
        "held-out-sources-stay-in-train", "tasks.corpora.files.held_out", "_key",
        '" ".join(source.split()).casefold()', "source",
        (f"{_UNIT}/corpora/test_file_formats.py::test_held_out_sources_are_fixed_and_stay_together",),
    ),
    Break(
        "template-left-out-of-plain-text", "tasks.corpora.files.reading", "_parallel",
        "Example(filled(template, source),", "Example(source,",
        (f"{_UNIT}/corpora/test_file_formats.py::test_a_template_makes_sources_and_leaves_references",),
    ),
    Break(
        "files-read-for-another-source", "tasks.prepare", "load_corpus",
        'settings.source == "files" and ', "",
        (f"{_UNIT}/corpora/test_file_formats.py::test_the_source_decides_and_not_a_section_of_files",),
    ),
    Break(
        "hub-lock-ignored", "tasks.corpora.hub.opening", "open_from_hub",
        "commit = locked_commit(data_set, lock)", "commit = None",
        (f"{_UNIT}/corpora/test_hub_fetching.py::test_the_commit_of_the_first_fetch_is_locked",),
    ),
    Break(
        "hub-configurations-mixed", "tasks.corpora.hub.opening", "_fetch",
        "if data_set.revision == PARQUET", "if False",
        (f"{_UNIT}/corpora/test_hub_fetching.py::test_a_configuration_on_the_branch_of_parquet_files_is_a_folder",),
    ),
    Break(
        "hub-copies-shared-by-configurations", "tasks.corpora.hub.opening", "_kept",
        'data_set.configuration or "default"', '"default"',
        (f"{_UNIT}/corpora/test_hub_fetching.py::test_without_a_network_a_copy_is_read_and_the_rest_is_one_line",),
    ),
    Break(
        "published-numbers-beside-a-part", "tasks.corpora.hub.settings", "HubSettings.published",
        "same and whole", "same",
        (f"{_UNIT}/corpora/test_hub.py::test_published_numbers_are_of_a_whole_preset",),
    ),
    Break(
        "hub-rows-without-reference-kept", "tasks.corpora.hub.reading", "_ExampleMaker.example",
        " if any(references) else None", "",
        (f"{_UNIT}/corpora/test_hub.py::test_rows_without_text_are_left_out_and_counted",),
    ),
    Break(
        "splits-share-translations", "tasks.corpora.translation.generate", "generate",
        " or any(owner.get(text, split) != split for text in references)", "",
        (f"{_UNIT}/corpora/translation/test_corpus.py::test_a_sentence_with_a_translation_of_another_split_is_omitted",),
    ),
    Break(
        "splits-share-summaries", "tasks/corpora/summarization/__init__.py", "_draw",
        " or not elsewhere.isdisjoint(references)", "",
        (f"{_UNIT}/corpora/test_summarization.py::test_an_event_whose_summary_another_split_has_is_drawn_again",),
    ),
    Break(
        "tokens-of-a-pair-not-compared", "tasks.models.pair", "check_pair",
        "if theirs.get(token) != index:", "if token not in theirs:",
        (f"{_UNIT}/models/test_pair.py",),
    ),
    Break(
        "one-layer-too-many", "tasks.models.layers", "first_layers",
        "[:count]", "[: count + 1]",
        (f"{_UNIT}/models/test_layers.py",),
    ),
    Break(
        "recorded-predictions-keep-their-rows", "tasks.decoding.recording", "TopLogitsRecorder.reorder",
        "[self._rows[row] for row in rows]", "self._rows[: len(rows)]",
        (f"{_UNIT}/alignment/test_calibration.py",),
    ),
    Break(
        "relative-rate-taken-as-absolute", "tasks.training.optimizers", "make_optimizer",
        "if settings.relative_rate:", "if not settings.relative_rate:",
        (f"{_UNIT}/training/test_optimizers.py",),
    ),
    Break(
        "log-forgets-what-came-before-the-resume", "tasks.training.log", "TrainingLog.__init__",
        'cast("Rows", state.get("log", {}))', "{}",
        ("tests/integration/test_training.py::test_an_interrupted_run_ends_with_the_same_weights",),
    ),
    Break(
        "newest-checkpoint-rotated-away", "tasks.training.checkpoints", "_rotate",
        "(*before[1 - KEPT_CHECKPOINTS :], newest)", "before[-KEPT_CHECKPOINTS:]",
        _CHECKPOINTS,
    ),
    Break(
        "gguf-positions-unchecked", "tasks.models.gguf", "_check_what_is_dropped",
        'key.endswith(".rope.scaling.type") and value != "none"', "False",
        (f"{_UNIT}/models/test_gguf.py",),
    ),
    Break(
        "chat-prompt-cut-at-its-end", "tasks.models.prompting", "SourceEncoder.__call__",
        "self._shortened(sources[index])", "row[:limit]",
        (f"{_UNIT}/models/test_prompting.py",),
    ),
    Break(
        "chat-prompt-without-the-answer-s-beginning", "tasks.models.prompting", "SourceEncoder._prompts",
        "add_generation_prompt=True", "add_generation_prompt=False",
        (f"{_UNIT}/models/test_prompting.py",),
    ),
    Break(
        "training-reads-sources-without-their-prompt", "tasks.training.data", "JsonlDataset.__init__",
        'encode_sources(rows["source"])', 'encode(tokenizer, rows["source"], text.max_source_tokens)',
        (f"{_UNIT}/models/test_prompting.py",),
    ),
    Break(
        "zero-steps-start-deepspeed", "tasks.training.loop", "train",
        "if settings.steps == 0:", "if settings.steps < 0:",
        (f"{_UNIT}/training/test_stage.py",),
    ),
    Break(
        "evaluation-batches-of-any-size", "tasks.training.loop", "_evaluation_batch",
        "min(_EVALUATION_BATCH, _MOST_LOGITS // (longest * vocabulary))", "_EVALUATION_BATCH",
        (f"{_UNIT}/training/test_causal_data.py",),
    ),
    Break(
        "batches-by-own-targets", "tasks.training.batching", "BucketBatchSampler.__init__",
        "examples if examples.batched_like is None else examples.batched_like", "examples",
        ("tests/unit/training/test_batching.py",),
    ),
    Break(
        "seeds-reduce-the-error-over-examples", "tasks.evaluation.report.arms", "effect_of",
        "statistics.fmean(errors))", "statistics.fmean(errors) / len(logs))",
        ("tests/unit/evaluation/report/test_arms.py",),
    ),
    Break(
        "one-seed-is-a-finding", "tasks.evaluation.report.arms", "_finding",
        "interval is None or interval[0] <= 1.0 <= interval[1]", "interval is not None and interval[0] <= 1.0 <= interval[1]",
        ("tests/unit/evaluation/report/test_arms.py",),
    ),
    Break(
        "first-layers-instead-of-chosen", "tasks.models.from_layers", "_chosen",
        "str(layer): str(place)", "str(place): str(place)",
        (f"{_UNIT}/models/test_from_layers.py",),
    ),
    Break(
        "head-reads-prompts", "tasks.training.predictions", "_target_logits",
        "(targets.select(inputs[0])[None],)", "(inputs[0],)",
        (f"{_UNIT}/training/test_causal_data.py",),
    ),
)  # fmt: skip
