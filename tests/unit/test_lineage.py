"""Lineage: the tags that say where a run came from."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.lineage import datasets, lineage
from tasks.tracking import DataSet
from tests.commands import git

ROOT = Path(__file__).parents[2]


def test_lineage_names_code_data_and_starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    (tmp_path / "code.py").write_text("1", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    (tmp_path / "dvc.lock").write_text("stages:\n  prepare:\n    outs:\n    - path: data/translation\n      md5: abc.dir\n")
    monkeypatch.setenv("DVC_STAGE", "sweep@aligned")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "flow-1")
    tags = lineage(tmp_path, inputs=["data/translation/train.jsonl", tmp_path / "data/translation", "data/other"])
    assert len(tags["git_commit"]) == 40
    assert tags["git_dirty"] == "false"
    assert (tags["stage"], tags["flow_run"]) == ("sweep@aligned", "flow-1")
    assert {name: value for name, value in tags.items() if name.startswith("input")} == {
        "input data/translation/train.jsonl": "abc.dir",
        "input data/translation": "abc.dir",
    }
    assert tags["python"].startswith("3.")
    assert int(tags["host_cores"]) >= 1
    (tmp_path / "code.py").write_text("2", encoding="utf-8")
    assert lineage(tmp_path)["git_dirty"] == "true"


def test_data_sets_have_dvcs_hash_and_size(tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_text(
        "stages:\n  prepare:\n    outs:\n"
        "    - {path: data/translation, md5: abc.dir, size: 90, nfiles: 2}\n"
        "    - {path: report.json, md5: def, size: 7}\n",
        encoding="utf-8",
    )
    inputs = ["data/translation/train.jsonl", "report.json", "data/other"]
    assert datasets(inputs, "training", tmp_path) == [
        DataSet("data/translation/train.jsonl", "abc.dir", "data/translation", 90, 2, "training"),
        DataSet("report.json", "def", "report.json", 7, None, "training"),
    ]
    assert datasets(inputs, root=tmp_path / "elsewhere") == []


def test_lineage_asks_torch_for_the_gpu_only_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert "host_gpu" not in lineage(ROOT)
    gpu = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "NVIDIA H200")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpu))
    assert lineage(ROOT)["host_gpu"] == "NVIDIA H200"


def test_lineage_of_no_repository_leaves_git_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    tags = lineage(tmp_path)
    assert not {"git_commit", "git_dirty", "stage"} & tags.keys()
