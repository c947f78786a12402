from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.bench.alignment.rows import RowFile, read_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "not" / "yet" / "rows.jsonl"


def test_rows_are_appended_and_found(path: Path) -> None:
    rows = RowFile(path, "now")
    assert rows.find(method="bild") is None
    first = rows.append({"method": "bild", "settings": {"fallback_threshold": 0.6}, "quality": 1.5})
    rows.append({"method": "bild", "settings": {"fallback_threshold": 0.7}, "quality": 2.5})
    assert first["fingerprint"] == "now"
    assert rows.find(method="bild", settings={"fallback_threshold": 0.6}) == first
    assert rows.find(method="bild", settings={"fallback_threshold": 0.8}) is None
    assert rows.find(split=None, method="speculative") is None
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    assert read_rows(path) == rows.rows


def test_each_row_is_in_the_file_as_soon_as_it_is_measured(path: Path) -> None:
    rows = RowFile(path, "now")
    for number in range(3):
        rows.append({"point": number})
        assert [row["point"] for row in read_rows(path)] == list(range(number + 1))


def test_a_killed_sweep_keeps_its_rows(path: Path) -> None:
    rows = RowFile(path, "now")
    kept = [rows.append({"point": number, "text": "größer"}) for number in range(3)]
    again = RowFile(path, "now")
    assert again.rows == kept
    again.append({"point": 3})
    assert [row["point"] for row in read_rows(path)] == [0, 1, 2, 3]


def test_an_incomplete_last_line_is_measured_again(path: Path) -> None:
    RowFile(path, "now").append({"point": 0})
    whole = path.read_bytes()
    RowFile(path, "now").append({"point": 1, "text": "Öl"})
    line = path.read_bytes()[len(whole) :]
    for length in range(len(line) - 1):
        path.write_bytes(whole + line[:length])
        rows = RowFile(path, "now")
        assert [row["point"] for row in rows.rows] == [0]
        rows.append({"point": 1})
        assert [json.loads(one)["point"] for one in path.read_text(encoding="utf-8").splitlines()] == [0, 1]


def test_rows_of_other_settings_data_or_code_are_dropped(path: Path) -> None:
    RowFile(path, "before").append({"point": 0})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"point": 1}\n')
    rows = RowFile(path, "now")
    assert rows.rows == []
    assert path.read_text(encoding="utf-8") == ""
    rows.append({"point": 0})
    assert [row["fingerprint"] for row in read_rows(path)] == ["now"]


def test_a_point_that_failed_is_tried_again(path: Path) -> None:
    rows = RowFile(path, "now")
    rows.append({"point": 0, "error": "OutOfMemoryError: at a bad time"})
    rows.append({"point": 1})
    assert rows.find(point=0) is not None
    assert [row["point"] for row in RowFile(path, "now").rows] == [1]


def test_a_missing_file_has_no_rows(path: Path) -> None:
    assert read_rows(path) == []
