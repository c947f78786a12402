"""What is swept, and how it is measured."""

from __future__ import annotations

from typing import Any

from tasks.decoding.settings import SamplingSettings
from tasks.settings import knob, settings

METRICS = ("bleu", "rouge1", "rouge2", "rougeL", "rougeLsum")


@settings
class GridSettings:
    """The points of one method: every combination of the listed values."""

    method: str = knob(description="A method of the registry.")
    values: dict[str, list[Any]] = knob(dict, "Setting name to the values it takes.")


@settings
class SweepSettings:
    """What is decoded and how it is timed (quality on whole splits; latency at batch 1 on a subset, beside vanilla)."""

    grid: list[GridSettings] = knob(list, "The points, method by method.")
    sampling: SamplingSettings = knob(SamplingSettings, "How every method takes its tokens.")
    quality_batch: int = knob(128, "Examples decoded side by side for quality.", unit="examples", ge=1)
    latency_examples: int = knob(24, "Random examples timed at batch 1.", unit="examples", ge=2)
    latency_trials: int = knob(1, "Times each is timed.", unit="trials", ge=1)
    warmup_examples: int = knob(3, "Examples decoded untimed before each point.", unit="examples", ge=0)
    bootstrap_samples: int = knob(1000, "Resamples behind each 95 % interval.", ge=100)
    seed: int = knob(0, "Chooses the timed examples, orders the points, keys random draws.", ge=0)
