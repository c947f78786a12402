"""Reads the stage graph from DVC; names no stage of the project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

from flows.stage import repair
from tasks import config
from tasks.errors import InputError

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage as DvcStage


@dataclass(frozen=True)
class Stage:
    """A DVC stage, under the name that `dvc repro` takes in the repository root."""

    name: str
    needs: tuple[str, ...]
    """Stages whose outputs this one reads."""
    outs: tuple[Path, ...]


def read_graph(root: Path, targets: Sequence[str] = ()) -> list[Stage]:
    """Repair what an earlier `dvc` may have left, and return the stages of the repository in topological order.

    Args:
        root: the folder that holds `.dvc`.
        targets: names of stages or of groups (`align` for every `align@...`); the stages that they need are included. Empty:
            all stages.

    Raises:
        InputError: `root` is no DVC repository, `dvc.yaml` is broken, a target is not in it, or `params.yaml` holds a secret.
    """
    config.check_for_dvc(root / config.DEFAULT)
    repair(root)
    stages = _load(root)
    if not stages:
        raise InputError(f"DVC finds no stages in {root}; dvc.yaml must define some, and git must not ignore it")
    if not targets:
        return stages
    wanted = set()
    for target in targets:
        found = [stage.name for stage in stages if target in (stage.name, stage.name.split("@")[0])]
        if not found:
            raise InputError(f"dvc.yaml has no stage {target!r}; it has {', '.join(stage.name for stage in stages)}")
        wanted.update(found)
    for stage in reversed(stages):
        if stage.name in wanted:
            wanted.update(stage.needs)
    return [stage for stage in stages if stage.name in wanted]


def _load(root: Path) -> list[Stage]:
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            if Path(repo.root_dir) != root.resolve():
                raise InputError(f"{root} is not the root of a DVC repository; go to {repo.root_dir}")
            graph = repo.index.graph
            # DVC's edges point from a stage to the stages that it needs, which is the direction that the sorter expects.
            sorter = TopologicalSorter({node: list(graph.successors(node)) for node in graph})
            found = []
            for node in sorter.static_order():
                if node.cmd is not None:  # data that `dvc add` or `dvc import` tracks has no command
                    needs = tuple(_address(repo, other) for other in graph.successors(node) if other.cmd is not None)
                    found.append(Stage(_address(repo, node), needs, tuple(Path(out.fs_path) for out in node.outs)))
            return found
    except NotDvcRepoError:
        raise InputError(f"{root} is not a DVC repository; go to the folder of a project, which has dvc.yaml") from None
    except DvcException as error:
        raise InputError(f"DVC cannot read its stages in {root}: {error}") from error


def _address(repo: Repo, node: DvcStage) -> str:
    """Return the name that `dvc repro` takes in the root; DVC's own `addressing` depends on the working directory."""
    file = Path(node.path).relative_to(repo.root_dir).as_posix()
    name = getattr(node, "name", None)
    if name is None:
        return file
    return str(name) if file == "dvc.yaml" else f"{file}:{name}"
