"""Training in two processes: the same model as in one, the same after a kill, and through ssh as well as here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from tasks.corpora.example import Example, write_jsonl
from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import train_tokenizer
from tasks.training.batching import BucketBatchSampler, partition
from tests.processes import RECIPES, examples, train_recipe

ROOT = Path(__file__).parents[2]
SAME_MODEL = ("adamw", "adafactor", "accumulated", "zero")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def command(*words: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of the repository in a folder."""
    arguments = [sys.executable, "-m", *words]
    return subprocess.run(
        arguments, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=300, check=False
    )


def in_two(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command("tests.processes", str(folder), *words, "--nproc", "2", folder=ROOT)


def told(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def farthest(left: Path, right: Path) -> float:
    """The largest difference between two files of weights."""
    one, other = load_file(left), load_file(right)
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the recipes."""
    folder = tmp_path_factory.mktemp("one")
    for name in SAME_MODEL:
        train_recipe(name, folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two make of them."""
    folder = tmp_path_factory.mktemp("two")
    done = in_two(folder, *SAME_MODEL, "dropout")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", SAME_MODEL)
def test_two_processes_train_the_model_of_one(one: Path, two: Path, name: str) -> None:
    alone, together = told(one, name), told(two, name)
    assert len(alone["validation_loss"]) == RECIPES[name].steps
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert together["validation_loss"] == pytest.approx(alone["validation_loss"], rel=1e-5)
    assert farthest(one / f"{name}.safetensors", two / f"{name}.safetensors") < 1e-3
    assert alone["validation_loss"][-1] < alone["validation_loss"][0] - 0.1


def test_micro_batches_train_the_same_model(one: Path) -> None:
    assert told(one, "accumulated")["validation_loss"] == pytest.approx(told(one, "adamw")["validation_loss"], rel=1e-5)
    assert farthest(one / "accumulated.safetensors", one / "adamw.safetensors") < 1e-3


def test_a_mean_of_means_would_be_another_loss() -> None:
    # Or the tests above could not tell them apart: a process has far more tokens than the other, or all of them.
    texts, recipe = examples(), RECIPES["adamw"]
    order = BucketBatchSampler(texts, recipe)
    shares = [[partition(order.batch_at(step), process, 2) for process in range(2)] for step in range(recipe.steps)]
    tokens = [[sum(len(texts.targets[index]) for index in part) for part in parts] for parts in shares]
    assert sum(max(counts) >= 1.5 * min(counts) for counts in tokens) > 0.7 * recipe.steps
    assert any(min(counts) == 0 for counts in tokens)


def test_a_killed_run_is_taken_up_and_ends_with_the_same_bits(two: Path, tmp_path: Path) -> None:
    killed = in_two(tmp_path, "killed", "--killed")
    assert killed.returncode == 1
    assert "error: process 2 of 2 was ended by SIGKILL" in killed.stderr
    assert "Traceback" not in killed.stderr
    assert not (tmp_path / "killed.json").exists()
    resumed = in_two(tmp_path, "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert told(tmp_path, "killed")["resumed_from"] == 8
    assert (tmp_path / "killed.safetensors").read_bytes() == (two / "dropout.safetensors").read_bytes()


@pytest.fixture
def toy_task(tmp_path: Path) -> Path:
    """A folder as the stages want it, with a corpus, a tokenizer and parameters."""
    words = ["red", "blue", "green", "black", "white", "brown"]
    pairs = [Example(f"{word} {place * 37}", (word,)) for place, word in enumerate(words * 8)]
    data = tmp_path / "data" / "toy"
    for split in ("train", "validation"):
        (data / "corpus").mkdir(parents=True, exist_ok=True)
        write_jsonl(pairs, data / "corpus" / f"{split}.jsonl")
    train_tokenizer((pair.source for pair in pairs), TokenizerSettings(vocabulary=64)).save_pretrained(data / "tokenizer")
    shape = {"d_model": 16, "d_ff": 32, "d_kv": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    task = {"metric": "bleu", "models": {"small": shape}, "finetune": {"small": {"steps": 3, "batch_size": 8}}}
    params = {"active": {"toy": "nowhere"}, "machine": {"device": "cpu"}, "tasks": {"toy": task}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return tmp_path


FINETUNE = ("tasks.finetune", "--task", "toy", "--model", "small")


def test_two_hosts_train_together_through_ssh(toy_task: Path) -> None:
    # The hosts are loopback addresses; what stands in for ssh runs the line in a shell here, with the bare environment that a
    # login on another host has.
    stand_in = toy_task / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text(
        '#!/bin/sh\nwhile [ "$#" -gt 2 ]; do shift; done\necho "$1" >> logins\n'
        'cd / && exec env -i PATH=/usr/bin:/bin HOME="$HOME" sh -c "$2"\n'.replace("logins", str(toy_task / "logins")),
        encoding="utf-8",
    )
    stand_in.chmod(0o755)
    (toy_task / "hosts.txt").write_text("127.0.0.2 slots=1\n127.0.0.3 slots=1\n", encoding="utf-8")
    path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
    database = f"sqlite:///{toy_task / 'mlflow.db'}"
    done = command(*FINETUNE, "--hostfile", "hosts.txt", folder=toy_task, PATH=path, MLFLOW_TRACKING_URI=database)
    assert done.returncode == 0, done.stderr
    assert sorted((toy_task / "logins").read_text().split()) == ["127.0.0.2"] * 2 + ["127.0.0.3"] * 2
    assert done.stdout.startswith("toy/small: ")
    assert done.stdout.count("\n") == 1
    assert (toy_task / "models" / "toy" / "small" / "model.safetensors").is_file()
    assert not list((toy_task / ".cache").glob("reach-*"))


def test_bad_input_in_two_processes_is_one_line(toy_task: Path) -> None:
    (toy_task / "data" / "toy" / "corpus" / "validation.jsonl").unlink()
    done = command(*FINETUNE, "--nproc", "2", folder=toy_task)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: data/toy/corpus/validation.jsonl is missing")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("hostfile", "line"),
    [
        ("nowhere.invalid slots=1\n127.0.0.3 slots=1\n", "error: the host nowhere.invalid cannot be reached ("),
        ("node1 slots=1\nnode2 slots=two\n", "error: hosts.txt, line 2: 'node2 slots=two' is not `host slots=N`"),
    ],
)
def test_hosts_that_cannot_be_used_stop_it_before_any_work(toy_task: Path, hostfile: str, line: str) -> None:
    (toy_task / "hosts.txt").write_text(hostfile, encoding="utf-8")
    done = command(*FINETUNE, "--hostfile", "hosts.txt", folder=toy_task)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
