"""What verification corrected weighs more."""

from __future__ import annotations

from tasks.alignment.replaying import rejection_weights
from tasks.decoding.generation import Counts, Generation


def test_corrected_tokens_weigh_one_and_others_what_is_kept() -> None:
    generation = Generation([4, 5, 6, 7, 1], "sscls", Counts())
    assert rejection_weights(generation, 0.1) == [0.1, 0.1, 1.0, 0.1, 0.1]
    assert rejection_weights(generation, 0.0) == [0.0, 0.0, 1.0, 0.0, 0.0]
