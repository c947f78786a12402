"""Rows on disk: appended, resumed, read back as the same records, refused where they are damaged."""

import dataclasses
import json
from pathlib import Path

import pytest

from tasks.decoding.method import SamplingSettings
from tasks.errors import InputError
from tasks.evaluation.results import rows as records
from tasks.evaluation.results.codec import VERSION, joined
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import FailedRow, MeasuredRow, SweepRow, TimedRow, read_rows
from tasks.files import unsealed

FIX = "measure it again"
FAILED = FailedRow(
    task="toy",
    arm="aligned",
    split="validation",
    method="bild",
    settings={"fallback_threshold": 0.6, "rollback_threshold": "inf", "max_draft": 10},
    lossless=False,
    metric="bleu",
    examples=4,
    sampling=SamplingSettings(),
    error="RuntimeError: out of memory",
)
MEASURED = joined(
    MeasuredRow,
    FAILED,
    how="replayed",
    quality={"bleu": 40.0, "rougeL": 60.0},
    quality_interval=(38.0, 42.0),
    signature="größer",
    counts=records.DecodingCounts(
        tokens=100, small_steps=90, large_calls=40, verified={1: 20, 3: 20}, kept={"3/2": 20}, layers=0
    ),
    predicted=records.Prediction(latency_ms=21.0, speedup=1.5),
)
TIMED = joined(
    TimedRow,
    MEASURED,
    latency_ms=[10.0, 30.0],
    vanilla_latency_ms=[20.0, 40.0],
    speedup=1.5,
    shown=[records.ShownExample(source="a", references=["b", "or b"], vanilla="c", pieces=[("d ", "s"), ("e", "l")])],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "not" / "yet" / "rows.jsonl"


def numbered(number: int, row: MeasuredRow = MEASURED) -> MeasuredRow:
    return dataclasses.replace(row, settings={"max_draft": number})


def numbers(rows: list[SweepRow]) -> list[object]:
    return [row.settings["max_draft"] for row in rows]


@pytest.mark.parametrize("row", [FAILED, MEASURED, TIMED], ids=lambda row: type(row).__name__)
def test_a_row_is_read_back_as_it_was_appended(path: Path, row: FailedRow | MeasuredRow) -> None:
    written = SweepRowFile(path, "now").append(row)
    assert written == dataclasses.replace(row, fingerprint="now")
    assert read_rows(path, FIX) == [written]
    [line] = path.read_text(encoding="utf-8").splitlines()
    values = json.loads(line)
    assert values["version"] == VERSION and values["settings"]["rollback_threshold"] == "inf"
    assert ("error" in values, "speedup" in values) == (row is FAILED, row is TIMED)
    assert None not in values.values()


def test_a_point_is_found_by_split_method_and_settings(path: Path) -> None:
    rows = SweepRowFile(path, "now")
    assert rows.find("validation", "bild", {"max_draft": 1}) is None
    rows.append(numbered(1))
    again = rows.append(dataclasses.replace(numbered(1), why="sample"))
    assert rows.find("validation", "bild", {"max_draft": 1}) == again
    for wanted in (("test", "bild", 1), ("validation", "speculative", 1), ("validation", "bild", 2)):
        assert rows.find(wanted[0], wanted[1], {"max_draft": wanted[2]}) is None


def test_a_killed_sweep_keeps_its_rows(path: Path) -> None:
    rows = SweepRowFile(path, "now")
    for number in range(3):
        rows.append(numbered(number))
        assert numbers(read_rows(path, FIX)) == list(range(number + 1))
    again = SweepRowFile(path, "now")
    assert again.rows == rows.rows
    again.append(numbered(3))
    assert numbers(read_rows(path, FIX)) == [0, 1, 2, 3]


def test_an_unfinished_last_line_is_measured_again(path: Path) -> None:
    SweepRowFile(path, "now").append(numbered(0))
    whole = path.read_bytes()
    SweepRowFile(path, "now").append(numbered(1))
    line = path.read_bytes()[len(whole) :]
    assert "ö".encode() in line
    for length in (*range(0, len(line) - 2, 40), line.index("ö".encode()) + 1, len(line) - 2):
        path.write_bytes(whole + line[:length])
        assert numbers(read_rows(path, FIX)) == [0]
        rows = SweepRowFile(path, "now")
        assert numbers(rows.rows) == [0]
        rows.append(numbered(1))
        assert numbers(read_rows(path, FIX)) == [0, 1]


def test_rows_of_other_work_or_of_another_version_and_failed_points_are_measured_again(path: Path) -> None:
    for fingerprint, row in (("before", numbered(0)), ("now", FAILED), ("now", numbered(1))):
        SweepRowFile(path.with_name(fingerprint), fingerprint).append(row)
    lines = [path.with_name(name).read_text(encoding="utf-8") for name in ("before", "now")]
    newer = json.dumps({**json.loads(unsealed(lines[1].splitlines()[-1])), "version": VERSION + 1}) + "\n"
    path.write_text("".join([*lines, newer, "{}\n", "not JSON\n"]), encoding="utf-8")
    assert numbers(SweepRowFile(path, "now").rows) == [1]
    assert numbers(read_rows(path, FIX)) == [1]


def test_times_that_are_dropped_are_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = SweepRowFile(path, "before")
    for number in range(3):
        rows.append(numbered(number, TIMED if number else MEASURED))
    with caplog.at_level("INFO"):
        assert SweepRowFile(path, "before").rows and not caplog.messages
        assert not SweepRowFile(path, "now").rows
    assert caplog.messages == [f"{path}: dropped 2 timed rows of other settings, data, code or hardware"]


def test_a_changed_digit_is_named_and_its_row_measured_again(path: Path) -> None:
    rows = SweepRowFile(path, "now")
    for number in (17, 18):
        rows.append(numbered(number))
    path.write_text(path.read_text(encoding="utf-8").replace('"max_draft": 17', '"max_draft": 71'), encoding="utf-8")
    with pytest.raises(InputError, match=f"line 1: it is not as it was written; {FIX}"):
        read_rows(path, FIX)
    assert numbers(SweepRowFile(path, "now").rows) == [18]


def test_rows_without_a_version_have_the_fields_of_version_1(path: Path) -> None:
    written = SweepRowFile(path, "now").append(TIMED)
    values = json.loads(unsealed(path.read_text(encoding="utf-8").strip()))
    del values["version"]
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")
    assert read_rows(path, FIX) == [written]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"version": VERSION + 1}, f"version {VERSION + 1}, but this code reads version {VERSION}"),
        ({"split": None}, "field 'split' is None"),
        ({"counts": {"tokens": "many"}}, "field 'counts.tokens' is 'many'"),
        ({"latency_ms": [1.0, "two"]}, "field 'latency_ms.1' is 'two'"),
        ({"speedup": ...}, "field 'speedup' is missing"),
        ({"latency_ms": ...}, "field 'latency_ms' is missing"),
        ({"settings": ...}, "field 'settings' is missing"),
    ],
)
def test_damage_is_named_with_its_line_its_field_and_the_fix(path: Path, damage: dict[str, object], said: str) -> None:
    rows = SweepRowFile(path, "now")
    rows.append(MEASURED)
    rows.append(TIMED)
    first, second = path.read_text(encoding="utf-8").splitlines()
    values = {**json.loads(unsealed(second)), **damage}
    damaged = json.dumps({name: value for name, value in values.items() if value is not ...})
    path.write_text(f"{first}\n{damaged}\n{first}\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_rows(path, FIX)
    message = str(refused.value)
    assert message.startswith(f"{path}, line 2: {said}") and message.endswith(f"; {FIX}")
