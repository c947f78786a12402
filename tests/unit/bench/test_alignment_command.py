"""The comparison of alignment methods, on models that take no time."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.bench.alignment import command, drafters
from tasks.bench.alignment.recipes import UNALIGNED
from tasks.bench.alignment.table import COLUMNS
from tasks.bench.shapes import Shape, random_pair
from tasks.corpora.example import Example, write_jsonl
from tasks.errors import InputError
from tasks.models.checkpoints import save_model
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training.loop import TrainingResult

PATHS = TaskPaths("translation")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of random models where those of the translation task lie, with its text, and small settings."""
    folder = tmp_path_factory.mktemp("project")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrst", k=6)) for _ in range(60)]
    texts = [" ".join(rng.choices(words, k=3)) for _ in range(300)]
    tokenizer = train_tokenizer(texts, TokenizerSettings(vocabulary=64))
    (folder / PATHS.tokenizer.parent).mkdir(parents=True)
    tokenizer.save_pretrained(folder / PATHS.tokenizer)
    for name, model in zip(("large", "small"), random_pair(Shape(2, 32, 2, small_layers=1, vocabulary=64)), strict=True):
        save_model(model, tokenizer, folder / PATHS.model(name))
    files = {PATHS.calibration_set: 40, PATHS.held_out_calibration: 6, PATHS.split("validation"): 6, PATHS.split("test"): 6}
    for path, count in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl([Example(text, (text,)) for text in texts[:count]], folder / path)
    params: Any = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    task = params["tasks"]["translation"]
    task["text"] = {"max_source_tokens": 24, "max_target_tokens": 6}
    task["models"]["small"] |= {"d_model": 32, "d_ff": 32, "encoder_layers": 1}
    task["sweep"] |= {"latency_examples": 3, "latency_rounds": 1, "warmup_examples": 0, "bootstrap_samples": 100}
    params |= {"active": {"translation": params["active"]["translation"]}, "inactive": {}, "tasks": {"translation": task}}
    params["machine"] = {"device": "cpu", "runtime": "reference", "threads": 1}
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return folder


@pytest.fixture
def here(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project to work in, in which training leaves the model as it began."""

    def run(opened: Any, settings: Any, _large: Path, _folder: Path) -> tuple[Any, Any]:
        trained.append((opened.job.name, settings.steps))
        measured = {"acceptance_rate": 0.5}
        return TrainingResult(1.0, 2.0, 0, settings.steps, settings.steps, measured), Ticking(settings.steps)

    trained.clear()
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(drafters, "_run", run)
    return folder


trained: list[tuple[str, int]] = []


class Ticking:
    """A step takes a quarter of a second."""

    def __init__(self, steps: int) -> None:
        self.tokens = 10 * steps

    def seconds_per_step(self, evaluate_every: int, skip: int = 0) -> float:
        return 0.25


def compare(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[Any, list[str]]:
    command.main(["--task", "translation", "--seconds", "3", "--recipes", "forward_kl,unaligned,stored", *given])
    *lines, last = capsys.readouterr().out.splitlines()
    return json.loads(last), lines


def test_every_drafter_has_every_number_and_is_measured_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", "compared", "--json", "found.json"]
    found, lines = compare(capsys, "--seeds", "2", *out)
    # Steps are counted once for a recipe, by a probe; 3 seconds are 12 of them.
    assert trained == [("forward_kl-1", 72), ("forward_kl-1", 12), ("forward_kl-2", 12)]
    assert json.loads(Path("found.json").read_text()) == found
    assert {column.name for column in COLUMNS} - found["recipes"]["forward_kl"].keys() <= {
        "bild_speedup",
        "bild_quality_difference",
    }
    assert (found["recipes"]["forward_kl"]["seeds"], found["recipes"][UNALIGNED]["seeds"]) == ([1, 2], [0])
    assert found["recipes"]["forward_kl"]["training_seconds"]["values"] == [3.0, 3.0]
    # A drafter that training left as it began is the one that is not aligned.
    rate = found["recipes"][UNALIGNED]["acceptance_rate"]["mean"]
    assert found["recipes"]["forward_kl"]["acceptance_rate"]["mean"] == pytest.approx(rate)
    assert 0 < rate < 1
    assert any(line.startswith("stored: left out, data/translation/calibration holds no logits") for line in lines)
    assert Path("compared/table.md").read_text().strip() in "\n".join(lines)
    before = Path("compared/rows.jsonl").read_text()
    again, _ = compare(capsys, "--seed-list", "2,1", *out)
    assert Path("compared/rows.jsonl").read_text() == before
    assert len(trained) == 3
    assert again["recipes"] == found["recipes"]


def test_training_and_measuring_may_be_two_commands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", "compared", "--seed-list", "5"]
    found, _ = compare(capsys, "--train-only", "--threads", "1", *out)
    assert [(one["recipe"], one["seed"], one.get("steps")) for one in found["trained"]] == [
        ("forward_kl", 5, 12),
        (UNALIGNED, 0, None),
    ]
    assert not Path("compared/rows.jsonl").exists()
    found, _ = compare(capsys, *out)
    assert len(trained) == 2
    assert found["best"] == "forward_kl"


def test_other_seconds_or_data_make_another_drafter(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--out", "compared", "--train-only", "--seeds", "1"]
    compare(capsys, *given)
    compare(capsys, *given, "--seconds", "4")
    assert trained[2:] == [("forward_kl-1", 72), ("forward_kl-1", 16)]
    with PATHS.calibration_set.open("a") as file:
        file.write(PATHS.calibration_set.read_text().splitlines()[0] + "\n")
    compare(capsys, *given, "--seconds", "4")
    assert len(trained) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--recipes", "kl"], "--recipes names 'kl', which is no recipe; name some of sequence,"),
        (["--seeds", "0"], "--seeds is 0; it must be at least 1"),
        (["--seed-list", "1,two"], "--seed-list is '1,two'; it must be whole numbers, such as 1,2,3"),
        (["--seconds", "0"], "--seconds is 0.0; it must be more than 0"),
        (["--threads", "0"], "--threads is 0; it must be at least 1"),
    ],
)
def test_bad_options_are_named(here: Path, given: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        command.main(["--task", "translation", *given])
    assert said in str(error.value)


def test_a_task_without_a_trained_pair_is_refused(here: Path) -> None:
    shutil.rmtree(PATHS.model("small"))
    with pytest.raises(InputError, match="models/translation/small is missing; train the task's pair and calibrate first"):
        command.main(["--task", "translation"])
