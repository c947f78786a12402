"""The breaks, by the part of the project that they are in. A break that no longer applies is carried over, never weakened."""

from __future__ import annotations

from tests.mutants.breaks import (
    alignment,
    decoding,
    drafters,
    engines,
    evaluation,
    given_text,
    laws,
    learning,
    outputs,
    report,
    runtimes,
    scoring,
    services,
    serving,
    sweeping,
)

BREAKS = (
    *decoding.BREAKS,
    *drafters.BREAKS,
    *laws.BREAKS,
    *runtimes.BREAKS,
    *evaluation.BREAKS,
    *sweeping.BREAKS,
    *given_text.BREAKS,
    *scoring.BREAKS,
    *report.BREAKS,
    *learning.BREAKS,
    *alignment.BREAKS,
    *outputs.BREAKS,
    *services.BREAKS,
    *serving.BREAKS,
    *engines.BREAKS,
)
