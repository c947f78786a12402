"""The user's files: tables, compression, globs, templates, several test sets, and splits held out of one file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tasks.corpora.example import Example
from tasks.corpora.reading import hold_out, read
from tasks.corpora.settings import CorpusSettings, EmbeddedSettings, FileSettings
from tasks.errors import InputError
from tasks.prepare import load_corpus

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


def refusal(folder: Path, train: Any, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(*of(folder, train, **changes))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "make", "pairs"),
    [
        ("pairs.csv", write(as_csv(PAIRS)), PAIRS),
        ("pairs.CSV", write("\ufeff" + as_csv(PAIRS, ";", "references{}source").replace('\r\n"Ein', '\r\n\r\n"Ein')), None),
        ("pairs.csv", write(as_csv(PAIRS, "\t", "source{}reference", "\n")), PAIRS),
        ("pairs.csv.gz", zipped(as_csv(PAIRS)), PAIRS),
        ("pairs.tsv", write(as_tsv(PLAIN)), PLAIN),
        ("pairs.tsv.gz", zipped(as_tsv(PLAIN)), PLAIN),
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
    assert "part-*.tsv matches no file" in refusal(tmp_path, "part-*.tsv")
    (tmp_path / "part-02.en").unlink()
    assert "part-01.de is the first of 3 source files of train, but" in refusal(tmp_path, ["part-*.de", "part-*.en"])


def test_fields_are_named_and_may_lie_inside_of_others(tmp_path: Path) -> None:
    pairs = [{"de": source, "en": target} for source, target in PAIRS]
    table({"translation": pairs, "id": [1, 2, 3]})(tmp_path / "a.parquet")
    write("".join(json.dumps({"translation": pair}) + "\n" for pair in pairs))(tmp_path / "a.jsonl")
    named = {"source_field": "translation.de", "reference_fields": ["translation.en"]}
    expected = [Example(source, (target,)) for source, target in PAIRS]
    assert read(*of(tmp_path, "a.parquet", **named))["train"] == read(*of(tmp_path, "a.jsonl", **named))["train"] == expected
    wrong = refusal(tmp_path, "a.parquet", **{**named, "source_field": "translation.fr"})
    assert "a.parquet, row 1: no field translation.fr" in wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            "german,english\nEins,One\n",
            "a.csv: no column source; set source_field to one of german, english, and reference_fields, as",
        ),
        (
            "source,english\nEins,One\n",
            "a.csv: no column references, reference, target; set reference_fields to some of source,",
        ),
        ("Ein Hund bellt.,A dog barks.\n", "a.csv: no column source; set source_field to one of Ein Hund bellt., A dog barks."),
        ("source,target\nEins,One, or so\n", "a.csv, line 2: has 3 fields, but the header has 2"),
        ('source,target\n"a\nb",c\nEins\n', "a.csv, line 4: has 1 fields"),
        ("source,target\nEins,\n", "a.csv, line 2: target is empty; fill it"),
        ('source,target\nEins,"One" or so\n', "a.csv, line 2: not valid CSV ("),
        ('source,target\nEins,"One\n', "a.csv, line 2: not valid CSV ("),
        ("source,target,target\na,b,c\n", "a.csv: the header has 'source', 'target', 'target'; give each column a name"),
        ("source,target\n", "a.csv has a header alone"),
        ("", "a.csv is empty"),
        ("source,target\nEins,O\0ne\n", "a.csv, line 2: holds a NUL byte"),
    ],
)
def test_a_broken_table_is_named_with_its_line(tmp_path: Path, text: str, wrong: str) -> None:
    write(text)(tmp_path / "a.csv")
    assert wrong in refusal(tmp_path, "a.csv")


def test_broken_files_of_other_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("source,target\nEins,One\nfünf,five\n".encode("latin-1"))
    assert "a.csv, line 3: not UTF-8 (byte 2 of the line)" in refusal(tmp_path, "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"source,target\nEins,One\n" * 99)[:-12])
    assert "a.csv.gz is damaged" in refusal(tmp_path, "a.csv.gz")
    write("PAR1 is not enough")(tmp_path / "a.parquet")
    assert "a.parquet is not a Parquet file" in refusal(tmp_path, "a.parquet")
    table({"source": ["a", "b"], "target": ["c", None]})(tmp_path / "a.parquet")
    assert "a.parquet, row 2: target contains NoneType; it must be a string" in refusal(tmp_path, "a.parquet")
    write("Eins\nZw\0ei\n")(tmp_path / "a.de")
    write("One\nTwo\n")(tmp_path / "a.en")
    assert "a.de, line 2: holds a NUL byte" in refusal(tmp_path, ["a.de", "a.en"])
    write('{"source": "a\\u0000", "target": "b"}\n')(tmp_path / "a.jsonl")
    assert "a.jsonl, line 1: source holds a NUL character" in refusal(tmp_path, "a.jsonl")


def test_a_template_makes_sources_and_leaves_references(tmp_path: Path) -> None:
    write("topic,dialogue,target\nfood,Hi,Greeting\n,Bye,Parting\n")(tmp_path / "a.csv")
    write("topic,dialogue\nart,Look\n")(tmp_path / "more.csv")
    settings, _ = of(tmp_path, "a.csv", template="{{{topic}}} {source}!", source_field="dialogue")
    files: dict[str, Any] = {**settings.files, "unlabelled": "more.csv"}
    corpus = read(FileSettings(files=files, template=settings.template, source_field="dialogue"), tmp_path)
    assert corpus["test"] == [Example("{food} Hi!", ("Greeting",)), Example("{} Bye!", ("Parting",))]
    assert corpus["unlabelled"] == [Example("{art} Look!", ())]
    assert "a.csv: no column title; set the names in template to one of topic," in refusal(
        tmp_path, "a.csv", template="{title}"
    )
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


def test_one_file_makes_all_three_splits(tmp_path: Path) -> None:
    write(as_csv([(one.source, one.references[0]) for one in EXAMPLES]))(tmp_path / "pairs.csv")
    corpus = load_corpus(CorpusSettings(source="files", files=FileSettings(files={"train": "pairs.csv"})), tmp_path)
    assert {name: len(corpus[name]) for name in corpus} == {"train": 192, "validation": 24, "test": 24, "unlabelled": 0}
    small = FileSettings(files={"train": "pairs.csv", "test": "pairs.csv"}, held_out=5, limit={"validation": 3})
    corpus = read(small, tmp_path)
    assert {name: len(corpus[name]) for name in corpus} == {"train": 230, "test": 240, "validation": 3}
    few = FileSettings(files={"train": "pairs.csv"}, limit={"train": 18})
    with pytest.raises(
        InputError, match="train has 18 examples, of which too few sources are different to hold out validation"
    ):
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
    settings = FileSettings(
        format="text",
        passage_words=4,
        held_out=1,
        files={"train": ["one.txt", "two.txt"], "test": "two.txt", "validation": "one.txt"},
    )
    corpus = read(settings, tmp_path)
    first = [Example("= A", ("title =",)), Example("One two", ("three .",))]
    assert corpus == {
        "train": [*first, Example("five six", ("seven eight",))],
        "validation": first,
        "test": [Example("five six", ("seven eight",))],
    }


def test_running_text_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    write("too few words")(tmp_path / "short.txt")
    (tmp_path / "bytes.txt").write_bytes(b"a b c d\ne \xff f g")
    assert refusal(tmp_path, "short.txt", format="text", passage_words=4).endswith(
        "short.txt: has 3 words, fewer than a passage of 4; lower corpus.files.passage_words"
    )
    assert "bytes.txt, line 2: not UTF-8; save the file as UTF-8" in refusal(
        tmp_path, "bytes.txt", format="text", passage_words=4
    )


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
