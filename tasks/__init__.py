"""What is done: one module a DVC stage, of the same name, and the packages that the stages share."""

import os

# Read when torch starts its threads: one that waits for another spins for some microseconds, which keeps the pace of an idle
# machine, and then sleeps, which leaves the core to other work (docs/performance.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
