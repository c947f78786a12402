"""What is done: one module a DVC stage, of the same name, and the packages that the stages share."""

import os

# Read when torch starts its threads: one that waits for another sleeps instead of spinning. Beside other work on the same
# cores, spinning costs a hundredfold (docs/performance.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
