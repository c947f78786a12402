"""One module for each DVC stage, of the same name, and the packages that the stages share."""

import os

# Torch reads these when it starts its threads. A waiting thread spins for some microseconds, which is fastest on an idle
# machine, and then sleeps, which leaves the core to other work (docs/performance.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
