"""Which text each step of an alignment learns from, and which steps' text is written at once: from the settings alone."""

from __future__ import annotations

import enum
import random

from tasks.alignment.settings import AlignSettings


class DataSource(enum.Enum):
    """Where the text of a step comes from."""

    CALIBRATION = enum.auto()
    """The calibration set."""
    ON_POLICY = enum.auto()
    """The drafter, while it trains."""
    REPLAY = enum.auto()
    """The large model, with the drafter drafting for it."""


class Schedule:
    """The text of every step, counted from 0: a mix of calibration set and written text first, rounds of replay at the end."""

    def __init__(self, settings: AlignSettings) -> None:
        self._seed, self._share, self._window = settings.seed, settings.on_policy, settings.write_every
        self._round = settings.replay_steps
        self._replay_from = settings.steps - settings.replay_rounds * settings.replay_steps

    def source_at(self, step: int) -> DataSource:
        """What the step learns from; of a mix, by a draw that its seed and its number decide alone."""
        if step >= self._replay_from:
            return DataSource.REPLAY
        chance = random.Random(f"{self._seed} on policy {step}").random()  # noqa: S311 (a mix, not a secret)
        return DataSource.ON_POLICY if chance < self._share else DataSource.CALIBRATION

    def window(self, step: int) -> list[int]:
        """The steps whose text is written at once with this one's, itself among them: a round's, or those of a window."""
        if self.source_at(step) is DataSource.REPLAY:
            begin = step - (step - self._replay_from) % self._round
            return list(range(begin, begin + self._round))
        begin = step - step % self._window
        end = min(begin + self._window, self._replay_from)
        return [near for near in range(begin, end) if self.source_at(near) is self.source_at(step)]
