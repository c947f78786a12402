"""Recipes, the clock of training, rows on disk, and the tables made from them."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
import torch

from tasks.alignment.settings import AlignSettings
from tasks.bench.alignment.recipes import NAMES, RECIPES, SEQUENCE, UNALIGNED, chosen, settings_of
from tasks.bench.alignment.rows import DrafterRow, DrafterRowFile
from tasks.bench.alignment.table import markdown, summarize
from tasks.bench.alignment.timing import TimedSource, training_clock
from tasks.errors import InputError
from tasks.training.data import IGNORED, Batch
from tasks.training.settings import TrainingSettings

SMALL = TrainingSettings(learning_rate=0.03)
# Settings of a task that must not reach a recipe, except for the optimiser and the batch.
ALIGN = AlignSettings(
    optimizer="adamw", batch_size=7, warmup_steps=50, on_policy=0.3, loss="reverse_kl", patience=2, choose_by="quality"
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_changes_bilds_alignment_by_what_it_names_alone(recipe: str) -> None:
    found = dataclasses.asdict(settings_of(recipe, ALIGN, SMALL, seed=3, steps=202))
    plain = dataclasses.asdict(settings_of("sequence", ALIGN, SMALL, seed=3, steps=202))
    differs = {name for name in found if found[name] != plain[name]} - {"learning_rate", "replay_steps"}
    assert differs == {name for name, value in RECIPES[recipe].changes.items() if value != plain[name]}
    assert found["learning_rate"] == pytest.approx(0.03 * RECIPES[recipe].rate)
    assert (found["optimizer"], found["batch_size"], found["seed"]) == ("adamw", 7, 3)


def test_a_run_is_evaluated_four_times_the_last_time_at_its_end() -> None:
    found = settings_of("replay", ALIGN, SMALL, seed=1, steps=202)
    assert (found.steps, found.evaluate_every, found.choose_by) == (204, 51, "acceptance_rate")
    assert (found.warmup_steps, found.replay_rounds, found.replay_steps) == (20, 2, 25)


def test_the_shortest_run_is_valid_for_every_recipe() -> None:
    assert {settings_of(recipe, ALIGN, SMALL, seed=1, steps=1).steps for recipe in RECIPES} == {4}


def test_bilds_alignment_is_there_from_both_starts() -> None:
    assert {start: RECIPES[name].start for start, name in SEQUENCE.items()} == {
        "pretrained": "pretrained",
        "fine_tuned": "fine_tuned",
    }
    assert {RECIPES[name].changes.get("loss") for name in SEQUENCE.values()} == {None}


def test_an_unknown_recipe_is_named() -> None:
    assert chosen(["replay", UNALIGNED, "replay"]) == ["replay", UNALIGNED]
    with pytest.raises(InputError, match=r"--recipes names .kl., which is no recipe; name some of sequence") as error:
        chosen(["replay", "kl"])
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


def test_one_thread_is_clocked_by_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert training_clock(torch.device("cpu")) is time.process_time
    assert training_clock(torch.device("cuda")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert training_clock(torch.device("cpu")) is time.perf_counter


def row(recipe: str, seed: int, rate: float, bild: float | None = 2.0, measured: str = "") -> DrafterRow:
    return DrafterRow(
        recipe=recipe,
        seed=seed,
        measured=measured,
        acceptance_rate=rate,
        acceptance_rate_interval=(rate, rate),
        acceptance_rate_tokens=10,
        acceptance_greedy=rate,
        acceptance_greedy_interval=(rate, rate),
        acceptance_greedy_tokens=10,
        accepted_length=1.0,
        speculative_speedup=1.0,
        fallback_rate=1.0,
        rollback_rate=None,
        vanilla_quality=40.0,
        bild_speedup=bild,
        bild_quality_difference=None,
        bild=None,
    )


def test_a_row_is_found_by_recipe_seed_and_measurement_when_the_file_is_opened_again(tmp_path: Path) -> None:
    rows = DrafterRowFile(tmp_path / "rows.jsonl", "now")
    rows.append(row("sequence", 1, 0.5, measured="before"))
    wanted = rows.append(row("sequence", 1, 0.6, None, measured="now"))
    again = DrafterRowFile(tmp_path / "rows.jsonl", "now")
    assert again.find("sequence", 1, "now") == wanted
    assert again.find("sequence", 1, "before") == rows.rows[0]
    assert all(again.find(*other) is None for other in (("sequence", 2, "now"), ("replay", 1, "now"), ("sequence", 1, "other")))
    assert DrafterRowFile(tmp_path / "rows.jsonl", "of other text").rows == []


ROWS = [
    row("sequence", 1, 0.80),
    row("sequence", 2, 0.90),
    row("sequence_fine_tuned", 1, 0.84, bild=None),
    row("sequence_fine_tuned", 2, 0.88, bild=2.0),
    row("forward_kl", 1, 0.92, bild=2.2),
    row("forward_kl", 2, 0.94, bild=2.4),
    row(UNALIGNED, 0, 0.7),
]


def test_a_recipe_is_compared_seed_by_seed_with_bilds_alignment_of_the_same_start() -> None:
    found = summarize(ROWS).recipes
    kl = found["forward_kl"]
    assert kl.columns["acceptance_rate"].mean == pytest.approx(0.93)
    assert kl.columns["acceptance_rate"].spread == pytest.approx(0.02 / 2**0.5)
    assert kl.against == "sequence_fine_tuned"
    assert kl.difference["acceptance_rate"].values == pytest.approx([0.08, 0.06])
    assert kl.difference["rejections_fewer"].values == pytest.approx([1 - 0.08 / 0.16, 1 - 0.06 / 0.12])
    # There is no ratio if one of the two loses quality at all thresholds.
    assert kl.difference["bild_speedup"].values == pytest.approx([1.2])
    assert "rollback_rate" not in kl.columns
    assert (found["sequence"].against, found[UNALIGNED].against) == ("", "")
    values = found["sequence"].as_json()
    assert values["seeds"] == [1, 2] and values.keys().isdisjoint({"against", "difference", "rollback_rate"})


def test_the_best_recipe_is_compared_with_bilds_own() -> None:
    found = summarize(ROWS)
    assert found.best == "forward_kl" and found.best_over_sequence is not None
    assert found.best_over_sequence["acceptance_rate"].values == pytest.approx([0.12, 0.04])
    assert found.best_over_sequence["bild_speedup"].values == pytest.approx([1.1, 1.2])
    alone = summarize([row(UNALIGNED, 0, 0.99)])
    assert alone.best is None and "best_over_sequence" not in alone.as_json()


def test_the_tables_show_the_best_first_with_the_spread_over_seeds() -> None:
    lines = markdown(summarize(ROWS)).splitlines()
    names = [line.split("|")[1].strip() for line in lines if line]
    assert names == [
        *("recipe", "---", "`forward_kl`", "`sequence_fine_tuned`", "`sequence`", f"`{UNALIGNED}`"),
        *("recipe", "---", "`forward_kl`"),
    ]
    assert lines[2].startswith("| `forward_kl` | fine-tuned | 2 | 0.930 ± 0.014 | 0.930 ± 0.014 | 1.00 ± 0.00 | 100.0 ± 0.0 |")
    assert lines[5].startswith(f"| `{UNALIGNED}` |  | 1 | 0.700 | 0.700 | 1.00 | 100.0 |")
    assert "| `sequence_fine_tuned` | +0.070 ± 0.014 | +50.0 ± 0.0 |" in lines[-1]
