"""Recipes that cannot work are refused before any work, in words that say what would."""

from typing import Any

import pytest

from tasks.alignment.settings import AlignSettings, CalibrateSettings
from tasks.training.settings import WEIGHT_CHOICES, TrainingSettings

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0, "draft_heads": 1}, "steps is 0, but exit_loss, draft_heads and exit_classifier need training"),
    ({"steps": 10, "warmup_steps": 10}, "warmup_steps is 10; it must be less than steps, 10"),
    ({"relative_rate": True, "optimizer": "adamw"}, "relative_rate is set, but optimizer is adamw; it must be adafactor"),
    ({"zero_stage": 3}, "zero_stage is 3, but optimizer is adafactor, .* set zero_stage to 2, or optimizer to adamw"),
    ({"offload": "optimizer", "optimizer": "adamw"}, "offload is optimizer, but zero_stage is 0; it must be at least 1"),
    ({"offload": "parameters", "zero_stage": 2, "optimizer": "adamw"}, "offload is parameters, but zero_stage is 2; it must"),
    ({"trunk": "frozen"}, "trunk is frozen, so nothing is trained; set draft_heads or exit_classifier"),
    ({"trunk": "frozen", "draft_heads": 1, "activation_checkpointing": True}, "activation_checkpointing is true, but trunk is"),
    ({"trunk": "frozen", "draft_heads": 1, "exit_loss": "weighted"}, "exit_loss is weighted, which trains the trunk, but"),
]


ALIGNMENT: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0}, "steps is 0, so that no drafter learns anything; set it to at least 1"),
    ({"loss": "forward_kl", "draft_heads": 1}, "loss is forward_kl, which reads the last logits alone"),
    ({"draft_vocabulary": 50, "exit_loss": "weighted"}, "draft_vocabulary is 50, but exit_loss, draft_heads and"),
]
CASES: list[tuple[Any, dict[str, Any], str]] = [
    *((kind, *case) for kind in (TrainingSettings, AlignSettings) for case in REFUSED),
    *((AlignSettings, *case) for case in ALIGNMENT),
    (CalibrateSettings, {"samples": 2}, "samples is 2, but sampling is greedy"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), CASES, ids=[" ".join([one.__name__, *given]) for one, given, _ in CASES])
def test_what_cannot_work_is_refused(kind: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        kind(**changes)


def test_finetuning_takes_a_model_as_it_is() -> None:
    assert TrainingSettings(steps=0, warmup_steps=50).steps == 0


@pytest.mark.parametrize("choose_by", WEIGHT_CHOICES)
def test_weights_are_chosen_by_what_the_stage_measures(choose_by: str) -> None:
    assert AlignSettings(choose_by=choose_by).choose_by == choose_by
    if "acceptance" not in choose_by:
        assert TrainingSettings(choose_by=choose_by).choose_by == choose_by
        return
    words = f"choose_by is {choose_by}, which only align measures; it must be one of last, validation_loss, quality"
    with pytest.raises(ValueError, match=words):
        TrainingSettings(choose_by=choose_by)


def test_every_stage_of_zero_takes_its_offload() -> None:
    for stage, offloads in {0: ["none"], 1: ["none", "optimizer"], 3: ["none", "optimizer", "parameters"]}.items():
        for offload in offloads:
            assert TrainingSettings(optimizer="adamw", zero_stage=stage, offload=offload).offload == offload
