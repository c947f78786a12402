"""Breaks of alignment: calibration sets, losses, rollouts and draft vocabularies."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit"
_DIVERGENCES = (f"{_UNIT}/alignment/test_divergences.py",)
_GATEKEEPER = (f"{_UNIT}/alignment/test_gatekeeper.py",)
_POSITION_WEIGHTS = (f"{_UNIT}/alignment/test_position_weights.py",)

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
        "acceptance-without-its-log", "tasks.alignment.divergences", "negative_log_acceptance",
        "-log_overlap(log_p, log_q)", "1 - log_overlap(log_p, log_q).exp()",
        _DIVERGENCES,
    ),
    Break(
        "acceptance-log-of-probabilities", "tasks.alignment.divergences", "log_overlap",
        "torch.minimum(log_p, log_q)", "torch.minimum(log_p.exp(), log_q.exp()).log()",
        _DIVERGENCES,
    ),
    Break(
        "disjoint-predictions-not-finite", "tasks.alignment.divergences", "log_overlap",
        "shared.masked_fill(disjoint[..., None], 0.0)", "shared",
        _DIVERGENCES,
    ),
    Break(
        "overlap-of-the-larger", "tasks.alignment.divergences", "log_overlap",
        "torch.minimum", "torch.maximum",
        _DIVERGENCES,
    ),
    Break(
        "sure-where-wrong", "tasks.alignment.gatekeeper", "GatekeeperLoss.sums",
        "log_q.argmax(-1) == labels", "log_q.argmax(-1) != labels",
        _GATEKEEPER,
    ),
    Break(
        "gatekeeper-weights-swapped", "tasks.alignment.gatekeeper", "GatekeeperLoss.sums",
        "(1 - self._sure_weight) *", "self._sure_weight *",
        _GATEKEEPER,
    ),
    Break(
        "uniform-over-the-padding", "tasks.alignment.gatekeeper", "GatekeeperLoss.sums",
        "[:, : self._vocabulary]", "",
        _GATEKEEPER,
    ),
    Break(
        "kl-weight-rises", "tasks.alignment.progress", "kl_weight",
        "1 - progress / until", "progress / until",
        (f"{_UNIT}/alignment/test_progress.py",),
    ),
    Break(
        "kl-held-out-as-well", "tasks.alignment.progress", "kl_weight",
        "return 0.0", "return 1.0",
        (f"{_UNIT}/alignment/test_progress.py",),
    ),
    Break(
        "kl-never-ends", "tasks.alignment.progress", "ProgressSource.__init__",
        "max(1, steps - 1)", "max(1, steps)",
        (f"{_UNIT}/alignment/test_progress.py",),
    ),
    Break(
        "progress-lost-on-the-device", "tasks.training.data", "Batch.to",
        "weights, top, self.progress)", "weights, top)",
        (f"{_UNIT}/alignment/test_progress.py",),
    ),
    Break(
        "kl-beside-the-whole-divergence", "tasks.alignment.divergences", "blended_with_kl",
        "(1 - weight) * divergence(log_p, log_q)", "divergence(log_p, log_q)",
        _DIVERGENCES,
    ),
    Break(
        "decay-never-begins-anew", "tasks.alignment.position_weights", "decayed",
        "(labelled.cumsum(1) - 1) % window", "(labelled.cumsum(1) - 1).clamp_min(0)",
        _POSITION_WEIGHTS,
    ),
    Break(
        "decay-forgets-earlier-weights", "tasks.alignment.position_weights", "decayed",
        "labelled.float() if batch.weights is None else batch.weights", "labelled.float()",
        _POSITION_WEIGHTS,
    ),
    Break(
        "decay-counts-the-source", "tasks.alignment.position_weights", "decayed",
        "labelled.cumsum(1)", "torch.ones_like(batch.labels).cumsum(1)",
        _POSITION_WEIGHTS,
    ),
    Break(
        "a-position-weighs-its-own-acceptance", "tasks.alignment.position_weights", "reach",
        "table.cumprod(1)[windows, places]", "table.cumprod(1)[windows, places + 1]",
        _POSITION_WEIGHTS,
    ),
    Break(
        "reach-crosses-texts", "tasks.alignment.position_weights", "reach",
        "places = indices % window", "places = torch.arange(len(indices)) % window",
        _POSITION_WEIGHTS,
    ),
    Break(
        "reach-has-a-gradient", "tasks.alignment.position_weights", "reach",
        "acceptance.detach()", "acceptance",
        _POSITION_WEIGHTS,
    ),
    Break(
        "label-outside-is-accepted", "tasks.alignment.position_weights", "ReachedCrossEntropyLoss.sums",
        "(-losses).exp() * inside", "(-losses).exp()",
        _POSITION_WEIGHTS,
    ),
    Break(
        "held-out-labels-are-weighted", "tasks.alignment.position_weights", "ReachedCrossEntropyLoss.sums",
        "if batch.progress is not None:", "if True:",
        _POSITION_WEIGHTS,
    ),
    Break(
        "acceptance-given-the-draft-vocabulary", "tasks.alignment.distillation", "DivergenceLoss.sums",
        "log_p if shares is None else log_p + shares.log()[:, None]", "log_p",
        _POSITION_WEIGHTS,
    ),
    Break(
        "held-out-divergence-is-weighted", "tasks.alignment.distillation", "DivergenceLoss.sums",
        "if self._window and batch.progress is not None:", "if self._window:",
        _POSITION_WEIGHTS,
    ),
    Break(
        "decay-left-out-of-the-source", "tasks.alignment.spec", "alignment_spec",
        'settings.position_weights == "decay"', "False",
        (f"{_UNIT}/alignment/test_spec.py::test_position_weights_come_with_the_batch_or_from_the_loss",),
    ),
    Break(
        "label-weight-ignored", "tasks.alignment.spec", "_loss",
        ", settings.label_weight,", ",",
        (f"{_UNIT}/alignment/test_spec.py::test_the_loss_reads_its_weights_from_the_settings",),
    ),
    Break(
        "mixed-weights-swapped", "tasks.alignment.distillation", "DivergenceLoss.sums",
        "(1 - self._label_weight) * losses - self._label_weight * log_label",
        "self._label_weight * losses - (1 - self._label_weight) * log_label",
        ("tests/unit/alignment/test_distillation.py",),
    ),
    Break(
        "empty-outputs-kept", "tasks.alignment.calibrating.checks", "find_fault",
        "if not text.strip():", "if False:",
        (f"{_UNIT}/alignment/test_calibration.py::test_an_output_is_fit_or_has_a_fault",),
    ),
    Break(
        "replay-rounds-begin-early", "tasks.alignment.schedule", "Schedule.__init__",
        "settings.replay_rounds * settings.replay_steps", "settings.replay_rounds",
        (f"{_UNIT}/alignment/test_schedule.py",),
    ),
    Break(
        "rejection-weights-swapped", "tasks.alignment.rollout_generator", "rejection_weights",
        "== CORRECTED", "!= CORRECTED",
        (f"{_UNIT}/alignment/test_rollout_generator.py",),
    ),
    Break(
        "stored-probabilities-rounded-up", "tasks.alignment.stored", "_rounded_down",
        ".view(torch.int16) + 1)", ".view(torch.int16) - 1)",
        (f"{_UNIT}/alignment/test_stored.py",),
    ),
    Break(
        "held-out-acceptance-by-text", "tasks.alignment.acceptance", "HeldOutAcceptance.__call__",
        '"acceptance_rate": shared / positions', '"acceptance_rate": shared / len(self._held_out)',
        (f"{_UNIT}/alignment/test_acceptance.py",),
    ),
    Break(
        "calibration-draws-restart", "tasks.alignment.calibrating.labelling", "Labeller._decode",
        "[first + index for index in batch]", "[index for index in batch]",
        (f"{_UNIT}/alignment/test_calibration.py",),
    ),
    Break(
        "recorded-predictions-of-other-tokens", "tasks.alignment.calibrating.predicting", "TopLogitsPredictor.along",
        "one.top is not None and one.tokens == read", "one.top is not None",
        (f"{_UNIT}/alignment/test_calibration.py",),
    ),
    Break(
        "control-trains-on-outputs", "tasks.align", "_job",
        "paths.calibration_set if aligned else paths.control_set", "paths.calibration_set",
        ("tests/unit/test_align.py",),
    ),
    Break(
        "control-starts-elsewhere", "tasks.alignment.settings", "AlignSettings.control",
        "AlignSettings(**same, start=self.start,", "AlignSettings(**same,",
        ("tests/unit/test_align.py",),
    ),
    Break(
        "control-predicts-all-tokens", "tasks.alignment.settings", "AlignSettings.control",
        "draft_vocabulary=self.draft_vocabulary", "draft_vocabulary=0",
        ("tests/unit/test_align.py",),
    ),
    Break(
        "draft-vocabulary-of-references", "tasks.alignment.draft_vocabulary", "prune_drafter",
        "JsonlDataset(job.paths.calibration_set", "JsonlDataset(job.paths.control_set",
        (f"{_UNIT}/alignment/test_draft_vocabulary.py",),
    ),
    Break(
        "labels-outside-are-learnt", "tasks.training.losses", "without_labels_outside",
        "weights * inside", "weights",
        (f"{_UNIT}/alignment/test_distillation.py",),
    ),
    Break(
        "stored-outside-goes-to-the-rest", "tasks.alignment.distillation", "given_not_outside",
        "(1 - outside)", "(1 - 0 * outside)",
        (f"{_UNIT}/alignment/test_distillation.py",),
    ),
)  # fmt: skip
