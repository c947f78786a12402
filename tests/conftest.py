"""What holds for all tests."""

from __future__ import annotations

import os
import tempfile

import pytest


@pytest.fixture(autouse=True, scope="session")
def _locks_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the machine-wide locks in a folder of these tests: they and a real stage must not wait for each other."""
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("machine"))
    tempfile.tempdir = None
