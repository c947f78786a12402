"""Whether this machine runs generated programs apart from everything else."""

import pytest

from tasks.errors import InputError
from tasks.evaluation.scoring.metrics import require_sandbox


def _has_sandbox() -> bool:
    try:
        require_sandbox()
    except InputError:
        return False
    return True


sandboxed = pytest.mark.skipif(not _has_sandbox(), reason="neither bwrap nor a container runtime runs here")
