"""Frontiers and choices by hand, bounds that hold for all points at once, and what shares the level."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.evaluation import selection
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.rows import DifferenceBounds, FailedRow, MeasuredRow, Prediction, SweepRow, TimedRow
from tasks.evaluation.scoring.metrics import LIKELIHOOD_SUMS, bleus_of
from tasks.evaluation.scoring.quality import Quality, score
from tasks.evaluation.selection import TradeOff, frontier, tradeoff_of
from tasks.evaluation.settings import MarginSettings
from tests.unit.evaluation.conftest import timed


def test_the_frontier_drops_what_is_beaten_and_keeps_indices() -> None:
    points = [TradeOff(50, 2.0), TradeOff(49, 1.5), None, TradeOff(60, 1.2), TradeOff(60, 1.1), TradeOff(61, 0.9)]
    assert frontier([*points, points[0]]) == [0, 3, 5]
    assert frontier([TradeOff(50, 2.0), TradeOff(51, 2.0)]) == [1], "of equally fast points the better"


@pytest.mark.parametrize(
    "broken",
    [
        joined(FailedRow, timed("bild", 1.0), error="out of memory"),
        joined(MeasuredRow, timed("bild", 2.0), predicted=Prediction(latency_ms=1.0, speedup=2.0)),
    ],
)
def test_rows_without_times_are_no_points(broken: SweepRow) -> None:
    assert tradeoff_of(broken) is None


@pytest.mark.parametrize(
    ("lower", "margin", "kept"),
    [(-0.4, 0.5, True), (-0.5, 0.5, False), (-0.6, 0.5, False), (0.3, 0.5, True), (0.0, 0.5, True), (None, 100.0, False)],
)
def test_the_bound_has_to_lie_above_minus_the_margin(lower: float | None, margin: float, kept: bool) -> None:
    assert selection.keeps_quality(lower, margin) is kept


def test_the_fastest_that_keeps_the_quality_is_chosen() -> None:
    points = [TradeOff(60, 3.0), TradeOff(60, 1.5), TradeOff(60, 2.0), None]
    assert selection.choose(points, [False, True, True, True]) == 2
    assert selection.choose(points, [False] * 4) is None


def test_ties_go_to_the_better_then_to_the_first_and_a_choice_may_be_slower_than_vanilla() -> None:
    assert selection.choose([TradeOff(60, 2.0), TradeOff(61, 2.0), TradeOff(61, 2.0)], [True] * 3) == 1
    assert selection.choose([TradeOff(60, 0.5), TradeOff(60, 0.8)], [True, True]) == 1


def bounded(method: str, lower: float | None, speedup: float, split: str = "validation") -> TimedRow:
    bounds = None if lower is None else DifferenceBounds(lower=lower, upper=0.0, compared=1)
    return timed(method, speedup, split=split, difference_bounds=bounds)


VANILLA = bounded("vanilla_large", 0.0, 1.0)


def test_rows_are_chosen_by_method_on_validation_alone() -> None:
    rows: list[SweepRow] = [
        bounded("bild", -0.7, 2.0),
        VANILLA,
        bounded("vanilla_small", 0.0, 9.0),
        bounded("bild", -0.3, 1.4),
        bounded("speculative", 0.0, 1.2),
        bounded("bild", 0.0, 5.0, split="test"),
        joined(FailedRow, bounded("bild", 0.0, 4.0), error="out of memory"),
        bounded("bild", None, 8.0),
    ]
    assert selection.choose_rows(rows, MarginSettings()) == {
        ("bild", "no_loss"): 3,
        ("bild", "one_point"): 0,
        ("speculative", "no_loss"): 4,
        ("speculative", "one_point"): 4,
    }
    assert selection.choose_rows(rows, MarginSettings(no_loss=0.8))["bild", "no_loss"] == 0


def test_without_vanilla_or_without_a_good_point_nothing_is_chosen() -> None:
    assert selection.choose_rows([bounded("bild", 0.0, 2.0)], MarginSettings()) == {}
    assert selection.choose_rows([VANILLA, bounded("bild", -10.0, 2.0)], MarginSettings())["bild", "one_point"] is None


def test_margins_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one_point is 0.4; it must be at least no_loss"):
        MarginSettings(one_point=0.4)


_Floats = NDArray[np.float64]


def bleu_counts(rng: np.random.Generator, points: int, examples: int, share: float) -> NDArray[np.int32]:
    """Statistics of sentences of 8 to 12 words, some of them with up to four words wrong, `[points, examples, 10]`."""
    lengths = rng.integers(8, 13, size=(points, examples))
    lengths[:] = lengths[0]
    wrong = rng.integers(1, 5, size=lengths.shape) * (rng.random(lengths.shape) < share)
    totals = np.stack([lengths - order for order in range(4)], axis=2)
    matched = np.maximum(0, totals - wrong[:, :, None] * np.arange(1, 5))
    return np.concatenate([np.stack([lengths, lengths + (wrong > 3)], axis=2), matched, totals], axis=2).astype(np.int32)


def test_the_influence_is_the_derivative_in_the_weight_of_an_example() -> None:
    vanilla, point = bleu_counts(np.random.default_rng(0), 2, 50, 0.3)
    found = selection.paired_differences(point[None], vanilla)
    whole = np.stack([point.sum(axis=0), vanilla.sum(axis=0)]).astype(float)
    assert found.values[0] == pytest.approx(bleus_of(whole)[0] - bleus_of(whole)[1])
    step = 1e-4
    for example in range(10):
        more = bleus_of(whole + step * np.stack([point[example], vanilla[example]]))
        slope = 50 * (more[0] - more[1] - found.values[0]) / step
        assert found.influence[0, example] == pytest.approx(slope, abs=0.05)


def test_more_points_need_more_and_points_that_err_alike_less() -> None:
    rng = np.random.default_rng(1)
    apart, common = rng.normal(size=(40, 400)), rng.normal(size=400)
    alike = common + 0.3 * rng.normal(size=(40, 400))
    single = NormalDist().inv_cdf(0.975)
    of_40 = NormalDist().inv_cdf(1 - 0.025 / 40)
    assert selection.max_t_quantile(apart[:1], 0.025) == pytest.approx(single)
    assert selection.max_t_quantile(apart, 0.025) == pytest.approx(of_40, abs=0.1)
    assert single < selection.max_t_quantile(alike, 0.025) < of_40 - 0.3
    # Points without any influence are no further chance to err.
    assert selection.max_t_quantile(np.vstack([apart[:1], np.zeros((5, 400))]), 0.025) == pytest.approx(single)


def losses(rng: np.random.Generator, points: int, examples: int, rate: float, loss: float) -> selection.PairedDifferences:
    """Points that lose `loss` on a share `rate` of the examples, each on others."""
    lost = -loss * (rng.random((points, examples)) < rate)
    return selection.PairedDifferences(lost.mean(axis=1), lost - lost.mean(axis=1, keepdims=True))


@pytest.mark.parametrize(("examples", "rate", "loss"), [(400, 0.25, 2.0), (1000, 0.01, 50.0)])
def test_the_corrected_bounds_hold_for_all_points_at_once(examples: int, rate: float, loss: float) -> None:
    """All points lose half a point: a bound above that is an error. The cases go from frequent to rare and large losses."""
    rng = np.random.default_rng(2)
    wrong = dict.fromkeys(("normal", "bonferroni", "max_t"), 0)
    for _ in range(60):
        drawn = losses(rng, 20, examples, rate, loss)
        bounds = {
            "normal": selection.normal_bounds(drawn, 0.05),
            "bonferroni": selection.normal_bounds(drawn, 0.05 / 20),
            "max_t": selection.max_t_bounds(drawn, 0.05),
        }
        for name, lower in bounds.items():
            wrong[name] += bool((lower > -rate * loss).any())
    assert wrong["max_t"] <= 7 and wrong["bonferroni"] <= 7  # 3 expected, 7 is the 99th percentile
    assert wrong["normal"] >= 18


def test_a_point_that_never_differed_may_still_lose() -> None:
    """Of 400 examples none differed for the first point; others show that a difference costs 100 points."""
    rng = np.random.default_rng(3)
    seen = losses(rng, 5, 400, 0.05, 100.0)
    drawn = selection.PairedDifferences(np.append(0.0, seen.values), np.vstack([np.zeros(400), seen.influence]))
    # Losing on 1 example of 100 would have gone unseen in 2 % of all samples.
    assert selection.max_t_bounds(drawn, 0.025)[0] < -1.0


# Vanilla's points for each example: 37 of 100 on average.
_SCORES = (1.2, 2.0)


def rare_losses(rng: np.random.Generator, law: str, points: int, examples: int, margin: float) -> selection.PairedDifferences:
    """Points whose true difference is minus the margin, lost on few examples: all of an example's points, half of them, 50
    points, all of only the best tenth, or all beside frequent small differences."""
    vanilla = 100 * rng.beta(*_SCORES, size=examples)
    mean, best = 100 * _SCORES[0] / sum(_SCORES), vanilla * (vanilla > np.quantile(vanilla, 0.9))
    noise = rng.normal(0, 8, (points, examples)) * (rng.random((points, examples)) < 0.3)
    # What is lost where a setting fails, the share of examples on which it fails, and what else differs.
    loss, rate, other = {
        "all": (vanilla, margin / mean, 0.0),
        "half": (vanilla / 2, 2 * margin / mean, 0.0),
        "50": (np.full(examples, 50.0), margin / 50, 0.0),
        "best": (best, margin / best.mean(), 0.0),
        "beside": (vanilla, margin / mean, noise),
    }[law]
    lost = loss * (rng.random((points, examples)) < rate) + other
    return selection.PairedDifferences(
        -lost.mean(axis=1), lost.mean(axis=1, keepdims=True) - lost, selection.possible_loss(vanilla[:, None])
    )


@pytest.mark.parametrize("law", ["all", "half", "50", "best", "beside"])
@pytest.mark.parametrize(("examples", "trials"), [(100, 1000), pytest.param(200, 3000, marks=pytest.mark.slow)])
def test_a_point_that_may_lose_rarely_passes_in_one_trial_of_twenty(law: str, examples: int, trials: int) -> None:
    rng = np.random.default_rng(4)
    passed = [selection.normal_bounds(rare_losses(rng, law, 1, examples, 0.5), 0.05)[0] > -0.5 for _ in range(trials)]
    assert np.mean(passed) <= 0.05
    if examples == 100:  # without what an example may lose, a sample that holds no loss shows a bound of 0
        drawn = (replace(rare_losses(rng, law, 1, examples, 0.5), possible=0.0) for _ in range(400))
        assert np.mean([selection.normal_bounds(one, 0.05)[0] > -0.5 for one in drawn]) > 0.06


def test_an_example_may_lose_its_share_of_the_metric() -> None:
    """BLEU is the mean of the shares of its examples, of which the 95th percentile is taken."""
    counts = bleu_counts(np.random.default_rng(5), 1, 400, 0.5)[0]
    [whole] = bleus_of(counts.sum(axis=0, keepdims=True).astype(float))
    assert whole < selection.possible_loss(counts) < 2.5 * whole
    assert selection.possible_loss(np.array([[0.0]] * 60 + [[40.0]] * 20)) == pytest.approx(40.0)
    assert selection.possible_loss(np.ones((3, LIKELIHOOD_SUMS))) == 0.0


MARGINS = MarginSettings(confidence=0.9)
REFERENCES = [(f"the {word} house stands on a hill",) for word in ("red", "old", "blue", "tall") * 10]


def quality(wrong: int) -> Quality:
    texts = [reference for (reference,) in REFERENCES]
    return score([*("a house" for _ in range(wrong)), *texts[wrong:]], REFERENCES, "bleu", 100, 1)


LARGE = quality(2)


def test_a_point_on_test_has_the_whole_level_and_one_of_many_its_share() -> None:
    point = quality(9)
    differences = selection.paired_differences(point.statistics[None], LARGE.statistics)
    on_test = selection.point_bounds(point, LARGE, MARGINS, None, lossless=False, sampled=False)
    assert on_test.compared == 1 and on_test.lower == pytest.approx(selection.normal_bounds(differences, 0.1)[0])
    assert selection.level_of_arm(MARGINS) == pytest.approx(0.05)
    on_validation = selection.point_bounds(point, LARGE, MARGINS, 20, lossless=False, sampled=False)
    lower = selection.normal_bounds(differences, 0.05 / 20)[0]
    assert on_validation.compared == 20 and on_validation.lower == pytest.approx(lower)
    assert on_validation.upper == on_test.upper


def test_the_points_of_a_grid_are_bounded_together_at_their_share() -> None:
    points = {3: quality(9), 5: quality(4), 8: quality(2), 9: quality(2)}
    alone = selection.point_bounds(points[3], LARGE, MARGINS, 1, lossless=False, sampled=False)
    found = selection.grid_bounds(points, LARGE, MARGINS, lossless={9}, sampled=False, compared=4, seed=1)
    assert found.keys() == points.keys() and found[3].lower < alone.lower and found[3].compared == 4
    shared = selection.grid_bounds(points, LARGE, MARGINS, lossless={9}, sampled=False, compared=40, seed=1)
    assert shared[3].lower < found[3].lower
    # Points 8 and 9 score like vanilla everywhere, but only the lossless one must.
    assert (found[9].lower, found[9].upper) == (0.0, 0.0) and found[8].lower < 0
    assert np.isfinite([one.lower for one in found.values()]).all()


def test_lossless_points_lose_nothing_where_they_score_alike_or_tokens_are_drawn() -> None:
    for wrong, sampled, lower in ((2, False, 0.0), (9, True, 0.0)):
        assert selection.point_bounds(quality(wrong), LARGE, MARGINS, 5, lossless=True, sampled=sampled).lower == lower
        grid = {3: quality(wrong), 4: quality(wrong)}
        found = selection.grid_bounds(grid, LARGE, MARGINS, lossless={3}, sampled=sampled, compared=2, seed=1)
        assert found[3].lower == lower and found[4].lower < 0
    assert selection.point_bounds(quality(9), LARGE, MARGINS, 5, lossless=True, sampled=False).lower < 0
