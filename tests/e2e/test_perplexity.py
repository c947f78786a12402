"""A task of the metric perplexity from params.yaml and a text file: trained, aligned, swept and reported by `dvc repro`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tasks.corpora.translation import generate
from tasks.evaluation.results.rows import TimedRow, read_rows
from tests.e2e.conftest import make_clone, repro

_SHAPE = {"architecture": "llama", "d_kv": 16, "heads": 2, "d_ff": 64, "dropout": 0.0}
_TRAINING = {"optimizer": "adamw", "learning_rate": 5e-3, "batch_size": 8, "evaluate_every": 40, "checkpoint_every": 40}
TASK: dict[str, Any] = {
    "seeds": [1],
    "metric": "perplexity",
    "corpus": {
        "source": "files",
        "files": {"format": "text", "files": {"train": "train.txt", "test": "test.txt"}, "passage_words": 40, "held_out": 12},
    },
    "text": {"max_source_tokens": 80, "max_target_tokens": 32},
    "tokenizer": {"vocabulary": 300},
    "models": {
        "large": {**_SHAPE, "d_model": 48, "decoder_layers": 3, "seed": 1},
        "small": {**_SHAPE, "d_model": 24, "decoder_layers": 1, "seed": 2},
    },
    "finetune": {"large": {**_TRAINING, "steps": 80}, "small": {**_TRAINING, "steps": 40}},
    "calibrate": {"batch_size": 16, "texts": "references", "top_logits": 8},
    "align": {**_TRAINING, "steps": 20, "start": "fine_tuned", "loss": "forward_kl", "reference": "stored"},
    "sweep": {
        "grid": [
            {"method": "bild", "preset": "language_modelling", "values": {"fallback_threshold": [0.05, 0.2]}},
            {"method": "bild", "values": {"fallback_threshold": [0.0, 1.0], "rollback_threshold": [math.inf]}},
            {"method": "token_cascade", "values": {"deferral_cost": [0.5]}},
        ],
        "sampling": {"temperature": 1.0},
        "latency_examples": 2,
        "latency_rounds": 1,
        "warmup_examples": 0,
        "bootstrap_samples": 100,
    },
}
POINTS = 5


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A clone whose only task is of texts, after `dvc repro`, and what that printed."""
    folder = tmp_path_factory.mktemp("texts")
    corpus = generate({"train": 750, "validation": 1, "test": 100}, 1)
    for split in ("train", "test"):
        (folder / f"{split}.txt").write_text(" ".join(one.references[0] for one in corpus[split]), encoding="utf-8")
    machine = {"device": "cpu", "runtime": "auto", "dtype": "float32", "drafter_dtype": "same", "threads": 1}
    params = {"active": {"texts": str(folder)}, "machine": machine, "tasks": {"texts": TASK}}
    clone = make_clone(tmp_path_factory.mktemp("perplexity") / "project", lambda _: params)
    return clone, repro(clone)


@pytest.mark.slow
def test_both_drafters_are_swept_by_perplexity(finished: tuple[Path, str]) -> None:
    clone, printed = finished
    results = clone / "results" / "texts"
    summary = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    assert summary["metric"] == "perplexity"
    assert not summary["failed"]
    assert len(summary["points"]) == 2 * POINTS
    for point in summary["points"]:
        assert (point["how"], point["timed"]) == ("scored", True)
        assert point["quality"] == -point["qualities"]["perplexity"] < -1
        assert point["speedup"] > 0
    assert "−perplexity" in printed
    assert "−perplexity" in (results / "table.md").read_text(encoding="utf-8")
    assert (results / "report.html").stat().st_size > 10_000
    assert any((results / "figures").iterdir())
    assert (results / "pair").is_dir()


@pytest.mark.slow
def test_the_ends_of_the_grid_are_the_models(finished: tuple[Path, str]) -> None:
    """Fallback at every position is the large model, at none the small one, which takes over after ten tokens at most."""
    for drafter in ("unaligned", "aligned"):
        rows = read_rows(finished[0] / "results" / "texts" / "sweep" / drafter / "rows.jsonl", "")
        for split in ("validation", "test"):
            timed = [row for row in rows if isinstance(row, TimedRow) and row.split == split]
            large, small = (next(row for row in timed if row.method == f"vanilla_{size}") for size in ("large", "small"))
            found = {row.settings["fallback_threshold"]: row for row in timed if row.method == "bild"}
            assert large.value > small.value
            assert all(row.counts.tokens == large.counts.tokens for row in timed)
            if split == "validation":
                assert found[1.0].quality == large.quality
                assert found[0.0].counts.fallbacks == 0
                assert found[0.0].counts.small_steps < small.counts.small_steps == small.counts.tokens
