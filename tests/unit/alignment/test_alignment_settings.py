"""Settings that cannot be aligned with: each is refused in one sentence that names the setting and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.alignment.settings import LOSSES, AlignSettings


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"loss": "hinge"}, f"loss is 'hinge'; it must be one of {', '.join(LOSSES)}"),
        ({"beta": 1.0}, "beta is 1.0; it must be less than 1"),
        ({"on_policy": 1.5}, "on_policy is 1.5; it must be at most 1"),
        ({"on_policy": 0.5}, "on_policy text is the drafter's own.* set loss to a divergence"),
        ({"label_weight": 0.5}, "label_weight is 0.5, but loss sequence learns from the text alone"),
        ({"loss": "gatekeeper", "label_weight": 0.5}, "but loss gatekeeper learns from the text alone"),
        ({"loss": "gatekeeper", "kl_until": 0.5}, "but loss gatekeeper has no divergence"),
        ({"loss": "gatekeeper", "on_policy": 0.5}, "which loss gatekeeper would only teach it again"),
        ({"loss": "gatekeeper", "position_weights": "acceptance"}, "set position_weights to decay or none"),
        ({"loss": "gatekeeper", "sure_weight": 1.0}, "sure_weight is 1.0; it must be less than 1"),
        ({"loss": "forward_kl", "label_weight": 1.0}, "label_weight is 1.0; it must be less than 1"),
        (
            {"loss": "forward_kl", "label_weight": 0.5, "on_policy": 0.5},
            "label_weight is 0.5, which would teach the drafter its own on_policy text again; set one to 0",
        ),
        (
            {"loss": "forward_kl", "on_policy": 0.5, "reference": "stored"},
            "on_policy text has no stored reference; set reference",
        ),
        (
            {"loss": "forward_kl", "replay_rounds": 1, "reference": "stored"},
            "replay_rounds write text without a stored reference",
        ),
        ({"loss": "total_variation", "kl_until": 1.1}, "kl_until is 1.1; it must be at most 1"),
        (
            {"kl_until": 0.5},
            "kl_until is 0.5, but loss sequence has no divergence; set loss to another divergence, for example tot",
        ),
        (
            {"loss": "forward_kl", "kl_until": 0.5},
            r"kl_until is 0.5, but loss forward_kl is KL\(p\|q\) itself; set loss to another",
        ),
        ({"position_weights": "linear"}, "position_weights is 'linear'; it must be one of none, decay, acceptance"),
        ({"position_weights": "decay", "position_window": 1}, "position_window is 1; it must be at least 2"),
        ({"position_weights": "decay", "position_decay": 1.0}, "position_decay is 1.0; it must be less than 1"),
        (
            {"position_weights": "decay", "draft_heads": 1},
            "position_weights is decay, .* with exit_loss, draft_heads .* must be none",
        ),
        (
            {"position_weights": "acceptance", "exit_loss": "weighted"},
            "position_weights is acceptance, which weighs the loss of the",
        ),
        ({"loss": "forward_kl", "draft_heads": 1}, "loss is forward_kl, which reads the last logits alone"),
        ({"replay_rounds": 2, "replay_steps": 50, "steps": 100}, "come to 100 steps; they must leave some of steps, 100"),
        (
            {"replay_rounds": 1, "patience": 2, "choose_by": "acceptance_rate"},
            "patience is 2, which may end training before its last steps, the replay_rounds; set one to 0",
        ),
    ],
)
def test_contradictory_settings_are_refused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AlignSettings(**chosen)


def test_the_defaults_are_bild_s_own() -> None:
    settings = AlignSettings()
    assert (settings.loss, settings.start, settings.on_policy, settings.replay_rounds) == ("sequence", "pretrained", 0, 0)
    assert (settings.optimizer, settings.decay, settings.batch_size) == ("adafactor", "constant", 16)
