"""The queue of experiments with real git and DVC, without Prefect: a kill loses, doubles and leaves behind nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.experiments import queue as queue_module
from flows.experiments.git import git as run_git
from flows.experiments.git import update_refs
from flows.experiments.queue import Claim, ExperimentQueue
from flows.lockfile import LockFile, lock_file
from tasks.errors import InputError
from tests.toy_project import PARAMS, STAGES, experiments, git, make_project, state_of, write_stages

ROOT = Path(__file__).parents[3]
RATE = "tasks.toy.align.learning_rate"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("template") / "project")


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "project", symlinks=True))


@contextlib.contextmanager
def claimed(queue: ExperimentQueue) -> Iterator[Claim]:
    """Claim what waits, with its worktree."""
    with queue.claim() as claim:
        assert claim is not None
        queue.prepare(claim)
        yield claim


def finish(queue: ExperimentQueue, claim: Claim) -> None:
    """End an experiment as one that ran."""
    rate = yaml.safe_load((claim.place / "params.yaml").read_text())["tasks"]["toy"]["align"]["learning_rate"]
    (claim.place / "metrics.json").write_text(f'{{"rate": {rate}}}')
    queue.finish(claim)


def states(queue: ExperimentQueue) -> dict[str, str]:
    return {one.name: one.state for one in queue.all()}


def leftovers(project: Path) -> list[str]:
    """Return what experiments have left in the cache and in git, apart from the queue's own two files."""
    kept = {path.name for path in (project / ".cache" / "experiments").iterdir()} - {"lock", ".gitignore"}
    return [*kept, *git(project, "worktree", "list", "--porcelain").split("\n\n")[1:-1]]


