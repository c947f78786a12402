"""Training in two processes: the model of one process, and the same weights after a kill."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from tasks.models.settings import ModelSettings
from tasks.paths import TaskPaths
from tasks.training.data import BucketBatchSampler
from tasks.training.settings import TrainingSettings
from tests.processes import RECIPES, examples, train_recipe
from tests.ranks import run
from tests.training import toy_job

SAME_MODEL = ("adamw", "adafactor", "accumulated", "zero", "partitioned", "relative", "relative_partitioned")


def in_two(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run("tests.processes", str(folder), *words, "--nproc", "2")


def curves(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def farthest(left: Path, right: Path) -> float:
    """The largest difference between two files of weights."""
    one, other = load_file(left), load_file(right)
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one process for each recipe."""
    folder = tmp_path_factory.mktemp("one")
    for name in SAME_MODEL:
        train_recipe(name, folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for two processes, started by torchrun."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m")
    done = run(*torchrun, "tests.processes", str(folder), *SAME_MODEL)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME_MODEL)
def test_two_processes_train_the_same_model_as_one(one: Path, two: Path, name: str) -> None:
    alone, together = curves(one, name), curves(two, name)
    assert len(alone["validation_loss"]) == RECIPES[name].steps // RECIPES[name].evaluate_every
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert together["validation_loss"] == pytest.approx(alone["validation_loss"], rel=1e-5)
    assert farthest(one / f"{name}.safetensors", two / f"{name}.safetensors") < 1e-3
    assert alone["validation_loss"][-1] < alone["validation_loss"][0] - 0.1


@pytest.mark.slow
def test_partitioned_adafactor_trains_the_same_model_as_whole(one: Path, two: Path) -> None:
    for whole, partitioned in (("adafactor", "partitioned"), ("relative", "relative_partitioned")):
        for folder in (one, two):
            assert curves(folder, partitioned)["loss"] == pytest.approx(curves(one, whole)["loss"], rel=1e-5)
            assert farthest(one / f"{whole}.safetensors", folder / f"{partitioned}.safetensors") < 1e-3


def test_a_mean_of_means_would_be_a_different_loss() -> None:
    # Otherwise the tests above could not distinguish them: one process has far more tokens than the other, or all of them.
    texts, recipe = examples(), RECIPES["adamw"]
    order = BucketBatchSampler(texts, recipe)
    shares = [[order.batch_at(step)[process::2] for process in range(2)] for step in range(recipe.steps)]
    tokens = [[sum(len(texts.targets[index]) for index in part) for part in parts] for parts in shares]
    assert sum(max(counts) >= 1.5 * min(counts) for counts in tokens) > 0.7 * recipe.steps
    assert any(min(counts) == 0 for counts in tokens)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["", "_partitioned"])
def test_a_killed_run_resumes_and_ends_with_the_same_bits(which: str, tmp_path: Path) -> None:
    name, whole = f"killed{which}", f"dropout{which}"
    killed = in_two(tmp_path, name, "--killed")
    assert killed.returncode == 1
    [error] = [line for line in killed.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: rank 1 of 2 was killed by SIGKILL")
    assert "Traceback" not in killed.stderr
    assert not (tmp_path / f"{name}.json").exists()
    resumed = in_two(tmp_path, name, whole)
    assert resumed.returncode == 0, resumed.stderr
    assert curves(tmp_path, name)["resumed_from"] == 8
    assert (tmp_path / f"{name}.safetensors").read_bytes() == (tmp_path / f"{whole}.safetensors").read_bytes()


@pytest.fixture
def toy_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the stages want it, with a corpus, a tokenizer and parameters."""
    monkeypatch.chdir(tmp_path)
    toy_job(TaskPaths("toy"), ModelSettings(), TrainingSettings())
    shape = {"d_model": 16, "d_ff": 32, "d_kv": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    task = {"metric": "bleu", "models": {"small": shape}, "finetune": {"small": {"steps": 3, "batch_size": 8}}}
    params = {"active": {"toy": "nowhere"}, "machine": {"device": "cpu"}, "tasks": {"toy": task}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return tmp_path


FINETUNE = ("tasks.finetune", "--task", "toy", "--model", "small")


@pytest.mark.slow
def test_a_stage_trains_in_two_processes_or_refuses_in_one_line(toy_task: Path) -> None:
    database = f"sqlite:///{toy_task / 'mlflow.db'}"
    done = run(*FINETUNE, "--nproc", "2", folder=toy_task, MLFLOW_TRACKING_URI=database)
    assert done.returncode == 0, done.stderr
    trained, checked = (line for line in done.stderr.splitlines() if line.startswith("toy/small: "))
    assert trained.startswith("toy/small: ") and " steps in " in trained
    assert checked.startswith("toy/small: bleu ")
    assert (toy_task / "models" / "toy" / "small" / "model.safetensors").is_file()
    (toy_task / "data" / "toy" / "corpus" / "validation.jsonl").unlink()
    done = run(*FINETUNE, "--nproc", "2", folder=toy_task)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: rank ")
    assert f"on {socket.gethostname()}: data/toy/corpus/validation.jsonl is missing" in done.stderr
    assert done.stderr.count("\n") == 1
