"""One finished sweep that others are compared with."""

from __future__ import annotations

import pytest

from tests.sweeps import Planned, Sweep


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """A finished sweep; tests only read it."""
    sweep = Sweep(tmp_path_factory.mktemp("planned"))
    rows = sweep.validate()
    return sweep, rows, sweep.report()
