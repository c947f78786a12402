"""Settings of a sweep: its grid, its plan, and how points are measured."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tasks.decoding.method import SamplingSettings
from tasks.settings import SEEDS, setting, settings


@settings
class GridSettings:
    """The points of one method: every combination of a preset's values and of the values given beside it."""

    method: str = setting("A method of the registry.")
    preset: str = setting("A range of the papers by its name, see the table of presets; empty for none.", default="")
    values: dict[str, list[object]] = setting(
        "Values by the name of a method's setting; they replace the preset's values of that setting or add a setting.",
        default_factory=dict,
    )


def default_grid() -> list[GridSettings]:
    """BiLD over the thresholds of the paper, and speculative decoding at three draft lengths."""
    return [GridSettings(method="bild", preset="translation"), GridSettings(method="speculative", preset="block_sizes")]


CHOSEN_ON, REPORTED_ON = "validation", "test"
"""The split on which settings are chosen, and the split on which they are reported."""
CHOICES = ("no_loss", "one_point")
"""What a point may be chosen for, the strictest first; each has its margin."""


_margin = functools.partial(setting, unit="points", gt=0, le=100)


@settings
class MarginSettings:
    """How much quality a choice may lose, in points of the task's metric, and how sure that has to be."""

    no_loss: float = _margin(
        "A choice for no loss has a lower bound of its quality difference to vanilla above minus this.", default=0.5
    )
    one_point: float = _margin("The same for a choice that may lose a point; at least the margin for no loss.", default=1.0)
    confidence: float = setting(
        "Probability that the lower bounds of all settings and drafters hold at once, and that a bound on test holds.",
        default=0.95,
        ge=0.5,
        lt=1,
    )

    def validate(self) -> None:
        """Check that the margins are in order."""
        if self.one_point < self.no_loss:
            raise ValueError(f"one_point is {self.one_point}; it must be at least no_loss, which is {self.no_loss}")

    def of(self, choice: str) -> float:
        """The margin of one of `CHOICES`, in points."""
        return {"no_loss": self.no_loss, "one_point": self.one_point}[choice]


@settings
class SweepSettings:
    """Sweep and measurement: quality on whole splits, latency at batch 1 on a subset of examples beside vanilla."""

    grid: list[GridSettings] = setting(
        "The points, method by method; left out: BiLD and speculative decoding over the papers' ranges.",
        default_factory=default_grid,
    )
    plan: bool = setting(
        "Replay greedy points from cached predictions, or decode those that draw tokens, and time only points on or near the "
        "predicted frontier, points that would be chosen, and a random sample. False decodes and times every point.",
        default=True,
    )
    near: float = setting(
        "Relative margin: a point is timed if it would reach the predicted frontier when sped up by this fraction. Of points "
        "whose speeds differ by less than it, and qualities by less than 0.1 point or a fifth of their loss, one is timed.",
        default=0.05,
        ge=0,
        le=1,
    )
    sample: int = setting(
        "Random points of the rest, of the first seed, that are timed to measure the prediction error.", default=5, ge=0
    )
    margins: MarginSettings = setting("What a choice may lose.", default_factory=MarginSettings)
    seed_methods: tuple[str, ...] = setting(
        "Methods of the grid that drafters of further seeds are swept with; the first seed is swept with all.",
        default=("bild", "speculative"),
    )
    sampling: SamplingSettings = setting("How every method chooses tokens.", default_factory=SamplingSettings)
    drafter_sampling: SamplingSettings | None = setting(
        "How a sweep chooses drafted tokens where `sampling` draws; none: as all tokens.", default=None
    )
    samples: int = setting(
        "Outputs of each example where tokens are drawn; its quality is their mean, and intervals cover examples and draws. "
        "Settings and arms draw with the same numbers.",
        default=1,
        unit="outputs",
        ge=1,
        le=100,
    )
    temperatures: tuple[float, ...] = setting(
        "Further temperatures, ascending, at which the first seed's grid is swept on validation, beside vanilla at the same. "
        "Nothing is chosen from them. Above 0 methods that draw no tokens are left out. Empty for none.",
        default=(),
    )
    quality_batch: int = setting(
        "Batch size of the decoding that quality is measured on; 0: as many as fit the device, at most 128.",
        default=128,
        unit="examples",
        ge=0,
    )
    latency_threads: int = setting(
        "CPU threads while timing; small models at batch 1 are fastest on one. 0 uses machine.threads.",
        default=0,
        unit="threads",
        ge=0,
        le=1024,
    )
    latency_examples: int = setting("Random timed examples; few where each takes seconds.", default=200, unit="examples", ge=2)
    latency_rounds: int = setting(
        "Rounds of each timed point, each in a process of its own; a round times every timed example once. Intervals cover "
        "examples and rounds from two rounds on.",
        default=4,
        unit="rounds",
        ge=1,
        le=1000,
    )
    warmup_examples: int = setting("Examples decoded untimed before each visit.", default=3, unit="examples", ge=0)
    batch_sizes: tuple[int, ...] = setting(
        "Batch sizes at which vanilla and the fastest chosen points of the first seed are timed on test, ascending from 1; "
        "empty for none.",
        default=(1, 2, 4, 8, 16, 32),
        unit="examples",
    )
    batch_examples: int = setting(
        "Random test examples, of mixed lengths, that are timed in batches; a larger batch size is left out.",
        default=64,
        unit="examples",
        ge=1,
    )
    agreeing_layers: bool = setting(
        "Measure on validation the earliest layer of the large model that predicts each token of its greedy texts, an oracle "
        "for early exit (BiLD-v1, 2.1).",
        default=False,
    )
    bootstrap_samples: int = setting("Resamples for each 95 % interval.", default=1000, ge=100, le=100_000)
    seed: int = setting("Selects the timed examples, orders the points and keys random draws.", default=0, ge=0, le=SEEDS)

    def validate(self) -> None:
        """Check that batch sizes ascend from 1, with which all others are compared, and that temperatures differ."""
        found, own = list(self.temperatures), self.sampling.temperature
        _ = [SamplingSettings(temperature=temperature) for temperature in found]
        if found != sorted(set(found)) or min(found, default=0) < 0 or own in found or not all(map(math.isfinite, found)):
            rule = f"it must ascend from 0 or more without sampling.temperature, which is {own:g}"
            raise ValueError(f"temperatures is {found}; {rule}")
        drawn = self.samples > 1 or self.drafter_sampling is not None
        if drawn and self.sampling.greedy and not any(found):
            fix = "raise or remove it"
            raise ValueError(f"samples or drafter_sampling is set, but sampling.temperature is 0, which draws nothing; {fix}")
        sizes = list(self.batch_sizes)
        if sizes and (sizes[0] != 1 or sizes != sorted(set(sizes))):
            raise ValueError(f"batch_sizes is {sizes}; it must ascend from 1, for example [1, 4, 16], or be empty")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What decides which numbers of the papers compare with those of a task, besides its metric."""

    dataset: str = "none"
    """The public data set (`corpus.dataset`)."""
    paper: str = "any"
    """The paper whose experiment it is (`corpus.paper`)."""
    small: str = ""
    """The published small model that the pair starts from; empty for none."""
    large: str = ""
