"""The user's files: formats, compression, globs, templates, test sets, held-out splits, and one line for what is wrong."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import TypeAdapter, ValidationError

from tasks.corpora import files
from tasks.corpora.example import SPLITS, UNLABELLED, Example
from tasks.corpora.reading import hold_out, read
from tasks.corpora.settings import CorpusSettings, EmbeddedSettings, FileSettings
from tasks.errors import InputError
from tasks.prepare import load_corpus

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
    assert [example.source for example in read(*of_pairs(parallel))["train"]] == [f"Eins{separator}mehr.", "Zwei.", "Drei."]


def test_carriage_returns_and_a_byte_order_mark_are_dropped(parallel: Path, jsonl: Path) -> None:
    (jsonl / "train.jsonl").write_bytes(b'\xef\xbb\xbf{"dialogue": "a", "summary": "b"}\r\n')
    assert read(*of_records(jsonl))["train"] == [Example("a", ("b",))]
    (parallel / "train.de").write_bytes(b"\xef\xbb\xbfEins.\r\nZwei.\r\nDrei.\r\n")
    assert [example.source for example in read(*of_pairs(parallel))["train"]] == ["Eins.", "Zwei.", "Drei."]


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
    given = of_records(jsonl, files={**JSONL_FILES, UNLABELLED: ["more.jsonl"]})
    assert read(*given)[UNLABELLED] == [Example("a", ()), Example("b", ())]
    write_records(jsonl / "more.jsonl", {"dialogue": "a"}, {"summary": "b"})
    assert "more.jsonl, line 2: no field dialogue; set source_field to one of summary" in refusal(given)


def test_files_and_folders_that_are_not_there_are_named(parallel: Path) -> None:
    assert f"{parallel / 'nowhere'} does not exist" in refusal(of_pairs(parallel / "nowhere"))
    assert "is a file; name the folder" in refusal(of_pairs(parallel / "train.de"))
    (parallel / "validation.en").unlink()
    assert f"{parallel / 'validation.en'} does not exist" in refusal(of_pairs(parallel))
    (parallel / "validation.en").mkdir()
    assert "validation.en cannot be read" in refusal(of_pairs(parallel))


def test_unequal_files_give_both_counts_even_within_the_limit(parallel: Path) -> None:
    (parallel / "train.en").write_text("One.\nTwo.\n", encoding="utf-8")
    for limit in ({}, {"train": 1}):
        message = refusal(of_pairs(parallel, limit=limit))
        assert "train.de has 3 lines" in message and "train.en has 2" in message


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
        ('{"dialogue": "a", "summary": null}', "summary contains NoneType; it must"),
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
        ({"files": {**PARALLEL_FILES, "test": ["a"]}}, "files.test names a alone; parallel text needs a file of sources"),
        ({"files": {"train": ["a.csv", "b.jsonl"]}}, "endings of several formats (csv, jsonl)"),
        ({"files": {**PARALLEL_FILES, "train": {"a": ["a", "b"]}}}, "files.train is a mapping; only test may be one"),
        ({"files": {**PARALLEL_FILES, "test": {}}}, "files.test names no test set"),
        ({"files": {**PARALLEL_FILES, "test": {"../a": ["a", "b"]}}}, "test set '../a'; a name has letters"),
        ({"template": "translate: {source"}, "template is 'translate: {source': expected '}'"),
        ({"template": "translate: "}, "the same text for every example; it must name {source} or columns"),
        ({"template": "translate: {}"}, "braces hold the name of a column alone"),
        ({"template": "{topic}: {source}"}, "template names topic, but parallel text has no columns"),
        ({"held_out": 0}, "held_out is 0"),
        ({"files": JSONL_FILES, "format": "jsonl", "reference_fields": []}, "reference_fields is empty"),
        ({"limit": {"train": -1}}, "limit.train is -1"),
        ({"limit": {"dev": 1}}, "limit.dev is 1"),
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


PAIRS = [('Ein "Hund", laut', "A dog"), ("Zwei\nKatzen", "Two cats; or so"), ("Ein Haus\u2028hier", "A house")]
"""Texts with quotes, separators and line ends inside of them."""
PLAIN = [("Ein Hund", "A dog"), ('Zwei „Katzen"', "Two cats"), ("Ein Haus", "A house")]


def as_csv(pairs: list[tuple[str, str]], separator: str = ",", header: str = "source{}target", end: str = "\r\n") -> str:
    quoted = [separator.join('"' + text.replace('"', '""') + '"' for text in pair) for pair in pairs]
    return end.join([header.format(separator), *quoted]) + end


def as_tsv(pairs: list[tuple[str, str]]) -> str:
    return "".join("\t".join(pair) + "\n" for pair in [("source", "references"), *pairs])


def as_jsonl(pairs: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs)


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text.encode())


def zipped(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(gzip.compress(text.encode()))


def table(columns: dict[str, list[Any]]) -> Callable[[Path], object]:
    return lambda path: parquet.write_table(pa.table(columns), path)


def of(folder: Path, train: Any, **changes: Any) -> tuple[FileSettings, Path]:
    """A corpus whose three splits have the same files."""
    files = {"train": train, "validation": train, "test": train}
    return FileSettings(**{"files": files, **changes}), folder


def refused(folder: Path, train: Any, **changes: Any) -> str:
    return refusal(of(folder, train, **changes))


@pytest.mark.parametrize(
    ("name", "make", "pairs"),
    [
        ("pairs.csv", write(as_csv(PAIRS)), PAIRS),
        ("pairs.CSV", write("\ufeff" + as_csv(PAIRS, ";", "references{}source").replace('\r\n"Ein', '\r\n\r\n"Ein')), None),
        ("pairs.csv", write(as_csv(PAIRS, "\t", "source{}reference", "\n")), PAIRS),
        ("pairs.csv.gz", zipped(as_csv(PAIRS)), PAIRS),
        ("pairs.tsv", write(as_tsv(PLAIN)), PLAIN),
        ("pairs.jsonl", write(as_jsonl(PAIRS)), PAIRS),
        ("pairs.jsonl.gz", zipped(as_jsonl(PAIRS)), PAIRS),
        ("pairs.parquet", table({"source": [a for a, _ in PAIRS], "target": [b for _, b in PAIRS], "other": [1, 2, 3]}), PAIRS),
    ],
)
def test_a_format_is_known_by_its_ending(
    tmp_path: Path, name: str, make: Callable[[Path], object], pairs: list[tuple[str, str]] | None
) -> None:
    make(tmp_path / name)
    expected = [Example(source, (target,)) for source, target in pairs or [(b, a) for a, b in PAIRS]]
    corpus = read(*of(tmp_path, name))
    assert corpus == dict.fromkeys(("train", "validation", "test"), expected)


def test_compressed_parallel_text_and_a_format_that_the_ending_does_not_tell(tmp_path: Path) -> None:
    zipped("Eins\nZwei\n")(tmp_path / "a.de.gz")
    write("One\nTwo\n")(tmp_path / "a.en")
    assert read(*of(tmp_path, ["a.de.gz", "a.en"]))["test"] == [Example("Eins", ("One",)), Example("Zwei", ("Two",))]
    write(as_tsv(PLAIN))(tmp_path / "pairs.txt")
    assert len(read(*of(tmp_path, "pairs.txt", format="tsv"))["test"]) == 3


def test_a_glob_joins_its_files_in_sorted_order(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        write(as_csv([(f"Satz {number}", "A")]))(tmp_path / f"part-{number:02}.csv")
        write(f"Satz {number}\n")(tmp_path / f"part-{number:02}.de")
        write(f"Text {number}\n")(tmp_path / f"part-{number:02}.en")
    for names in ("part-*.csv", ["part-0[12].csv", "part-10.csv"], ["part-*.de", "part-*.en"]):
        assert [one.source for one in read(*of(tmp_path, names))["train"]] == ["Satz 1", "Satz 2", "Satz 10"]
    corpus = read(*of(tmp_path, ["part-*.de", "part-*.en"], limit={"train": 2}))
    assert [one.references for one in corpus["train"]] == [("Text 1",), ("Text 2",)]
    assert "part-*.tsv matches no file" in refused(tmp_path, "part-*.tsv")
    (tmp_path / "part-02.en").unlink()
    assert "part-01.de is the first of 3 source files of train, but" in refused(tmp_path, ["part-*.de", "part-*.en"])


def test_fields_are_named_and_may_lie_inside_of_others(tmp_path: Path) -> None:
    pairs = [{"de": source, "en": target} for source, target in PAIRS]
    table({"translation": pairs, "id": [1, 2, 3]})(tmp_path / "a.parquet")
    write("".join(json.dumps({"translation": pair}) + "\n" for pair in pairs))(tmp_path / "a.jsonl")
    named = {"source_field": "translation.de", "reference_fields": ["translation.en"]}
    expected = [Example(source, (target,)) for source, target in PAIRS]
    assert read(*of(tmp_path, "a.parquet", **named))["train"] == read(*of(tmp_path, "a.jsonl", **named))["train"] == expected
    wrong = refused(tmp_path, "a.parquet", **{**named, "source_field": "translation.fr"})
    assert "a.parquet, row 1: no field translation.fr" in wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("german,english\nEins,One\n", "a.csv: no column source; set source_field to one of german, english, and"),
        ("source,english\nEins,One\n", "a.csv: no column references, reference, target; set reference_fields to some of"),
        ("Ein Hund bellt.,A dog barks.\n", "a.csv: no column source; set source_field to one of Ein Hund bellt., A dog barks."),
        ("source,target\nEins,One, or so\n", "a.csv, line 2: has 3 fields, but the header has 2"),
        ('source,target\n"a\nb",c\nEins\n', "a.csv, line 4: has 1 fields"),
        ("source,target\nEins,\n", "a.csv, line 2: target is empty; fill it"),
        ('source,target\nEins,"One" or so\n', "a.csv, line 2: not valid CSV ("),
        ("source,target,target\na,b,c\n", "a.csv: the header has 'source', 'target', 'target'; give each column a name"),
        ("source,target\n", "a.csv has a header alone"),
        ("", "a.csv is empty"),
        ("source,target\nEins,O\0ne\n", "a.csv, line 2: holds a NUL byte"),
    ],
)
def test_a_broken_table_is_named_with_its_line(tmp_path: Path, text: str, wrong: str) -> None:
    write(text)(tmp_path / "a.csv")
    assert wrong in refused(tmp_path, "a.csv")


def test_broken_files_of_other_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("source,target\nEins,One\nfünf,five\n".encode("latin-1"))
    assert "a.csv, line 3: not UTF-8 (byte 2 of the line)" in refused(tmp_path, "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"source,target\nEins,One\n" * 99)[:-12])
    assert "a.csv.gz is damaged" in refused(tmp_path, "a.csv.gz")
    write("PAR1 is not enough")(tmp_path / "a.parquet")
    assert "a.parquet is not a Parquet file" in refused(tmp_path, "a.parquet")
    table({"source": ["a", "b"], "target": ["c", None]})(tmp_path / "a.parquet")
    assert "a.parquet, row 2: target contains NoneType; it must be a string" in refused(tmp_path, "a.parquet")
    write("Eins\nZw\0ei\n")(tmp_path / "a.de")
    write("One\nTwo\n")(tmp_path / "a.en")
    assert "a.de, line 2: holds a NUL byte" in refused(tmp_path, ["a.de", "a.en"])
    write('{"source": "a\\u0000", "target": "b"}\n')(tmp_path / "a.jsonl")
    assert "a.jsonl, line 1: source holds a NUL character" in refused(tmp_path, "a.jsonl")


def test_a_template_makes_sources_and_leaves_references(tmp_path: Path) -> None:
    write("topic,dialogue,target\nfood,Hi,Greeting\n,Bye,Parting\n")(tmp_path / "a.csv")
    write("topic,dialogue\nart,Look\n")(tmp_path / "more.csv")
    settings, _ = of(tmp_path, "a.csv", template="{{{topic}}} {source}!", source_field="dialogue")
    files: dict[str, Any] = {**settings.files, "unlabelled": "more.csv"}
    corpus = read(FileSettings(files=files, template=settings.template, source_field="dialogue"), tmp_path)
    assert corpus["test"] == [Example("{food} Hi!", ("Greeting",)), Example("{} Bye!", ("Parting",))]
    assert corpus["unlabelled"] == [Example("{art} Look!", ())]
    assert "a.csv: no column title; set the names in template to one of topic" in refused(tmp_path, "a.csv", template="{title}")
    write("Eins\n")(tmp_path / "a.de")
    write("One\n")(tmp_path / "a.en")
    corpus = read(*of(tmp_path, ["a.de", "a.en"], template="translate German to English: {source}"))
    assert corpus["train"] == [Example("translate German to English: Eins", ("One",))]


def test_several_test_sets_the_first_is_the_main_one(tmp_path: Path) -> None:
    for year in (2016, 2017):
        write(as_csv([(f"Satz {year}", "A"), ("Zwei", "Two")]))(tmp_path / f"{year}.csv")
    files: dict[str, Any] = {"train": "2016.csv", "validation": "2016.csv"}
    files["test"] = {"flickr2017": "2017.csv", "flickr2016": ["2016.csv"]}
    settings = FileSettings(files=files, limit={"test": 1})
    assert settings.test_sets == ["flickr2017", "flickr2016"]
    corpus = read(settings, tmp_path)
    assert list(corpus) == ["train", "validation", "test", "test.flickr2016"]
    assert corpus["test"] == [Example("Satz 2017", ("A",))]
    assert corpus["test.flickr2016"] == [Example("Satz 2016", ("A",))]


EXAMPLES = [Example(f"Satz {number // 2}" if number % 2 else f"satz  {number // 2}", (str(number),)) for number in range(240)]
"""Each source twice, once in another case and with more white space."""


def test_held_out_sources_are_fixed_and_stay_together() -> None:
    found = hold_out(EXAMPLES, ("validation", "test"), 1000)
    assert {name: len(examples) for name, examples in found.items()} == {"train": 240 - 48, "validation": 24, "test": 24}
    sources = [{example.source.casefold().split()[1] for example in examples} for examples in found.values()]
    assert len(set.union(*sources)) == sum(map(len, sources)) == 120
    # The hash is part of what the setting promises: these stay the same on every machine and in every version.
    assert [one.source for one in hold_out(EXAMPLES, ("test",), 1)["test"]] == ["satz  106", "Satz 106"]
    assert [one.source for one in hold_out(EXAMPLES[::-1], ("test",), 1)["test"]] == ["Satz 106", "satz  106"]
    # Intervals take held-out examples for independent.
    twice = hold_out([*EXAMPLES, *EXAMPLES], ("test",), 1)
    assert twice["test"] == hold_out(EXAMPLES, ("test",), 1)["test"] and len(twice["train"]) == 2 * 238


def test_one_file_makes_all_three_splits(tmp_path: Path) -> None:
    write(as_csv([(one.source, one.references[0]) for one in EXAMPLES]))(tmp_path / "pairs.csv")
    corpus = load_corpus(CorpusSettings(source="files", files=FileSettings(files={"train": "pairs.csv"})), tmp_path)
    assert {name: len(corpus[name]) for name in corpus} == {"train": 192, "validation": 24, "test": 24, "unlabelled": 0}
    small = FileSettings(files={"train": "pairs.csv", "test": "pairs.csv"}, held_out=5, limit={"validation": 3})
    corpus = read(small, tmp_path)
    assert {name: len(corpus[name]) for name in corpus} == {"train": 230, "test": 240, "validation": 3}
    few = FileSettings(files={"train": "pairs.csv"}, limit={"train": 18})
    with pytest.raises(InputError, match="train has 18 examples, of which too few sources are different to hold out"):
        read(few, tmp_path)


def test_the_source_decides_and_not_a_section_of_files(tmp_path: Path) -> None:
    files = FileSettings(files={"train": "pairs.csv"})
    embedded = EmbeddedSettings(train=5, validation=2, test=2)
    assert len(load_corpus(CorpusSettings(files=files, embedded=embedded), tmp_path)["train"]) == 5


def test_held_out_examples_are_no_published_test_set() -> None:
    with pytest.raises(ValueError, match=r"dataset is xsum, but files names no file for validation or test"):
        CorpusSettings(source="files", files=FileSettings(files={"train": "pairs.csv"}), dataset="xsum")


def test_running_text_is_cut_into_passages(tmp_path: Path) -> None:
    """Words are what white space separates; lines stay as they are inside of a half, and a shorter rest is left out."""
    write("= A title =\n\nOne two three .\nFour")(tmp_path / "one.txt")
    write("five six seven eight nine")(tmp_path / "two.txt")
    files: dict[str, Any] = {"train": ["one.txt", "two.txt"], "test": "two.txt", "validation": "one.txt"}
    corpus = read(FileSettings(format="text", passage_words=4, held_out=1, files=files), tmp_path)
    first, second = [Example("= A", ("title =",)), Example("One two", ("three .",))], [Example("five six", ("seven eight",))]
    assert corpus == {"train": [*first, *second], "validation": first, "test": second}


def test_running_text_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    write("too few words")(tmp_path / "short.txt")
    (tmp_path / "bytes.txt").write_bytes(b"a b c d\ne \xff f g")
    for file, words in (
        ("short.txt", "short.txt: has 3 words, fewer than a passage of 4; lower corpus.files.passage_words"),
        ("bytes.txt", "bytes.txt, line 2: not UTF-8 (byte 3 of the line); save the file as UTF-8"),
    ):
        assert words in refused(tmp_path, file, format="text", passage_words=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"template": "read: {source}"}, "template is set, but text has no fields to fill it with; remove it"),
        ({"files": {"train": "a.txt", "unlabelled": "b.txt"}}, "files.unlabelled is for sources alone, and a passage of text"),
        ({"passage_words": 1}, "passage_words is 1; it must be at least 2"),
    ],
)
def test_settings_that_running_text_does_not_take(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FileSettings(**{"format": "text", "files": {"train": "a.txt"}, **changes})


@pytest.mark.parametrize("kind", ["zip", "tar", "bztar", "xztar"])
def test_an_archive_is_refused_and_nothing_of_it_is_unpacked(kind: str, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.csv").write_text("source,target\nEins,One\n")
    Path(shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path / "inside")).rename(tmp_path / "a.csv")
    assert "a.csv is an archive, which is not opened here; unpack it and name its files" in refused(tmp_path, "a.csv")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.csv", "inside"]


def test_a_gzip_that_grows_as_no_text_does_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LARGEST_SMALL", 1 << 16)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    assert "a.csv.gz holds over 200 times its own size" in refused(tmp_path, "a.csv.gz")
