"""Examples as JSON lines: what is written is what is read, all at once or one at a time."""

from pathlib import Path

import pytest

from tasks.corpora.example import Example, read_jsonl, stream_jsonl, write_jsonl
from tasks.errors import InputError
from tasks.files import atomic_folder

EXAMPLES = [Example("ein\rHaus\u2028hier", ("a house\nhere", "a\x85home")), Example("leer", ()), Example("größer", ("bigger",))]


def test_any_text_comes_back(tmp_path: Path) -> None:
    write_jsonl(EXAMPLES, tmp_path / "train.jsonl")
    assert read_jsonl(tmp_path / "train.jsonl") == EXAMPLES
    stream = stream_jsonl(tmp_path / "train.jsonl")
    assert next(stream) == EXAMPLES[0]
    assert list(stream) == EXAMPLES[1:]


@pytest.mark.parametrize("broken", ['{"source": "a"', '{"source": "a"}', "[]", '{"source": "a", "references": 3}'])
def test_a_broken_line_is_named_and_only_when_it_is_reached(tmp_path: Path, broken: str) -> None:
    write_jsonl(EXAMPLES, tmp_path / "train.jsonl")
    with (tmp_path / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write(broken)
    stream = stream_jsonl(tmp_path / "train.jsonl")
    assert [next(stream) for _ in EXAMPLES] == EXAMPLES
    with pytest.raises(InputError, match=r"train\.jsonl, line 4: not an example; run the stage that makes the file again"):
        next(stream)


def test_a_changed_file_of_a_finished_folder_is_named(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "corpus") as folder:
        write_jsonl(EXAMPLES, folder / "train.jsonl")
        write_jsonl(EXAMPLES, folder / "test.jsonl")
    file = tmp_path / "corpus/train.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("bigger", "digger"), encoding="utf-8")
    with pytest.raises(InputError, match=r"corpus: train\.jsonl is not as it was written; run the stage that makes it again"):
        read_jsonl(file)
    assert read_jsonl(tmp_path / "corpus/test.jsonl") == EXAMPLES


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.jsonl is missing; run the stage that makes it"):
        read_jsonl(tmp_path / "train.jsonl")
