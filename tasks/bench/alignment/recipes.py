"""The recipes that are compared. Each is a few changes to BiLD's own alignment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.alignment.settings import AlignSettings
from tasks.errors import InputError
from tasks.evaluation.results.codec import Setting
from tasks.training.settings import TrainingSettings

Changes = Mapping[str, Setting]
UNALIGNED = "unaligned"
"""The small model as fine-tuning left it."""
FROM_START, FROM_TRAINED = 1.0, 1 / 3
"""Peak learning rates as shares of the rate that the small model is fine-tuned at. Trained weights take a lower one."""
_EVALUATIONS = 4
_REPLAY_ROUNDS, _REPLAY_SHARE = 2, 8
"""A round of replay is one eighth of all steps."""
_PLAIN: Changes = {"exit_loss": "none", "draft_heads": 0, "exit_classifier": False, "trunk": "trained", "patience": 0}


@dataclass(frozen=True)
class Recipe:
    """One way to align."""

    changes: Changes
    """Settings of `align` that differ from BiLD's."""
    source: str
    """The paper."""
    rate: float = FROM_TRAINED
    """Peak learning rate, as a share of the rate that the small model is fine-tuned at."""

    @property
    def start(self) -> str:
        """The model that training begins with."""
        return str(self.changes["start"])

    @property
    def is_on_policy(self) -> bool:
        """Whether part of the text is generated during training."""
        return "on_policy" in self.changes

    @property
    def needs_logits(self) -> bool:
        """Whether the calibration set must hold the large model's predictions."""
        return self.changes.get("reference") == "stored"


def _trained(source: str, **changes: Setting) -> Recipe:
    return Recipe({"start": "fine_tuned", **changes}, source)


RECIPES: dict[str, Recipe] = {
    "sequence": Recipe({"start": "pretrained"}, "BiLD, 3.5.1", FROM_START),
    "sequence_fine_tuned": _trained("BiLD, 7.1.1"),
    "forward_kl": _trained("DistillSpec", loss="forward_kl"),
    "reverse_kl": _trained("DistillSpec", loss="reverse_kl"),
    "jensen_shannon": _trained("DistillSpec; GKD", loss="jensen_shannon"),
    "total_variation": _trained("DistillSpec", loss="total_variation"),
    "stored": _trained("DistillSpec, offline", loss="jensen_shannon", reference="stored"),
    "stored_tenth": _trained("DistillSpec, offline", loss="jensen_shannon", beta=0.1, reference="stored"),
    "on_policy": _trained("GKD", loss="jensen_shannon", on_policy=0.5),
    "interleaved": _trained("SKD", loss="jensen_shannon", on_policy=0.5, writer="interleaved"),
    "replay": _trained("Online SD; Draft-OPD", loss="jensen_shannon", replay_rounds=_REPLAY_ROUNDS),
}
NAMES = (*RECIPES, UNALIGNED)
SEQUENCE = {"pretrained": "sequence", "fine_tuned": "sequence_fine_tuned"}
"""BiLD's own alignment, by the model that training begins with."""


def chosen(names: Sequence[str]) -> list[str]:
    """Return these recipes, each once; raise `InputError` for an unknown name."""
    for name in names:
        if name not in NAMES:
            raise InputError(f"--recipes names {name!r}, which is no recipe; name some of {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def settings_of(recipe: str, align: AlignSettings, small: TrainingSettings, seed: int, steps: int) -> AlignSettings:
    """Return the settings of a recipe.

    Args:
        recipe: One of `RECIPES`.
        align: The task's own settings, from which the optimiser, the batch and other settings of training are taken.
        small: The settings that the small model is fine-tuned with, for the learning rate.
        seed: Orders the examples.
        steps: Rounded up to a multiple of 4, so that evaluations are evenly spaced and the last one follows the last step.
    """
    steps = -(-steps // _EVALUATIONS) * _EVALUATIONS
    known = RECIPES[recipe]
    training = {field.name: getattr(align, field.name) for field in dataclasses.fields(TrainingSettings)}
    length = {
        "steps": steps,
        "warmup_steps": min(align.warmup_steps, steps // 10),
        "evaluate_every": steps // _EVALUATIONS,
        # An interrupted run starts again from its first step: half a run does not give a training time.
        "checkpoint_every": steps,
        "choose_by": "acceptance_rate",
    }
    if "replay_rounds" in known.changes:
        length["replay_steps"] = max(1, steps // _REPLAY_SHARE)
    learning_rate = known.rate * small.learning_rate
    return AlignSettings(**{**training, **_PLAIN, **length, "seed": seed, "learning_rate": learning_rate, **known.changes})
