"""A large model that has collapsed to one output, from calibrate to the verdict: noticed, recorded, and nothing recommended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import calibrate
from tasks import sweep as sweep_stage
from tasks.alignment.labelling import Labeller
from tasks.config import Params, Task
from tasks.corpora.example import Example, write_jsonl
from tasks.evaluation.report.recommendation import as_lines
from tasks.evaluation.report.summarize import summarize
from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.scoring.quality import OutputCheck
from tasks.evaluation.settings import GridSettings
from tasks.loaded_pair import LoadedPair
from tasks.models.settings import TextSettings
from tasks.paths import ARMS, TaskPaths
from tasks.report import read_seeds
from tests.architectures import models
from tests.ticking import LIMIT, Words, sweep_settings
from tests.toys import END, VOCABULARY, prefix_pair, random_table, says, toy_sources

PATHS = TaskPaths("toy")
TEXT = TextSettings(max_source_tokens=32, max_target_tokens=LIMIT)
GRID = [GridSettings(method="speculative", values={"draft_length": [2, 3]})]


class BatchedWords(Words):
    def batch_decode(self, rows: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        return [self.decode(row, skip_special_tokens=skip_special_tokens) for row in rows]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus whose references differ, and the folder of a large model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    PATHS.model("large").mkdir(parents=True)
    (PATHS.model("large") / "config.json").write_text("{}")
    PATHS.corpus.mkdir(parents=True)
    words = Words()
    for seed, split in enumerate(("train", "validation", "test")):
        texts = [words.decode(row, skip_special_tokens=True) for row in toy_sources(24, seed)]
        write_jsonl([Example(text, (" ".join(reversed(text.split())),)) for text in texts], PATHS.split(split))
    write_jsonl([], PATHS.unlabelled)
    params = {"active": {"toy": "toy"}, "machine": {"device": "cpu"}, "tasks": {"toy": {"metric": "bleu"}}}
    Path("params.yaml").write_text(yaml.safe_dump(params))


def collapsed() -> Any:
    """Both models say the same word to every source, as after a training that went wrong."""
    return prefix_pair(says([7], vocabulary=VOCABULARY), says([7], vocabulary=VOCABULARY))


def test_calibrate_warns_of_it_and_records_it(
    task: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(paths: TaskPaths, machine: Any, text: Any, settings: Any) -> tuple[Labeller, dict[str, str]]:
        return Labeller(collapsed().large, BatchedWords(), TEXT, settings), {"folder": str(paths.model("large"))}

    monkeypatch.setattr(calibrate, "open_labeller", opened)
    monkeypatch.setattr(sys, "argv", ["calibrate", "--task", "toy"])
    calibrate.main()
    printed = capsys.readouterr()
    assert "24 of 24 outputs for calibration" in printed.err
    assert "1 distinct outputs of 24 for calibration" in printed.err
    warnings = [line for line in printed.err.splitlines() if line.startswith("warning")]
    assert any("gives 1 distinct output for 24 inputs, 'w7' for 100% of them" in line for line in warnings)
    assert any("not better than giving one constant output" in line for line in warnings)
    provenance = json.loads((PATHS.calibration / "provenance.json").read_text())
    check = decode(OutputCheck, provenance["check"], Source("provenance.json", "correct it"))
    assert (check.most_common, check.most_common_count, check.examples) == ("w7", 24, 24)
    assert provenance["sets"]["calibration"]["distinct"] == 1


def verdict(pair: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """What the report recommends after both sweeps of a pair."""
    small, large = models("t5")
    inputs = [PATHS.split("validation"), PATHS.split("test")]
    loaded = LoadedPair(pair, {"small": small, "large": large}, Words(), "cpu", inputs)
    monkeypatch.setattr(sweep_stage, "load_pair", lambda *_: loaded)
    settings = sweep_settings(grid=GRID, latency_examples=3, bootstrap_samples=200)
    task = Task(metric="bleu", text=TEXT, sweep=settings)
    for arm in ARMS:
        sweep_stage.sweep(Params(active={"toy": Path()}, tasks={"toy": task}), task, PATHS, arm, 1)
    arms = read_seeds(PATHS, "bleu", [1])
    rows = {arm: arms[arm, 1][0] for arm in ARMS}
    summary = summarize("toy", "bleu", rows, {arm: arms[arm, 1][1] for arm in ARMS}, arms)
    return summary, as_lines(summary)


def test_the_verdict_recommends_nothing_and_says_why(task: None, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, text = verdict(collapsed(), monkeypatch)
    assert summary.recommended is None
    assert text.startswith("These models support no recommendation: ")
    assert "gives 1 distinct output for 24 inputs, 'w7' for 100% of them" in text
    assert "the large model is not better than the aligned small model alone" in text
    assert "Deploy" not in text
    assert len(summary.recommendation.against) >= 3


def test_a_large_model_that_knows_the_task_is_not_refused(task: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def reverses(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
        return says([*reversed([one for one in source if one != END])], vocabulary=VOCABULARY)(source, prefix)

    other = random_table("small", agreement=0.5, sharpness=4.0, vocabulary=VOCABULARY, end=1.5)
    summary, text = verdict(prefix_pair(other, reverses), monkeypatch)
    assert summary.recommendation.against == []
    assert "support no recommendation" not in text
