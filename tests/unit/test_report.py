import csv
import dataclasses
import json
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from tasks import config, report
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.pair_folder import read_examples, read_manifest
from tasks.errors import InputError, stage
from tasks.evaluation.report import page
from tasks.evaluation.report.summarize import summarize
from tasks.evaluation.results.codec import text_of
from tasks.evaluation.results.files import HypothesisFile, KeptOutputs, point_key
from tasks.evaluation.results.pair import GridPoint, PairRecord
from tasks.evaluation.results.summary import Summary, read_summary
from tasks.evaluation.selection import BASELINES
from tasks.evaluation.settings import Experiment
from tasks.files import atomic_write, seal
from tasks.locks import timing_lock
from tasks.models.settings import TextSettings
from tasks.paths import TaskPaths
from tests.ticking import costs_of
from tests.unit.evaluation.conftest import point_row

Row = dict[str, Any]
TEXT = TextSettings(max_source_tokens=24, max_target_tokens=12)
QUOTED = ("settings", "speedup", "speedup_interval", "quality_difference")


def row(arm: str, split: str, method: str, settings: Row, quality: float, speedup: float) -> Row:
    bounds = {"lower": quality - 30.1, "upper": quality - 29.9, "compared": 2}
    own = {"metric": "rougeL", "quality": {"rougeL": quality}, "difference_bounds": bounds, "examples": 5}
    return point_row(arm, split, method, settings, quality, speedup) | own


