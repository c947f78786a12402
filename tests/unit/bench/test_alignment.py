"""Recipes, the clock of a training, and what rows come to."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch

from tasks.alignment.settings import AlignSettings
from tasks.bench.alignment.recipes import NAMES, RECIPES, SEQUENCE, UNALIGNED, chosen, settings_of
from tasks.bench.alignment.table import COLUMNS, markdown, summary
from tasks.bench.alignment.timing import TimedSource, training_clock
from tasks.errors import InputError
from tasks.training.data import IGNORED, Batch
from tasks.training.settings import TrainingSettings

SMALL = TrainingSettings(learning_rate=0.03)
# What a task may have been set to since: none of it is a recipe's business, but for the optimiser and the batch.
ALIGN = AlignSettings(
    optimizer="adamw", batch_size=7, warmup_steps=50, on_policy=0.3, loss="reverse_kl", patience=2, choose_by="quality"
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_changes_only_the_settings_that_it_names(recipe: str) -> None:
    found = dataclasses.asdict(settings_of(recipe, ALIGN, SMALL, seed=3, steps=202))
    plain = dataclasses.asdict(settings_of("sequence", ALIGN, SMALL, seed=3, steps=202))
    differs = {name for name in found if found[name] != plain[name]} - {"learning_rate", "replay_steps"}
    assert differs == {name for name, value in RECIPES[recipe].changes.items() if value != plain[name]}
    assert found["learning_rate"] == pytest.approx(0.03 * RECIPES[recipe].rate)
    assert (found["optimizer"], found["batch_size"], found["seed"]) == ("adamw", 7, 3)


def test_a_run_is_evaluated_four_times_and_the_last_time_at_its_end() -> None:
    found = settings_of("replay", ALIGN, SMALL, seed=1, steps=202)
    assert (found.steps, found.evaluate_every, found.choose_by) == (204, 51, "acceptance_rate")
    assert (found.warmup_steps, found.replay_rounds, found.replay_steps) == (20, 2, 25)


def test_the_shortest_run_is_valid_for_every_recipe() -> None:
    assert {settings_of(recipe, ALIGN, SMALL, seed=1, steps=1).steps for recipe in RECIPES} == {4}


def test_bild_alignment_exists_for_both_starts() -> None:
    assert {start: RECIPES[name].start for start, name in SEQUENCE.items()} == {
        "pretrained": "pretrained",
        "fine_tuned": "fine_tuned",
    }
    assert {RECIPES[name].changes.get("loss") for name in SEQUENCE.values()} == {None}


def test_an_unknown_recipe_is_named() -> None:
    assert chosen(["replay", UNALIGNED, "replay"]) == ["replay", UNALIGNED]
    with pytest.raises(InputError, match=r"--recipes names 'kl', which is none; known are sequence, .*unaligned") as error:
        chosen(["replay", "kl"])
    assert all(name in str(error.value) for name in NAMES)


class Texts:
    """Batches of two texts, of 3 and 1 target tokens."""

    def microbatches(self, step: int) -> list[Batch]:
        labels = torch.tensor([[5, 6, 7], [8, IGNORED, IGNORED]])
        return [Batch(labels, labels, labels)] * (1 + step % 2)


def test_the_steps_before_an_evaluation_and_the_first_ones_do_not_count() -> None:
    # Steps take 9, 2, 3, then 100 with an evaluation after, then 4 and 5 seconds; the end of the seventh is never seen.
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


def row(recipe: str, seed: int, rate: float, bild: float | None = 2.0) -> dict[str, Any]:
    found = {column.name: 1.0 for column in COLUMNS}
    return {"recipe": recipe, "seed": seed, **found, "acceptance_rate": rate, "acceptance_greedy": rate, "bild_speedup": bild}


ROWS = [
    row("sequence", 1, 0.80),
    row("sequence", 2, 0.90),
    row("sequence_fine_tuned", 1, 0.84, bild=None),
    row("sequence_fine_tuned", 2, 0.88, bild=2.0),
    row("forward_kl", 1, 0.92, bild=2.2),
    row("forward_kl", 2, 0.94, bild=2.4),
    row(UNALIGNED, 0, 0.7),
]


def test_a_recipe_is_compared_with_bild_alignment_of_the_same_start_and_seed() -> None:
    found = summary(ROWS)
    kl = found["recipes"]["forward_kl"]
    assert kl["acceptance_rate"]["mean"] == pytest.approx(0.93)
    assert kl["acceptance_rate"]["spread"] == pytest.approx(0.02 / 2**0.5)
    assert kl["against"] == "sequence_fine_tuned"
    assert kl["difference"]["acceptance_rate"]["values"] == pytest.approx([0.08, 0.06])
    assert kl["difference"]["rejections_fewer"]["values"] == pytest.approx([1 - 0.08 / 0.16, 1 - 0.06 / 0.12])
    # Where one of the two loses quality at all thresholds there is no ratio.
    assert kl["difference"]["bild_speedup"]["values"] == pytest.approx([1.2])
    assert "difference" not in found["recipes"]["sequence"]
    assert "difference" not in found["recipes"][UNALIGNED]


def test_the_best_recipe_is_compared_with_bild_alignment() -> None:
    found = summary(ROWS)
    assert found["best"] == "forward_kl"
    assert found["best_over_sequence"]["acceptance_rate"]["values"] == pytest.approx([0.12, 0.04])
    assert found["best_over_sequence"]["bild_speedup"]["values"] == pytest.approx([1.1, 1.2])
    assert summary([row(UNALIGNED, 0, 0.99)])["best"] is None


def test_the_tables_show_the_best_first_with_the_spread_over_seeds() -> None:
    lines = markdown(summary(ROWS)).splitlines()
    names = [line.split("|")[1].strip() for line in lines if line]
    assert names == [
        *("recipe", "---", "`forward_kl`", "`sequence_fine_tuned`", "`sequence`", f"`{UNALIGNED}`"),
        *("recipe", "---", "`forward_kl`"),
    ]
    assert lines[2].startswith("| `forward_kl` | fine-tuned | 2 | 0.930 ± 0.014 | 0.930 ± 0.014 | 1.00 ± 0.00 | 100.0 ± 0.0 |")
    assert lines[5].startswith(f"| `{UNALIGNED}` |  | 1 | 0.700 | 0.700 | 1.00 | 100.0 |")
    assert "| `sequence_fine_tuned` | +0.070 ± 0.014 | +50.0 ± 0.0 |" in lines[-1]
