"""What holds for all tests."""

import gc
import os
import tempfile
from pathlib import Path

import pytest

from tasks import console

_ROOT = Path(__file__).parent
_TURNS = ("unit", "e2e/test_pipeline.py", "integration", "e2e")

# Imports and tests make millions of objects and hardly any cycles.
gc.set_threshold(100_000, 20, 100)


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, up to four: some tests wait for servers."""
    return min(4, (os.cpu_count() or 1) + 1)


def pytest_collection_finish() -> None:
    """Spare what is imported from garbage collection, which would look through a million objects each time."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run quick tests first, and the pipeline before the integration tests: other end-to-end tests wait for its run."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    place = item.path.relative_to(_ROOT).as_posix()
    return next((turn for turn, start in enumerate(_TURNS) if place.startswith(start)), len(_TURNS))


@pytest.fixture(autouse=True, scope="session")
def _locks_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the machine-wide locks in a folder of these tests: they and a real stage must not wait for each other."""
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("machine"))
    tempfile.tempdir = None


@pytest.fixture(autouse=True, scope="session")
def _messages_are_shown() -> None:
    """Show messages as commands do, also where a test calls what a command calls."""
    console.set_up()
