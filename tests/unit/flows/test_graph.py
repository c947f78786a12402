"""The flow follows DVC's graph, under the names that `dvc repro` takes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.graph import read_graph
from tasks.errors import InputError
from tests.unit.flows.conftest import Repository

# In reverse order, so that no order can come from the file.
STAGES: dict[str, Any] = {
    "table": {"cmd": "make table", "deps": ["left", "right_a", "right_b"], "outs": ["results/table.md"]},
    "right": {"foreach": ["a", "b"], "do": {"cmd": "make right", "deps": ["source"], "outs": ["right_${item}"]}},
    "left": {"cmd": "make left", "deps": ["source"], "outs": ["left"]},
    "source": {"cmd": "make source", "deps": ["raw.txt"], "outs": ["source"]},
}


def test_stages_come_after_what_they_need(repository: Repository) -> None:
    root = repository(STAGES)
    stages = read_graph(root)
    assert stages[-1].outs == (root / "results" / "table.md",)
    assert stages[0].name == "source"
    assert {stage.name for stage in stages[1:4]} == {"left", "right@a", "right@b"}
    assert stages[4].name == "table"
    needs = {stage.name: set(stage.needs) for stage in stages}
    assert needs["source"] == set()
    assert needs["right@a"] == {"source"}
    assert needs["table"] == {"left", "right@a", "right@b"}


def test_data_tracked_by_dvc_is_not_a_stage(repository: Repository) -> None:
    root = repository(STAGES)
    (root / "raw.txt").write_text("raw", encoding="utf-8")
    (root / "raw.txt.dvc").write_text("outs:\n- md5: bee7c0f2ab41d4a1e2e1fb7d8d8d1a4e\n  path: raw.txt\n", encoding="utf-8")
    stages = read_graph(root)
    assert len(stages) == 5
    assert stages[0].needs == ()


def test_a_stage_of_another_file_has_the_file_in_its_name(repository: Repository) -> None:
    root = repository(STAGES)
    (root / "more").mkdir()
    more = {"stages": {"count": {"cmd": "wc", "deps": ["../left"], "outs": ["count"]}}}
    (root / "more" / "dvc.yaml").write_text(yaml.safe_dump(more), encoding="utf-8")
    assert {stage.name: stage.needs for stage in read_graph(root)}["more/dvc.yaml:count"] == ("left",)


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["left"], {"source", "left"}),
        (["right@b"], {"source", "right@b"}),
        (["right"], {"source", "right@a", "right@b"}),
        (["table"], {"source", "left", "right@a", "right@b", "table"}),
    ],
)
def test_a_target_includes_the_stages_that_it_needs(repository: Repository, targets: list[str], names: set[str]) -> None:
    assert {stage.name for stage in read_graph(repository(STAGES), targets)} == names


def test_what_is_no_repository_with_that_stage_is_refused(repository: Repository, tmp_path: Path) -> None:
    root = repository(STAGES)
    (root / "below").mkdir()
    with pytest.raises(InputError, match=r"no stage 'tabel'.*source"):
        read_graph(root, ["tabel"])
    with pytest.raises(InputError, match=f"go to {root}"):
        read_graph(root / "below")
    with pytest.raises(InputError, match="not a DVC repository; go to the folder of a project"):
        read_graph(tmp_path)
    (root / "dvc.yaml").write_text("stages: {}", encoding="utf-8")
    with pytest.raises(InputError, match="no stages"):
        read_graph(root)
    # DVC would print it in its own error.
    (root / "params.yaml").write_text("active: {a: 'https://me:secret@host/text'}", encoding="utf-8")
    with pytest.raises(InputError, match=r"params.yaml, line 1: a URL holds a user, a password or a token; (?!.*secret)"):
        read_graph(root)


@pytest.mark.parametrize(
    "stages",
    [
        {"a": {"cmd": "a", "deps": ["b"], "outs": ["a"]}, "b": {"cmd": "b", "deps": ["a"], "outs": ["b"]}},
        {"a": {"cmd": "a", "out": ["a"]}},
        {"a": {"cmd": "a", "outs": ["${missing}"]}},
    ],
    ids=["cycle", "unknown key", "unknown variable"],
)
def test_a_broken_dvc_file_is_refused(repository: Repository, stages: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="DVC cannot read its stages"):
        read_graph(repository(stages))
