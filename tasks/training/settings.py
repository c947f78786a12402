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
    exit_loss: str = knob(
        "Layers that the loss reads through the shared head: the last alone; half the exit layer, half the last; or every "
        "layer i with weight i / (1 + 2 + … + L).",
        default="none",
        choices=("none", "first_last", "weighted"),
    )
    exit_layer: int = knob(
        "Decoder layers that draft for the whole model: first_last trains them, the early_layer drafter runs them.",
        default=1,
        unit="layers",
        ge=1,
    )
    draft_heads: int = knob(
        "Heads trained beside the model that predict as many tokens past the next one; 0 trains none.",
        default=0,
        unit="heads",
        ge=0,
        le=16,
    )
    exit_classifier: bool = knob(
        "Train a classifier of when a layer's prediction is already the last layer's, for calm.", default=False
    )
    trunk: str = knob(
        "The model under heads and classifier: trained with them, or frozen, which needs models.*.pretrained.",
        default="trained",
        choices=("trained", "frozen"),
    )
    evaluate_every: int = knob("Steps between validation losses.", default=500, unit="steps", ge=1)
    checkpoint_every: int = knob("Steps between checkpoints to resume from.", default=500, unit="steps", ge=1)

    def validate(self) -> None:
        if self.relative_rate and self.optimizer != "adafactor":
            raise ValueError(f"relative_rate is set, but optimizer is {self.optimizer}; it must be adafactor")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; it must be less than steps, {self.steps}")
        if self.trunk == "frozen" and not (self.draft_heads or self.exit_classifier):
            raise ValueError("trunk is frozen, so that nothing is trained; set draft_heads or exit_classifier")
        if self.trunk == "frozen" and self.exit_loss != "none":
            raise ValueError(f"exit_loss is {self.exit_loss}, which trains the trunk, but trunk is frozen; set it to none")

    @property
    def layered(self) -> bool:
        """Whether the loss reads more than the model's last logits."""
        return self.exit_loss != "none" or self.draft_heads > 0 or self.exit_classifier
