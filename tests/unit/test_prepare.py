"""The stage prepare: the splits, the inputs without references, and the checkpoints that models start from."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import prepare
from tasks.corpora.example import SPLITS, UNLABELLED, Example, read_jsonl
from tasks.corpora.settings import CorpusSettings, EmbeddedSettings, FileSettings
from tasks.errors import InputError
from tasks.evaluation.scoring import metrics
from tasks.files import SUMS
from tasks.models import tokenizers
from tasks.models.checkpoints import initial_model
from tasks.models.settings import LayersSettings, ModelSettings, TokenizerSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.prepare import check_starts
from tasks.report import stage_warnings
from tests.gguf_files import TEMPLATE, write_gguf
from tests.pair_folders import letter_tokenizer

NOWHERE = Path("nowhere")
CHINESE = ["今天天气很好,我们去公园散步。", "他在北京大学学习了三年中文。"]
GERMAN = "Der Zug fährt über die Brücke"


def embedded(unlabelled: int) -> CorpusSettings:
    return CorpusSettings(embedded=EmbeddedSettings(train=30, validation=5, test=5, unlabelled=unlabelled, seed=2))


def test_more_inputs_of_a_generator_leave_the_splits_as_they_are() -> None:
    plain, more = (prepare.load_corpus(embedded(count), NOWHERE) for count in (0, 12))
    assert plain[UNLABELLED] == []
    assert {split: more[split] for split in SPLITS} == {split: plain[split] for split in SPLITS}
    assert len(more[UNLABELLED]) == 12
    known = {example.source for split in SPLITS for example in more[split]}
    assert all(example.references == () and example.source not in known for example in more[UNLABELLED])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in SPLITS:
        lines = "".join(f"{split} {number}\n" for number in range(40))
        for language in ("de", "en"):
            (tmp_path / f"{split}.{language}").write_text(lines, encoding="utf-8")
    (tmp_path / "more.de").write_text("new\ntest 3\nother\nnew\ntrain 7\nvalidation 1\n", encoding="utf-8")
    return tmp_path


def test_no_file_of_an_earlier_tokenizer_stays(tmp_path: Path) -> None:
    corpus = prepare.load_corpus(embedded(0), NOWHERE)
    first = TokenizerSettings(pretrained=str(write_gguf(tmp_path / "with.gguf")))
    other = TokenizerSettings(pretrained=str(write_gguf(tmp_path / "without.gguf", template=None)))
    for settings, template in ((first, TEMPLATE), (other, None)):
        prepare.write_tokenizer(settings, corpus, tmp_path / "tokenizer")
        assert load_tokenizer(tmp_path / "tokenizer").chat_template == template


def test_checkpoints_are_opened_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=r"^models\.large\.pretrained: no model at empty: "):
        run(folder, FILES, monkeypatch, models={"large": {"pretrained": "empty"}})
    assert not TaskPaths("words").corpus.exists()


def test_a_checkpoint_of_another_tokenizer_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initial_model(T5, 24, 0, 1).config.save_pretrained(folder / "start")
    letter_tokenizer().save_pretrained(folder / "start")
    with pytest.raises(InputError, match="the tokenizer at data/words/tokenizer has 64 tokens but that of start has 24; a"):
        run(folder, FILES, monkeypatch, models={"small": {"pretrained": "start"}})


FILES: dict[str, Any] = {**{split: [f"{split}.de", f"{split}.en"] for split in SPLITS}, UNLABELLED: ["more.de"]}


def test_unlabelled_inputs_of_a_split_are_omitted(folder: Path) -> None:
    corpus = prepare.load_corpus(CorpusSettings(source="files", files=FileSettings(files=FILES)), folder)
    assert [example.source for example in corpus[UNLABELLED]] == ["new", "other"]


def run(folder: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **sections: object) -> None:
    corpus = {"source": "files", "files": {"files": files}}
    task = sections | {"metric": "bleu", "corpus": corpus, "tokenizer": {"vocabulary": 64}}
    line = "the quick brown fox jumps over {0} lazy dogs; JUMPS QUICKLY ABOVE DEN {0} lazy FOXes\n"
    (folder / "train.en").write_text("".join(line.format(number) for number in range(40)))
    (folder / "params.yaml").write_text(yaml.safe_dump({"active": {"words": str(folder)}, "tasks": {"words": task}}))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["prepare", "--task", "words"])
    prepare.main()


@pytest.mark.parametrize("named", [True, False])
def test_the_stage_always_writes_a_file_of_the_unlabelled(
    folder: Path, named: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = FILES if named else {split: FILES[split] for split in SPLITS}
    run(folder, files, monkeypatch)
    assert len(read_jsonl(TaskPaths("words").unlabelled)) == (2 if named else 0)
    *lines, legend = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning")]
    assert legend.startswith("(tokens: median")
    rows = [line.split()[:2] for line in lines]
    counts = [["train", "40"], ["validation", "40"], ["test", "40"], *([["unlabelled", "2"]] if named else [])]
    assert rows == [["words:"], ["split", "examples"], *counts]
    report = json.loads(TaskPaths("words").corpus_report.read_text(encoding="utf-8"))
    assert report["splits"]["validation"]["repeated_examples"] == 0


def test_copies_alone_are_refused_without_waiting_for_the_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "host_lock", lambda: pytest.fail("it waits for what is timed"))
    with pytest.raises(InputError, match=r"^task words: train: the reference equals the source in 40 of 40 examples"):
        run(folder, {**FILES, "train": ["train.en", "train.en"]}, monkeypatch)
    assert not TaskPaths("words").corpus.exists()


def test_the_report_stage_repeats_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, FILES, monkeypatch)
    said = "validation: the reference equals the source in 40 of 40 examples"
    assert f"warning: words: {said}" in capsys.readouterr().err
    assert stage_warnings(TaskPaths("words"))[0].startswith(said)


def test_further_test_sets_have_a_folder_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever depends on the corpus is not made again for another test set."""
    paths, tests = TaskPaths("words"), {"first": FILES["test"], "second": ["more.de", "more.de"]}
    run(folder, {**FILES, "test": tests}, monkeypatch)
    names = [SUMS, "test.jsonl", "train.jsonl", "unlabelled.jsonl", "validation.jsonl"]
    assert sorted(file.name for file in paths.corpus.iterdir()) == names
    assert paths.further_tests() == ["test.second"]
    assert len(read_jsonl(paths.split("test.second"))) == 6
    sizes = paths.tests / "examples.json"
    assert json.loads(sizes.read_text(encoding="utf-8")) == {"test": 40, "test.second": 6}
    run(folder, FILES, monkeypatch)
    assert paths.further_tests() == [] and sizes.is_file()


