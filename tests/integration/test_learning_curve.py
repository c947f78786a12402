"""The learning curve of a tiny task through DeepSpeed: interrupted, resumed, and its last point the drafter of `align`."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import align, learning_curve
from tasks.corpora.example import Example, write_jsonl
from tasks.models.checkpoints import initial_model, save_model
from tasks.models.settings import ModelSettings, TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training import stage
from tasks.training.loop import TrainingResult
from tests.commands import Run, runner
from tests.training import InterruptedRun, interrupt_at

PATHS = TaskPaths("words")
SHAPE: dict[str, Any] = {"d_model": 16, "d_ff": 16, "d_kv": 8, "heads": 2, "encoder_layers": 1}
RECIPE = {"learning_rate": 0.01, "steps": 20, "batch_size": 16, "evaluate_every": 10, "checkpoint_every": 5}
TASK = {
    "metric": "bleu",
    "seeds": [1, 2],
    "text": {"max_source_tokens": 16, "max_target_tokens": 16},
    "models": {"small": {**SHAPE, "decoder_layers": 1}, "large": {**SHAPE, "decoder_layers": 2}},
    "align": RECIPE,
}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Example]:
    """The calibration texts of a task in the working folder, whose drafters can be trained."""
    monkeypatch.chdir(tmp_path)
    params = {"active": {"words": "data"}, "machine": {"device": "cpu", "threads": 1}, "tasks": {"words": TASK}}
    Path("params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    rng, words = random.Random(0), ["red", "blue", "green", "black", "white", "brown"]
    drawn = [rng.choices(words, k=3) for _ in range(568)]
    examples = [Example(" ".join(three), (" ".join(three[::-1]),)) for three in drawn]
    PATHS.calibration.mkdir(parents=True)
    write_jsonl(examples[:528], PATHS.calibration_set)
    write_jsonl(examples[528:], PATHS.held_out_calibration)
    numbers = [f"nor is {number}" for number in range(0, 9000, 37)]
    tokenizer = train_tokenizer([example.source for example in examples] + numbers, TokenizerSettings(vocabulary=64))
    tokenizer.save_pretrained(PATHS.tokenizer)
    large = ModelSettings(**SHAPE, decoder_layers=2, seed=4)
    save_model(initial_model(large, 64, tokenizer.pad_token_id, tokenizer.eos_token_id), tokenizer, PATHS.model("large"))
    return examples[:528]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(learning_curve.main, monkeypatch, capfd)  # a group of processes needs a standard error with a number


def test_a_curve_resumes_and_ends_with_the_drafters_of_align(
    texts: list[Example], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[TrainingResult] = []

    def trained(opened: Any, spec: Any, log: Any) -> TrainingResult:
        outcomes.append(train(opened, spec, interrupt_at(10) if len(outcomes) == 2 else log))
        return outcomes[-1]

    train = stage.train_opened
    monkeypatch.setattr(learning_curve, "train_opened", trained)
    # 1. Killed in the third training, behind a checkpoint: the two before are not trained again, and that one goes on.
    with pytest.raises(InterruptedRun):
        run("--task", "words")
    outcomes.append(outcomes[0])
    status, printed, _ = run("--task", "words", "--json")
    found = json.loads(printed.splitlines()[-1])
    assert (status, len(outcomes), outcomes[3].resumed_from) == (0, 3 + 6, 5)
    assert [point["texts"] for point in found["points"]] == [66, 132, 264, 528]
    assert found["read"] == 20 * 16 and {one["gain"] for one in found["forecasts"]} == {0.0}
    # 2. All of the calibration set gives what `align` trains.
    assert run_align(monkeypatch) == pytest.approx(found["points"][-1]["by_seed"]["1"], abs=1e-6)
    # 3. What is measured is not trained again, and nothing else is left: no weights, and nothing of another recipe.
    stale = PATHS.resume("learning-curve") / "0123456789abcdef"
    (stale / "66").mkdir(parents=True)
    status, printed, _ = run("--task", "words")
    assert (status, len(outcomes)) == (0, 9)
    assert printed.startswith("More calibration texts would bring nothing: the steps read 320 of 528. Raise align.steps first.")
    assert [path.suffix for path in stale.parent.glob("*/*")] == [".json"] * 8
    assert json.loads((PATHS.results / "learning_curve.json").read_text(encoding="utf-8"))["points"] == found["points"]


def run_align(monkeypatch: pytest.MonkeyPatch) -> float:
    """Train the aligned drafters; return the greedy acceptance of the first."""
    monkeypatch.setattr("sys.argv", ["align", "--task", "words"])
    align.main()
    with PATHS.training_log("aligned", 1).open(encoding="utf-8") as file:
        return float(list(csv.DictReader(file))[-1]["acceptance_greedy"])


def test_too_few_texts_are_refused_in_one_line(texts: list[Example], run: Run) -> None:
    write_jsonl(texts[:500], PATHS.calibration_set)
    status, printed, said = run("--task", "words")
    assert (status, printed) == (2, "")
    assert said.startswith("error: the calibration set has 500 texts, too few for a learning curve; ")
    assert len(said.splitlines()) == 1