def sweep(arm: str, best: float) -> list[Row]:
    rows = []
    for split in ("validation", "test"):
        rows += [row(arm, split, "vanilla_large", {}, 30.0, 1.0), row(arm, split, "vanilla_small", {}, 25.0, 3.0)]
        rows += [row(arm, split, "bild", {"fallback_threshold": 0.5}, 30.0, best)]
    return [*rows, row(arm, "validation", "bild", {"fallback_threshold": 0.1}, 28.0, 0.9 * best)]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskPaths:
    """Both sweeps' rows in an empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    found = TaskPaths("toy")
    for arm, best in (("unaligned", 1.5), ("aligned", 2.0)):
        found.rows(arm).parent.mkdir(parents=True)
        found.rows(arm).write_text("".join(json.dumps(one) + "\n" for one in sweep(arm, best)), encoding="utf-8")
        atomic_write(found.sweep(arm) / "pair.json", text_of(PairRecord(arm=arm, seed=1)))
    for folder in (found.model("large"), found.model("unaligned", 1), found.model("aligned", 1)):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(str(folder), encoding="utf-8")
    found.corpus.mkdir(parents=True)
    write_jsonl([Example(f"text {number}", ("output",)) for number in range(20)], found.split("validation"))
    return found


def count(paths: TaskPaths, split: str) -> None:
    """Outputs of both arms on a split: BiLD needs three large calls a text with the unaligned drafter, two with the aligned."""
    costs = costs_of(0.0, 0.0, 0.1, {1: 1.0, 2: 1.0})
    for arm, calls in (("unaligned", 3), ("aligned", 2)):
        atomic_write(paths.sweep(arm) / "pair.json", text_of(PairRecord(arm=arm, seed=1, costs=costs)))
        texts = ["output"] * 20
        outputs = {
            point_key("vanilla_large", {}): KeptOutputs(texts, np.full((20, 3), (9, 9, 0))),
            point_key("bild", {"fallback_threshold": 0.5}): KeptOutputs(texts, np.full((20, 3), (calls, 0, 0))),
        }
        HypothesisFile(paths.sweep(arm) / f"hypotheses-{split}.parquet", "work").add(outputs)


def run(
    monkeypatch: pytest.MonkeyPatch, drawn: bool = False, dataset: str = "none", test_sets: Sequence[str] = ()
) -> list[tuple[Any, ...]]:
    """Runs the stage with a task measured by ROUGE-L; gives what it would have recorded.

    Unless `drawn`, the page and the pictures are empty: to draw them takes most of the time. The page lacks Vega in any case.
    """
    monkeypatch.setattr(page, "vega_script", lambda: "")
    if not drawn:
        monkeypatch.setattr(report, "page", lambda summary, sweeps, drawn: "")
        monkeypatch.setattr(report, "all_figures", lambda summary, sweeps: {})
    recorded: list[tuple[Any, ...]] = []
    task = {"metric": "rougeL", "seeds": (1,), "corpus.test_sets": test_sets, "corpus.described": "a few texts", "text": TEXT}
    task["corpus.note"] = "Shortened to an hour."
    params = MagicMock(**{f"task.return_value.{name}": value for name, value in task.items()})
    params.experiment.return_value = Experiment(dataset=dataset)
    monkeypatch.setattr(config, "load", MagicMock(return_value=params))
    monkeypatch.setattr(report, "record_report", lambda *arguments: recorded.append(arguments))
    monkeypatch.setattr(sys, "argv", ["report", "--task", "toy"])
    with stage():
        report.main()
    return recorded


def test_the_files_and_the_table(paths: TaskPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ((where, metric, _, files, inputs, pair, verdict, frontier, compared),) = run(monkeypatch, drawn=True)
    assert (where, metric, inputs) == (paths, "rougeL", [paths.rows("unaligned"), paths.rows("aligned")])
    assert (pair.name, pair.path, pair.tags["method"]) == ("draftline-toy", str(paths.results / "pair"), "bild")
    assert read_manifest(Path(pair.path)).chosen in pair.description
    summary = json.loads((paths.results / "summary.json").read_text(encoding="utf-8"))
    written = {path for path in paths.results.rglob("*") if path.is_file() and not {"sweep", "pair"} & set(path.parts)}
    names = {path.name for path in written if path.parent == paths.results}
    texts = {"summary.json", "result.json", "metrics.json", "table.md", "frontier.csv", "report.html"}
    assert names == texts | {"pareto.png", "pareto.svg"}
    assert {path.parent.name for path in written} == {"toy", "figures"}
    assert set(files) == written and compared == [], "nothing was counted"
    printed = capsys.readouterr().out
    assert "BiLD aligned, no loss" in printed and "2.00×" in printed and "ROUGE-L" in printed
    assert "Deploy BiLD with the aligned drafter (α_FB 0.5)." in printed.split("Published:")[1]
    result = json.loads((paths.results / "result.json").read_text(encoding="utf-8"))
    unaligned, aligned = result["drafters"]
    assert (result["seeds"], unaligned["arm"], aligned["arm"], aligned["bild_no_loss_speedup"]) == (
        [1],
        "unaligned",
        "aligned",
        2.0,
    )
    assert set(aligned) == {"arm", "seed", "agreement", "agreement_interval", *(f"bild_no_loss_{name}" for name in QUOTED)}
    table = (paths.results / "table.md").read_text(encoding="utf-8")
    assert "BiLD aligned, no loss" in table and "## Fallbacks and rollbacks" in table
    assert table.splitlines()[2] == summary["verdict"]["headline"]
    assert verdict.splitlines()[0] == summary["verdict"]["headline"]
    assert summary["verdict"]["warnings"][0] == "Shortened to an hour."
    lines = (paths.results / "frontier.csv").read_text(encoding="utf-8").splitlines()
    assert lines == [",".join(frontier), *(",".join(map(str, row)) for row in zip(*frontier.values(), strict=True))]
    assert f"- {summary['verdict']['changes'][-1]}\n\n## Task toy on test" in table


def test_the_recommended_pair_is_written_with_its_numbers(paths: TaskPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch)
    folder = paths.results / "pair"
    manifest, summary = read_manifest(folder), read_summary(paths.results / "summary.json", "summary", "")
    best = summary.recommended
    assert (manifest.point.method, manifest.point.plain_settings["fallback_threshold"]) == ("bild", 0.5)
    assert (manifest.task, manifest.text, manifest.chosen) == ("toy", TEXT, summary.recommendation.headline)
    assert manifest.measured["test"]["speedup"] == best.test.speedup == 2.0
    assert manifest.measured["validation"]["quality"] == manifest.measured["vanilla"]["test"]["quality"] == 30.0
    assert (folder / "large/config.json").read_text() == str(paths.model("large"))
    assert (folder / "drafter/config.json").read_text() == str(paths.model("aligned", 1))
    assert (manifest.origin["drafter"], manifest.origin["seed"]) == ("aligned", 1)
    assert read_examples(folder) == [f"text {number}" for number in range(16)]
    assert not (folder / "calibration.json").exists()


def test_every_test_set_is_named(paths: TaskPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The second set contradicts the choice that the main one confirms."""
    for arm, best in (("unaligned", 1.5), ("aligned", 2.0)):
        rows = [one for one in sweep(arm, best) if one["split"] == "test"]
        for one in rows:
            one["split"] = "test.coco"
        rows[-1] |= {"quality": {"rougeL": 28.0}, "quality_difference_interval": [-2.5, -1.5]}
        rows[-1] |= {"difference_bounds": {"lower": -2.4, "upper": -1.6, "compared": 1}, "speedup": best + 1}
        text = "".join(json.dumps(one) + "\n" for one in rows)
        paths.rows(arm, test="test.coco").write_text(text, encoding="utf-8")
    count(paths, "test.coco")
    ((_, _, metrics, _, inputs, *_),) = run(monkeypatch, test_sets=["flickr", "coco"])
    summary = json.loads((paths.results / "summary.json").read_text(encoding="utf-8"))
    sets = [(one["name"], one["split"], one["examples"]) for one in summary["test_sets"]]
    assert sets == [("flickr", "test", 5), ("coco", "test.coco", 5)]
    flickr, coco = ({row["row"]: row for row in one["table"]}["bild_aligned_no_loss"] for one in summary["test_sets"])
    assert flickr == {row["row"]: row for row in summary["table"]}["bild_aligned_no_loss"]
    assert (flickr["test_status"]["quality"], coco["test_status"]["quality"]) == ("confirmed", "contradicted")
    assert (coco["test"]["quality"], coco["test"]["speedup"]) == (28.0, 3.0)
    assert summary["test_sets"][1]["effects"][0]["ratio"] == pytest.approx(3 / 2)
    assert metrics["bild_aligned_no_loss_test.coco_speedup"] == 3.0
    assert "bild_aligned_no_loss_test_speedup" in metrics
    assert [path.name for path in inputs].count("rows-test.coco.jsonl") == 2
    found = (paths.results / "table.md").read_text(encoding="utf-8").split("## Test sets by name")[1]
    assert "| coco | BiLD aligned, no loss | 28.00 [28.00, 32.00] | -2.00 [-2.50, -1.50] | 3.00× [1.95, 2.05] |" in found
    assert "contradicted: loses more than 0.5 points" in found
    assert "coco      BiLD aligned, no loss      28.00" in capsys.readouterr().out
    assert "| flickr | BiLD aligned, no loss | 30.00 [28.00, 32.00] | +0.00 | 2.00×" in found
    assert "coco, times as fast with aligned as with unaligned drafters at these choices, by counts: BiLD chosen for" in found
    paths.rows("aligned", test="test.coco").unlink()
    with pytest.raises(SystemExit):
        run(monkeypatch, test_sets=["flickr", "coco"])
    assert "rows-test.coco.jsonl is missing or holds no rows" in capsys.readouterr().err
    run(monkeypatch)
    assert "Test sets" not in (paths.results / "table.md").read_text(encoding="utf-8")


