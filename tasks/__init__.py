"""One module for each DVC stage, of the same name, and the packages that the stages share."""

import atexit
import gc
import os

# Torch reads these when it starts its threads. A waiting thread spins for some microseconds, which is fastest on an idle
# machine, and then sleeps, which leaves the core to other work (docs/performance.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A process that ends looks once more for garbage in all that it imported, which takes a second with torch and transformers.
atexit.register(gc.freeze)
