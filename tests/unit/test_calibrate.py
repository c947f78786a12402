"""The stage calibrate from params.yaml to a published data set, killed and gone on with."""

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import calibrate
from tasks.alignment.calibration_set import StoredTopLogits
from tasks.alignment.labelling import Labeller, Shard
from tasks.calibrate import ShardLabelling, open_labelling
from tasks.corpora.example import UNLABELLED, Corpus, Example, read_jsonl
from tasks.errors import InputError
from tasks.evaluation.scoring.quality import check_outputs
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths
from tasks.prepare import write_corpus
from tasks.report import stage_warnings
from tasks.training.data import JsonlDataset
from tests.calibration import DRAWN, INPUTS, SOURCES, TEXT, saved

PATHS = TaskPaths("words")
Run = Callable[..., None]


@pytest.fixture(params=["t5", pytest.param("llama", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the stage in a folder with a corpus and a large model; takes settings of calibrate, and text's longest target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["calibrate", "--task", "words"])
    corpus: Corpus = {"train": INPUTS[:26], "validation": INPUTS[26:36], "test": []}
    write_corpus({**corpus, UNLABELLED: [Example(source, ()) for source in SOURCES[36:]]}, PATHS.corpus)
    saved(request.param, PATHS.model("large"))

    def stage(longest: int = TEXT.max_target_tokens, workers: int = 1, **settings: Any) -> None:
        text = {"max_source_tokens": TEXT.max_source_tokens, "max_target_tokens": longest}
        chosen = {"batch_size": 4, "shard": 8, "sampling": dataclasses.asdict(DRAWN), "seed": 1, **settings}
        # References are read by a divergence alone; this stage reads no loss.
        task = {"metric": "bleu", "text": text, "calibrate": chosen, "align": {"loss": "forward_kl"}}
        machine = {"device": "cpu", "runtime": "reference", "workers": workers}
        params = {"active": {"words": "data/words"}, "machine": machine, "tasks": {"words": task}}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
        calibrate.main()

    return stage


def files() -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in PATHS.calibration.rglob("*") if file.is_file()}


def test_a_calibration_set_is_published_with_where_it_comes_from(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(top_logits=5)
    kept, held_out = read_jsonl(PATHS.calibration_set), read_jsonl(PATHS.held_out_calibration)
    found = json.loads((PATHS.calibration / "provenance.json").read_text())
    assert found["sets"]["calibration"]["inputs"] == 30
    assert found["sets"]["calibration"]["kept"] == len(kept) > 0
    assert found["sets"]["validation"]["kept"] == len(held_out) > 0
    assert {example.source for example in kept} <= {*SOURCES[:26], *SOURCES[36:]}
    assert {example.source for example in held_out} <= {*SOURCES[26:36]}
    assert found["model"]["folder"] == "models/words/large"
    assert found["settings"]["top_logits"] == 5
    assert found["sets"]["calibration"]["distinct"] > 1 and found["check"]["examples"] > 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: words: calibrate dropped")]
    unfit = 30 - len(kept)
    assert f"{unfit} of 30 outputs ({unfit / 30:.2%}: " in warning
    assert f"warning: words: {found['warnings'][0]}" == warning and found["warnings"][0] in stage_warnings(PATHS)
    assert f"{found['sets']['calibration']['over_long']} over-long" in warning
    tokenizer, decoder_only = load_tokenizer(PATHS.model("large")), found["model"]["type"] == "llama"
    for which, file in (("calibration", PATHS.calibration_set), ("validation", PATHS.held_out_calibration)):
        read = JsonlDataset(file, tokenizer, TEXT, decoder_only=decoder_only)
        stored = StoredTopLogits.open(PATHS.calibration, which, read.targets)
        assert [stored.top_logits(place)[0].shape for place in range(len(stored))] == [(len(row), 5) for row in read.targets]


def test_references_are_labelled_with_predictions_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts are the corpus' own, and the control's are the same: the two arms differ in what they learn from them."""
    monkeypatch.setattr(Labeller, "_decode_batch", None)  # nothing is generated
    run(texts="references", sampling={}, top_logits=5)
    corpus = {example.source: example.references[0] for example in INPUTS[:36]}
    for inputs, file in ((INPUTS[:26], PATHS.calibration_set), (INPUTS[26:36], PATHS.held_out_calibration)):
        found = read_jsonl(file)
        assert {example.source for example in found} == {example.source for example in inputs}
        assert all(example.references == (corpus[example.source],) for example in found)
    assert read_jsonl(PATHS.control_set) == read_jsonl(PATHS.calibration_set)
    tokenizer = load_tokenizer(PATHS.model("large"))
    decoder_only = json.loads((PATHS.calibration / "provenance.json").read_text())["model"]["type"] == "llama"
    read = JsonlDataset(PATHS.calibration_set, tokenizer, TEXT, decoder_only=decoder_only)
    assert len(StoredTopLogits.open(PATHS.calibration, "calibration", read.targets)) == len(read)


def killed_after(shards: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the stage be killed after so many shards; gives the first number of each that was labelled."""
    label, labelled = Labeller.label, list[int]()

    def killed(self: Labeller, inputs: list[Example], first: int, *others: Any) -> Any:
        if len(labelled) == shards:
            raise KeyboardInterrupt
        labelled.append(first)
        return label(self, inputs, first, *others)

    monkeypatch.setattr(Labeller, "label", killed)
    return labelled


def test_a_killed_run_resumes_and_ends_with_the_same_bytes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run(top_logits=2, samples=2)
    whole = files()
    labelled = killed_after(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(top_logits=2, samples=2)
    assert files() == whole
    labelled.insert(0, -1)  # lets the next run label them all
    run(top_logits=2, samples=2)
    assert labelled == [-1, 0, 8, 10, 18, 26, 34]
    assert files() == whole
    assert not any(path.is_dir() for path in PATHS.resume("calibrate").iterdir())


BEGUN = list[str]()
"""Shards of another process."""


class MortalLabelling(ShardLabelling):
    """That of another process, which is killed when it begins with its second shard."""

    def __call__(self, unit: tuple[Shard, int]) -> None:
        if BEGUN:
            os.kill(os.getpid(), signal.SIGKILL)
        BEGUN.append(unit[0].name)
        super().__call__(unit)


def mortal_labelling(*arguments: Any) -> ShardLabelling:
    opened = open_labelling(*arguments)
    return MortalLabelling(opened.labeller, opened.shards)


def test_two_processes_write_the_bytes_of_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(top_logits=2, samples=2)
    whole, here = files(), killed_after(9, monkeypatch)
    run(top_logits=2, samples=2, workers=2)
    assert files() == whole
    assert len(here) < 6, "another process has begun with the first shards"
    assert "has ended" not in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_killed_process_leaves_is_done_by_the_other(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(top_logits=2, samples=2)
    whole, here = files(), killed_after(9, monkeypatch)
    monkeypatch.setattr(calibrate, "open_labelling", mortal_labelling)
    run(top_logits=2, samples=2, workers=2)
    assert files() == whole
    assert 0 not in here, "what the killed process had finished stayed"
    said = capsys.readouterr().err
    assert said.count("a process that shared this work has ended (BrokenProcessPool: ") == 1
    assert "its part is done here" in said


def test_a_changed_setting_starts_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = killed_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run()
    labelled.clear()
    with pytest.raises(KeyboardInterrupt):
        run(max_repeats=3)
    assert labelled == [0, 8]


def test_a_large_model_that_has_collapsed_to_one_output_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    check = check_outputs(["red"] * 24, INPUTS[:24], "bleu")
    collapsed, trivial, *_ = calibrate.report_check("words", check, {"calibration": {"kept": 24, "distinct": 1}})
    assert "1 distinct outputs of 24 for calibration" in capsys.readouterr().err
    assert "gives 1 distinct output for 24 inputs, 'red' for 100% of them" in collapsed
    assert "not shown to be better than giving one constant output" in trivial


def test_a_model_without_a_usable_output_is_refused(run: Run) -> None:
    with pytest.raises(InputError, match="no output of models/words/large for validation is fit to learn from; train it"):
        run(longest=2, sampling={"temperature": 0.0})
    assert not PATHS.calibration.exists()
