"""The presets: each is a task that the schema accepts, and the command lists all of it."""

import json
from pathlib import Path

import pytest
import yaml

from tasks.config import load
from tasks.corpora.__main__ import main, pasted, table
from tasks.corpora.presets import DATA_SETS, LOCK, PRESETS, task_section
from tasks.errors import InputError
from tasks.evaluation.scoring.metrics import METRICS
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.grid import preset_values
from tests.commands import runner


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_task(name: str, tmp_path: Path) -> None:
    assert PRESETS[name]["metric"] in METRICS
    text = yaml.safe_load(pasted(name))
    assert text == {name: task_section(name)}
    assert f"{name}: {LOCK}" in pasted(name)
    # A program of a model runs only where somebody has said so.
    allowed = {"run_generated_code": True} if "run_generated_code" in text[name] else {}
    params = {"active": {name: LOCK}, "tasks": {name: {**text[name], **allowed}}}
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(params), encoding="utf-8")
    task = load(file).task(name)
    assert task.corpus.hub.data_set == DATA_SETS[name]
    assert task.corpus.published == DATA_SETS[name].published
    assert (task.text.max_source_tokens, task.text.max_target_tokens) == tuple(PRESETS[name]["lengths"])


def test_a_task_has_the_recipe_and_the_ranges_of_the_papers() -> None:
    task = task_section("xsum")
    assert task["models"]["small"] == {"pretrained": "google-t5/t5-small"}
    assert task["finetune"]["large"]["steps"] == 500_000
    assert preset_values(GridSettings(**task["sweep"]["grid"][0]))["fallback_threshold"] == (0.2, 0.3, 0.4, 0.5, 0.6)
    assert all(preset["grid"] and preset["pairs"] and preset["papers"] for preset in PRESETS.values())
    windows = [preset_values(GridSettings(**entry))["draft_length"] for entry in task_section("gsm8k")["sweep"]["grid"]]
    assert all(list(window) == [1] for window in windows), "SpecCascade, Figure 3"


def test_the_table_and_a_task_to_paste_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = runner(main, monkeypatch, capsys)
    assert run().printed.strip() == table()
    assert run("--task", "xsum").printed.strip() == pasted("xsum")
    assert json.loads(run("--task", "xsum", "--json").printed) == {"xsum": task_section("xsum")}
    assert json.loads(run("--json").printed).keys() == PRESETS.keys()
    with pytest.raises(InputError, match="no preset 'imdb'; there are iwslt17-de-en, "):
        pasted("imdb")
