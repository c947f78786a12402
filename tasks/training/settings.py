"""How a model is trained."""

from __future__ import annotations

from tasks.settings import knob, settings


@settings
class TrainingSettings:
    """One training run. The papers' recipe: Adafactor, constant rate, batches of 16 (BiLD, 7.1.1)."""

    optimizer: str = knob("adafactor", "Optimiser.", choices=("adafactor", "adamw"))
    learning_rate: float = knob(5e-4, "Peak learning rate.", gt=0, le=1)
    warmup_steps: int = knob(0, "Steps over which the rate rises linearly from zero.", unit="steps", ge=0)
    decay: str = knob("constant", "After the warm-up: constant, or linear to zero at the last step.", choices=("constant", "linear"))
    weight_decay: float = knob(0.0, "Decoupled weight decay.", ge=0)
    gradient_clipping: float = knob(1.0, "Largest gradient norm; 0 does not clip.", ge=0)
    steps: int = knob(1000, "Optimiser steps.", unit="steps", ge=1)
    batch_size: int = knob(16, "Examples a step.", unit="examples", ge=1)
    seed: int = knob(0, "Orders the examples and draws dropout; with the model's shape it makes the random start.", ge=0)
    evaluate_every: int = knob(500, "Steps between validation losses.", unit="steps", ge=1)
    checkpoint_every: int = knob(500, "Steps between checkpoints to resume from.", unit="steps", ge=1)

    def validate(self) -> None:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; it must be less than steps, {self.steps}")
