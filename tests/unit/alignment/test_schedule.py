"""Which text each step learns from."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.alignment.schedule import DataSource, Schedule
from tasks.alignment.settings import AlignSettings


def schedule(**settings: Any) -> Schedule:
    return Schedule(AlignSettings(loss="forward_kl", **settings))


def test_without_shares_and_rounds_all_text_is_the_calibration_set_s() -> None:
    assert {schedule(steps=50).source_at(step) for step in range(50)} == {DataSource.CALIBRATION}
    assert {schedule(steps=50, on_policy=1.0).source_at(step) for step in range(50)} == {DataSource.ON_POLICY}


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_a_share_of_the_steps_is_on_policy_and_the_same_for_a_seed(share: float) -> None:
    found = [schedule(steps=2000, on_policy=share, seed=4).source_at(step) for step in range(2000)]
    assert found.count(DataSource.ON_POLICY) / 2000 == pytest.approx(share, abs=0.04)
    again, other = schedule(steps=2000, on_policy=share, seed=4), schedule(steps=2000, on_policy=share, seed=5)
    assert [again.source_at(step) for step in reversed(range(2000))] == found[::-1]
    assert [other.source_at(step) for step in range(2000)] != found
    # A larger share holds the steps of a smaller one.
    more = schedule(steps=2000, on_policy=share + 0.1, seed=4)
    assert all(more.source_at(step) is DataSource.ON_POLICY for step in range(2000) if found[step] is DataSource.ON_POLICY)


def test_the_rounds_are_the_last_steps() -> None:
    rounds = schedule(steps=40, on_policy=0.5, replay_rounds=3, replay_steps=5)
    replayed = [step for step in range(40) if rounds.source_at(step) is DataSource.REPLAY]
    assert replayed == list(range(25, 40))
    assert [rounds.window(step)[0] for step in (25, 29, 30, 34, 39)] == [25, 25, 30, 30, 35]
    assert rounds.window(31) == [30, 31, 32, 33, 34]


def test_a_window_contains_the_on_policy_steps() -> None:
    mixed = schedule(steps=48, on_policy=0.5, write_every=10, replay_rounds=2, replay_steps=2)
    windows = {tuple(mixed.window(step)) for step in range(44) if mixed.source_at(step) is DataSource.ON_POLICY}
    assert sorted(step for window in windows for step in window) == [
        step for step in range(44) if mixed.source_at(step) is DataSource.ON_POLICY
    ]
    assert all(len({step // 10 for step in window}) == 1 for window in windows)
    assert len(windows) == 5
