"""Promotion and refusal against a real registry: tiny pairs in an SQLite MLflow, decoded and timed for real.

`fast` decodes with a small model that writes most of the references; `slow` with its large model, which has 16 layers and
writes something else. `short` has another tokenizer, writes fewer tokens, and is right where `fast` is wrong. Time is that of
the processor, so that a busy machine changes nothing.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import promote
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding import load_pair
from tasks.tracking import Recorder, RegisteredModel, tracking_uri, upload_all
from tasks.tracking.upload import connect
from tests.calibration import SOURCES
from tests.local_mlflow import empty_database
from tests.optional import slow_with
from tests.pair_folders import decoding_with, tiny_pair, uneven_pair

pytestmark = slow_with("mlflow")

ROUNDS = 3
NAME = "draftline-toy"


def processor_clock(device: str) -> Callable[[], float]:
    """The clock of a process that times, which leaves its number."""
    with Path(os.environ["TIMING"]).open("a", encoding="utf-8") as file:
        print(os.getpid(), file=file)
    return time.thread_time


@dataclass
class Workspace:
    """A repository with a test split, and a registry."""

    folder: Path
    client: Any

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run the command; return its exit status and the line that it ends with."""
        with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as shown:
            lines: list[str] = []
            patch.setattr(promote, "synchronised_clock", processor_clock)
            patch.setattr(sys, "argv", ["promote", "--task", "toy", "--rounds", str(ROUNDS), *arguments])
            shown.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
            return promote.main(), lines[-1]

    def register(self, pair: Path) -> str:
        """Report a pair, as the stage does; return its version."""
        model = RegisteredModel(NAME, str(pair), f"the verdict of {pair.name}", {}, {}, SOURCES[:2])
        with Recorder("toy", "report", {}, {}, flush_seconds=0) as run:
            run.log_model(model)
        assert upload_all(self.folder / "outbox", tracking_uri())[1] == []
        return str(self.client.get_registered_model(NAME).aliases["candidate"])

    def champion(self) -> str | None:
        found = self.client.get_registered_model(NAME).aliases.get("champion")
        return None if found is None else str(found)

    def tags(self, version: str) -> dict[str, str]:
        return dict(self.client.get_model_version(NAME, version).tags)


def short_pair(folder: Path) -> Path:
    """A pair with another tokenizer that writes five tokens."""
    tiny_pair(folder)
    return decoding_with(folder, "vanilla_small", 5, "model", "model")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    return {
        "fast": uneven_pair(folder / "fast", "vanilla_small"),
        "slow": uneven_pair(folder / "slow", "vanilla_large"),
        "short": short_pair(folder / "short"),
    }


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, pairs: dict[str, Path]) -> Any:
    """References: the texts of `fast` for three quarters of the examples, those of `short` for all."""
    folder = tmp_path_factory.mktemp("promotion")
    texts = {name: load_pair(pairs[name], threads=1).generate(SOURCES) for name in ("fast", "short")}
    corpus = folder / "data/toy/corpus"
    corpus.mkdir(parents=True)
    both = zip(SOURCES, texts["fast"], texts["short"], strict=True)
    examples = [Example(one, (right.text, *[fast.text] * (number % 4 > 0))) for number, (one, fast, right) in enumerate(both)]
    write_jsonl(examples, corpus / "test.jsonl")
    sweep = {"latency_examples": 10, "warmup_examples": 1, "bootstrap_samples": 200, "quality_batch": 16}
    task = {"metric": "exact_match", "text": {"max_source_tokens": 32, "max_target_tokens": 24}, "sweep": sweep}
    machine = {"device": "cpu", "threads": 1}
    params = {"active": {"toy": "data"}, "machine": machine, "tasks": {"toy": task}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        patch.setenv("DRAFTLINE_OUTBOX", str(folder / "outbox"))
        patch.setenv("TIMING", str(folder / "timing"))
        shutil.copyfile(empty_database(), folder / "mlflow.db")
        yield Workspace(folder, connect(tracking_uri()))


def test_a_champion_is_replaced_by_what_is_better_beyond_noise(workspace: Workspace, pairs: dict[str, Path]) -> None:
    # The large model alone does not beat the large model alone.
    slow = workspace.register(pairs["slow"])
    status, line = workspace.run()
    assert status == 3
    timing = (workspace.folder / "timing").read_text(encoding="utf-8").split()
    assert len(set(timing)) == ROUNDS and str(os.getpid()) not in timing, "each round is a process of its own"
    assert line.startswith("not promoted: neither faster nor better beyond noise: ")
    assert line.partition("as fast as ")[2].startswith("its large model alone, exact match +0.00 [+0.00, +0.00]")
    assert workspace.champion() is None
    assert workspace.tags(slow)["draftline.why"] in line

    # The first champion.
    fast = workspace.register(pairs["fast"])
    status, line = workspace.run()
    assert (status, workspace.champion()) == (0, fast), line
    assert line.startswith("promoted: faster and better: ")
    assert workspace.run() == (0, f"promoted: version {fast} is the champion already")
    assert json.loads(workspace.run("--json")[1]) == {"promoted": True, "why": f"version {fast} is the champion already"}

    # A slower and worse one is refused, and not tried again on the same examples.
    status, line = workspace.run("--version", slow)
    assert (status, workspace.champion()) == (3, fast)
    assert line.startswith("not promoted: neither faster nor better beyond noise: ")
    status, again = workspace.run("--version", slow)
    assert (status, again.partition("(--again repeats it): ")[2]) == (3, line.removeprefix("not promoted: "))

    # A better one with another tokenizer replaces the champion.
    short = workspace.register(pairs["short"])
    status, line = workspace.run()
    assert (status, workspace.champion()) == (0, short), line

    # Every comparison is a run.
    experiment = workspace.client.get_experiment_by_name("toy").experiment_id
    runs = workspace.client.search_runs([experiment], "tags.kind = 'promotion'")
    assert [(run.data.tags["candidate"], run.data.tags["promoted"]) for run in reversed(runs)] == [
        (slow, "False"),
        (fast, "True"),
        (slow, "False"),
        (short, "True"),
    ]
    assert (runs[0].data.metrics["quality_difference"], runs[2].data.metrics["candidate_quality"]) == (25.0, 75.0)
    assert runs[2].data.metrics["speed_ratio_low"] > 1
