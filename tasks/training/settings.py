"""How a model is trained."""

from __future__ import annotations

from tasks.settings import knob, settings


@settings
class TrainingSettings:
    """One training run. The papers' recipe: Adafactor, constant rate, batches of 16 (BiLD, 7.1.1)."""

    optimizer: str = knob("Optimiser.", default="adafactor", choices=("adafactor", "adamw"))
    learning_rate: float = knob("Peak learning rate.", default=5e-4, gt=0, le=1)
    relative_rate: bool = knob(
        "Adafactor only: the rate is relative to the size of each weight, as T5 was pre-trained; about 1e-2 then suits a "
        "random start.",
        default=False,
    )
    warmup_steps: int = knob("Steps over which the rate rises linearly from zero.", default=0, unit="steps", ge=0)
    decay: str = knob(
        "After the warm-up: constant, or linear to zero at the last step.", default="constant", choices=("constant", "linear")
    )
    weight_decay: float = knob("Decoupled weight decay.", default=0.0, ge=0)
    gradient_clipping: float = knob("Largest gradient norm; 0 does not clip.", default=1.0, ge=0)
    steps: int = knob("Optimiser steps.", default=1000, unit="steps", ge=1)
    batch_size: int = knob("Examples a step.", default=16, unit="examples", ge=1)
    seed: int = knob("Orders the examples and draws dropout.", default=0, ge=0)
    evaluate_every: int = knob("Steps between validation losses.", default=500, unit="steps", ge=1)
    checkpoint_every: int = knob("Steps between checkpoints to resume from.", default=500, unit="steps", ge=1)

    def validate(self) -> None:
        if self.relative_rate and self.optimizer != "adafactor":
            raise ValueError(f"relative_rate is set, but optimizer is {self.optimizer}; it must be adafactor")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; it must be less than steps, {self.steps}")
