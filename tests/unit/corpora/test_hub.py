"""Data sets of the hub, read by the real loader from local copies: presets, columns, slices, and one line for what is wrong."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tasks.corpora.data_sets import DATA_SETS, PARQUET
from tasks.corpora.example import SPLITS, UNLABELLED, Example
from tasks.corpora.hub import read
from tasks.corpora.settings import PUBLISHED, CorpusSettings, HubSettings
from tasks.errors import InputError

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def copy_of(folder: Path, **splits: Rows) -> Path:
    """A folder of JSON Lines, one file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def pairs(*sources: str) -> Rows:
    return [{"document": source, "summary": f"{source}, in short"} for source in sources]


SETTINGS: dict[str, Any] = {"name": "toys/news", "source_field": "document", "reference_fields": ["summary"]}


@pytest.fixture
def news(tmp_path: Path) -> Path:
    return copy_of(tmp_path / "news", train=pairs("a", "b", "c", "d"), validation=pairs("v"), test=pairs("t"))


DE_EN = {"translation": {"de": "Die Katze schläft.", "en": "The cat sleeps."}}
PASSAGE = [" ".join(f"w{number}" for number in range(begin, begin + 192)) for begin in (0, 192)]
TESTS = ("assert f(1) == 3", "assert f(0) == 2")
MBPP = {"task_id": 1, "text": "Add two.", "code": "def f(x): return x + 2", "test_setup_code": "", "test_list": [*TESTS]}
ADD_TWO = "Add two. Write a Python program that passes these tests:\nassert f(1) == 3\nassert f(0) == 2\nProgram:"
RAIN = {"context": "It rains.", "question": "Snow?", "answers": {"text": [], "answer_start": []}}
SNOW = "Answer the question in words of the context, or write unanswerable.\nContext: It rains.\nQuestion: Snow?\nAnswer:"
SUM = "Solve the problem step by step, then write #### and the number.\nProblem: 1 + 1?\nSolution:"
FEW_WORDS = "Answer the question in a few words.\nQuestion: How many?\nAnswer:"
ROWS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "iwslt17-de-en": (DE_EN, "translate German to English: Die Katze schläft.", ("The cat sleeps.",)),
    "wmt14-de-en": (DE_EN, "translate German to English: Die Katze schläft.", ("The cat sleeps.",)),
    "wmt14-en-de": (DE_EN, "translate English to German: The cat sleeps.", ("Die Katze schläft.",)),
    "multi30k-en-de": ({"en": "A dog.", "de": "Ein Hund."}, "translate English to German: A dog.", ("Ein Hund.",)),
    "xsum": ({"document": "Much text.", "summary": "Text.", "id": "1"}, "summarize: Much text.", ("Text.",)),
    "cnn_dailymail": ({"article": "Text.", "highlights": "One .\nTwo .", "id": "1"}, "summarize: Text.", ("One .\nTwo .",)),
    "wikitext-2": ({"text": " ".join(PASSAGE)}, PASSAGE[0], (PASSAGE[1],)),
    "gsm8k": ({"question": "1 + 1?", "answer": "Add them.\n#### 2"}, SUM, ("Add them.\n#### 2",)),
    "mbpp": (MBPP, ADD_TWO, ("def f(x): return x + 2", *TESTS)),
    "squad_v2": (RAIN, SNOW, ("unanswerable",)),
    "natural_questions": ({"question": "How many?", "answer": ["two", "2"]}, FEW_WORDS, ("two", "2")),
    "trivia_qa": ({"question": "How many?", "answer": {"value": "Two", "aliases": ["2", "Two"]}}, FEW_WORDS, ("Two", "2")),
    "web_questions": ({"url": "x", "question": "How many?", "answers": ["Two", "2"]}, FEW_WORDS, ("Two", "2")),
}
"""A row with the columns of each data set, its source and its references."""


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_preset_reads_a_copy_of_its_data_set(name: str, tmp_path: Path) -> None:
    data_set, (row, source, references) = DATA_SETS[name], ROWS[name]
    # On the branch of Parquet files, a configuration is a folder.
    folder = tmp_path / "copy" / data_set.configuration if data_set.revision == PARQUET else tmp_path / "copy"
    sliced = any("[" in spec for spec in data_set.splits.values())
    table = pa.Table.from_pylist([row] * (1002 if sliced else 2))
    for split in {spec.partition("[")[0] for spec in data_set.splits.values()}:
        (folder / split).mkdir(parents=True)
        parquet.write_table(table, folder / split / "0000.parquet")
    corpus = read(HubSettings(preset=name), tmp_path / "copy")
    assert all(found == Example(source, references) for examples in corpus.values() for found in examples)
    sizes = [len(corpus[split]) for split in SPLITS]
    assert sizes == ([2, 2, 2] if not sliced else [502, 500, 1000] if name == "web_questions" else [2, 1000, 1000])


