from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tasks.corpora.example import SPLITS, UNLABELLED, Example
from tasks.corpora.reading import read
from tasks.corpora.settings import FileSettings
from tasks.errors import InputError

PARALLEL_FILES: dict[str, Any] = {split: [f"{split}.de", f"{split}.en"] for split in SPLITS}
JSONL_FILES = {split: [f"{split}.jsonl"] for split in SPLITS}


@pytest.fixture
def parallel(tmp_path: Path) -> Path:
    for split in SPLITS:
        (tmp_path / f"{split}.de").write_bytes(f"Ein Hund läuft ({split}).\nZwei Katzen.\nEin Haus.\n".encode())
        (tmp_path / f"{split}.en").write_bytes(f"A dog runs ({split}).\nTwo cats.\nA house.\n".encode())
    return tmp_path


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    for split in SPLITS:
        write_records(tmp_path / f"{split}.jsonl", {"dialogue": "a\nb", "summary": "c"}, {"dialogue": "d", "summary": "e"})
    return tmp_path


def write_records(path: Path, *records: Any) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


Given = tuple[FileSettings, Path]


def of_pairs(folder: Path, **changes: Any) -> Given:
    return FileSettings(**{"files": PARALLEL_FILES, **changes}), folder


def of_records(folder: Path, **changes: Any) -> Given:
    fields = {"source_field": "dialogue", "reference_fields": ["summary", "summary1", "summary2"]}
    return FileSettings(**{"format": "jsonl", "files": JSONL_FILES, **fields, **changes}), folder


