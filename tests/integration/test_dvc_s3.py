"""DVC's outputs in an S3-compatible store: pushed from one clone, pulled into another."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.commands import git
from tests.optional import slow_with
from tests.served import repository
from tests.services import S3_VARIABLES, s3_store

pytestmark = slow_with("dvc", "dvc_s3", "boto3", "moto")


def dvc(folder: Path, *words: str) -> str:
    """Run DVC with the keys of the store."""
    command = [sys.executable, "-m", "dvc", *words]
    variables = os.environ | S3_VARIABLES | {"DVC_NO_ANALYTICS": "true"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_model_pushed_from_one_clone_is_pulled_into_another(tmp_path: Path) -> None:
    train = "mkdir model && head -c 100000 /dev/urandom > model/model.safetensors"
    first = repository(tmp_path / "first", {"train": {"cmd": train, "deps": ["raw.txt"], "outs": ["model"]}})
    dvc(first, "repro", "--quiet")
    with s3_store(tmp_path, "dvc") as url:
        # The commands of docs/deploy/README.md.
        dvc(first, "remote", "add", "--default", "team", "s3://dvc/draftline")
        dvc(first, "remote", "modify", "team", "endpointurl", url)
        dvc(first, "push")
        git(first, "add", "--all")
        git(first, "commit", "--quiet", "--message", "trained")
        git(tmp_path, "clone", "--quiet", str(first), "second")
        shutil.rmtree(first / ".dvc" / "cache")
        second = tmp_path / "second"
        assert not (second / "model").exists()
        dvc(second, "pull")
    trained, pulled = ((clone / "model" / "model.safetensors").read_bytes() for clone in (first, second))
    assert pulled == trained and len(trained) == 100_000
    assert "up to date" in dvc(second, "status")
