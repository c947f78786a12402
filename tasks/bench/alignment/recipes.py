"""The recipes that are compared: each is a few changes to one way of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.alignment.settings import AlignSettings
from tasks.errors import InputError
from tasks.training.settings import TrainingSettings

UNALIGNED = "unaligned"
"""The small model as fine-tuning left it."""
FROM_START, FROM_TRAINED = 1.0, 1 / 3
"""Peak learning rates by what training begins with, as shares of the rate that the small model is fine-tuned at: weights that
are trained already are moved less."""
_EVALUATIONS = 4
_REPLAY_ROUNDS, _REPLAY_SHARE = 2, 8
"""A round of replay is one eighth of all steps."""
_PLAIN = {"exit_loss": "none", "draft_heads": 0, "exit_classifier": False, "trunk": "trained", "patience": 0}


@dataclass(frozen=True)
class Recipe:
    """One way to align."""

    changes: dict[str, Any]
    """Settings of `align` other than BiLD's."""
    source: str
    """Where it stands."""
    rate: float = FROM_TRAINED
    """Peak learning rate, as a share of the one that the small model is fine-tuned at."""

    @property
    def start(self) -> str:
        """What training begins with."""
        return str(self.changes["start"])


def _trained(source: str, **changes: Any) -> Recipe:
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
"""BiLD's own alignment, by what it begins with."""


def chosen(names: Sequence[str]) -> list[str]:
    """These recipes, each once; raises `InputError` for a name that is none."""
    for name in names:
        if name not in NAMES:
            raise InputError(f"--recipes names {name!r}, which is none; known are {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def settings_of(recipe: str, align: AlignSettings, small: TrainingSettings, seed: int, steps: int) -> AlignSettings:
    """How a recipe trains for so many steps.

    Args:
        recipe: One of `RECIPES`.
        align: The task's; what is of training at large, such as the optimiser and the batch, is taken from it.
        small: How the small model is fine-tuned, for the learning rate.
        seed: Orders the examples.
        steps: A multiple of 4, or rounded up to one, so that evaluations come evenly and with the last step.
    """
    steps = -(-steps // _EVALUATIONS) * _EVALUATIONS
    known = RECIPES[recipe]
    training = {field.name: getattr(align, field.name) for field in dataclasses.fields(TrainingSettings)}
    length = {
        "steps": steps,
        "warmup_steps": min(align.warmup_steps, steps // 10),
        "evaluate_every": steps // _EVALUATIONS,
        # A run that is cut short is made anew, from its first step: the time of half a run tells nothing.
        "checkpoint_every": steps,
        "choose_by": "acceptance_rate",
    }
    if "replay_rounds" in known.changes:
        length["replay_steps"] = max(1, steps // _REPLAY_SHARE)
    return AlignSettings(
        **training | _PLAIN | length | {"seed": seed, "learning_rate": known.rate * small.learning_rate} | known.changes
    )
