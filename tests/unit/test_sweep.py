"""What the sweep reads for drafters that are tables, and what it refuses before it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.settings import (
    BeamSettings,
    BildSettings,
    CalmSettings,
    SamplingSettings,
    SpeculativeSettings,
    TokenCascadeSettings,
)
from tasks.decoding.strategies import Request
from tasks.errors import InputError
from tasks.evaluation.measuring import VANILLA, Point
from tasks.sweep import calibration_targets, require_composable
from tests.toys import prefix_pair, says

NO_TABLES = [VANILLA, Point("token_cascade", TokenCascadeSettings()), Point("bild", BildSettings(drafter="copy"))]


class Letters:
    """A tokenizer: each letter's code, then 1."""

    eos_token_id = 1

    def __call__(self, texts: list[str], *, max_length: int, truncation: bool) -> dict[str, Any]:
        return {"input_ids": [[*map(ord, text[: max_length - 1]), 1] for text in texts]}


@pytest.mark.parametrize("drafter", ["unigram", "bigram"])
def test_the_calibration_set_is_read_where_a_point_drafts_from_tables(tmp_path: Path, drafter: str) -> None:
    file = tmp_path / "calibration.jsonl"
    write_jsonl([Example("a source", ("ab",)), Example("another", ("cdefgh", "not the first"))], file)
    grid = [*NO_TABLES, Point("speculative", SpeculativeSettings(drafter=drafter))]
    assert calibration_targets(grid, file, Letters(), 5) == [[97, 98, 1], [99, 100, 101, 102, 1]]
    assert calibration_targets(NO_TABLES, file, Letters(), 5) == []


def test_a_missing_or_empty_calibration_set_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    file, grid = tmp_path / "calibration.jsonl", [Point("bild", BildSettings(drafter="bigram"))]
    assert calibration_targets(NO_TABLES, file, Letters(), 5) == []
    with pytest.raises(InputError, match=r"calibration\.jsonl is missing; run the stage that makes it"):
        calibration_targets(grid, file, Letters(), 5)
    file.touch()
    with pytest.raises(InputError, match=r"calibration\.jsonl is empty; run the stage calibrate again"):
        calibration_targets(grid, file, Letters(), 5)


@pytest.mark.parametrize(
    ("point", "sampling", "message"),
    [
        (Point("calm", CalmSettings()), SamplingSettings(), "sweep.grid asks for calm: .* needs the layers"),
        (
            Point("speculative", SpeculativeSettings(drafter="heads")),
            SamplingSettings(),
            "speculative: .* train it with draft_heads",
        ),
        (
            Point("beam_large", BeamSettings()),
            SamplingSettings(temperature=1.0),
            "sweep.grid asks for beam_large: .*temperature",
        ),
    ],
)
def test_what_the_pair_cannot_run_is_refused_before_anything_is_measured(
    point: Point, sampling: SamplingSettings, message: str
) -> None:
    pair, request = prefix_pair(says([2]), says([3])), Request(5, sampling)
    require_composable(NO_TABLES, pair, request)
    with pytest.raises(InputError, match=message):
        require_composable([*NO_TABLES, point], pair, request)