def test_the_report_waits_for_a_timing(paths: TaskPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    work = threading.Thread(target=lambda: recorded.extend(run(monkeypatch)))
    with timing_lock("cuda"):
        work.start()
        work.join(timeout=0.5)
        assert work.is_alive() and not (paths.results / "summary.json").exists()
    work.join(timeout=60)
    assert len(recorded) == 1


def summary_of(paths: TaskPaths) -> Summary:
    return summarize("toy", "rougeL", report.read_seeds(paths, "rougeL", [1]))


def test_what_alignment_gives_is_read_from_the_counts_of_both_sweeps(paths: TaskPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    count(paths, "validation")
    count(paths, "test")
    recorded = run(monkeypatch)
    summary = json.loads((paths.results / "summary.json").read_text(encoding="utf-8"))
    alignment = summary["alignment"]
    costs = {"text_ms": 0, "large_call_ms": 1, "checked_position_ms": 0, "drafter_step_ms": 0.1}
    assert alignment["costs"] == pytest.approx(costs, abs=1e-12)
    for effect in (alignment["counted"], alignment["choices"][0]):
        assert (effect["split"], effect["texts"], effect["ratio"], effect["by_seed"]) == ("validation", 20, 1.5, {"1": 1.5})
        assert (effect["interval"], effect["finding"]) == (None, "open"), "one seed proves nothing"
    metrics = json.loads((paths.results / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["alignment_counted_ratio"] == 1.5 and set(metrics) <= set(report.COLUMNS)
    table = (paths.results / "table.md").read_text(encoding="utf-8")
    sentence = "BiLD at equal quality is 1.50 times as fast with aligned as with unaligned drafters with one seed"
    assert sentence in table and recorded[0][-1][0].startswith(sentence)


def test_metrics_are_flat_numbers(paths: TaskPaths) -> None:
    metrics = report.flat_metrics(summary_of(paths))
    assert metrics["bild_aligned_no_loss_test_speedup"] == 2.0
    assert metrics["vanilla_large_validation_quality"] == 30.0
    assert "speculative_aligned_test_speedup" not in metrics
    assert (metrics["recommended_validation_speedup"], metrics["recommended_test_quality_difference"]) == (2.0, 0.0)
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_pair_file_is_named(paths: TaskPaths, text: str) -> None:
    paths.rows("aligned").with_name("pair.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"aligned/pair\.json: .*python -m tasks\.sweep --task toy"):
        report.read_seeds(paths, "rougeL", [1])


def test_a_sweep_that_has_not_ended_is_named(paths: TaskPaths) -> None:
    paths.rows("aligned").with_name("pair.json").unlink()
    with pytest.raises(InputError, match=r"pair\.json: missing, so that the sweep has not ended; make it by: python -m"):
        report.read_seeds(paths, "rougeL", [1])


def test_rows_stand_in_the_order_of_the_grid_without_those_of_an_earlier_one(paths: TaskPaths) -> None:
    rows = report.read_rows_of(paths, "rougeL", "aligned")
    bild = [row for row in rows if row.method == "bild"]
    earlier = [dataclasses.replace(row, settings={"fallback_threshold": 0.123}) for row in bild]
    later = [dataclasses.replace(row, settings={"fallback_threshold": 0.456}) for row in bild]
    pair = PairRecord(grid=[GridPoint(method="bild", settings=row.settings) for row in [*bild, *later]])
    baselines = [row for name in BASELINES for row in rows if row.method == name]
    assert report.current_rows([*later, *bild, *earlier, *baselines], pair) == [*baselines, *bild, *later]
    assert report.current_rows([*rows, *earlier], PairRecord()) == [*rows, *earlier]


def test_the_csv_holds_frontiers_alone(paths: TaskPaths) -> None:
    lines = list(csv.DictReader(report.frontier_csv(summary_of(paths)).splitlines()))
    assert list(lines[0]) == ["relative_latency", "speedup", "quality", "arm", "method", "settings"]
    assert [(line["method"], line["arm"], float(line["speedup"])) for line in lines] == [
        ("vanilla_large", "", 1.0),
        ("vanilla_small", "unaligned", 3.0),
        ("vanilla_small", "aligned", 3.0),
        ("bild", "unaligned", 1.5),
        ("bild", "aligned", 2.0),
    ]


def spoil(model: Path) -> None:
    seal(model)
    (model / "config.json").write_text("{}", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda paths: paths.rows("aligned").unlink(),
            "aligned/rows.jsonl is missing or holds no rows; make it by: python -m tasks.sweep --task toy",
        ),
        (lambda paths: shutil.rmtree(paths.model("aligned")), "models/toy/aligned/1 is missing; train it with dvc repro align"),
        (
            lambda paths: spoil(paths.model("large")),
            "models/toy/large: config.json is not as it was written; make it again with dvc repro finetune_large@toy",
        ),
    ],
    ids=["no rows", "no drafter", "a damaged model"],
)
def test_missing_and_damaged_input_ends_in_one_line(
    paths: TaskPaths, change: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(paths)
    with pytest.raises(SystemExit) as exit_:
        run(monkeypatch)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_rows_of_another_metric_are_refused(paths: TaskPaths) -> None:
    with pytest.raises(InputError, match="chooses by rougeL, but the task's metric is bleu"):
        report.read_rows_of(paths, "bleu", "aligned")


def test_a_sweep_of_another_seed_is_refused(paths: TaskPaths) -> None:
    paths.rows("aligned").with_name("pair.json").write_text(json.dumps({"seed": 7}), encoding="utf-8")
    with pytest.raises(InputError, match=r"aligned is of seed 7, but params\.yaml asks for 1; make it by"):
        report.read_seeds(paths, "rougeL", [1])


def test_further_temperatures_are_read_from_the_files_that_are_there(paths: TaskPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    for temperature in (1.0, 0.5):
        split = f"validation.T{temperature:g}"
        rows = [{**one, "split": split} for one in sweep("aligned", 2.0) if one["split"] == "validation"]
        text = "".join(json.dumps(one) + "\n" for one in rows)
        paths.rows("aligned", test=split).write_text(text, encoding="utf-8")
    ((_, _, _, _, inputs, *_),) = run(monkeypatch)
    summary = json.loads((paths.results / "summary.json").read_text(encoding="utf-8"))
    vanilla = [(one["arm"], one["temperature"], one["vanilla_quality"]) for one in summary["temperatures"]]
    assert vanilla == [("aligned", 0.5, 30.0), ("aligned", 1.0, 30.0)]
    assert [point["chosen"] for point in summary["temperatures"][0]["points"]] == [None, None]
    assert {paths.rows("aligned", test=f"validation.T{degree}") for degree in ("0.5", "1")} <= set(inputs)
