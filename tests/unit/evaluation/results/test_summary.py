"""The summary and what a sweep records of its pair, on disk."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.evaluation.results.codec import VERSION, text_of
from tasks.evaluation.results.pair import PairRecord, read_pair
from tasks.evaluation.results.rows import TimedPoint, UntimedPoint
from tasks.evaluation.results.summary import read_summary, rounded, summary_json
from tasks.files import atomic_write, unsealed
from tests.unit.evaluation.conftest import Sweeps, pair_record, summary_record, untimed
from tests.unit.evaluation.report.test_recommendation import ABOUT

FIX = "write it again"


@pytest.fixture
def path(tmp_path: Path, sweeps: Sweeps) -> Path:
    """The summary of two small sweeps, one of whose points was not timed."""
    sweeps["aligned"][2] = untimed(sweeps["aligned"][2], 1.7)
    file = tmp_path / "summary.json"
    file.write_text(summary_json(summary_record("bleu", sweeps, {"aligned": ABOUT})), encoding="utf-8")
    return file


def test_a_summary_is_read_back_as_it_was_written(path: Path) -> None:
    summary = read_summary(path, "a result", FIX)
    assert summary_json(summary) == path.read_text(encoding="utf-8")
    assert json.loads(summary_json(summary))["version"] == VERSION
    kinds = [type(point) for point in summary.points if point.arm == "aligned"]
    assert kinds.count(UntimedPoint) == 1 and set(kinds) == {TimedPoint, UntimedPoint}


def test_numbers_are_rounded_once_and_remain_finite(path: Path) -> None:
    summary = read_summary(path, "a result", FIX)
    [point] = [point for point in summary.points if isinstance(point, UntimedPoint)]
    odd = dataclasses.replace(
        point, quality=59.123456789, qualities={"bleu": 59.1, "rougeL": math.nan}, settings={"a": math.inf}
    )
    found = rounded(dataclasses.replace(summary, points=[odd]))
    assert rounded(found) == found
    [first, *_] = found.points
    assert (first.quality, first.qualities["rougeL"], first.settings) == (59.1235, None, {"a": "inf"})


def test_choices_and_frontiers_lead_to_timed_points(path: Path) -> None:
    summary = read_summary(path, "a result", FIX)
    assert summary.recommended is not None and summary.recommended.speedup == 1.6
    assert [point.speedup for point in summary.front("unaligned", "bild")] == [2.0, 1.5, 1.2]
    assert summary.front("unaligned", "calm") == []
    assert {choice.choice for choice, point in summary.chosen_points() if point.method == "bild"} == {"no_loss", "one_point"}
    assert {point.method for point in summary.timed_points("aligned", "speculative")} == {"speculative"}
    assert [arm for arm, _ in summary.vanilla.small_models()] == ["unaligned", "aligned"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"version": VERSION + 1}, f"version {VERSION + 1}, but this code reads version {VERSION}"),
        ({"points": ...}, "field 'points' is missing"),
        ({"vanilla": {}}, "field 'vanilla.large' is missing"),
        ({"choices": [{"method": "bild"}]}, "field 'choices.0.arm' is missing"),
    ],
)
def test_a_damaged_summary_is_named_with_its_field_and_the_fix(path: Path, damage: dict[str, Any], said: str) -> None:
    values = {**json.loads(unsealed(path.read_text(encoding="utf-8"))), **damage}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_summary(path, "a result", FIX)
    assert str(refused.value).startswith(f"a result: {said}") and str(refused.value).endswith(f"; {FIX}")


def test_a_timed_point_without_its_speed_up_is_refused(path: Path) -> None:
    values = json.loads(unsealed(path.read_text(encoding="utf-8")))
    index = next(index for index, point in enumerate(values["points"]) if point["timed"])
    values["points"][index]["speedup"] = None
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(InputError, match=rf"field 'points\.{index}\.(.*\.)?speedup' is None"):
        read_summary(path, "a result", FIX)


def test_a_pair_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    pair = pair_record(ABOUT)
    file = atomic_write(tmp_path / "pair.json", text_of(pair))
    assert read_pair(file, FIX) == pair
    assert json.loads(file.read_text(encoding="utf-8"))["version"] == VERSION
    greedy, sampled = pair.acceptance_rate(), pair.acceptance_rate(sampled=True)
    assert greedy is not None and sampled is not None and (greedy.rate, sampled.rate) == (0.8, 0.6)
    assert (pair.cost_ratio, pair.origin("host_cpu"), pair.origin("host_gpu")) == (0.25, "a small CPU", "")


def test_nothing_is_known_of_a_pair_that_was_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        read_pair(tmp_path / "pair.json", FIX)
    nothing = PairRecord()
    assert (nothing.acceptance_rate(), nothing.cost_ratio, nothing.origin("host_cpu")) == (None, None, "")
