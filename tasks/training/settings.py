"""Training settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from tasks.settings import SEEDS, setting, settings

WEIGHT_CHOICES = ("last", "validation_loss", "quality", "acceptance_rate", "acceptance_greedy")
"""Criteria by which the kept weights are chosen."""
_OVERFLOWING = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "pix2struct", "udop")
"""Model types with T5's layers; their activations exceed float16's range."""
_LAYERED = ("t5", "mt5")
"""Model types whose decoder is built from T5's blocks, which exits and heads read."""

DEEPSPEED = Path("data/deepspeed")
"""Folder of the user's own configurations of DeepSpeed, on which the stages that train depend."""


@settings
class TrainingSettings:
    """One training run. The papers' recipe is Adafactor at a constant rate with batches of 16 (BiLD, 7.1.1)."""

    allowed_choices: ClassVar[tuple[str, ...]] = ("last", "validation_loss", "quality")
    """Values of choose_by for runs without a measured acceptance."""

    optimizer: str = setting("Optimiser.", default="adafactor", choices=("adafactor", "adamw"))
    learning_rate: float = setting("Peak learning rate.", default=5e-4, gt=0, le=1)
    relative_rate: bool = setting(
        "Adafactor only: scale the rate by the root mean square of each weight and let it be at most 1/sqrt(step), as in T5's "
        "pre-training; about 1e-2 then suits a random start.",
        default=False,
    )
    warmup_steps: int = setting("Steps over which the rate rises linearly from zero.", default=0, unit="steps", ge=0)
    decay: str = setting(
        "After the warm-up: constant, or linear to zero at the last step.", default="constant", choices=("constant", "linear")
    )
    weight_decay: float = setting("Decoupled weight decay.", default=0.0, ge=0, le=1)
    gradient_clipping: float = setting("Largest gradient norm; 0 does not clip.", default=1.0, ge=0, le=1e6)
    steps: int = setting(
        "Optimiser steps; 0 (finetune only) takes the model as it is: measured and saved in its own number format.",
        default=1000,
        unit="steps",
        ge=0,
    )
    batch_size: int = setting("Examples per step, over all processes and micro-batches.", default=16, unit="examples", ge=1)
    accumulation: int = setting(
        "Micro-batches of each process's share of a step, to save memory; 0: as few as fit the device with the longest texts, "
        "with activation_checkpointing where a single one needs it.",
        default=1,
        ge=0,
    )
    activation_checkpointing: bool = setting(
        "Compute each layer's activations again in the backward pass instead of keeping them: less memory, a slower step.",
        default=False,
    )
    precision: str = setting(
        "Number format of the arithmetic. float32 multiplies in TF32 on a GPU; bfloat16 keeps weights and optimiser in "
        "float32; auto is bfloat16 where the processor or the GPU multiplies it natively, and float32 elsewhere; float16 needs "
        "a GPU and does not suit T5, whose activations overflow.",
        default="float32",
        choices=("float32", "bfloat16", "float16", "auto"),
    )
    zero_stage: int = setting(
        "What DeepSpeed's ZeRO partitions over processes: nothing (0), optimiser states (1), also gradients (2), also weights "
        "(3). Adafactor takes up to 2; it has so few states that 1 saves it next to nothing.",
        default=0,
        ge=0,
        le=3,
    )
    offload: str = setting(
        "What DeepSpeed keeps in main memory instead of GPU memory: optimizer needs zero_stage 1 or more, parameters (with the "
        "optimiser) needs 3.",
        default="none",
        choices=("none", "optimizer", "parameters"),
    )
    deepspeed: str = setting(
        "A JSON file in data/deepspeed with further configuration of DeepSpeed, such as sizes of ZeRO's buffers; what other "
        "settings decide replaces its values. Empty: none.",
        default="",
    )
    seed: int = setting("Orders the examples and draws dropout.", default=0, ge=0, le=SEEDS)
    exit_loss: str = setting(
        "Layers that the loss reads through the shared output layer: the last alone; the exit layer and the last, half each; "
        "or every layer i with weight i / (1 + 2 + … + L).",
        default="none",
        choices=("none", "first_last", "weighted"),
    )
    exit_layer: int = setting(
        "Number of decoder layers that draft for the whole model; first_last trains them, the early_layer drafter runs them.",
        default=1,
        unit="layers",
        ge=1,
    )
    draft_heads: int = setting(
        "Extra heads to train, each predicting one token further past the next one; 0 trains none.",
        default=0,
        unit="heads",
        ge=0,
        le=16,
    )
    exit_classifier: bool = setting(
        "Train a classifier, for calm, that tells whether a layer's prediction already equals the last layer's.", default=False
    )
    trunk: str = setting(
        "Whether the model under heads and classifier is trained with them or frozen; frozen needs models.*.pretrained.",
        default="trained",
        choices=("trained", "frozen"),
    )
    evaluate_every: int = setting("Steps between evaluations on held-out text.", default=500, unit="steps", ge=1)
    checkpoint_every: int = setting("Steps between checkpoints to resume from.", default=500, unit="steps", ge=1)
    choose_by: str = setting(
        "Which weights are kept: the last, or the best of all evaluations by validation loss (lower), by quality of greedy "
        "outputs in the task's metric, or (align only) by how often the large model accepts the drafter's tokens, sampled or "
        "greedy.",
        default="last",
        choices=WEIGHT_CHOICES,
    )

    def validate(self) -> None:
        if self.accumulation > self.batch_size:
            fix = "a micro-batch has at least one example; lower it"
            raise ValueError(f"accumulation is {self.accumulation}, but batch_size is {self.batch_size}, and {fix}")
        if self.accumulation == 0 and self.zero_stage:
            unknown = f"what zero_stage {self.zero_stage} saves is not estimated"
            raise ValueError(f"accumulation is 0, but {unknown}; set it to at least 1")
        if self.relative_rate and self.optimizer != "adafactor":
            raise ValueError(f"relative_rate is set, but optimizer is {self.optimizer}; it must be adafactor")
        if self.steps == 0 and self.has_auxiliary_losses:
            raise ValueError("steps is 0, but exit_loss, draft_heads and exit_classifier need training; set it, or remove them")
        if self.warmup_steps >= self.steps > 0:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; it must be less than steps, {self.steps}")
        if self.zero_stage == 3 and self.optimizer == "adafactor":
            fix = "set zero_stage to 2, or optimizer to adamw"
            raise ValueError(
                f"zero_stage is 3, but optimizer is adafactor, whose factors are kept for stages 1 and 2 alone; {fix}"
            )
        needed = {"none": 0, "optimizer": 1, "parameters": 3}[self.offload]
        if self.zero_stage < needed:
            raise ValueError(f"offload is {self.offload}, but zero_stage is {self.zero_stage}; it must be at least {needed}")
        if self.choose_by not in self.allowed_choices:
            fix = f"it must be one of {', '.join(self.allowed_choices)}"
            raise ValueError(f"choose_by is {self.choose_by}, which only align measures; {fix}")
        if self.trunk == "frozen" and not (self.draft_heads or self.exit_classifier):
            raise ValueError("trunk is frozen, so nothing is trained; set draft_heads or exit_classifier")
        if self.trunk == "frozen" and self.exit_loss != "none":
            raise ValueError(f"exit_loss is {self.exit_loss}, which trains the trunk, but trunk is frozen; set it to none")
        if self.trunk == "frozen" and self.activation_checkpointing:
            raise ValueError("activation_checkpointing is true, but trunk is frozen and keeps no activations; set it to false")

    @property
    def has_auxiliary_losses(self) -> bool:
        """Whether the loss reads more than the model's last logits."""
        return self.exit_loss != "none" or self.draft_heads > 0 or self.exit_classifier

    def own_deepspeed(self) -> dict[str, Any]:
        """Return the user's own configuration of DeepSpeed; empty if there is none.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not JSON.
        """
        own: dict[str, Any] = json.loads(Path(self.deepspeed).read_text(encoding="utf-8")) if self.deepspeed else {}
        return own

    def deepspeed_problems(self) -> Iterator[str]:
        """Yield each contradiction between these settings and the user's own configuration of DeepSpeed, with its fix."""
        said = f"deepspeed is {self.deepspeed}"
        if self.deepspeed and DEEPSPEED.resolve() not in Path(self.deepspeed).resolve().parents:
            yield f"{said}; it must be a file in {DEEPSPEED}, whose changes dvc sees"
            return
        try:
            own = self.own_deepspeed()
        except OSError as error:
            yield f"{said}, which cannot be read ({error.strerror}); name a JSON file in {DEEPSPEED}, or leave it empty"
            return
        except ValueError as error:
            yield f"{said}, which is not JSON: {error}"
            return
        zero = own.get("zero_optimization", {}) if isinstance(own, dict) else None
        if not isinstance(zero, dict):
            yield f"{said}, where {'zero_optimization' if isinstance(own, dict) else 'the whole'} is no object; write {{...}}"
            return
        if (stage := zero.get("stage", self.zero_stage)) != self.zero_stage:
            yield f"{said}, where zero_optimization.stage is {stage}, but zero_stage is {self.zero_stage}; set both to one"
        for section in ("optimizer", "scheduler"):
            if section in own:
                yield f"{said}, which sets {section}, but other settings here make that; remove it from the file"
        allowed = {"fp16": self.precision == "float16", "bf16": False, "torch_autocast": False, "amp": False}
        for section in (one for one, fits in allowed.items() if not fits):
            if isinstance(found := own.get(section), dict) and found.get("enabled"):
                yield f"{said}, which enables {section}, but precision decides that and is {self.precision}; remove it there"

    def model_problems(self, kind: str, layers: int, device: str, *, random_start: bool) -> Iterator[str]:
        """Yield each contradiction between these settings and a model, with its fix.

        Args:
            kind: The model's type, as `transformers` names it.
            layers: Its decoder layers; read only for early exits.
            device: What it trains on, cpu or cuda.
            random_start: Whether it starts from random weights.
        """
        if self.precision == "float16" and kind in _OVERFLOWING:
            yield f"precision is float16, in which the activations of a {kind} overflow; set precision to auto"
        if self.precision == "float16" and device == "cpu":
            yield "precision is float16, which needs a GPU, but training runs on the CPU; set precision to auto"
        if self.trunk == "frozen" and random_start:
            yield "trunk is frozen, but the model starts from random weights; set its pretrained, or trunk to trained"
        if self.has_auxiliary_losses and kind not in _LAYERED:
            fix = "leave them out, or set its architecture to t5"
            yield f"exit_loss, draft_heads and exit_classifier need the layers of a t5, but the model is a {kind}; {fix}"
        elif self.exit_loss == "first_last" and self.exit_layer >= layers:
            yield f"exit_layer is {self.exit_layer}, but the decoder has {layers} layers; it must be less"
        elif self.exit_classifier and layers == 1:
            yield "exit_classifier is set, but the decoder has one layer, with none to exit before; give it more"
