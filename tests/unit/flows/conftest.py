"""Leaves the tests of the flows out where prefect or dvc is not installed, and makes toy repositories for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

installed = all(importlib.util.find_spec(name) for name in ("prefect", "dvc"))
collect_ignore_glob = [] if installed else ["test_*.py"]

if installed:
    # It logs to what is the standard error when it is imported: in a test that may be a file that is closed after it.
    import dvc.repo  # noqa: F401

Repository = Callable[[dict[str, Any]], Path]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Makes a DVC repository with the given stages."""

    def make(stages: dict[str, Any]) -> Path:
        from dvc.repo import Repo

        root = tmp_path / "repository"
        root.mkdir()
        Repo.init(str(root), no_scm=True).close()
        (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False), encoding="utf-8")
        return root

    return make
