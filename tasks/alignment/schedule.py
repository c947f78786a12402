"""The data source of each training step, and the windows of steps whose rollouts are generated together."""

from __future__ import annotations

import enum
import random

from tasks.alignment.settings import AlignSettings


class DataSource(enum.Enum):
    """Where the texts of a step come from."""

    CALIBRATION = enum.auto()
    """The calibration set."""
    ON_POLICY = enum.auto()
    """The drafter, as it trains."""
    REPLAY = enum.auto()
    """The large model, with the drafter drafting for it."""


class Schedule:
    """Data source of each step, counted from 0: calibration set and on-policy steps mixed, then rounds of replay."""

    def __init__(self, settings: AlignSettings) -> None:
        self._seed, self._share, self._window = settings.seed, settings.on_policy, settings.write_every
        self._round = settings.replay_steps
        self._replay_from = settings.steps - settings.replay_rounds * settings.replay_steps

    def source_at(self, step: int) -> DataSource:
        """Data source of a step; the draw depends on seed and step only."""
        if step >= self._replay_from:
            return DataSource.REPLAY
        draw = random.Random(f"{self._seed} on policy {step}").random()  # noqa: S311 (a mixture, not a secret)
        return DataSource.ON_POLICY if draw < self._share else DataSource.CALIBRATION

    def window(self, step: int) -> list[int]:
        """All steps whose texts are generated together with this one's, itself included: a round of replay, or a window."""
        if self.source_at(step) is DataSource.REPLAY:
            begin = step - (step - self._replay_from) % self._round
            return list(range(begin, begin + self._round))
        begin = step - step % self._window
        end = min(begin + self._window, self._replay_from)
        return [other for other in range(begin, end) if self.source_at(other) is self.source_at(step)]