def refusal(given: Given) -> str:
    with pytest.raises(InputError) as caught:
        read(*given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_parallel_pairs_line_by_line(parallel: Path) -> None:
    corpus = read(*of_pairs(parallel))
    assert list(corpus) == list(SPLITS)
    assert corpus["test"] == [
        Example("Ein Hund läuft (test).", ("A dog runs (test).",)),
        Example("Zwei Katzen.", ("Two cats.",)),
        Example("Ein Haus.", ("A house.",)),
    ]


def test_parallel_takes_more_reference_files_and_merges_equal_references(parallel: Path) -> None:
    (parallel / "second.en").write_text("A dog is running.\nTwo cats.\nOne house.\n", encoding="utf-8")
    corpus = read(*of_pairs(parallel, files={**PARALLEL_FILES, "test": ["test.de", "test.en", "second.en"]}))
    expected = [("A dog runs (test).", "A dog is running."), ("Two cats.",), ("A house.", "One house.")]
    assert [example.references for example in corpus["test"]] == expected


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(parallel: Path, separator: str) -> None:
    (parallel / "train.de").write_bytes(f"Eins{separator}mehr.\nZwei.\nDrei.".encode())
    assert [example.source for example in read(*of_pairs(parallel))["train"]] == [
        f"Eins{separator}mehr.",
        "Zwei.",
        "Drei.",
    ]


def test_carriage_returns_and_a_byte_order_mark_are_dropped(parallel: Path) -> None:
    (parallel / "train.de").write_bytes(b"\xef\xbb\xbfEins.\r\nZwei.\r\nDrei.\r\n")
    assert [example.source for example in read(*of_pairs(parallel))["train"]] == ["Eins.", "Zwei.", "Drei."]


def test_jsonl_tolerates_carriage_returns_and_a_byte_order_mark(jsonl: Path) -> None:
    (jsonl / "train.jsonl").write_bytes(b'\xef\xbb\xbf{"dialogue": "a", "summary": "b"}\r\n')
    assert read(*of_records(jsonl))["train"] == [Example("a", ("b",))]


def test_limit_takes_the_first_examples_and_zero_takes_all(parallel: Path) -> None:
    corpus = read(*of_pairs(parallel, limit={"train": 1, "test": 0}))
    assert {split: len(examples) for split, examples in corpus.items()} == {"train": 1, "validation": 3, "test": 3}
    assert corpus["train"][0].source == "Ein Hund läuft (train)."


def test_jsonl_gathers_the_reference_fields_that_a_line_has(jsonl: Path) -> None:
    several = {"dialogue": "x", "summary1": "one", "summary2": ["two", "one", " three "], "other": 5}
    write_records(jsonl / "test.jsonl", several)
    corpus = read(*of_records(jsonl))
    assert corpus["test"] == [Example("x", ("one", "two", "three"))]
    assert corpus["train"] == [Example("a\nb", ("c",)), Example("d", ("e",))]


def test_unlabelled_files_hold_sources_alone_one_file_after_the_other(parallel: Path) -> None:
    (parallel / "more.de").write_text("Eins.\nZwei.\nDrei.\n", encoding="utf-8")
    (parallel / "most.de").write_text("Vier.\n", encoding="utf-8")
    files = {UNLABELLED: ["more.de", "most.de"], **PARALLEL_FILES}
    corpus = read(*of_pairs(parallel, files=files, limit={UNLABELLED: 2}))
    assert list(corpus) == [*SPLITS, UNLABELLED]
    assert corpus[UNLABELLED] == [Example("Eins.", ()), Example("Zwei.", ()), Example("Vier.", ())]


def test_of_unlabelled_jsonl_only_the_source_is_read(jsonl: Path) -> None:
    write_records(jsonl / "more.jsonl", {"dialogue": "a"}, {"dialogue": "b", "summary": 5})
    files = {**JSONL_FILES, UNLABELLED: ["more.jsonl"]}
    assert read(*of_records(jsonl, files=files))[UNLABELLED] == [Example("a", ()), Example("b", ())]
    write_records(jsonl / "more.jsonl", {"dialogue": "a"}, {"summary": "b"})
    assert "more.jsonl, line 2: no field dialogue; set source_field to one of summary" in refusal(
        of_records(jsonl, files=files)
    )


def test_an_unlabelled_line_or_file_that_is_empty_is_named(parallel: Path) -> None:
    (parallel / "more.de").write_text("Eins.\n\n", encoding="utf-8")
    files = {**PARALLEL_FILES, UNLABELLED: ["more.de"]}
    assert "more.de, line 2: the line is empty" in refusal(of_pairs(parallel, files=files))
    (parallel / "more.de").write_bytes(b"")
    assert "more.de is empty" in refusal(of_pairs(parallel, files=files))


def test_a_relative_path_starts_at_the_current_directory(parallel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(parallel.parent)
    assert len(read(*of_pairs(Path(parallel.name)))["train"]) == 3


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    message = refusal(of_pairs(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in message and "does not exist" in message


def test_a_path_that_is_a_file_is_refused(parallel: Path) -> None:
    assert "is a file; name the folder" in refusal(of_pairs(parallel / "train.de"))


def test_a_missing_file_is_named(parallel: Path) -> None:
    (parallel / "validation.en").unlink()
    message = refusal(of_pairs(parallel))
    assert str(parallel / "validation.en") in message and "does not exist" in message


def test_a_folder_instead_of_a_file_is_refused(parallel: Path) -> None:
    (parallel / "train.en").unlink()
    (parallel / "train.en").mkdir()
    assert "train.en cannot be read" in refusal(of_pairs(parallel))


def test_unequal_files_give_both_counts(parallel: Path) -> None:
    (parallel / "train.en").write_text("One.\nTwo.\n", encoding="utf-8")
    message = refusal(of_pairs(parallel))
    assert "train.de has 3 lines" in message and "train.en has 2" in message


def test_unequal_files_are_refused_even_within_the_limit(parallel: Path) -> None:
    (parallel / "train.en").write_text("One.\nTwo.\n", encoding="utf-8")
    assert "train.de has 3 lines" in refusal(of_pairs(parallel, limit={"train": 1}))


@pytest.mark.parametrize("empty", ["", "   ", "\t\r"])
def test_an_empty_line_in_one_file_is_named(parallel: Path, empty: str) -> None:
    (parallel / "test.en").write_bytes(f"One.\n{empty}\nThree.\n".encode())
    message = refusal(of_pairs(parallel))
    assert "test.en, line 2" in message and "empty" in message


def test_bytes_that_are_not_utf8_are_named_by_line(parallel: Path) -> None:
    (parallel / "train.de").write_bytes(b"Eins.\nZwei.\nDrei gr" + "ü".encode("latin-1") + b"n.\n")
    message = refusal(of_pairs(parallel))
    assert "train.de, line 3" in message and "UTF-8" in message and "byte 8" in message


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_split_is_refused(parallel: Path, content: bytes) -> None:
    for name in PARALLEL_FILES["validation"]:
        (parallel / name).write_bytes(content)
    assert "validation.de is empty; a split needs at least one example" in refusal(of_pairs(parallel))


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"dialogue": "a", "summary": ', "not valid JSON (Expecting value, column 29)"),
        ("[" * 100_000, "not valid JSON (nested too deeply)"),
        ('["a", "b"]', "contains list; each line must be one JSON object"),
        ('{"text": "a", "summary": "b"}', "no field dialogue; set source_field to one of text, summary"),
        ('{"dialogue": "a", "title": "b"}', "no field summary, summary1, summary2; set reference_fields"),
        ('{"dialogue": 7, "summary": "b"}', "dialogue contains int; it must be a string"),
        ('{"dialogue": ["a"], "summary": "b"}', "dialogue contains list; it must be a string"),
        ('{"dialogue": "a", "summary": null}', "summary contains NoneType; it must"),
        ('{"dialogue": "a", "summary": ["b", 3]}', "summary contains int; it must"),
        ('{"dialogue": "a", "summary": []}', "summary is an empty list"),
        ('{"dialogue": " ", "summary": "b"}', "dialogue is empty"),
        ('{"dialogue": "a", "summary": ["b", ""]}', "summary is empty"),
        ('{"dialogue": "\\ud800", "summary": "b"}', "dialogue contains half of a surrogate pair"),
        ("", "the line is empty"),
    ],
)
def test_a_broken_json_line_is_named(jsonl: Path, line: str, wrong: str) -> None:
    good = '{"dialogue": "a", "summary": "b"}'
    (jsonl / "train.jsonl").write_text(f"{good}\n{line}\n{good}\n", encoding="utf-8")
    message = refusal(of_records(jsonl))
    assert "train.jsonl, line 2" in message and wrong in message


def test_lines_past_the_limit_are_not_parsed(jsonl: Path) -> None:
    (jsonl / "train.jsonl").write_text('{"dialogue": "a", "summary": "b"}\nbroken\n', encoding="utf-8")
    assert len(read(*of_records(jsonl, limit={"train": 1}))["train"]) == 1


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"format": "xml"}, "format is 'xml'"),
        ({"files": {"validation": ["a", "b"]}}, "it must have train, and may have validation, test and unlabelled"),
        ({"files": {**PARALLEL_FILES, "dev": ["a", "b"]}}, "it must have train, and may have validation"),
        ({"files": {**PARALLEL_FILES, "test": ["a"]}}, "files.test names 1 file"),
        ({"files": {**PARALLEL_FILES, "test": "test.de"}}, "files.test names 1 file"),
        ({"files": {"train": ["a.csv", "b.jsonl"]}}, "endings of several formats (csv, jsonl)"),
        ({"files": {**PARALLEL_FILES, "train": {"a": ["a", "b"]}}}, "files.train is a mapping; only test may be one"),
        ({"files": {**PARALLEL_FILES, "test": {}}}, "files.test names no test set"),
        ({"files": {**PARALLEL_FILES, "test": {"../a": ["a", "b"]}}}, "test set '../a'; a name has letters"),
        ({"template": "translate: {source"}, "template is 'translate: {source': expected '}'"),
        ({"template": "translate: "}, "the same text for every example; it must name {source} or columns"),
        ({"template": "translate: {}"}, "braces hold the name of a column alone"),
        ({"template": "{source!r}"}, "braces hold the name of a column alone"),
        ({"template": "{topic}: {source}"}, "template names topic, but parallel text has no columns"),
        ({"held_out": 0}, "held_out is 0"),
        ({"files": JSONL_FILES, "format": "jsonl", "reference_fields": []}, "reference_fields is empty"),
        ({"limit": {"train": -1}}, "limit.train is -1"),
        ({"limit": {"dev": 1}}, "limit.dev is 1"),
        ({"limit": {UNLABELLED: 1}}, "limit.unlabelled is 1"),
        ({"files": {**PARALLEL_FILES, UNLABELLED: []}}, "files.unlabelled names no file"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        of_pairs(tmp_path, **changes)
    assert wrong in str(caught.value)


def test_settings_stand_in_a_schema() -> None:
    schema = TypeAdapter(FileSettings)
    years = schema.validate_python({"files": {"train": "a.csv", "test": {2016: "b.csv", "2017": ["c.csv"]}}})
    assert years.test_sets == ["2016", "2017"]
    assert years.names() == {"train": ["a.csv"], "test": ["b.csv"], "test.2017": ["c.csv"]}
    given = {"files": PARALLEL_FILES, "limit": {"train": 5}}
    assert schema.validate_python(given) == FileSettings(files=PARALLEL_FILES, limit={"train": 5})
    with pytest.raises(ValidationError, match="limits"):
        schema.validate_python({**given, "limits": {"train": 5}})
