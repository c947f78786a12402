"""The grid at temperatures beside the sweep's own, on validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.results.points import TimedPoint, UntimedPoint

STEM = f"{CHOSEN_ON}.T"
"""Begins the name of their split."""


def split_at(temperature: float) -> str:
    """The name of the split that rows at a further temperature have: `validation.T0.5`."""
    return f"{STEM}{temperature:g}"


def temperature_of(split: str) -> float:
    """The temperature in such a name."""
    return float(split.removeprefix(STEM))


@dataclass(frozen=True, kw_only=True)
class TemperaturePoints:
    """One drafter's points at one temperature; all differences and speed-ups are from vanilla at the same temperature."""

    drafter: str
    temperature: float
    vanilla_quality: float
    """Of the large model alone at this temperature, in points."""
    points: list[Annotated[TimedPoint | UntimedPoint, Field(discriminator="timed")]]
    """None of them is chosen."""
