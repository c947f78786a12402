"""The outputs of stages as assets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from flows.assets import output_hashes
from tests.toy_project import STAGES, make_project


def test_hashes_are_read_in_the_repository_and_not_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for an experiment: its worktree is below a folder of the project that git ignores, and its dvc.yaml is another one."""
    project = make_project(tmp_path / "project", {"source": {**STAGES["source"], "outs": ["elsewhere.txt"]}})
    (project / ".cache").mkdir()
    worktree = make_project(project / ".cache" / "project", {"source": STAGES["source"]})
    with monkeypatch.context() as patch:
        patch.chdir(worktree)
        with Repo() as repo:
            repo.reproduce()
    monkeypatch.chdir(project)
    (recorded,) = yaml.safe_load((worktree / "dvc.lock").read_text(encoding="utf-8"))["stages"]["source"]["outs"]
    expected = {"stage": "source", "md5": recorded["md5"], "bytes": 4}
    assert output_hashes(worktree, "source") == {"dvc://project/source.txt": expected}
