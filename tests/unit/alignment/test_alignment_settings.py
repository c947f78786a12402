"""Settings that cannot be aligned with: each is refused in one sentence that names the setting and the fix."""

from typing import Any

import pytest

from tasks.alignment.settings import LOSSES, AlignSettings, CalibrateSettings


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"loss": "hinge"}, f"loss is 'hinge'; it must be one of {', '.join(LOSSES)}"),
        ({"beta": 1.0}, "beta is 1.0; it must be less than 1"),
        ({"loss": "forward_kl", "draft_heads": 1}, "loss is forward_kl, which reads the last logits alone"),
        ({"draft_vocabulary": 50, "exit_loss": "weighted"}, "draft_vocabulary is 50, but exit_loss, draft_heads and"),
    ],
)
def test_contradictory_settings_are_refused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AlignSettings(**chosen)


def test_the_defaults_are_bild_s_own() -> None:
    settings = AlignSettings()
    assert (settings.loss, settings.start) == ("sequence", "pretrained")
    assert (settings.optimizer, settings.decay, settings.batch_size) == ("adafactor", "constant", 16)


def test_more_samples_than_one_need_a_temperature() -> None:
    with pytest.raises(ValueError, match=r"samples is 2, but sampling is greedy"):
        CalibrateSettings(samples=2)
