"""Skip the tests of the flows where prefect or dvc is missing; make toy repositories."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

installed = all(importlib.util.find_spec(name) for name in ("prefect", "dvc"))
collect_ignore_glob = [] if installed else ["test_*.py"]

if installed:
    # DVC logs to the standard error that it finds at its import; in a test that may be a file that is closed afterwards.
    import dvc.repo  # noqa: F401

Repository = Callable[[dict[str, Any]], Path]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a function that makes a DVC repository with the given stages."""

    def make(stages: dict[str, Any]) -> Path:
        from dvc.repo import Repo

        root = tmp_path / "repository"
        root.mkdir()
        Repo.init(str(root), no_scm=True).close()
        (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False), encoding="utf-8")
        return root

    return make