def test_an_experiment_is_the_working_folder_with_its_settings(project: Path) -> None:
    (project / "measure.py").write_text("# changed, not committed\n")
    git(project, "rm", "--quiet", "--cached", "raw.txt")  # staged, and the file is there still: a stage reads it
    (project / "notes.txt").write_text("nothing that a stage reads")
    before = state_of(project)
    queue = ExperimentQueue(project)
    ((one, new),) = queue.add([{RATE: 0.5}])
    assert (one.name, one.state, new) == ("learning_rate=0.5", "waiting", True)
    with claimed(queue) as claim:
        assert (claim.place / "measure.py").read_text() == "# changed, not committed\n"
        assert (claim.place / "raw.txt").read_text() == "raw\n"
        assert not (claim.place / "notes.txt").exists()
        assert (claim.place / "params.yaml").read_text() == PARAMS.replace("0.01", "0.5")
        assert git(claim.place, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
        assert states(queue) == {"learning_rate=0.5": "running"}
        finish(queue, claim)
    assert states(queue) == {"learning_rate=0.5": "done"}
    assert experiments(project) == {"learning_rate=0.5": 0.5}
    queue.sweep()
    assert leftovers(project) == []
    assert state_of(project) == before


def test_equal_work_is_recognised_in_every_state(project: Path) -> None:
    queue = ExperimentQueue(project)
    both = [{RATE: 0.5}, {RATE: 0.6}]
    assert [new for _, new in queue.add([*both, {RATE: 0.5}])] == [True, True, False]
    with claimed(queue) as claim:
        finish(queue, claim)
    with claimed(queue) as claim:
        queue.fail(claim, "why")
    again = queue.add(both)
    assert [(one.state, new) for one, new in again] == [("done", False), ("failed", False)]
    # Runs of the pipeline in the working folder change none of what an experiment starts from.
    (project / "dvc.lock").write_text("schema: '2.0'\n")
    (project / "metrics.json").write_text("{}")
    assert [new for _, new in queue.add(both)] == [False, False]
    # But targets, code, data and the commit do.
    assert [one.name for one, _ in queue.add([{RATE: 0.5}], targets=["source"])] != ["learning_rate=0.5"]
    (project / "raw.txt").write_text("other\n")
    assert [new for _, new in queue.add(both)] == [True, True]
    assert len(queue.all()) == 5


def test_names_are_unique_and_checked(project: Path) -> None:
    queue = ExperimentQueue(project)
    baseline = git(project, "rev-parse", "HEAD").strip()
    update_refs(project, [f"create refs/exps/{baseline[:2]}/{baseline[2:]}/learning_rate=0.5 {baseline}"])
    ((one, _),) = queue.add([{RATE: 0.5}])
    assert one.name == f"learning_rate=0.5-{one.about.identity[:12]}"
    for name in ("a/b", "a..b", "-x~", "learning_rate=0.5"):
        with pytest.raises(InputError, match=r"^--name "):
            queue.add([{RATE: 0.7}], name=name)
    assert len(queue.all()) == 1
    ((named, _),) = queue.add([{RATE: 0.7}], name="mine")
    assert named.name == "mine"


def test_nothing_is_added_where_one_of_them_is_wrong(project: Path) -> None:
    queue = ExperimentQueue(project)
    with pytest.raises(InputError, match="must be at most 1"):
        queue.add([{RATE: 0.5}, {RATE: 5}])
    with pytest.raises(InputError, match=r"dvc\.yaml has no stage 'nothing'"):
        queue.add([{RATE: 0.5}], targets=["nothing"])
    assert queue.all() == []


def test_one_process_has_an_experiment_and_the_oldest_comes_first(project: Path) -> None:
    queue, other = ExperimentQueue(project), ExperimentQueue(project)
    queue.add([{RATE: 0.5}, {RATE: 0.6}])
    with queue.claim() as first, other.claim() as second, other.claim() as third:
        assert first and second
        assert [first.experiment.name, second.experiment.name, third] == ["learning_rate=0.5", "learning_rate=0.6", None]
        with pytest.raises(InputError, match=r"'learning_rate=0\.6' is running, not waiting or failed; stop its run first"):
            queue.remove(["learning_rate=0.6", "learning_rate=0.5"])
    assert set(states(queue).values()) == {"waiting"}
    with queue.claim(["learning_rate=0.6"]) as named:
        assert named
        assert named.experiment.name == "learning_rate=0.6"


KILLED = """
import os, sys
from pathlib import Path
from flows.experiments.queue import ExperimentQueue
from flows.experiments import worktree
queue = ExperimentQueue(Path.cwd())
if sys.argv[1] == "while the worktree is made":
    worktree._check_out = lambda place: ((place / "kept.txt").write_text("half"), os.kill(os.getpid(), 9))
with queue.claim() as claim:
    claim.lock.write("a flow run")
    queue.prepare(claim)
    (claim.place / "kept.txt").write_text("work")
    if sys.argv[1] == "while it is kept":
        from flows.experiments import queue as module
        module.remove_worktree = lambda *_: os.kill(os.getpid(), 9)
        (claim.place / "metrics.json").write_text('{"rate": 0.5}')
        queue.finish(claim)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("moment", ["while the worktree is made", "while it runs", "while it is kept"])
def test_a_killed_process_loses_nothing_and_leaves_nothing(moment: str, project: Path) -> None:
    queue = ExperimentQueue(project)
    queue.add([{RATE: 0.5}])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", KILLED, moment], cwd=project, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    if moment == "while it is kept":
        assert states(queue) == {"learning_rate=0.5": "done"}
        with queue.claim() as none:
            assert none is None
    else:
        assert states(queue) == {"learning_rate=0.5": "waiting"}
        with claimed(queue) as claim:
            assert claim.lock.stale_note == "a flow run"
            # Work is continued, a worktree that was not complete is made again.
            assert (claim.place / "kept.txt").exists() == (moment == "while it runs")
            finish(queue, claim)
        queue.sweep()
    assert leftovers(project) == []
    assert experiments(project) == {"learning_rate=0.5": 0.5}


def test_an_experiment_that_ended_since_it_was_listed_is_not_taken(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = ExperimentQueue(project), ExperimentQueue(project)
    queue.add([{RATE: 0.5}])

    @contextlib.contextmanager
    def late(path: Path) -> Iterator[LockFile]:
        if experiments(project) == {}:
            monkeypatch.setattr(queue_module, "lock_file", lock_file)
            monkeypatch.setattr(other, "_changing", contextlib.nullcontext)
            with claimed(other) as claim:
                finish(other, claim)
        with lock_file(path) as lock:
            yield lock

    monkeypatch.setattr(queue_module, "lock_file", late)
    with queue.claim() as claim:
        assert claim is None
    assert experiments(project) == {"learning_rate=0.5": 0.5}


def test_a_kill_in_the_middle_of_a_move_counts_as_moved(project: Path) -> None:
    queue = ExperimentQueue(project)
    ((one, _),) = queue.add([{RATE: 0.5}])
    with claimed(queue) as claim:
        finish(queue, claim)
    # git has created the one ref and was killed before it deleted the other.
    ref = "refs/worktree/draftline/waiting/learning_rate=0.5"
    update_refs(project, [f"create {ref} {one.commit}"])
    assert states(queue) == {"learning_rate=0.5": "done"}
    with queue.claim() as none:
        assert none is None
    assert run_git(project, "for-each-ref", ref) == ""


def test_a_failure_keeps_its_reason_and_its_work_and_can_be_tried_again(project: Path) -> None:
    queue = ExperimentQueue(project)
    queue.add([{RATE: 0.5}, {RATE: 0.6}])
    with claimed(queue) as claim:
        (claim.place / "dvc.lock").write_text("schema: '2.0' # of what had been finished\n")
        queue.fail(claim, "stage 'measure' failed: the reason")
    failed, waiting = queue.all()
    assert (failed.state, failed.about.reason, waiting.state) == ("failed", "stage 'measure' failed: the reason", "waiting")
    with pytest.raises(InputError, match=r"'learning_rate=0\.6' is waiting, not failed; --run runs it"):
        queue.retry(["learning_rate=0.6"])
    with pytest.raises(InputError, match="no experiment 'nothing'"):
        queue.retry(["nothing"])
    assert queue.retry() == ["learning_rate=0.5"]
    # It comes last, behind what waited before.
    assert [(one.name, one.state, one.about.reason) for one in queue.all()] == [
        ("learning_rate=0.6", "waiting", ""),
        ("learning_rate=0.5", "waiting", ""),
    ]
    with queue.claim(["learning_rate=0.5"]) as again:
        assert again
        queue.prepare(again)
        assert "of what had been finished" in (again.place / "dvc.lock").read_text()
    queue.remove(["learning_rate=0.5", "learning_rate=0.6"])
    assert queue.all() == []
    assert leftovers(project) == []


def test_a_name_that_dvc_took_meanwhile_loses_no_work(project: Path) -> None:
    queue = ExperimentQueue(project)
    queue.add([{RATE: 0.5}])
    baseline = git(project, "rev-parse", "HEAD").strip()
    taken = f"refs/exps/{baseline[:2]}/{baseline[2:]}/learning_rate=0.5"
    with claimed(queue) as claim:
        update_refs(project, [f"create {taken} {baseline}"])
        with pytest.raises(InputError, match=r"DVC has got another experiment learning_rate=0\.5 meanwhile"):
            finish(queue, claim)
    assert states(queue) == {"learning_rate=0.5": "failed"}
    update_refs(project, [f"delete {taken}"])
    queue.retry()
    with claimed(queue) as claim:
        queue.finish(claim)  # with the metrics of the first time
    assert experiments(project) == {"learning_rate=0.5": 0.5}


def test_a_worktree_has_what_dvc_and_the_machine_hold(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.repo import Repo

    monkeypatch.chdir(project)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "text").write_text("beside the repository")
    (project / "ignored").mkdir()
    (project / "ignored" / "text").write_text("in the repository, not in git")
    (project / "added.txt").write_text("added to DVC")
    (project / "new.py").write_text("not known to git, but read")
    write_stages(
        project,
        {
            **STAGES,
            "reads": {"cmd": "cat ignored/text", "deps": ["../beside", "ignored", "added.txt", "new.py"], "outs": ["read.txt"]},
        },
    )
    with (project / ".gitignore").open("a") as file:
        file.write("/ignored/\n/read.txt\n")
    params = PARAMS.replace(
        "metric: bleu", "metric: bleu\n    models: {large: {pretrained: ../beside}, small: {pretrained: kept.txt}}"
    )
    (project / "params.yaml").write_text(params)
    with Repo(str(project)) as repo:
        repo.add("added.txt")
        repo.reproduce("kept")
    queue = ExperimentQueue(project)
    queue.add([{RATE: 0.5}])
    with claimed(queue) as claim:
        place = claim.place
        assert (place / "../beside/text").read_text() == "beside the repository"
        assert (place / "ignored" / "text").read_text() == "in the repository, not in git"
        assert (place / "added.txt").read_text() == "added to DVC"
        assert (place / "new.py").read_text() == "not known to git, but read"
        assert (place / "kept.txt").read_text() == "raw\n"
        assert not (place / "kept.txt").is_symlink()
        with Repo(str(place)) as repo:
            assert repo.cache.local_cache_dir == str(project / ".dvc" / "cache")
            assert repo.site_cache_dir.startswith(str(project / ".cache" / "experiments"))
            monkeypatch.chdir(place)
            assert repo.reproduce("kept") == []
        (place / "metrics.json").write_text('{"rate": 0.5}')
        queue.finish(claim)
    assert not place.exists()
    kept = git(
        project, "ls-tree", "-r", "--name-only", git(project, "for-each-ref", "--format=%(objectname)", "refs/exps").strip()
    )
    assert {"new.py", "added.txt.dvc", "dvc.lock", "metrics.json"} <= set(kept.split())
    assert not {"ignored", "ignored/text", "added.txt", "kept.txt"} & set(kept.split())


def test_dvc_works_on_an_experiment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.repo import Repo

    queue = ExperimentQueue(project)
    ((one, _),) = queue.add([{RATE: 0.5, "tasks.toy.seeds": [3]}])
    with claimed(queue) as claim:
        monkeypatch.chdir(claim.place)
        with Repo(str(claim.place)) as repo:
            assert [stage.name for stage in repo.reproduce()] == ["source", "kept", "measure"]
        monkeypatch.chdir(project)
        queue.finish(claim)
    assert one.name == "learning_rate=0.5,seeds=3"
    assert git(project, "status", "--porcelain") == ""
    with Repo(str(project)) as repo:
        (shown,) = [ran for state in repo.experiments.show() for ran in state.experiments or ()]
        data = shown.revs[0].data
        assert (shown.name, data.metrics["metrics.json"]["data"]) == (one.name, {"rate": 0.5})
        assert data.params["params.yaml"]["data"]["tasks"]["toy"]["seeds"] == [3]
        change = repo.experiments.diff(a_rev="HEAD", b_rev=one.name)["params"]["params.yaml"]
        assert change[RATE] == {"old": 0.01, "new": 0.5, "diff": 0.49}
        repo.experiments.rename(exp_name=one.name, new_name="better")
        repo.experiments.branch("better", "a-branch")
        repo.experiments.apply("better")
    assert yaml.safe_load((project / "params.yaml").read_text())["tasks"]["toy"]["seeds"] == [3]
    assert json.loads((project / "metrics.json").read_text()) == {"rate": 0.5}
    assert (project / "kept.txt").read_text() == "raw\n"
    # The same work is known by its new name, also from the working folder that it was applied to.
    ((again, new),) = queue.add([{RATE: 0.5}])
    assert (again.name, again.state, new) == ("better", "done", False)
    with Repo(str(project)) as repo:
        assert repo.status() == {}
        repo.experiments.remove("better")
    assert queue.all() == []


def test_a_folder_without_commits_or_below_the_root_is_refused(tmp_path: Path, project: Path) -> None:
    with pytest.raises(InputError, match="no commit of git"):
        ExperimentQueue(tmp_path)
    (project / "below").mkdir()
    with pytest.raises(InputError, match=f"go to {project}"):
        ExperimentQueue(project / "below")


def test_an_unfinished_merge_is_refused(project: Path) -> None:
    for branch in ("one", "two"):
        git(project, "checkout", "--quiet", "-b", branch, "HEAD" if branch == "one" else "HEAD~1")
        (project / "raw.txt").write_text(f"{branch}\n")
        git(project, "commit", "--quiet", "--all", "--message", branch)
    subprocess.run(["git", "merge", "one"], cwd=project, capture_output=True, check=False)
    with pytest.raises(InputError, match="in the middle of a merge"):
        ExperimentQueue(project).add([{RATE: 0.5}])