# Checkpoints that models start from are checked before anything is trained, without their weights.

T5 = ModelSettings(architecture="t5", d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=3)


@pytest.fixture(params=["gguf", "folder", "t5"])
def large(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint whose decoder has two layers, or three in a T5; the folders hold a configuration alone."""
    if request.param == "gguf":
        return write_gguf(tmp_path / "tiny.gguf")
    shape = T5 if request.param == "t5" else ModelSettings(architecture="llama", d_model=16, d_ff=32, d_kv=8, heads=2)
    initial_model(shape, 40, 0, 1).config.save_pretrained(tmp_path / "large")
    return tmp_path / "large"


def from_large(*layers: int, **settings: Any) -> ModelSettings:
    return ModelSettings(from_large=LayersSettings(layers=layers, **settings))


def test_layers_that_are_not_there_and_checkpoints_as_large_as_the_large_one_are_refused(large: Path) -> None:
    start = ModelSettings(pretrained=str(large))
    check_starts(start, from_large(0, 1))
    with pytest.raises(InputError, match=r"^models\.small\.from_large: layers names 9, but the large model has \d+ decoder"):
        check_starts(start, from_large(0, 9))
    with pytest.raises(InputError, match=r"^models\.small\.pretrained: .* M parameters .* drafts could save nothing"):
        check_starts(start, start)


def test_a_shared_encoder_needs_one(tmp_path: Path) -> None:
    large = ModelSettings(pretrained=str(write_gguf(tmp_path / "tiny.gguf")))
    with pytest.raises(InputError, match=r"^models\.small\.from_large names share_encoder, but .* has no encoder"):
        check_starts(large, from_large(0, share_encoder=True))


@pytest.mark.parametrize("name", ["large", "small"])
def test_a_checkpoint_that_cannot_be_opened_is_refused_by_its_setting(name: str, tmp_path: Path) -> None:
    models = {"large": ModelSettings(), "small": ModelSettings()}
    models[name] = ModelSettings(pretrained=str(write_gguf(tmp_path / "odd.gguf", architecture="abacus")))
    with pytest.raises(InputError, match=rf"^models\.{name}\.pretrained: no model at .*odd\.gguf: .*abacus"):
        check_starts(**models)
    with pytest.raises(InputError, match=r"^models\.small\.pretrained: no model at "):
        check_starts(ModelSettings(), ModelSettings(pretrained=str(tmp_path)))


def test_a_model_that_the_hub_does_not_give_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "hub_answers", lambda: False)
    with pytest.raises(InputError, match=r"^models\.large\.pretrained: no model at nobody/nothing: .*the hub does not answer"):
        check_starts(ModelSettings(pretrained="nobody/nothing"), from_large(0))


def test_folders_to_come_are_left_to_their_stages(tmp_path: Path) -> None:
    for folder in (str(tmp_path / "models/general/large"), "models/general/large"):
        check_starts(ModelSettings(pretrained=folder), ModelSettings())


def test_a_tokenizer_that_does_not_fit_is_said_with_the_fix() -> None:
    references = {name: [Example("a", (text,)) for text in CHINESE] for name in ("train", "test")}
    (line,) = prepare.check_references(references, "bleu")
    assert line.startswith("BLEU's tokenizer 13a does not split 100.0% of the references' letters, whose script has no spaces")
    assert line.endswith("set metric: {name: bleu, bleu_tokenizer: zh, rouge_tokenizer: unicode}")
    assert prepare.check_references(references, "bleu[bleu_tokenizer=zh,rouge_tokenizer=unicode]") == []
    assert "bleu_tokenizer: ja-mecab" in prepare.unsupported_script(["これは日本語の文です"], "bleu[bleu_tokenizer=zh]"), "kana"
    assert prepare.unsupported_script([GERMAN], "rougeL") == (
        "ROUGE's default tokenizer drops 12.5% of the references' letters, all but a-z and 0-9; set metric: {name: rougeL, "
        "rouge_tokenizer: unicode}"
    )
    assert prepare.unsupported_script([GERMAN, "Zug " * 20], "bleu") == prepare.unsupported_script([], "bleu") == ""
    assert prepare.unsupported_script(["A naïve " + "text " * 99], "rougeL") == ""


def test_a_program_needs_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "require_sandbox", lambda: None)
    tested = Example("add", ("def add", "assert add"))
    assert prepare.check_references({"train": [tested], "unlabelled": [Example("more", ())]}, "pass_at_1") == []
    with pytest.raises(InputError, match="test, example 2: the metric pass_at_1 needs a program and then its tests"):
        prepare.check_references({"train": [tested], "test": [tested, Example("add", ("def add",))]}, "pass_at_1")


def test_a_numeric_answer_needs_numbers() -> None:
    right, wrong = Example("q", ("#### 7",)), Example("q", ("seven",))
    assert prepare.check_references({"test": [wrong]}, "rougeL") == []
    assert prepare.check_references({"train": [right, wrong]}, "numeric_answer") == [
        "train: 1 of 2 examples have a reference without a number and can never be right"
    ]
    with pytest.raises(InputError, match="test: no reference has a number"):
        prepare.check_references({"train": [right], "test": [wrong]}, "numeric_answer")
