"""What is swept, and how it is measured."""

from __future__ import annotations

from typing import Any

from tasks.decoding.settings import SamplingSettings
from tasks.settings import setting, settings


@settings
class GridSettings:
    """The points of one method: every combination of the values of a preset and of those listed beside it."""

    method: str = setting("A method of the registry.")
    preset: str = setting("A range of the papers by its name, see the table of presets; empty: none.", default="")
    values: dict[str, list[Any]] = setting(
        "Setting name to the values it takes; they replace the preset's, or stand beside them.", default_factory=dict
    )


@settings
class SweepSettings:
    """What is decoded and how it is timed (quality on whole splits; latency at batch 1 on a subset, beside vanilla)."""

    grid: list[GridSettings] = setting("The points, method by method.", default_factory=list)
    plan: bool = setting(
        "Replay greedy points from noted readings and time only those on or near the predicted frontier, those that would be "
        "chosen and a random sample; false: decode and time every point.",
        default=True,
    )
    near: float = setting(
        "A point is near the predicted frontier where it would be on it if it were faster by this share; of points alike to "
        "within it, and to 0.1 point of quality or a fifth of what they lose, one is timed.",
        default=0.05,
        ge=0,
        le=1,
    )
    sample: int = setting("Random points of the rest that are timed too, to show the prediction's error.", default=5, ge=0)
    sampling: SamplingSettings = setting("How every method takes its tokens.", default_factory=SamplingSettings)
    quality_batch: int = setting("Examples decoded side by side for quality.", default=128, unit="examples", ge=1)
    latency_threads: int = setting(
        "CPU threads while timing; small models at batch 1 are fastest on one. 0: as machine.threads says.",
        default=0,
        unit="threads",
        ge=0,
    )
    latency_examples: int = setting("Random examples timed at batch 1.", default=24, unit="examples", ge=2)
    latency_trials: int = setting("Times each is timed.", default=1, unit="trials", ge=1)
    warmup_examples: int = setting("Examples decoded untimed before each point.", default=3, unit="examples", ge=0)
    bootstrap_samples: int = setting("Resamples behind each 95 % interval.", default=1000, ge=100)
    seed: int = setting("Chooses the timed examples, orders the points, keys random draws.", default=0, ge=0)
