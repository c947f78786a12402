"""Breaks of training, alignment, models and corpora."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_DIVERGENCES = (f"{_UNIT}/alignment/test_divergences.py",)
_CHECKPOINTS = (f"{_UNIT}/training/test_checkpoints.py",)

BREAKS = (
    Break(
        "kl-turned-round", "tasks.alignment.divergences", "reverse_kl",
        "_kl(log_q, log_p)", "_kl(log_p, log_q)",
        _DIVERGENCES,
    ),
    Break(
        "beta-ignored", "tasks.alignment.divergences", "divergence",
        "beta=beta", "beta=0.5",
        _DIVERGENCES,
    ),
    Break(
        "mixture-weights-swapped", "tasks.alignment.divergences", "jensen_shannon",
        "beta * log_p.exp() + (1 - beta) * log_q.exp()", "(1 - beta) * log_p.exp() + beta * log_q.exp()",
        _DIVERGENCES,
    ),
    Break(
        "loss-over-padded-tokens", "tasks.training.losses", "total_weight",
        "(batch.labels != IGNORED).sum()", "batch.labels.numel()",
        (f"{_UNIT}/training/test_objective.py::test_without_anything_else_it_is_the_model_s_loss",),
    ),
    Break(
        "loss-counts-of-one-part", "tasks.training.objective", "Objective.counts",
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
        "relative=settings.relative_rate, weight_decay=settings.weight_decay", "relative=settings.relative_rate",
        (f"{_UNIT}/training/test_optimizers.py::test_the_settings_choose_the_optimizer_and_what_it_moves",),
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
        "empty-outputs-kept", "tasks.alignment.calibrating.checks", "find_fault",
        "if not text.strip():", "if False:",
        (f"{_UNIT}/alignment/test_calibration.py::test_an_output_is_fit_or_has_a_fault",),
    ),
    Break(
        "text-not-cut-to-the-limit", "tasks.models.tokenizers", "encode",
        "[*row[: limit - 1], end]", "[*row, end]",
        (f"{_UNIT}/training/test_causal_data.py",),
    ),
)  # fmt: skip
