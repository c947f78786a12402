"""The comparison of alignment recipes, on models that take no time."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.bench.alignment import command, drafters, equal_time, work
from tasks.bench.alignment.measuring import PairEvaluation
from tasks.bench.alignment.rows import Run
from tasks.bench.alignment.table import COLUMNS
from tasks.bench.shapes import Shape, random_pair
from tasks.corpora.example import Example, write_jsonl
from tasks.errors import InputError
from tasks.models.checkpoints import save_model
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.paths import TaskPaths
from tasks.training.loop import DivergedError

PATHS = TaskPaths("translation")
CONTROL_SET = PATHS.control_set


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
    files = {
        PATHS.calibration_set: 40,
        CONTROL_SET: 30,
        PATHS.held_out_calibration: 6,
        PATHS.split("validation"): 6,
        PATHS.split("test"): 6,
    }
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

    def run(opened: Any, settings: Any, _large: Path, _folder: Path) -> Any:
        recipe, _, seed = opened.job.name.rsplit("-", 2)
        if recipe == "forward_kl":
            raise DivergedError("the training loss is nan", 3, Path("checkpoints"))
        trained.append((recipe, settings.steps, int(seed), len(opened.examples)))
        return Ticking(recipe, settings.steps)

    def measure(self: PairEvaluation, *given: Any) -> Any:
        measured.append(self.split.name)
        return measured_really(self, *given)

    measured_really = PairEvaluation.measure
    trained.clear()
    measured.clear()
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(drafters, "timed_training", run)
    monkeypatch.setattr(equal_time, "timed_training", run)
    monkeypatch.setattr(PairEvaluation, "measure", measure)
    return folder


trained: list[tuple[str, int, int, int]] = []
measured: list[str] = []


class Ticking:
    """A step takes a quarter of a second, and one on-policy step a whole one."""

    def __init__(self, recipe: str, steps: int) -> None:
        self.tokens = 10 * steps
        self._seconds = 1.0 if recipe == "on_policy" else 0.25

    def seconds_per_step(self, evaluate_every: int, skip: int = 0) -> float:
        return self._seconds


RECIPES = "references,hard_labels,jensen_shannon_0.1,on_policy"


def compare(capsys: pytest.CaptureFixture[str], *given: str, recipes: str = RECIPES) -> tuple[Any, list[str]]:
    small = ("--steps", "20", "--examples", "4", "--out", "compared")
    command.main(["--task", "translation", "--processes", "1", *small, "--recipes", recipes, *given])
    *lines, last = capsys.readouterr().out.splitlines()
    return json.loads(last), lines


def test_recipes_are_compared_for_equal_steps_and_equal_time_and_each_drafter_is_made_once(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, lines = compare(capsys, "--seeds", "2", "--json", "found.json")
    # Three probes of each recipe beside its control; for equal steps 20 each; for equal time on-policy has a quarter, the
    # others share theirs.
    probes = [("references", 72), ("hard_labels", 72)] * 3 + [("references", 72), ("on_policy", 108)] * 3
    assert [one[:2] for one in trained[:12]] == probes
    runs = [(recipe, steps) for recipe, steps in (("hard_labels", 20), ("on_policy", 5), ("on_policy", 20), ("references", 20))]
    assert [one[:3] for one in trained[12:]] == [(*run, seed) for seed in (1, 2) for run in runs]
    assert {(recipe, texts) for recipe, _, _, texts in trained} == {("references", 30), ("hard_labels", 40), ("on_policy", 40)}
    assert any(line.startswith("jensen_shannon_0.1: left out, data/translation/calibration holds no logits") for line in lines)
    assert json.loads(Path("found.json").read_text()) == found
    equal_steps, equal_time = (found["budgets"][name]["recipes"] for name in ("steps", "time"))
    assert [one["on_policy"]["steps"] for one in (equal_steps, equal_time)] == [20, 5]
    assert equal_time["on_policy"]["columns"]["training_seconds"]["values"] == [5.0, 5.0]
    assert equal_steps["references"]["columns"]["target_tokens"]["mean"] == 200
    assert equal_steps["references"]["columns"].keys() == {column.name for column in COLUMNS}
    # Drafters that training leaves as they began are all the start: nothing is better, so the control is the default.
    rates = {one["columns"]["acceptance_rate"]["mean"] for one in equal_steps.values()}
    assert len(rates) == 1 and 0 < rates.pop() < 1
    assert found["default"] == "references"
    assert [one["recipe"] for one in found["test"]] == ["references"]
    assert Path("compared/table.md").read_text().strip() in "\n".join(lines)
    assert measured == ["validation"] * 8
    again, _ = compare(capsys, "--seed-list", "2,1")
    assert (len(trained), len(measured)) == (20, 8)
    assert again["budgets"]["steps"]["recipes"].keys() == equal_steps.keys()


def test_a_machine_that_slows_down_within_a_round_does_not_change_equal_time(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"references": iter([1.0, 8.0, 4.0]), "hard_labels": iter([0.5, 2.0, 8.0])}
    monkeypatch.setattr(equal_time, "_opened", lambda _, run: lambda: next(seconds[run.recipe]))
    found, _ = compare(capsys, "--seeds", "1", "--budget", "time", recipes="references,hard_labels")
    steps = {name: one["steps"] for name, one in found["budgets"]["time"]["recipes"].items()}
    assert steps == {"references": 20, "hard_labels": 40}, "the median of 2, 4 and a half"


def test_other_data_or_examples_make_other_drafters_or_rows(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--seeds", "1", "--budget", "steps"]
    compare(capsys, *given, recipes="references")
    compare(capsys, *given, "--examples", "5", recipes="references")
    assert (len(trained), len(measured)) == (1, 2)
    with CONTROL_SET.open("a") as file:
        file.write(CONTROL_SET.read_text().splitlines()[0] + "\n")
    found, _ = compare(capsys, *given, "--examples", "5", recipes="references")
    assert (len(trained), len(measured)) == (2, 3)
    assert found["budgets"].keys() == {"steps"}


def test_a_diverged_recipe_is_left_out(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters.Comparison, "missing", lambda *_: "")
    found, lines = compare(capsys, "--seeds", "1", "--budget", "steps", recipes="references,forward_kl")
    assert any("forward_kl, seed 1, 20 steps: left out, the training loss is nan at step 3" in line for line in lines)
    assert found["budgets"]["steps"]["recipes"].keys() == {"references"}
    with pytest.raises(InputError, match="the training of every drafter diverged"):
        compare(capsys, "--seeds", "1", "--budget", "steps", recipes="forward_kl")


def test_several_processes_finish_every_drafter(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [Run(seed, "references", 4) for seed in (1, 2, 3)]
    monkeypatch.setattr(work, "ProcessPoolExecutor", lambda count, mp_context: ThreadPoolExecutor(count))
    monkeypatch.setattr(work, "stored_row", lambda _comparison, run, _costs: None)
    monkeypatch.setattr(work, "finished_row", lambda _comparison, run, _costs: f"error of {run}")
    comparison: Any = None
    costs: Any = None
    found = dict(work.finished_rows(comparison, made, costs, 2))
    assert found == {run: f"error of {run}" for run in made}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--recipes", "kl"], "--recipes names 'kl', which is no recipe; name some of references,"),
        (["--seeds", "0"], "--seeds is 0; it must be at least 1"),
        (["--seed-list", "1,two"], "--seed-list is '1,two'; it must be whole numbers, such as 1,2,3"),
        (["--steps", "0"], "--steps is 0; it must be at least 1"),
        (["--processes", "0"], "--processes is 0; it must be at least 1"),
        (["--examples", "1"], "--examples is 1; it must be at least 2"),
    ],
)
def test_bad_options_are_named(here: Path, given: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        command.main(["--task", "translation", *given])
    assert said in str(error.value)


def test_missing_models_and_texts_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CONTROL_SET.unlink()
    with pytest.raises(InputError, match="no recipe is left to compare"):
        compare(capsys, recipes="references")
    assert (
        "references: left out, data/translation/calibration/calibration-references.jsonl is missing" in capsys.readouterr().out
    )
    shutil.rmtree(PATHS.model("small"))
    with pytest.raises(InputError, match="models/translation/small is missing; train the task's pair and calibrate first"):
        command.main(["--task", "translation"])
