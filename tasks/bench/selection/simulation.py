"""Redraw validation and test from a pool, choose by each rule, and compare the choices with the truth, which is the whole pool.

Draws are with replacement, so that examples of a draw are independent and the pool's difference is exactly what they estimate.
As in a report, the fastest setting of all arms is chosen among those that its arm's rule lets through, each arm at its share of
the level, and vanilla is kept where nothing faster is let through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.bench.selection.pool import Arm, Pool
from tasks.bench.selection.rules import RULES, Drawn
from tasks.evaluation.selection.bounds import normal_bounds, upper_bounds
from tasks.evaluation.selection.differences import paired_differences
from tasks.evaluation.selection.status import status_of


@dataclass
class Outcomes:
    """What one rule chose over all draws."""

    speedups: list[float] = field(default_factory=list)
    """1 where vanilla is kept."""
    losses: list[float] = field(default_factory=list)
    """Points lost on the pool by the settings that were chosen."""
    statuses: list[str] = field(default_factory=list)
    """What the test split said of each of them."""
    lossless: int = 0
    """Draws in which the choice was vanilla's output by construction."""
    settings: set[str] = field(default_factory=set)

    def record(self, margin: float, draws: int) -> dict[str, object]:
        """Shares and means for the JSON line; shares of chosen settings are None where nothing was chosen."""
        violations = [loss > margin for loss in self.losses]
        chosen = len(self.losses)

        def test_share(status: str, *, violating: bool) -> float | None:
            found = [one == status for one, bad in zip(self.statuses, violations, strict=True) if bad is violating]
            return round(float(np.mean(found)), 4) if found else None

        return {
            "violations": round(sum(violations) / chosen, 4) if chosen else None,
            "violations_of_lossy": round(sum(violations) / lossy, 4) if (lossy := chosen - self.lossless) else None,
            "violations_of_draws": round(sum(violations) / draws, 4),
            "lossless": round(self.lossless / draws, 4),
            "chosen": round(chosen / draws, 4),
            "different": len(self.settings),
            "mean_speedup": round(float(np.mean(self.speedups)), 4),
            "mean_loss": round(float(np.mean(self.losses)), 4) if chosen else None,
            "worst_loss": round(max(self.losses), 4) if chosen else None,
            "violating_confirmed_on_test": test_share("confirmed", violating=True),
            "keeping_confirmed_on_test": test_share("confirmed", violating=False),
            "keeping_contradicted_on_test": test_share("contradicted", violating=False),
        }


def simulate(
    pool: Pool,
    *,
    sizes: Sequence[int],
    test: int,
    margins: Sequence[float],
    alpha: float,
    draws: int,
    seed: int,
    rules: Sequence[str] = tuple(RULES),
) -> list[dict[str, object]]:
    """The outcomes of every rule for each size of the validation split and each margin.

    Args:
        pool: arms, and vanilla on the same examples.
        sizes: examples of the validation split.
        test: examples of the test split.
        margins: in points of the metric.
        alpha: level of the whole choice; each arm has its share of it.
        draws: how often validation and test are drawn.
        seed: of the draws.
        rules: names of `RULES`.
    """
    truths = {arm.name: arm.differences(pool.vanilla) for arm in pool.arms}
    lossy = {arm.name: arm.statistics[~arm.lossless] for arm in pool.arms}
    found = []
    for size in sizes:
        rng = np.random.default_rng([seed, size])
        outcomes = {(rule, margin): Outcomes() for rule in rules for margin in margins}
        for _ in range(draws):
            validation, testing = rng.integers(pool.examples, size=size), rng.integers(pool.examples, size=test)
            drawn = [(arm, _draw(arm, lossy[arm.name], pool.vanilla, validation)) for arm in pool.arms]
            for (rule, margin), outcome in outcomes.items():
                picked = _fastest(drawn, rule, margin, alpha / len(pool.arms))
                outcome.speedups.append(1.0 if picked is None else float(picked[0].speedups[picked[1]]))
                if picked is not None:
                    arm, index = picked
                    outcome.lossless += bool(arm.lossless[index])
                    outcome.settings.add(f"{arm.name} {arm.labels[index]}")
                    outcome.losses.append(-float(truths[arm.name][index]))
                    own = paired_differences(arm.statistics[index : index + 1, testing], pool.vanilla[testing])
                    bounds = float(normal_bounds(own, alpha)[0]), float(upper_bounds(own, alpha)[0])
                    outcome.statuses.append(status_of(bounds, -margin))
        found += [
            {"rule": rule, "validation": size, "margin": margin, **outcome.record(margin, draws)}
            for (rule, margin), outcome in outcomes.items()
        ]
    return found


def _draw(arm: Arm, lossy: NDArray[np.generic], vanilla: NDArray[np.generic], examples: NDArray[np.int64]) -> Drawn:
    return Drawn(lossy[:, examples], vanilla[examples], arm.speedups[~arm.lossless])


def _fastest(drawn: Sequence[tuple[Arm, Drawn]], rule: str, margin: float, alpha: float) -> tuple[Arm, int] | None:
    """The fastest setting of all arms that is lossless or let through by the rule; None where vanilla is as fast."""
    best: tuple[float, Arm, int] | None = None
    for arm, own in drawn:
        kept = arm.lossless.copy()
        kept[~arm.lossless] = RULES[rule](own, margin, alpha)
        speedups = np.where(kept, arm.speedups, -np.inf)
        index = int(np.argmax(speedups))
        if speedups[index] > (best[0] if best else 1.0):
            best = float(speedups[index]), arm, index
    return None if best is None else best[1:]
