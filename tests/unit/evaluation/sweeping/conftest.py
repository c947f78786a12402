"""One sweep that others are compared with."""

from __future__ import annotations

import pytest

from tests.sweeps import GRID, Planned, Sweep


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """It is only read."""
    sweep = Sweep(tmp_path_factory.mktemp("planned"))
    rows = sweep.validate()
    return sweep, rows, sweep.runner.report(rows, GRID, sweep.test)
