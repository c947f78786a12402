"""Set-up: compiles DeepSpeed's shared-memory communication, so that no first training run waits for it.

`python -m tasks.training.prebuild`
"""

from __future__ import annotations

import torch

from tasks.training.engine import open_engine
from tasks.training.settings import TrainingSettings


def main() -> None:
    """Starts and stops an engine around a model of one weight."""
    open_engine(torch.nn.Linear(1, 1), TrainingSettings(), torch.device("cpu")).destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