def test_presets_name_the_data_sets_with_published_numbers() -> None:
    assert {data_set.published for data_set in DATA_SETS.values()} == {"none", *PUBLISHED}


def test_slices_templates_and_sources_without_references(news: Path) -> None:
    splits = {"train": "train[:2]", UNLABELLED: "train[2:]+test"}
    corpus = read(HubSettings(**SETTINGS, splits=splits, template="{document}? {source}!"), news)
    assert corpus["train"] == [Example("a? a!", ("a, in short",)), Example("b? b!", ("b, in short",))]
    assert corpus[UNLABELLED] == [Example("c? c!", ()), Example("d? d!", ()), Example("t? t!", ())]
    assert [len(corpus[split]) for split in ("validation", "test")] == [1, 1]


def test_examples_of_train_stand_before_every_source(news: Path) -> None:
    settings = HubSettings(**SETTINGS, template="{document}?", shots=2)
    corpus = read(settings, news)
    before = "a? a, in short\n\nb? b, in short\n\n"
    assert corpus["train"] == [Example(f"{before}c?", ("c, in short",)), Example(f"{before}d?", ("d, in short",))]
    assert [one.source for one in corpus["test"]] == [f"{before}t?"]
    with pytest.raises(InputError, match=r"news: corpus.hub.shots is 4, but train has 4 examples; set it to fewer"):
        read(HubSettings(**SETTINGS, shots=4), news)


def test_rows_without_text_are_left_out_and_counted(news: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*pairs("a", " ", "c\0"), {"document": "d", "summary": None}, {"document": "e", "summary": " e\n"}]
    corpus = read(HubSettings(**SETTINGS), copy_of(news, train=rows))
    assert corpus["train"] == [Example("a", ("a, in short",)), Example("e", ("e",))]
    printed = capsys.readouterr().err
    assert "train: 2 of 5 rows have no source or no reference and are left out" in printed
    assert "train: 1 of 5 rows hold a NUL character, which is no text, and are left out" in printed


def test_a_reference_for_rows_without_one(news: Path) -> None:
    rows = [{"document": "d", "summary": ""}, {"document": "e", "summary": "damaged\0"}]
    corpus = read(HubSettings(**SETTINGS, no_reference="nothing"), copy_of(news, test=rows))
    assert corpus["test"] == [Example("d", ("nothing",))]


