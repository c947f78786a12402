"""The breaks, by the part of the project that they are in. A break that no longer applies is carried over, never weakened."""

from __future__ import annotations

from tests.mutants.breaks import alignment, decoding, engines, evaluation, laws, learning, outputs, runtimes, services

BREAKS = (
    *decoding.BREAKS,
    *laws.BREAKS,
    *runtimes.BREAKS,
    *evaluation.BREAKS,
    *learning.BREAKS,
    *alignment.BREAKS,
    *outputs.BREAKS,
    *services.BREAKS,
    *engines.BREAKS,
)
