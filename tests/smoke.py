"""Every stage once, on tiny models, in a copy of this working tree: `python -m tests.smoke`. Its numbers mean nothing."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.conftest import environment, make_clone, smallest

FOLDER = Path("build/smoke")


def main() -> int:
    """Run the pipeline; return its exit status."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    clone = make_clone(FOLDER.resolve(), smallest)
    begun = time.monotonic()
    status = subprocess.run(["dvc", "repro"], cwd=clone, env=environment(clone), check=False).returncode
    if status == 0:
        seconds = time.monotonic() - begun
        print(f"smoke: every stage ran in {seconds:.0f} s; its models are far too small for its numbers to mean anything")
    return status


if __name__ == "__main__":
    sys.exit(main())
