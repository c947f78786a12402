"""Outputs beside the rows: read as they were written, taken over by the same work alone, never half a file."""

from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from tasks.errors import InputError
from tasks.evaluation.results.files import WORK, HypothesisFile, KeptOutputs, point_key, read_hypotheses

FIRST, SECOND = point_key("bild", {"max_draft": 3, "rollback_threshold": "inf"}), point_key("vanilla_large", {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hypotheses-test.parquet"


def kept(*texts: str) -> KeptOutputs:
    """Texts, each with the counts 1, 2, 3 times its place."""
    return KeptOutputs(list(texts), np.outer(np.arange(len(texts), dtype=np.int32), np.array([1, 2, 3], dtype=np.int32)))


def texts_of(path: Path) -> dict[tuple[str, str], list[str]]:
    return {key: list(one.texts) for key, one in read_hypotheses(path).items()}


def test_texts_are_read_as_they_were_written(path: Path) -> None:
    file = HypothesisFile(path, "work")
    assert FIRST not in file
    file.add({FIRST: kept("a b", "", 'ü\n"c"'), SECOND: kept("a b", "d", "d")})
    assert FIRST in file
    assert texts_of(path) == {FIRST: ["a b", "", 'ü\n"c"'], SECOND: ["a b", "d", "d"]}
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    table = parquet.read_table(path)
    assert table.column_names == ["method", "settings", "example", "text", *WORK]
    lines = table.to_pylist()
    assert [line["text"] for line in lines if line["example"] == 2] == ['ü\n"c"', "d"]
    assert read_hypotheses(path)[SECOND].work.tolist() == [[0, 0, 0], [1, 2, 3], [2, 4, 6]]


def test_the_next_process_of_the_same_work_adds_to_it(path: Path) -> None:
    HypothesisFile(path, "work").add({FIRST: kept("a", "b")})
    again = HypothesisFile(path, "work")
    assert FIRST in again
    again.add({SECOND: kept("b", "c")})
    assert texts_of(path) == {FIRST: ["a", "b"], SECOND: ["b", "c"]}
    again.add({FIRST: kept("x", "y")})
    assert texts_of(path)[FIRST] == ["x", "y"]


def test_outputs_of_other_work_and_damaged_files_are_dropped(path: Path) -> None:
    HypothesisFile(path, "work").add({FIRST: kept("a")})
    assert FIRST not in HypothesisFile(path, "other work")
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        # Each byte counts, those of the fingerprint and of the checksum too; so does one of seven.
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError):
            read_hypotheses(path)
    for damaged in (b"", whole[:-20], whole + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"hypotheses-test.parquet is damaged or of another revision; remove it and sweep"):
            read_hypotheses(path)
    file = HypothesisFile(path, "work")
    assert FIRST not in file
    file.add({SECOND: kept("b")})
    assert texts_of(path) == {SECOND: ["b"]}


def test_shared_texts_take_little_room(path: Path) -> None:
    texts = [f"the text of example number {number}" for number in range(500)]
    points = {point_key("bild", {"max_draft": number}): kept(*texts) for number in range(100)}
    HypothesisFile(path, "work").add(points)
    assert path.stat().st_size < 3 * sum(map(len, texts))
