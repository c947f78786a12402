"""Which draft length another engine takes, and which record of the folder it is compared with."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.decoding.pair_folder import PairManifest, certified, engine_draft_length
from tasks.decoding.registry import configure_method
from tasks.models.settings import TextSettings


def manifest(method: str, settings: dict[str, object], *records: dict[str, Any]) -> PairManifest:
    return PairManifest(configure_method(method, settings), TextSettings(), measured={"accepted": list(records)})


def record(length: int, method: str = "speculative", drafter: str = "small") -> dict[str, Any]:
    return {"method": method, "settings": {"draft_length": length, "drafter": drafter}}


@pytest.mark.parametrize(
    ("found", "length"),
    [
        (manifest("speculative", {"draft_length": 3}, record(5)), 3),
        (manifest("speculative_margin", {"draft_length": 4, "margin": 0.1}, record(5)), 4),
        (manifest("speculative", {"draft_length": 3, "drafter": "copy"}, record(7), record(2)), 7),
        (manifest("bild", {}, record(2), record(4), record(9)), 4),
        (manifest("bild", {}, record(4, method="speculative_block"), record(6, drafter="copy"), record(8)), 8),
        (manifest("bild", {}), 5),
        (manifest("vanilla_large", {}, record(4), record(6)), 4),
    ],
)
def test_the_draft_length_is_the_points_or_a_certified_one(found: PairManifest, length: int) -> None:
    assert engine_draft_length(found) == length


def test_a_certificate_is_of_greedy_speculative_decoding_with_the_small_model() -> None:
    wanted = record(3)
    found = manifest("bild", {}, record(3, method="speculative_block"), record(3, drafter="copy"), record(2), wanted)
    assert certified(found, 3) is wanted
    assert certified(found, 4) is None
    assert certified(PairManifest(found.point, found.text), 3) is None
