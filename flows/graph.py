"""Reads the stage graph from DVC. No stage of the project is named here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

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
    deps: tuple[Path, ...] = ()
    """Files and folders that it reads; settings are not among them."""
    in_git: tuple[Path, ...] = ()
    """Outputs that are left to git, `cache: false`."""


def read_graph(root: Path, targets: Sequence[str] = ()) -> list[Stage]:
    """Return the stages of the repository in topological order.

    Args:
        root: the folder that holds `.dvc`.
        targets: names of stages or of groups (`align` for every `align@...`); the stages that they need are included. Empty:
            all stages.

    Raises:
        InputError: `root` is no DVC repository, `dvc.yaml` is broken, or a target is not in it.
    """
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
            return [_as_stage(repo, node, graph.successors(node)) for node in _by_generation(sorter) if _has_command(node)]
    except NotDvcRepoError:
        raise InputError(f"{root} is not a DVC repository; go to the folder with dvc.yaml, or run dvc init") from None
    except DvcException as error:
        raise InputError(f"DVC cannot read its stages in {root}: {error}") from error


def _by_generation(sorter: TopologicalSorter[DvcStage]) -> Iterator[DvcStage]:
    """Yield the nodes that need nothing, then the nodes that need only those, and so on."""
    sorter.prepare()
    while sorter.is_active():
        generation = sorter.get_ready()
        yield from generation
        sorter.done(*generation)


def _as_stage(repo: Repo, node: DvcStage, needs: Iterable[DvcStage]) -> Stage:
    names = tuple(address(repo, other) for other in needs if _has_command(other))
    return Stage(
        address(repo, node),
        names,
        outs=tuple(Path(out.fs_path) for out in node.outs),
        deps=tuple(Path(dep.fs_path) for dep in node.deps if dep.protocol == "local" and isinstance(dep.def_path, str)),
        in_git=tuple(Path(out.fs_path) for out in node.outs if not out.use_cache),
    )


def _has_command(node: DvcStage) -> bool:
    """Whether a node is a stage with a command, and not data that `dvc add` or `dvc import` tracks."""
    return node.cmd is not None


def address(repo: Repo, node: DvcStage) -> str:
    """Return the name that `dvc repro` takes in the root; DVC's own `addressing` depends on the working directory."""
    file = Path(node.path).relative_to(repo.root_dir).as_posix()
    name = getattr(node, "name", None)
    if name is None:
        return file
    return str(name) if file == "dvc.yaml" else f"{file}:{name}"
