"""A toy project for experiments: git, DVC, a `params.yaml` of the real schema, and stages that cost nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

PARAMS = """\
active: {toy: raw.txt}  # a comment that stays
tasks:
  toy:
    metric: bleu
    seeds: [1, 2]
    align:
      learning_rate: 0.01
"""
MEASURE = (
    "import json, pathlib, sys, yaml\n"
    "task = yaml.safe_load(open('params.yaml'))['tasks']['toy']\n"
    "pathlib.Path('metrics.json').write_text(json.dumps({'rate': task['align']['learning_rate']}))\n"
)
STAGES: dict[str, Any] = {
    "source": {"cmd": "cp raw.txt source.txt", "deps": ["raw.txt"], "outs": ["source.txt"]},
    # As `align` and `sweep`: DVC would run it again if its output were missing.
    "kept": {
        "cmd": "echo kept >> ../runs; cp source.txt kept.txt",
        "deps": ["source.txt"],
        "outs": [{"kept.txt": {"persist": True}}],
    },
    "measure": {
        "cmd": f"{sys.executable} measure.py",
        "deps": ["kept.txt", "measure.py"],
        "params": ["tasks.toy.align.learning_rate"],
        "metrics": [{"metrics.json": {"cache": False}}],
    },
}


def git(root: Path, *arguments: str) -> str:
    """Run git with an identity, and return its output."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def make_project(root: Path, stages: dict[str, Any] | None = None) -> Path:
    """Make a repository with one commit in the folder `root`, which must not exist."""
    from dvc.repo import Repo

    root.mkdir()
    git(root, "init", "--quiet")
    Repo.init(str(root)).close()
    described = yaml.safe_dump({"stages": STAGES if stages is None else stages}, sort_keys=False)
    (root / "dvc.yaml").write_text(described, encoding="utf-8")
    (root / "params.yaml").write_text(PARAMS, encoding="utf-8")
    (root / "raw.txt").write_text("raw\n", encoding="utf-8")
    (root / "measure.py").write_text(MEASURE, encoding="utf-8")
    (root / ".gitignore").write_text("/source.txt\n/kept.txt\n/.cache/\n__pycache__/\n", encoding="utf-8")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "toy")
    return root


def experiments(root: Path) -> dict[str, float]:
    """Return the metric of each experiment that DVC has, by name."""
    refs = git(root, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    found = {
        ref.split("/")[-1]: json.loads(git(root, "show", f"{ref}:metrics.json"))["rate"] for ref in refs if ref.count("/") == 4
    }
    assert len(found) == len([ref for ref in refs if ref.count("/") == 4])
    return found


def state_of(root: Path) -> tuple[str, str, str, dict[str, str]]:
    """Return what an experiment must not touch: HEAD, the index, git's status, and the files of the working folder."""
    files = {
        str(path.relative_to(root)): path.read_text(errors="replace")
        for path in root.rglob("*")
        if path.is_file() and not {".git", ".dvc", ".cache"} & set(path.relative_to(root).parts)
    }
    return git(root, "rev-parse", "HEAD"), git(root, "ls-files", "--stage"), git(root, "status", "--porcelain"), files
