"""What DVC and the hub say has changed, in real repositories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.graph import read_graph
from flows.sources import Sources, moved_on_hub, read_sources
from tasks.corpora.hub.lock import replace_commit

Repository = Callable[[dict[str, Any]], Path]
STAGES: dict[str, Any] = {
    "first": {"cmd": "cat raw.txt code.py > middle", "deps": ["raw.txt", "code.py"], "params": ["rate"], "outs": ["middle"]},
    "second": {"cmd": "cp middle end", "deps": ["middle"], "outs": ["end"]},
    "other": {"cmd": "cp more/a other", "deps": ["more"], "outs": ["other"]},
}


@pytest.fixture
def root(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose stages have run."""
    from dvc.repo import Repo

    root = repository(STAGES)
    monkeypatch.chdir(root)
    (root / "raw.txt").write_text("raw", encoding="utf-8")
    (root / "code.py").write_text("code", encoding="utf-8")
    (root / "more").mkdir()
    (root / "more/a").write_text("a", encoding="utf-8")
    (root / "params.yaml").write_text("rate: 1\nunread: 1\n", encoding="utf-8")
    with Repo(str(root)) as repo:
        repo.reproduce()
    return root


def sources(root: Path, *targets: str) -> Sources:
    return read_sources(root, [stage.name for stage in read_graph(root, targets)])


def test_each_kind_of_source_is_noticed_and_named(root: Path) -> None:
    first = sources(root)
    assert first.changes == ()
    # What no stage reads is no source, and neither is what a stage makes.
    (root / "params.yaml").write_text("rate: 1\nunread: 2\n", encoding="utf-8")
    assert sources(root) == first
    (root / "middle").write_text("by hand", encoding="utf-8")
    assert sources(root) == Sources(("first is not up to date", "second is not up to date"), first.fingerprint)
    (root / "middle").write_text("rawcode", encoding="utf-8")

    prints = {first.fingerprint}
    for file, text, change in (
        ("raw.txt", "other", "raw.txt (modified)"),
        ("params.yaml", "rate: 2", "params.yaml rate (modified)"),
        ("more/a", "b", "more (modified)"),
    ):
        (root / file).write_text(text, encoding="utf-8")
        found = sources(root)
        assert change in found.changes
        assert "middle" not in found.summary()
        prints.add(found.fingerprint)
    assert len(prints) == 4
    (root / "code.py").unlink()
    assert "code.py (deleted)" in sources(root).changes
    dvc = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))
    dvc["stages"]["second"]["cmd"] = "cat middle > end"
    (root / "dvc.yaml").write_text(yaml.safe_dump(dvc), encoding="utf-8")
    assert sources(root, "second").changes[-1] == "the command of second"
    assert sources(root, "other").changes == ("more (modified)",)


def test_many_changes_are_counted() -> None:
    assert Sources(tuple("abcdefg"), "").summary() == "a, b, c, d, e and 2 more"


def test_a_moved_data_set_is_found_and_its_line_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = "a" * 40, "b" * 40
    root = Path(__file__).parents[3]
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    task = params["tasks"]["translation"] | {"corpus": {"source": "hub", "hub": {"preset": "multi30k-en-de"}}}
    params |= {"tasks": {"a": task, "b": task}, "active": {"a": "hub.lock.yaml", "b": "hub.lock.yaml"}, "inactive": {}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    lock = tmp_path / "hub.lock.yaml"
    monkeypatch.setattr("tasks.corpora.hub.lock.newest_commit", lambda data_set: new)
    lock.write_text("# kept\n", encoding="utf-8")
    assert list(moved_on_hub(tmp_path)) == [], "nothing is locked yet"
    lock.write_text(f'# kept\n"bentrevett/multi30k@main": "{old}"\n"another/set@main": "{old}"\n', encoding="utf-8")
    (moved,) = moved_on_hub(tmp_path)
    replace_commit(moved.data_set, moved.commit, moved.lock)
    assert lock.read_text(encoding="utf-8").splitlines() == [
        "# kept",
        f'"another/set@main": "{old}"',
        f'"bentrevett/multi30k@main": "{new}"',
    ]
    assert list(moved_on_hub(tmp_path)) == []
    assert list(moved_on_hub(tmp_path / "without parameters")) == []