def test_passages_take_whole_words_of_joined_rows(news: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["one two", "", "damaged\0", "three  four five", "six seven"]
    copy_of(news, **{split: [{"text": text} for text in texts] for split in SPLITS})
    corpus = read(HubSettings(name="toys/text", source_field="text", passage_words=3), news)
    assert corpus["test"] == [Example("one", ("two\nthree",)), Example("four", ("five\nsix",))]
    assert "test: 1 of 5 rows hold a NUL character" in capsys.readouterr().err


def test_a_configuration_is_that_of_the_card(news: Path) -> None:
    all_test = ", ".join(f"{{split: {split}, path: test.jsonl}}" for split in SPLITS)
    one, two = (
        f"- config_name: {name}\n  data_files: [{files}]\n"
        for name, files in (("one", "{split: train, path: train.jsonl}"), ("two", all_test))
    )
    card = f"---\nconfigs:\n{one}{two}---\n"
    (news / "README.md").write_text(card, encoding="utf-8")
    assert [one.source for one in read(HubSettings(**SETTINGS, configuration="two"), news)["train"]] == ["t"]
    with pytest.raises(InputError, match=r"no data set .*news \(configuration three\) in .*Available: \['one', 'two'\]"):
        read(HubSettings(**SETTINGS, configuration="three"), news)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source_field": "text"}, r"news, train: no column text; set corpus.hub, source_field, to some of document, summary"),
        ({"reference_fields": ["summary", "x.y"]}, r"no column x.y; set corpus.hub, reference_fields, to some of"),
        ({"template": "{title}: {source}"}, r"no column title; set corpus.hub, the names in template, to some of"),
        ({"splits": {"test": "dev"}}, r"corpus.hub.splits.test is 'dev' .*; name one of train, validation, test, or a slice"),
        ({"splits": {"test": "test[5:]"}}, r"corpus.hub.splits.test is 'test\[5:\]', which has no rows"),
        ({"source_field": "number"}, r"news, train: column number contains int; it must contain strings"),
        ({"reference_fields": [], "source_field": "document", "passage_words": 9000}, r"4 words, fewer than a passage of 9000"),
    ],
)
def test_wrong_columns_and_splits_are_one_line(changed: dict[str, Any], message: str, news: Path) -> None:
    copy_of(news, train=[{**row, "number": 1} for row in pairs("a", "b", "c", "d")])
    settings = HubSettings(**{**SETTINGS, **changed})
    with pytest.raises(InputError, match=message):
        # The columns of the other splits are read after those of train.
        read(settings, news)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no data set .*empty in the folder .*empty: .*doesn't contain any data files"),
        ({"train.jsonl": "{no json\n"}, "its files are damaged or differ in their columns"),
        ({"train.jsonl": "{}\n", "more.tar.gz": "../escapes"}, "empty holds the archive more.tar.gz, which is not opened"),
        ({"empty.py": "raise SystemExit(7)\n"}, f"it is a script, which is not run; set corpus.hub.revision to {PARQUET}"),
    ],
)
def test_a_folder_without_a_data_set_is_one_line(
    content: dict[str, str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read(HubSettings(**SETTINGS), folder)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("source", [Path("nowhere"), Path(__file__).parents[3] / "tasks" / "corpora" / "translation"])
def test_the_source_is_a_lock_file_or_a_folder_with_data(source: Path) -> None:
    with pytest.raises(InputError, match=rf"{source.name} is neither a lock file nor a folder with data; .*data/hub.lock.yaml"):
        read(HubSettings(**SETTINGS), source)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "hub names no data set; set name, or preset"),
        ({"name": "../news"}, "'../news', which is no name on the hub; .* local copy under active"),
        ({"name": "a/b", "splits": {"dev": "dev"}}, "splits has dev; it takes train, validation, test, unlabelled"),
        ({"name": "a/b", "splits": {"test": ""}}, "empty name"),
        ({"name": "a/b", "template": "the same"}, "the same text for every example"),
        ({"name": "a/b", "passage_words": 8, "template": "{source}?"}, "neither reference_fields nor template"),
        (
            {"name": "a/b", "passage_words": 8, "shots": 1},
            "shots is 1, but passages have no source to stand before",
        ),
        ({"preset": "imdb"}, "preset is 'imdb'; it must be one of"),
    ],
)
def test_wrong_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HubSettings(**given)


def test_what_is_given_replaces_the_preset() -> None:
    found = HubSettings(preset="xsum", splits={"train": "train[:9]"}, template="{source}").data_set
    assert (found.name, found.splits["train"], found.splits["test"]) == ("EdinburghNLP/xsum", "train[:9]", "test")
    assert (found.template, found.source_field) == ("{source}", "document")
    # Another repository has branches and configurations of its own.
    moved = HubSettings(preset="xsum", name="mine/xsum").data_set
    assert (moved.revision, moved.configuration, moved.reference_fields) == ("main", "", ("summary",))


@pytest.mark.parametrize(
    ("given", "dataset"),
    [
        ({}, "xsum"),
        ({"splits": {"train": "train[:9]"}, "template": "{source}"}, "xsum"),
        ({"splits": {"test": "test[:9]"}}, "none"),
        ({"reference_fields": ["id"]}, "none"),
        ({"name": "mine/xsum"}, "none"),
    ],
)
def test_published_numbers_are_of_a_whole_preset(given: dict[str, Any], dataset: str) -> None:
    assert CorpusSettings(source="hub", hub=HubSettings(preset="xsum", **given)).published == dataset


def test_a_data_set_that_is_said_to_be_published_is_whole() -> None:
    hub = HubSettings(**SETTINGS, splits={"test": "test[:9]"})
    with pytest.raises(ValueError, match=r"dataset is xsum, but hub.splits cuts test, and no published number is of a part"):
        CorpusSettings(source="hub", hub=hub, dataset="xsum")
    with pytest.raises(ValueError, match="source is hub but there is no hub section"):
        CorpusSettings(source="hub")
