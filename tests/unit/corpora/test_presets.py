"""The presets: each is a task that the schema accepts, and the command lists all of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.config import load
from tasks.corpora.__main__ import description, main, pasted, table
from tasks.corpora.presets import LOCK, PRESETS, task_section
from tasks.errors import InputError
from tasks.evaluation.metrics import METRICS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_task(name: str, tmp_path: Path) -> None:
    assert PRESETS[name].metric in METRICS
    text = yaml.safe_load(pasted(name))
    assert text == {name: task_section(name)}
    assert f"{name}: {LOCK}" in pasted(name)
    # A program of a model runs only where somebody has said so.
    allowed = {"run_generated_code": True} if "run_generated_code" in text[name] else {}
    params = {"active": {name: LOCK}, "tasks": {name: {**text[name], **allowed}}}
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(params), encoding="utf-8")
    task = load(file).task(name)
    assert task.corpus.hub is not None
    assert task.corpus.hub.data_set == PRESETS[name].data_set
    assert task.corpus.published == PRESETS[name].data_set.published
    assert (task.text.max_source_tokens, task.text.max_target_tokens) == PRESETS[name].lengths


def printed(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["corpora", *arguments])
    main()
    return capsys.readouterr().out


def test_json_lists_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    listed: list[dict[str, Any]] = json.loads(printed(["--json"], monkeypatch, capsys))
    assert [one["name"] for one in listed] == list(PRESETS)
    xsum = next(one for one in listed if one["name"] == "xsum")
    assert xsum["hub"]["template"] == "summarize: {source}"
    assert xsum["pairs"][0] == {"paper": "BiLD, Table 2", "small": "google-t5/t5-small", "large": "google-t5/t5-large"}
    assert xsum["grid"][0]["values"]["fallback_threshold"] == [0.2, 0.3, 0.4, 0.5, 0.6]
    assert xsum["task"]["finetune"]["large"]["steps"] == 500_000
    assert xsum["task"]["text"] == {"max_source_tokens": 1024, "max_target_tokens": 64}
    assert all(one["grid"] and one["pairs"] and one["papers"] for one in listed)


def test_a_window_of_one_token_replaces_that_of_a_preset() -> None:
    windows = [entry["values"]["draft_length"] for entry in description("gsm8k")["grid"]]
    assert all(list(window) == [1] for window in windows), "SpecCascade, Figure 3"


def test_the_table_is_that_of_the_documentation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed([], monkeypatch, capsys).strip() == table()
    assert table() in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_a_task_to_paste(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(["--task", "xsum"], monkeypatch, capsys).strip() == pasted("xsum")
    with pytest.raises(InputError, match="no preset 'imdb'; there are iwslt17-de-en, "):
        pasted("imdb")
