"""The data source of each training step, and the windows of steps whose rollouts are generated together."""

from __future__ import annotations

import enum
import random

from tasks.alignment.settings import AlignSettings


class DataSource(enum.Enum):
    """The source of a step's texts."""

    CALIBRATION = enum.auto()
    """The calibration set."""
    ON_POLICY = enum.auto()
    """The drafter in training."""
    REPLAY = enum.auto()
    """The large model, for which the drafter drafts."""


class Schedule:
    """The data source of each step, counted from 0: calibration set and on-policy steps mixed, then rounds of replay."""

    def __init__(self, settings: AlignSettings) -> None:
        self._seed, self._share, self._window = settings.seed, settings.on_policy, settings.write_every
        self._round = settings.replay_steps
        self._replay_from = settings.steps - settings.replay_rounds * settings.replay_steps

    def source_at(self, step: int) -> DataSource:
        """Return the data source of a step; the draw depends only on seed and step."""
        if step >= self._replay_from:
            return DataSource.REPLAY
        draw = random.Random(f"{self._seed} on policy {step}").random()  # noqa: S311 (a mixture, not a secret)
        return DataSource.ON_POLICY if draw < self._share else DataSource.CALIBRATION

    def window(self, step: int) -> list[int]:
        """Return all steps whose texts are generated together with this step's: a round of replay, or a window."""
        if self.source_at(step) is DataSource.REPLAY:
            begin = step - (step - self._replay_from) % self._round
            return list(range(begin, begin + self._round))
        begin = step - step % self._window
        end = min(begin + self._window, self._replay_from)
        return [other for other in range(begin, end) if self.source_at(other) is self.source_at(step)]
