"""A store in memory in place of MLflow, and runs to send to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import DataSet, Recorder
from tasks.tracking.contents import NOTE_TAG, TABLES_TAG, TRAINED_TAG
from tests.memory_mlflow import MemoryMlflow, Stored, StoreError, memory_mlflow

SERVER = "http://127.0.0.1:5000"
DATABASE = "sqlite:///mlflow.db"


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[MemoryMlflow]:
    with memory_mlflow(tmp_path) as store:
        yield store


@pytest.fixture
def outbox(mlflow: MemoryMlflow, tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def record(name: str = "run", experiment: str = "translation", **options: Any) -> Recorder:
    return Recorder(experiment, name, {}, {}, **{"flush_seconds": 0, **options})


def record_a_task(folder: Path) -> None:
    """Two runs with values of every kind; `figure.svg` changes after it was recorded."""
    figure = folder / "figure.svg"
    with Recorder("translation", "train", {"kind": "training"}, {"rate": 0.1, "none": None}, flush_seconds=0) as run:
        run.log_metrics({"loss": 1.0, "rate": None}, step=1)
        run.log_metrics({"loss": 0.5}, step=2)
        figure.write_text("as recorded", encoding="utf-8")
        run.log_artifact(figure, "figures")
        figure.write_text("later", encoding="utf-8")
        run.log_inputs([DataSet("data/text/train.jsonl", "abc.dir", "data/text", 90, 2, "training")])
        card = folder / "README.md"
        card.write_text("# A card", encoding="utf-8")
        run.log_trained("large", card, {"folder": "models/large"}, {"rate": 0.1}, ["loss"])
        run.describe("the **verdict**")
        run.log_table("frontier", {"speedup": [1.0, 2.0], "method": ["bild", "bild"]})
    with record("sweep") as run:
        for window in (1, 2, 3):
            run.child(f"window {window}", {"kind": "point"}, {"window": window}, {"bleu": 30 + window})


def described(mlflow: MemoryMlflow) -> list[tuple[Any, ...]]:
    """Return the active runs without their ids."""
    return sorted(
        (
            run.info.run_name,
            run.info.status,
            mlflow.runs[run.parent].info.run_name if run.parent else "",
            run.data.tags.get("kind"),
            sorted((metric.key, metric.step, metric.value) for metric in run.history),
            run.data.params,
            run.artifacts,
            *_contents(mlflow, run),
        )
        for run in mlflow.active()
    )


def _contents(mlflow: MemoryMlflow, run: Stored) -> tuple[Any, ...]:
    """Return data sets, description, tables and trained models of a run; nothing where it has none of these."""
    models = [mlflow.logged[output.model_id] for output in mlflow.outputs.get(run.info.run_id, ())]
    trained = [
        (one.name, one.status, one.tags["folder"], one.params, sorted(one.files), _values(mlflow, one.model_id))
        for one in models
        if TRAINED_TAG in one.tags
    ]
    data = sorted((one.name, one.digest, one.profile, context) for one, context in run.datasets)
    notes = [value for tag in (NOTE_TAG, TABLES_TAG) if (value := run.data.tags.get(tag))]
    return (data, notes, trained) if data or notes or trained else ()


def _values(mlflow: MemoryMlflow, model_id: str) -> list[tuple[str, int, float]]:
    return sorted((name, step, value) for name, value, _, step in mlflow.measured.get(model_id, ()))


WHOLE = [
    ("sweep", "FINISHED", "", None, [], {}, {}),
    (
        "train",
        "FINISHED",
        "",
        "training",
        [("loss", 1, 1.0), ("loss", 2, 0.5)],
        {"rate": "0.1"},
        {
            "figures/figure.svg": "as recorded",
            "frontier.json": '{"columns": ["speedup", "method"], "data": [[1.0, "bild"], [2.0, "bild"]]}',
        },
        [("data/text/train.jsonl", "abc.dir", '{"size": 90, "files": 2}', "training")],
        ["the **verdict**", '[{"path": "frontier.json", "type": "table"}]'],
        [
            (
                *("large", "READY", "models/large", {"rate": "0.1"}, ["README.md"]),
                [("loss", 1, 1.0), ("loss", 2, 0.5)],
            ),
        ],
    ),
    *(
        (f"window {window}", "FINISHED", "sweep", "point", [("bleu", 0, 30.0 + window)], {"window": str(window)}, {})
        for window in (1, 2, 3)
    ),
]


def lose_answer(work: Callable[[], None]) -> None:
    work()
    raise StoreError("Read timed out. (read timeout=10)")
