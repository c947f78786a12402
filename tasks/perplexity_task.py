"""What a task of the metric perplexity can ask for: methods and settings that decode a given text (BiLD-v1, section 4.2).

Perplexity is of the distribution that tokens are drawn from, at temperature 1. Where the small model drafts and the large one
takes over, that is q at the drafted positions and p at all others. A rule that examines drafted tokens has no such distribution
on a given text: whether its tokens stay depends on a draw that did not happen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.decoding.settings import BildSettings, SamplingSettings
from tasks.evaluation.metrics import PERPLEXITY, metric_of
from tasks.evaluation.sweeping.grid import expand_entry

if TYPE_CHECKING:
    from tasks.evaluation.sweeping.grid import SweepPoint
    from tasks.schema import Task

SCORING_METHODS = ("bild", "token_cascade")
"""The methods of the registry that score a given text; the two baselines do as well."""


def perplexity_problems(task: Task) -> Iterator[str]:
    """Problems of a task with the metric perplexity, each with section and fix; none with another metric."""
    if metric_of(task.metric).name != PERPLEXITY:
        return
    sweep = task.sweep
    if sweep.sampling != SamplingSettings(temperature=1.0):
        yield (
            "sweep: with the metric perplexity sampling must be {temperature: 1.0} without top_k and top_p, since a "
            "perplexity is of the distribution that tokens are drawn from; set it"
        )
    if sweep.temperatures:
        yield "sweep: temperatures is set, but a perplexity is of temperature 1 alone; remove it"
    for name, training in (
        ("finetune.large", task.finetune.large),
        ("finetune.small", task.finetune.small),
        ("align", task.align),
    ):
        if training.choose_by == "quality":
            yield f"{name}: choose_by is quality, which is of outputs; set it to validation_loss, the logarithm of a perplexity"
    if task.align.draft_vocabulary:
        yield (
            f"align: draft_vocabulary is {task.align.draft_vocabulary}, so that all other tokens have no probability and a "
            "text with one of them an infinite perplexity; set it to 0"
        )
    if task.models.small.own_tokenizer:
        yield "models.small: own_tokenizer is true, and a perplexity mixes predictions of the same tokens; leave it out"
    for index, entry in enumerate(sweep.grid):
        for point in expand_entry(entry):
            if problem := _point_problem(point):
                yield f"sweep.grid.{index}: {problem}"


def _point_problem(point: SweepPoint) -> str:
    if point.method not in SCORING_METHODS:
        return (
            f"{point.method} scores no given text: a lossless method has the large model's perplexity by definition, and in "
            f"others a drawn token decides what is kept; with this metric a grid takes {' and '.join(SCORING_METHODS)}"
        )
    settings = point.settings
    if isinstance(settings, BildSettings) and settings.rollback_threshold < math.inf:
        return (
            f"bild has a rollback_threshold of {settings.rollback_threshold:g}, but no token of a given text is replaced; set "
            "it to .inf"
        )
    if isinstance(settings, BildSettings) and settings.drafter != "small":
        return (
            f"bild has the drafter {settings.drafter}, whose drafts a given text replaces; with the metric perplexity use small"
        )
    return ""
