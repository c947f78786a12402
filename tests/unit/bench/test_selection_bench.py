"""The simulation of choices on synthetic pools, whose truth is known, and the pool's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.bench.selection.pool import Arm, Pool, read_pool, save_pool
from tasks.bench.selection.simulation import simulate
from tasks.errors import InputError

EXAMPLES, SETTINGS = 4000, 32


def pool(*, lossless: bool = False) -> Pool:
    """Two arms whose settings lose about 0.6 points by a ROUGE, on 5 % of the examples, all faster than vanilla.

    The second half of an arm's settings loses nothing beyond noise and is slower.
    """
    rng = np.random.default_rng(1)
    vanilla = rng.uniform(40.0, 100.0, size=(EXAMPLES, 1))
    arms = []
    for name in ("unaligned", "aligned"):
        losses = np.where(rng.random((SETTINGS, EXAMPLES)) < 0.05, rng.normal(12.0, 10.0, size=(SETTINGS, EXAMPLES)), 0.0)
        losses[SETTINGS // 2 :] *= 0.1
        statistics = vanilla[None] - losses[:, :, None]
        speedups = np.linspace(2.0, 1.2, SETTINGS)
        flags = np.zeros(SETTINGS, dtype=bool)
        if lossless:
            flags[-1], statistics[-1] = True, vanilla
        arms.append(Arm(name, statistics, speedups, flags, [f"bild {index}" for index in range(SETTINGS)]))
    return Pool(vanilla, arms, {"from": "a test"})


def outcomes(found: list[dict[str, object]]) -> dict[str, dict[str, float]]:
    numbers = {
        str(row["rule"]): {name: value for name, value in row.items() if isinstance(value, int | float)} for row in found
    }
    assert len(numbers) == len(found)
    return numbers


def test_corrected_rules_hold_their_level_and_the_former_and_naive_rules_do_not() -> None:
    drawn = {"test": 300, "margins": [0.5], "alpha": 0.05, "draws": 100, "seed": 1}
    assert outcomes(simulate(pool(), sizes=[100], rules=["former"], **drawn))["former"]["violations"] > 0.3  # type: ignore[arg-type]
    found = outcomes(simulate(pool(), sizes=[600], **drawn))  # type: ignore[arg-type]
    assert found["naive"]["violations"] > 0.05
    for rule in ("max_t", "bonferroni", "split"):
        assert found[rule]["violations_of_draws"] <= 0.05
    # They stay usable: the faster half violates the margin, so that the best choice is the fastest of the slower half.
    assert found["max_t"]["chosen"] == 1.0 and found["max_t"]["mean_speedup"] > 1.5


def test_a_lossless_setting_is_chosen_where_nothing_else_can_be_proven() -> None:
    found = outcomes(simulate(pool(lossless=True), sizes=[20], test=50, margins=[0.5], alpha=0.05, draws=5, seed=1))
    assert found["max_t"]["lossless"] == 1.0 and found["max_t"]["mean_speedup"] == pytest.approx(1.2)
    assert found["max_t"]["violations"] == 0.0


def test_a_pool_is_read_as_it_was_written(tmp_path: Path) -> None:
    written, path = pool(), tmp_path / "folder" / "pool.npz"
    save_pool(written, path)
    found = read_pool(path)
    assert found.about == written.about and np.array_equal(found.vanilla, written.vanilla)
    for one, other in zip(found.arms, written.arms, strict=True):
        assert (one.name, one.labels) == (other.name, other.labels)
        assert np.array_equal(one.statistics, other.statistics) and np.array_equal(one.lossless, other.lossless)
        assert one.differences(found.vanilla) == pytest.approx(other.differences(written.vanilla))
    (tmp_path / "other.npz").write_bytes(b"no pool")
    with pytest.raises(InputError, match="is no pool of examples"):
        read_pool(tmp_path / "other.npz")
