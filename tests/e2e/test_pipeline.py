"""The whole pipeline from params.yaml: its outputs, and the stages that run again after a change."""

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from tasks.decoding.registry import METHODS, ORACLES
from tasks.evaluation.selection import BASELINES
from tasks.generate.__main__ import main as generate
from tasks.paths import TaskPaths
from tasks.tracking import tracking_uri, upload_all
from tests.e2e.conftest import GRID, PLANTED, copy_of, key_of, read_params, repro, run_in, stages_run, write_params
from tests.local_mlflow import local_mlflow, runs_of

ARMS = [f"{stage} seed {seed}" for stage in ("control unaligned", "align aligned") for seed in (1, 2)]
SWEEPS = [f"sweep {drafter}{seed}" for drafter in ("unaligned", "aligned") for seed in ("", " seed 2")]
POINTS = sum(math.prod(map(len, entry["values"].values())) for entry in GRID)


def stages_run_by(clone: Path) -> set[str]:
    """Return the stages that `dvc repro` runs."""
    return {name.removesuffix("@translation") for name in stages_run(repro(clone))}


def changed_stages(clone: Path) -> set[str]:
    """Return the stages whose own inputs changed. DVC is asked in this process: starting it takes most of its time."""
    with Repo(str(clone)) as repo:
        return {name.rpartition(":")[2].removesuffix("@translation") for name in repo.status()}


