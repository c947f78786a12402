"""MLflow's pages in a headless browser: runs of both arms can be compared, and the report's run shows its figure and verdict.

Slow, and only where a Chromium is installed.
"""

import json
import os
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.tracking import Recorder, tracking_uri, upload_all
from tasks.tracking.upload import connect
from tests.optional import slow_with
from tests.pages import CHROMIUM, shown
from tests.services import HOST, free_port, service

pytestmark = [*slow_with("mlflow"), pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]

FIGURE = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="60"><text y="40">frontier</text></svg>'


@dataclass
class Pages:
    """MLflow's server over a task with both arms."""

    url: str
    client: Any
    experiment: str

    def run(self, name: str) -> str:
        """Id of the run with a name."""
        (found,) = self.client.search_runs([self.experiment], f"tags.`mlflow.runName` = '{name}'")
        return str(found.info.run_id)


def record_both_arms(folder: Path) -> None:
    """A sweep of each arm with a few timed points, and the figure in both runs."""
    figure = folder / "pareto.svg"
    figure.write_text(FIGURE, encoding="utf-8")
    for drafter, colour in (("unaligned", "#D55E00"), ("aligned", "#0072B2")):
        tags = {"drafter": drafter, "mlflow.runColor": colour}
        with Recorder("toy", f"sweep {drafter}", {**tags, "kind": "sweep"}, {"drafter": drafter}, flush_seconds=0) as sweep:
            for number in range(1, 4):
                about = {**tags, "kind": "point", "timed": True, "split": "validation", "method": "bild"}
                settings = {"drafter": drafter, "fallback_threshold": number / 4, "rollback_threshold": number}
                numbers = {"speedup": 1 + number / 4, "quality": 60 - number}
                sweep.child(f"bild {drafter} {number}", about, settings, numbers)
    with Recorder("toy", "report", {"kind": "report"}, {}, flush_seconds=0) as report:
        report.log_artifact(figure, "report")
        report.describe("the **verdict**")
        report.log_table("frontier", {"speedup": [1.5], "quality": [58.0]})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        patch.setenv("DRAFTLINE_OUTBOX", str(folder / "outbox"))
        record_both_arms(folder)
        assert upload_all(folder / "outbox", tracking_uri()) == (3, [])
        client = connect(tracking_uri())
        experiment = client.get_experiment_by_name("toy").experiment_id
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(), "--port", str(port)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {"MLFLOW_DISABLE_TELEMETRY": "true", "PATH": path}
        url = f"http://{HOST}:{port}"
        with service([*command, "--workers", "1"], f"{url}/health", folder / "log", variables, folder):
            yield Pages(url, client, experiment)


def test_points_of_both_arms_are_compared_side_by_side(pages: Pages) -> None:
    runs = [pages.run(f"bild {drafter} 3") for drafter in ("aligned", "unaligned")]
    chosen = urllib.parse.urlencode({"runs": json.dumps(runs), "experiments": json.dumps([pages.experiment])})
    page = shown(f"{pages.url}/#/compare-runs?{chosen}")
    for shown_there in ("bild aligned 3", "bild unaligned 3", "fallback_threshold", "speedup", "quality"):
        assert shown_there in page


def test_the_runs_and_the_figure_are_there(pages: Pages) -> None:
    page = shown(f"{pages.url}/#/experiments/{pages.experiment}/runs")
    assert "sweep aligned" in page and "sweep unaligned" in page
    report = pages.run("report")
    artifacts = shown(f"{pages.url}/#/experiments/{pages.experiment}/runs/{report}/artifacts/report")
    assert "pareto.svg" in artifacts and "frontier.json" in artifacts
    picture = urllib.parse.urlencode({"path": "report/pareto.svg", "run_uuid": report})
    assert httpx.get(f"{pages.url}/get-artifact?{picture}").text == FIGURE
    assert "verdict" in shown(f"{pages.url}/#/experiments/{pages.experiment}/runs/{report}")
