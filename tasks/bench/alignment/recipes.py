"""The recipes that are compared: what a drafter learns from, and where it starts. Everything else is equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.alignment.settings import AlignSettings
from tasks.errors import InputError
from tasks.evaluation.results.codec import Setting
from tasks.training.settings import TrainingSettings

Changes = Mapping[str, Setting]
FAMILIES = ("references", "hard labels", "stored divergence", "mix", "on-policy")
"""What a drafter learns from, the simplest first; see docs/alignment.md for the rule that this order is part of."""
CONTROL = "references"
"""The family of the control."""
_PLAIN: Changes = {
    "exit_loss": "none",
    "draft_heads": 0,
    "exit_classifier": False,
    "acceptance_head": 0,
    "judge": 0,
    "trunk": "trained",
    "patience": 0,
}

_TRAINED_SHARE = 1 / 3
"""Peak learning rate of trained weights as a share of that of random ones, where the task gives none for them."""


@dataclass(frozen=True)
class Recipe:
    """One way to train a drafter."""

    family: str
    """One of `FAMILIES`."""
    changes: Changes
    """Settings of `align` that differ from BiLD's."""
    source: str
    """The paper."""

    @property
    def start(self) -> str:
        """The model that training begins with: `fine_tuned`, or `pretrained`, which is random for a small model of its own."""
        return str(self.changes["start"])

    @property
    def learns_references(self) -> bool:
        """Whether its targets are the references of the corpus instead of the large model's outputs."""
        return self.family == CONTROL

    @property
    def is_on_policy(self) -> bool:
        """Whether part of the text is generated during training."""
        return "on_policy" in self.changes

    @property
    def needs_logits(self) -> bool:
        """Whether the calibration set must hold the large model's predictions."""
        return self.changes.get("reference") == "stored"


def _recipe(family: str, source: str, start: str = "fine_tuned", **changes: Setting) -> Recipe:
    return Recipe(family, {"start": start, **changes}, source)


def _stored(family: str, source: str, start: str = "fine_tuned", **changes: Setting) -> Recipe:
    return _recipe(family, source, start, reference="stored", **changes)


_JS, _LOG_ACCEPTANCE = "jensen_shannon", "negative_log_acceptance"
RECIPES: dict[str, Recipe] = {
    "references": _recipe("references", "the control"),
    "hard_labels": _recipe("hard labels", "BiLD, 3.5.1"),
    "gatekeeper": _recipe("hard labels", "Gatekeeper", loss="gatekeeper"),
    "forward_kl": _stored("stored divergence", "DistillSpec, offline", loss="forward_kl"),
    "jensen_shannon_0.1": _stored("stored divergence", "GKD, offline", loss=_JS, beta=0.1),
    "jensen_shannon_0.5": _stored("stored divergence", "GKD, offline", loss=_JS, beta=0.5),
    "jensen_shannon_0.9": _stored("stored divergence", "GKD, offline", loss=_JS, beta=0.9),
    "negative_log_acceptance": _stored("stored divergence", "LK losses, offline", loss=_LOG_ACCEPTANCE),
    "kl_to_total_variation": _stored("stored divergence", "after LK losses, offline", loss="total_variation", kl_until=1.0),
    "forward_kl_decay": _stored("stored divergence", "after Medusa, offline", loss="forward_kl", position_weights="decay"),
    "forward_kl_acceptance": _stored(
        "stored divergence", "DistillSpec, offline; weights ours", loss="forward_kl", position_weights="acceptance"
    ),
    "mix": _stored("mix", "Hinton et al.", loss=_JS, beta=0.5, label_weight=0.5),
    "on_policy": _recipe("on-policy", "GKD", loss=_JS, beta=0.5, on_policy=0.5),
    "references_random": _recipe("references", "the control", "pretrained"),
    "hard_labels_random": _recipe("hard labels", "BiLD, 7.1.1", "pretrained"),
    "jensen_shannon_random": _stored("stored divergence", "GKD, offline", "pretrained", loss=_JS, beta=0.5),
    "negative_log_acceptance_random": _stored("stored divergence", "LK losses, offline", "pretrained", loss=_LOG_ACCEPTANCE),
    "mix_random": _stored("mix", "Hinton et al.", "pretrained", loss=_JS, beta=0.5, label_weight=0.5),
}
NAMES = tuple(RECIPES)


def chosen(names: Sequence[str]) -> list[str]:
    """Return these recipes, each once; raise `InputError` for an unknown name."""
    for name in names:
        if name not in RECIPES:
            raise InputError(f"--recipes names {name!r}, which is no recipe; name some of {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def control_of(recipe: str) -> str:
    """Return the control of the same start."""
    return next(name for name, one in RECIPES.items() if one.learns_references and one.start == RECIPES[recipe].start)


def simplicity(recipe: str) -> int:
    """Return the place of a recipe's family in `FAMILIES`; 0 is the simplest."""
    return FAMILIES.index(RECIPES[recipe].family)


def settings_of(recipe: str, align: AlignSettings, small: TrainingSettings, seed: int, steps: int) -> AlignSettings:
    """Return the settings of a recipe.

    The last weights are kept, whatever the task's `align.choose_by` says, so that no recipe gains by a choice among weights.

    Args:
        recipe: One of `RECIPES`.
        align: The task's own settings, from which the optimiser, the batch and other settings of training are taken.
        small: The settings that the small model is fine-tuned with: their learning rate suits its own start.
        seed: Orders the examples.
        steps: Number of optimiser steps.
    """
    known = RECIPES[recipe]
    training = {field.name: getattr(align, field.name) for field in dataclasses.fields(TrainingSettings)}
    length = {
        "steps": steps,
        "warmup_steps": min(align.warmup_steps, steps // 10),
        "evaluate_every": steps,
        # An interrupted run starts again from its first step: half a run does not give a training time.
        "checkpoint_every": steps,
        "choose_by": "last",
    }
    rate = align.learning_rate
    if known.start != align.start:
        # The task's own rate suits the task's own start.
        rate = small.learning_rate * (_TRAINED_SHARE if known.start == "fine_tuned" else 1)
    return AlignSettings(**{**training, **_PLAIN, **length, "seed": seed, "learning_rate": rate, **known.changes})
