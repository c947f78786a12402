"""Recipes, the clock of training, records on disk, the criterion, and the tables made from them."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.alignment.settings import AlignSettings
from tasks.bench.alignment.criterion import choose, default_of, difference, fastest_kept, speed_at_kept_quality
from tasks.bench.alignment.measuring import PairEvaluation
from tasks.bench.alignment.recipes import FAMILIES, NAMES, RECIPES, chosen, control_of, settings_of
from tasks.bench.alignment.rows import DrafterRow, PointResult, Run, TrainingCost, read_record, write_record
from tasks.bench.alignment.summary import summarize, summarize_test, to_test
from tasks.bench.alignment.table import markdown
from tasks.bench.alignment.timing import TimedSource, training_clock
from tasks.decoding.settings import BildSettings
from tasks.errors import InputError
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.training.data import IGNORED, Batch
from tasks.training.settings import TrainingSettings

SMALL = TrainingSettings(learning_rate=0.03)
# Settings of a task that must not reach a recipe, except for the optimiser, the batch and the rate of its own start.
ALIGN = AlignSettings(
    optimizer="adamw", batch_size=7, warmup_steps=50, on_policy=0.3, loss="reverse_kl", patience=2, choose_by="quality",
    start="fine_tuned", learning_rate=0.02,
)  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_changes_only_the_settings_that_it_names(recipe: str) -> None:
    found = dataclasses.asdict(settings_of(recipe, ALIGN, SMALL, seed=3, steps=202))
    plain = dataclasses.asdict(settings_of(control_of(recipe), ALIGN, SMALL, seed=3, steps=202))
    differs = {name for name in found if found[name] != plain[name]}
    assert differs == {name for name, value in RECIPES[recipe].changes.items() if value != plain[name]}
    assert (found["optimizer"], found["batch_size"], found["seed"], found["steps"]) == ("adamw", 7, 3, 202)
    assert (found["choose_by"], found["evaluate_every"], found["warmup_steps"]) == ("last", 202, 20)


def test_the_rate_suits_the_start() -> None:
    def rate(recipe: str, align: AlignSettings) -> float:
        return settings_of(recipe, align, SMALL, seed=1, steps=100).learning_rate

    assert (rate("hard_labels", ALIGN), rate("hard_labels_random", ALIGN)) == (0.02, 0.03)
    pretrained = dataclasses.replace(ALIGN, start="pretrained")
    assert rate("hard_labels", pretrained) == pytest.approx(0.01)
    assert rate("hard_labels_random", pretrained) == 0.02


def test_the_shortest_run_is_valid_for_every_recipe() -> None:
    assert {settings_of(recipe, ALIGN, SMALL, seed=1, steps=1).steps for recipe in RECIPES} == {1}


def test_both_starts_have_a_control_and_every_family_a_recipe() -> None:
    assert {control_of(recipe) for recipe in RECIPES} == {"references", "references_random"}
    assert {one.family for one in RECIPES.values()} == set(FAMILIES)
    assert control_of("mix_random") == "references_random"


def test_an_unknown_recipe_is_named() -> None:
    assert chosen(["on_policy", "references", "on_policy"]) == ["on_policy", "references"]
    with pytest.raises(InputError, match=r"--recipes names .kl., which is no recipe; name some of references") as error:
        chosen(["on_policy", "kl"])
    assert all(name in str(error.value) for name in NAMES)


class Texts:
    """Batches of two texts, of 3 and 1 target tokens."""

    def microbatches(self, step: int) -> list[Batch]:
        labels = torch.tensor([[5, 6, 7], [8, IGNORED, IGNORED]])
        return [Batch(labels, labels, labels)] * (1 + step % 2)


def test_the_steps_before_an_evaluation_and_the_first_ones_do_not_count() -> None:
    # Steps take 9, 2, 3, then 100 with an evaluation, then 4 and 5 seconds; the end of the seventh is not observed.
    begun = iter([0.0, 9.0, 11.0, 14.0, 114.0, 118.0, 123.0])
    clocked = TimedSource(Texts(), lambda: next(begun))
    for step in range(7):
        assert len(clocked.microbatches(step)) == 1 + step % 2
    assert clocked.seconds_per_step(4, skip=1) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert clocked.seconds_per_step(4) == pytest.approx((9 + 2 + 3 + 4 + 5) / 5)
    assert clocked.tokens == 4 * (4 + 2 * 3)
    with pytest.raises(ValueError, match="7 steps, evaluated every 4, 6 skipped: none to time"):
        clocked.seconds_per_step(4, skip=6)


def test_one_thread_is_timed_by_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert training_clock(torch.device("cpu")) is time.process_time
    assert training_clock(torch.device("cuda")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert training_clock(torch.device("cpu")) is time.perf_counter


def point(speedup: float, bound: float, difference: float = 0.0) -> PointResult:
    settings: Settings = {"fallback_threshold": 0.5, "rollback_threshold": speedup}
    return PointResult(settings=settings, quality_difference=difference, lower_bound=bound, speedup=speedup)


def test_only_points_that_keep_the_quality_are_eligible() -> None:
    points = [point(1.2, 0.0), point(1.8, -0.49), point(2.5, -0.5), point(3.0, -2.0, difference=0.1)]
    assert fastest_kept(points) == points[1]
    assert speed_at_kept_quality(points) == 1.8
    # The large model alone keeps the quality as well, and is the choice where nothing is faster.
    assert speed_at_kept_quality([point(3.0, -2.0), point(0.8, 0.0)]) == speed_at_kept_quality([]) == 1.0


def test_the_bounds_of_a_grid_hold_at_once_and_that_of_a_chosen_point_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    vanilla = rng.uniform(40, 60, (400, 1))
    scores = {number: vanilla + rng.normal(-0.1, 2.0, vanilla.shape) for number in (3, 5, 7)}
    evaluation = object.__new__(PairEvaluation)
    evaluation.sweep = SweepSettings()
    evaluation.__dict__["_vanilla_statistics"] = vanilla
    monkeypatch.setattr(evaluation, "_statistics", scores.__getitem__, raising=False)
    monkeypatch.setattr(evaluation, "_speedup", lambda *_: 1.5, raising=False)
    outputs: Any = {SweepPoint("bild", BildSettings(max_draft=number)): number for number in scores}
    costs: Any = None
    for found, number in zip(evaluation._results(outputs, costs, in_advance=False), scores, strict=True):
        own = scores[number] - vanilla
        [alone] = evaluation._results({SweepPoint("bild", BildSettings()): outputs_of(number)}, costs, in_advance=True)
        assert found.quality_difference == alone.quality_difference == pytest.approx(own.mean())
        error = own.std() / 20
        assert alone.lower_bound == pytest.approx(own.mean() - 1.645 * error, abs=0.02)
        # Of three independent points at half the level for each arm: the quantile is that of 1 - 0.025 / 3, about 2.39.
        assert found.lower_bound == pytest.approx(own.mean() - 2.39 * error, abs=0.04)


def outputs_of(number: int) -> Any:
    """Stand-in for outputs."""
    return number


def test_recipes_are_paired_by_seed() -> None:
    found = difference({"mix": {1: 2.0, 2: 2.2, 3: 2.1}, "references": {1: 1.5, 2: 1.6, 3: 1.7, 4: 9.0}}, "mix", "references")
    # Differences 0.5, 0.6, 0.4: the mean ± t(0.975, 2 degrees) × 0.1 / √3.
    assert found.mean == pytest.approx(0.5)
    assert found.interval == pytest.approx((0.5 - 4.3027 * 0.1 / 3**0.5, 0.5 + 4.3027 * 0.1 / 3**0.5), abs=1e-4)
    assert found.is_beyond_seeds
    alone = difference({"mix": {1: 2.0}, "references": {1: 1.5}}, "mix", "references")
    assert alone.interval is None and not alone.is_beyond_seeds


def over_seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values, start=1))


def test_a_simpler_recipe_stays_unless_another_is_better_beyond_seeds() -> None:
    speeds = {
        "references": over_seeds(1.50, 1.52, 1.51),
        "on_policy": over_seeds(1.4, 2.6, 1.9),
        "hard_labels_random": over_seeds(1.2, 1.2, 1.2),
        "hard_labels": over_seeds(1.70, 1.73, 1.71),
        "jensen_shannon_0.1": over_seeds(1.71, 1.71, 1.73),
        "jensen_shannon_0.9": over_seeds(1.1, 1.1, 1.1),
    }
    found = choose(speeds)
    assert found.recipe == "hard_labels"
    assert [(one.recipe, one.against) for one in found.comparisons] == [
        ("hard_labels", "references"),
        ("jensen_shannon_0.1", "hard_labels"),
        ("on_policy", "hard_labels"),
    ]
    better = {**speeds, "mix": over_seeds(1.80, 1.84, 1.82)}
    assert choose(better).recipe == "mix"
    assert choose({"on_policy": over_seeds(1.0)}).recipe == "on_policy"


def test_the_default_is_the_simpler_choice_of_the_two_budgets() -> None:
    def default(steps: str, time: str) -> str:
        return default_of({"steps": choose({steps: over_seeds(1.0)}), "time": choose({time: over_seeds(1.0)})})

    assert default("mix", "hard_labels") == default("hard_labels", "mix") == "hard_labels"
    assert default("jensen_shannon_0.1", "jensen_shannon_0.9") == "jensen_shannon_0.1"


def row(recipe: str, seed: int, steps: int, *points: PointResult) -> DrafterRow:
    return DrafterRow(
        recipe=recipe,
        seed=seed,
        steps=steps,
        work="",
        measured="",
        training_seconds=12.0,
        target_tokens=2_000_000,
        points=list(points),
        speculative_speedup=1.5,
        acceptance_rate=0.8,
        acceptance_greedy=0.7 + seed / 100,
        drafter_quality=80.0,
        vanilla_quality=90.0,
    )


def rows() -> dict[Run, DrafterRow]:
    """On-policy steps take twice as long."""
    found = [
        *(row("references", seed, 100, point(1.2 + seed / 100, 0.0), point(3.0, -1.0)) for seed in (1, 2)),
        *(row("on_policy", seed, 100, point(1.5 + seed / 100, 0.0, difference=0.25)) for seed in (1, 2)),
        *(row("on_policy", seed, 50, point(1.5, -0.6)) for seed in (1, 2)),
    ]
    return {Run(one.seed, one.recipe, one.steps): one for one in found}


STEPS = {"steps": {"references": 100, "on_policy": 100}, "time": {"references": 100, "on_policy": 50}}


def test_budgets_read_the_drafters_of_their_steps() -> None:
    found = summarize(STEPS, rows())
    equal_steps, equal_time = found.budgets["steps"], found.budgets["time"]
    assert equal_steps.recipes["on_policy"].columns["bild_speedup"].values == pytest.approx([1.51, 1.52])
    assert equal_steps.recipes["on_policy"].columns["bild_speedup"].spread == pytest.approx(0.01 / 2**0.5)
    assert equal_time.recipes["on_policy"].columns["bild_speedup"].values == [1.0, 1.0]
    assert equal_time.recipes["on_policy"].thresholds == ["vanilla", "vanilla"]
    assert equal_steps.recipes["references"] == equal_time.recipes["references"]
    # It wins for equal steps only.
    assert (equal_steps.choice.recipe, equal_time.choice.recipe, found.default) == ("on_policy", "references", "references")


def test_the_default_and_its_control_are_tested() -> None:
    found = summarize({"steps": STEPS["steps"]}, rows())
    assert to_test(found) == ["on_policy", "references"]
    assert to_test(summarize({"steps": {"on_policy": 100}}, rows())) == ["on_policy"]
    tested = summarize_test("on_policy", {1: point(1.4, -0.2, difference=-0.1), 2: None})
    assert (tested.speedup.values, tested.lower_bound.values, tested.quality_difference.mean) == (
        [1.4, 1.0],
        [-0.2, 0.0],
        -0.05,
    )


def test_the_tables_show_the_fastest_first_with_the_spread_over_seeds() -> None:
    tested = [summarize_test("references", {1: point(1.4, -0.2, difference=-0.1), 2: point(1.4, -0.2, difference=-0.1)})]
    lines = markdown(summarize(STEPS, rows()), tested).splitlines()
    assert lines[4].startswith(
        "| `on_policy` | on-policy | fine-tuned | 100 | 2 | 1.515 ± 0.007 | +0.25 ± 0.00 | 0.715 ± 0.007 | 0.800 ± 0.000 |"
    )
    assert lines[5].startswith("| `references` | references | fine-tuned | 100 | 2 | 1.215 ± 0.007 | +0.00 ± 0.00 |")
    assert "| `on_policy` | `references` | +0.300 [+0.300, +0.300] | yes |" in lines
    assert "| `on_policy` | `references` | -0.215 [-0.279, -0.151] | no |" in lines
    assert lines[-1] == "| `references` | 2 | 1.400 ± 0.000 | -0.10 ± 0.00 | -0.20 ± 0.00 |"


def test_a_record_of_another_form_is_made_again(tmp_path: Path) -> None:
    path, cost = tmp_path / "one" / "training.json", TrainingCost(work="now", training_seconds=2.5, target_tokens=7)
    assert read_record(TrainingCost, path) is None
    write_record(path, cost)
    assert read_record(TrainingCost, path) == cost
    assert [file.name for file in path.parent.iterdir()] == ["training.json"]
    for damaged in ('{"work": "now"}', '{"work'):
        path.write_text(damaged)
        assert read_record(TrainingCost, path) is None
