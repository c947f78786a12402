"""A clone of the project whose parameters are so small that the whole pipeline runs in a few minutes."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from filelock import FileLock

from tasks.files import checksum
from tests.mutants.__main__ import copy_tree
from tests.served import STAGES, Served, repository, serving
from tests.torture.children import Forks

ROOT = Path(__file__).parents[2]


GRID: list[dict[str, Any]] = [
    {"method": "bild", "values": {"fallback_threshold": [0.1, 0.3], "rollback_threshold": [3.0]}},
    {"method": "speculative", "values": {"draft_length": [3]}},
    {"method": "bild", "values": {"drafter": ["early_layer"]}},
    {"method": "bild_oracle", "values": {}},
    {"method": "speculative", "values": {"drafter": ["unigram", "bigram", "copy", "suffix", "random", "early_layer", "heads"]}},
    {"method": "speculative_margin", "values": {}},
    {"method": "speculative_lenient", "values": {"lenience": [0.5]}},
    {"method": "speculative_lossy", "values": {"tuned": [False, True]}},
    {"method": "speculative_confident", "values": {}},
    {"method": "beam_large", "values": {"beams": [2]}},
    {"method": "speculative_beam", "values": {"beams": [2], "draft_beams": [3]}},
    {"method": "sequence_cascade", "values": {"confidence": ["sum"]}},
    {"method": "token_cascade", "values": {}},
    {"method": "diff_oracle", "values": {}},
    {"method": "speculative_cascade", "values": {"rule": ["chow", "diff_log", "opt", "token_v3"]}},
    {"method": "calm", "values": {"confidence": ["classifier"]}},
]


def tiny(params: dict[str, Any]) -> dict[str, Any]:
    """Return the translation task of params.yaml with all sizes reduced."""
    task = params["tasks"]["translation"]
    training = {"optimizer": "adafactor", "relative_rate": True, "learning_rate": 0.03, "steps": 80, "batch_size": 16}
    training |= {"seed": 1, "evaluate_every": 40, "checkpoint_every": 40}
    shape = {"d_model": 32, "d_ff": 64, "d_kv": 16, "heads": 2, "encoder_layers": 1, "seed": 1}
    task["corpus"]["embedded"] |= {"train": 400, "validation": 12, "test": 10}
    # With so many tokens most targets end within the limit, and the large model soon learns to end as well.
    task["text"] = {"max_source_tokens": 64, "max_target_tokens": 32}
    task["tokenizer"] = {"vocabulary": 1000}
    task["models"] = {"large": {**shape, "decoder_layers": 3}, "small": {**shape, "decoder_layers": 1}}
    layers = {"exit_loss": "weighted", "draft_heads": 2, "exit_classifier": True}
    # Enough steps that most outputs of the large model reach an end token, whatever the processor's instructions round to.
    longer = {"steps": 160, "evaluate_every": 80, "checkpoint_every": 80}
    task["finetune"] = {"large": {**training, **layers, **longer}, "small": dict(training)}
    task["calibrate"] = {"batch_size": 64, "max_repeats": 0}
    task["align"] = {name: value for name, value in training.items() if name != "seed"} | {"steps": 40}
    task["seeds"] = [1, 2]
    task["sweep"] |= {"latency_examples": 3, "latency_rounds": 1, "warmup_examples": 1, "bootstrap_samples": 100}
    task["sweep"] |= {"batch_sizes": [1, 3], "batch_examples": 6}
    task["sweep"]["grid"] = GRID
    return {
        "active": {"translation": params["active"]["translation"]},
        "machine": {"device": "cpu", "runtime": "auto", "dtype": "float32", "drafter_dtype": "same", "threads": 1},
        "tasks": {"translation": task},
    }


def smaller(params: dict[str, Any]) -> dict[str, Any]:
    """Return the tiny parameters with shorter trainings, more checkpoints and three points: for tests that run it often."""
    task = params["tasks"]["translation"]
    for section in (task["finetune"]["small"], task["align"]):
        section |= {"steps": 60, "evaluate_every": 30, "checkpoint_every": 10}
    # Without its other losses it needs more steps until most outputs end.
    task["finetune"]["large"] |= {"steps": 240, "evaluate_every": 120, "checkpoint_every": 40}
    for name in ("exit_loss", "draft_heads", "exit_classifier"):
        del task["finetune"]["large"][name]
    task["sweep"] |= {"latency_examples": 2, "batch_sizes": [1], "batch_examples": 4, "grid": GRID[:2]}
    return params


def smallest(params: dict[str, Any]) -> dict[str, Any]:
    """Return the smaller parameters with one seed."""
    params["tasks"]["translation"]["seeds"] = [1]
    return smaller(params)


PLANTED = "a-planted-secret"
_SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "PREFECT_API_KEY", "DRAFTLINE_API_KEY")


def environment(clone: Path) -> dict[str, str]:
    """Return the environment of this process with planted secrets, and without variables that lead a stage out of the clone.

    A package `mlflow` that does not import hides the real one, whose import takes each stage seconds; runs wait in the outbox.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_", "DRAFTLINE_"))}
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    locks = clone / ".cache" / "locks"
    hidden = clone / ".cache" / "without" / "mlflow"
    for folder in (locks, hidden):
        folder.mkdir(parents=True, exist_ok=True)
    (hidden / "__init__.py").write_text("raise ImportError('mlflow is hidden')\n", encoding="utf-8")
    return kept | {
        **dict.fromkeys(_SECRETS, PLANTED),
        "TMPDIR": str(locks),  # its own locks, so that these tests and a real sweep do not wait for each other
        "PATH": binaries,
        "PYTHONPATH": os.pathsep.join([str(hidden.parent), str(clone)]),
        "OMP_NUM_THREADS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }


def make_clone(folder: Path, shrink: Callable[[dict[str, Any]], dict[str, Any]] = lambda params: params) -> Path:
    """Copy the files that git knows to a repository of their own, with the tiny parameters, made smaller by `shrink`."""
    copy_tree(ROOT, folder, without=("tests/", "docs/"))
    (folder / "dvc.lock").unlink(missing_ok=True)
    params = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    write_params(folder, shrink(tiny(params)))
    remote = f"https://me:{PLANTED}@localhost/project.git"
    for command in (["git", "init", "--quiet"], ["git", "remote", "add", "origin", remote], ["git", "add", "--all"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *identity, "commit", "--quiet", "--message", "clone"], cwd=folder, check=True)
    return folder


def read_params(clone: Path) -> Any:
    return yaml.safe_load((clone / "params.yaml").read_text(encoding="utf-8"))


def write_params(clone: Path, params: Any) -> None:
    (clone / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")


def run_in(clone: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the clone, with `more` in its environment; stop it after an hour."""
    variables = environment(clone) | more
    return subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True, timeout=3600)


def repro(clone: Path) -> str:
    """Run `dvc repro` in the clone, and return what it prints and logs."""
    done = run_in(clone, "dvc", "repro")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def run_stages(clone: Path) -> str:
    """Run the commands of all stages in the order of dvc.yaml, let DVC keep their outputs, and return what they print and log.

    Each is forked from one process that imports what the stages do: `dvc repro` would spend half of its time on imports.
    """
    variables, modules, said = environment(clone), clone.parent / "modules", clone.parent / "said"
    places = os.pathsep.join([variables["PYTHONPATH"], str(ROOT)])
    with contextlib.closing(Forks(None, **variables | {"PYTHONPATH": places})) as forks, Repo(str(clone)) as repo:
        for stage in repo.index.stages:
            words = shlex.split(stage.cmd.removeprefix("exec python -m "))
            metrics = clone / "results" / words[words.index("--task") + 1] / "metrics.json"
            metrics.parent.mkdir(parents=True, exist_ok=True)
            metrics.write_text("[]", encoding="utf-8")
            run = forks.start(words, clone, variables | {"TORTURE_MODULES": str(modules)}, said)
            forks.wait(run, seconds=3600)
            assert run.status == 0, run.said[-3000:]
            assert metrics.read_text(encoding="utf-8") != "[]", "metrics of an earlier run beside new files"
            forks.learn(modules.read_text(encoding="utf-8").split())
    kept = run_in(clone, "dvc", "commit", "--force")
    assert kept.returncode == 0, kept.stderr
    return said.read_text(encoding="utf-8")


def stages_run(printed: str) -> list[str]:
    """Return the stages that ran, by what DVC prints."""
    return re.findall(r"Running stage '([^']+)'", printed)


def copy_of(clone: Path, folder: Path) -> Path:
    """Copy a clone to `folder`/copy, for a test that changes it."""
    return Path(shutil.copytree(clone, folder / "copy", symlinks=True))


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return what tells a row of a sweep from the others."""
    return row["split"], row["method"], json.dumps(row["settings"])


BY_TIMES = {"latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval", "rounds", "timed_mismatches", "predicted"}
BY_TIMES |= {"how", "why", "shown", "sha256"}
"""Columns of a row that a clock fills, and those that only timed points have, which predicted times choose."""


def comparable(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return what no time decides of a row of a sweep; None of one on test: which points go there depends on times."""
    return {name: value for name, value in row.items() if name not in BY_TIMES} if row["split"] == "validation" else None


def outcome(clone: Path) -> dict[str, Any]:
    """Return checksums of data and models, and the rows without what times decide; fail if a row is doubled."""
    files = [file for part in ("data/translation", "models") for file in (clone / part).rglob("*") if file.is_file()]
    found: dict[str, Any] = {str(file.relative_to(clone)): checksum(file) for file in files}
    for file in (clone / "results").rglob("rows*.jsonl"):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert len(set(map(key_of, rows))) == len(rows)
        found |= {f"{file.relative_to(clone)} {key_of(row)}": kept for row in rows if (kept := comparable(row))}
    return found


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone in which all stages have run once.

    All workers of a test run share it, so tests change only copies of it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    clone, done = folder / "clone", folder / "done"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            done.write_text(run_stages(make_clone(clone)), encoding="utf-8")
    return clone


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone with the smaller parameters in which `dvc repro` has run once; tests change only copies of it."""
    clone = make_clone(tmp_path_factory.mktemp("undisturbed") / "project", smaller)
    repro(clone)
    return clone


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A process that keeps a Prefect server, and starts it again when it is killed; it serves a toy once a year."""
    base = tmp_path_factory.mktemp("served")
    with serving(base, repository(base / "toy", STAGES), "--cron", "0 3 1 1 *", "--name", "rare") as one:
        yield one
