"""What is done: one module a DVC stage, of the same name, and the packages that the stages share."""

import os

# Read when torch starts its threads: one that waits for another sleeps instead of spinning, which beside other work on the
# same cores was seen to cost tens of times as long (docs/performance.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