@pytest.fixture(scope="module")
def clone(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished clone; tests restore what they change."""
    return copy_of(finished, tmp_path_factory.mktemp("pipeline"))


def test_the_summary_has_every_field_that_programs_read(finished: Path) -> None:
    summary = json.loads((finished / "results/translation/summary.json").read_text())
    assert summary["task"] == "translation"
    assert summary["metric"] == "bleu"
    for model in ("large", "small"):
        assert summary["vanilla"][model]["latency_ms"] > 0
        assert 0 <= summary["vanilla"][model]["quality"] <= 100
    points = summary["points"]
    assert not summary["failed"]
    assert {(point["method"], point["arm"]) for point in points} == {
        (method, drafter) for method in METHODS if method not in BASELINES for drafter in ("aligned", "unaligned")
    }
    assert len(points) == 2 * POINTS
    for point in points:
        assert point["large_calls_per_token"] >= 0
        assert point["chosen"] in ("no_loss", "one_point", None)
        if point["timed"]:
            assert point["latency_ms"] > 0
            assert point["speedup"] > 0
        else:
            assert point["how"] == "replayed"
            assert point["speedup"] is None
            assert point["method"] in ORACLES or point["predicted"]["speedup"] > 0
            assert point["chosen"] is None
    assert {point["method"] for point in points if point["timed"]} == set(METHODS) - {*BASELINES, *ORACLES}
    decoded_only = {"beam_large", "speculative_beam", "calm"}
    assert {point["method"] for point in points if point["how"] == "replayed"} == set(METHODS) - set(BASELINES) - decoded_only
    lossless = [point for point in points if point["method"] == "speculative"]
    assert all(point["quality"] == summary["vanilla"]["large"]["quality"] for point in lossless)
    assert {point["chosen"] for point in lossless} == {"no_loss", None}


def test_the_chosen_point_decodes(finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(finished)

    def generated(*words: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["generate", "--json", "--rounds", "1", *words])
        generate()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    corpus = (finished / "data/translation/corpus/test.jsonl").read_text()
    sources = [json.loads(line)["source"] for line in corpus.splitlines()]
    lines = generated(*sources[:3])
    summary = json.loads((finished / "results/translation/summary.json").read_text())
    best = summary["verdict"]["point"]
    assert [line["source"] for line in lines] == sources[:3]
    assert all(line["latency_ms"] > 0 and line["text"] for line in lines)
    assert {line["method"] for line in lines} == {"vanilla_large" if best is None else summary["points"][best]["method"]}
    [tuned] = generated("--tune", "quality=0", sources[0])
    fastest = min((point for point in summary["points"] if point["timed"]), key=lambda point: point["latency_ms"])
    assert tuned["method"] == fastest["method"]


def test_no_secret_of_the_environment_is_logged_or_kept(finished: Path) -> None:
    """Nor that of git's remote, in logs, records that wait for MLflow, DVC's files and cache, models and results."""
    assert "translation/aligned/2" in finished.with_name("said").read_text(encoding="utf-8")
    found = [one for one in finished.parent.rglob("*") if one.is_file() and PLANTED.encode() in one.read_bytes()]
    assert found == [finished / ".git" / "config"]


def test_no_scratch_is_left(finished: Path) -> None:
    assert not list((finished / ".cache/resume").rglob("step*"))
    assert not list(finished.rglob(".partial.*"))


def test_every_stage_that_trains_or_measures_leaves_a_complete_record(clone: Path, tmp_path: Path) -> None:
    shutil.copytree(clone / ".cache" / "mlflow-outbox", tmp_path / "outbox")  # other tests read the same pipeline
    for file in (tmp_path / "outbox").glob("*/run.jsonl"):
        # MLflow takes a tenth of a second for each point of a sweep: the first ones stand for all.
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        points = [line for line in lines if "children" in json.loads(line)]
        file.write_text("".join(line for line in lines if line not in points[3:]), encoding="utf-8")
    with local_mlflow(tmp_path) as mlflow:
        _, waiting = upload_all(tmp_path / "outbox", tracking_uri())
        found = runs_of(mlflow)
    assert waiting == []
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and PLANTED.encode() in one.read_bytes()], "a secret"
    parents = {run.info.run_id: run.data.tags.get("mlflow.parentRunId") for run in found}
    runs = {run.info.run_name: run for run in found if parents[run.info.run_id] is None}
    assert runs.keys() == {"finetune large", "finetune small", *ARMS, *SWEEPS, "report"}
    assert {run.info.status for run in found} == {"FINISHED"}
    assert set(parents.values()) - {None} == {runs[name].info.run_id for name in SWEEPS}


def test_plots_need_no_network(clone: Path) -> None:
    """DVC's page has the scripts of this environment, and keeps those of the network for where they are missing."""
    done = run_in(clone, "dvc", "plots", "show")
    assert done.returncode == 0, done.stderr
    page = (clone / "dvc_plots" / "index.html").read_text(encoding="utf-8")
    assert page.count("vegaEmbed('#") > 1, "a frontier and the losses of a training at least"
    outside = re.sub('<template id="network">.*?</template>', "", page, flags=re.DOTALL)
    assert re.findall('<script src="(.*?)"', outside) == ["../.venv/vega.js"]
    assert "vegaEmbed" in (Path(sys.prefix) / "vega.js").read_text(encoding="utf-8"), "make setup writes it"


def test_dvc_compares_no_half_run_pipeline(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    TaskPaths("translation").forget_metrics()
    with Repo(str(clone)) as repo:
        [half] = repo.metrics.show()[""]["data"].values()
        repo.checkout(["report@translation"], force=True)
        [whole] = repo.metrics.show()[""]["data"].values()
    assert half["data"] == {} and whole["data"]


def test_a_second_run_runs_nothing(clone: Path) -> None:
    assert stages_run_by(clone) == set()


@pytest.mark.parametrize(
    ("place", "value", "runs"),
    [
        (("sweep", "grid", 0, "values", "fallback_threshold"), [0.2], {"sweep"}),
        (("align", "learning_rate"), 1e-3, {"control", "align"}),
        (("finetune", "small", "steps"), 151, {"finetune_small"}),
    ],
)
def test_a_change_runs_what_reads_it(clone: Path, place: tuple[str | int, ...], value: object, runs: set[str]) -> None:
    before = read_params(clone)
    changed = read_params(clone)
    inner = changed["tasks"]["translation"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    try:
        write_params(clone, changed)
        assert changed_stages(clone) == runs
    finally:
        write_params(clone, before)


@pytest.mark.slow
def test_a_changed_grid_runs_the_sweep_and_keeps_their_points(clone: Path, tmp_path: Path) -> None:
    copy = copy_of(clone, tmp_path)
    rows = copy / "results/translation/sweep/aligned/rows.jsonl"
    before = _by_name(rows)
    params = read_params(copy)
    params["tasks"]["translation"]["sweep"]["grid"][1]["values"]["draft_length"] = [3, 4]
    write_params(copy, params)
    assert stages_run_by(copy) == {"sweep", "report"}
    after = _by_name(rows)
    added = [row["settings"] for name, row in after.items() if name not in before and row["method"] == "speculative"]
    assert {"drafter": "small", "draft_length": 4} in added
    # Bounds are of the larger grid, which may also time more points; points that were timed before are not timed again.
    for name, row in before.items():
        kept = ("quality", "counts", "rounds", "latency_ms", "speedup") if "speedup" in row else ("quality", "counts")
        assert [after[name][part] for part in kept] == [row[part] for part in kept]


def _by_name(rows: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {key_of(row): row for row in map(json.loads, rows.read_text().splitlines())}
