"""What tests of this folder share."""

import pytest

from tests.held_graph import Outcome, undisturbed_outcome


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of the graph of `tests.held_graph` where nothing is killed."""
    return undisturbed_outcome(tmp_path_factory.mktemp("undisturbed") / "repository")
