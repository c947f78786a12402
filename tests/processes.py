"""Train one toy model by several recipes, in one process or many: `python -m tests.processes FOLDER RECIPE … --nproc N`.

Of a batch of three, one process has two texts and the other one, so that a mean of their means is far from the mean over all
tokens; of the last of an epoch, which has but one text, one process has none.
"""

import argparse
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tasks.errors import stage
from tasks.machine import MachineSettings
from tasks.models.checkpoints import initial_model
from tasks.models.settings import ModelSettings
from tasks.training import distributed
from tasks.training.data import TokenDataset
from tasks.training.settings import TrainingSettings
from tests.training import train_on

_VOCABULARY, _PAD, _END = 32, 0, 1
_KILLED_AFTER = 9

_STEPS: dict[str, Any] = {"learning_rate": 5e-3, "steps": 12, "batch_size": 3, "evaluate_every": 4}
_SHORT: dict[str, Any] = {"learning_rate": 5e-3, "steps": 20, "batch_size": 3, "evaluate_every": 4}
_KEPT = {"steps": 12, "evaluate_every": 1, "checkpoint_every": 4, "choose_by": "validation_loss"}
RECIPES = {
    "adamw": TrainingSettings(**_SHORT, optimizer="adamw"),
    "adafactor": TrainingSettings(**_SHORT),
    "accumulated": TrainingSettings(**_SHORT, optimizer="adamw", accumulation=2),
    "zero": TrainingSettings(**_SHORT, optimizer="adamw", zero_stage=2, accumulation=2),
    "partitioned": TrainingSettings(**_SHORT, zero_stage=2, accumulation=2),
    "relative": TrainingSettings(**_SHORT | {"learning_rate": 0.05}, relative_rate=True),
    "relative_partitioned": TrainingSettings(**_SHORT | {"learning_rate": 0.05}, relative_rate=True, zero_stage=1),
    "dropout": TrainingSettings(**_SHORT | _KEPT, optimizer="adamw"),
}
RECIPES["killed"] = RECIPES["dropout"]
RECIPES["dropout_partitioned"] = RECIPES["killed_partitioned"] = TrainingSettings(**_SHORT | _KEPT, zero_stage=2)


def examples() -> TokenDataset:
    """Twenty-five pairs, with targets of 2 to 38 tokens."""
    rng = random.Random(0)
    lengths = [rng.choice((1, 2, 3, 37)) for _ in range(25)]

    def text(length: int) -> list[int]:
        return [rng.randrange(2, _VOCABULARY) for _ in range(length)] + [_END]

    return TokenDataset([text(38 - length) for length in lengths], [text(length) for length in lengths], _PAD)


def train_recipe(name: str, folder: Path, *, killed: bool = False) -> None:
    """Write the curves and the final weights of a recipe; `killed` kills the last process after some steps."""
    dropout = 0.1 if RECIPES[name].checkpoint_every < RECIPES[name].steps else 0.0
    shape = ModelSettings(d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=dropout, seed=3)
    model = initial_model(shape, _VOCABULARY, _PAD, _END)
    curves: dict[str, list[float]] = {"loss": [], "validation_loss": []}

    def log(metrics: dict[str, float], step: int) -> None:
        if killed and step == _KILLED_AFTER and distributed.rank() == distributed.world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for curve, values in curves.items():
            values += [metrics[curve]] if curve in metrics else []

    outcome = train_on(model, examples(), RECIPES[name], folder / f"{name}-resume", log)
    if distributed.is_main():
        (folder / f"{name}.json").write_text(json.dumps({**curves, "resumed_from": outcome.resumed_from}))
        weights = {key: value.detach().clone() for key, value in model.state_dict().items()}
        save_file(weights, folder / f"{name}.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("recipes", nargs="+", choices=tuple(RECIPES))
    parser.add_argument("--killed", action="store_true")
    distributed.add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    def work() -> None:
        for name in arguments.recipes:
            train_recipe(name, arguments.folder, killed=arguments.killed)

    distributed.run(MachineSettings(device="cpu"), arguments.nproc, work)


if __name__ == "__main__":
    with stage(), distributed.as_rank():
        main()
