"""The doctor on a machine where something is missing, full or broken: it goes on, and says what for."""

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import doctor, machine
from tasks.doctor import CHECKS, MISSING, OK, WARNING, Check, Facts, Finding, main, probe, run

ROOT = Path(__file__).parents[2]
TORCH: dict[str, Any] = {"version": "2.13.0", "build": "", "vectors": "AVX2", "gpus": []}
GPU = {"name": "a GPU (80 GB)", "failure": ""}
Usage = namedtuple("Usage", "total used free")


def facts(machine: dict[str, Any] | None = None, **torch: Any) -> Facts:
    """Facts with these settings, and with torch as described."""
    given = Facts()
    given.__dict__.update(machine=machine or {}, torch=(TORCH | torch, ""), in_environment=True)
    return given


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)


def test_each_check_prints_its_line_and_what_is_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    one = Check("one", "first things", lambda _: Finding(OK, "here"))
    another = Check("another", "second things", lambda _: Finding(WARNING, "odd", "look"))
    assert main([], [one, another]) == 0
    table, last = capsys.readouterr().out.rsplit("\n\n", 1)
    first, second, needed, fix = table.splitlines()
    assert first.index("here") == second.index("odd") == needed.index("needed for: second") == fix.index("to do: look")
    assert last == "everything that make repro needs is there; warnings: another\n"


def test_something_missing_is_status_1_and_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("a", "x", lambda _: Finding(MISSING, "gone", "get it"), required=True), check("cores")]
    assert main(["--json"], checks) == 1
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert (said["ready"], said["missing"]) == (False, ["a"])
    assert said["checks"][0] == {"name": "a", "state": "missing", "found": "gone", "needed_for": "x", "fix": "get it"}


@pytest.mark.parametrize(("required", "state"), [(True, MISSING), (False, WARNING)])
def test_a_check_that_fails_is_a_finding_and_the_others_are_run(required: bool, state: str) -> None:
    def fail(_: Facts) -> Finding:
        raise ZeroDivisionError("one\nand another line")

    result = run(Check("a", "x", fail, required), Facts())
    assert (result["state"], result["found"]) == (state, "not checked: ZeroDivisionError: one and another line")
    assert result["needed_for"] and result["fix"]


def test_wrong_use_is_status_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--nothing"])
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    assert "root folder of the repository" in capsys.readouterr().err


def test_it_starts_without_any_package(tmp_path: Path) -> None:
    """In a Python that has the standard library alone, as where the set-up failed; no check fails by a mistake of its own."""
    venv.create(tmp_path / "bare")
    for name in ("tasks", "dvc.yaml", "params.yaml", "requirements.lock", "requirements-cuda.lock"):
        (tmp_path / name).symlink_to(ROOT / name)
    # The first two dependencies stand for all: a process looks for each.
    project = re.sub(r"(\ndependencies = \[\n(?: .*\n){2})(?: .*\n)*", r"\1", (ROOT / "pyproject.toml").read_text())
    (tmp_path / "pyproject.toml").write_text(project)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(tmp_path / "bare" / "bin" / "python"), "-m", "tasks.doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert {"torch", "libraries", "DeepSpeed", "DVC"} <= set(said["missing"])
    assert [one["found"] for one in said["checks"] if "not checked" in one["found"]] == []
    assert all(one["fix"] and one["needed_for"] for one in said["checks"] if one["state"] != OK)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder whose modules the child processes import."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_broken_package_is_named_with_its_exception(modules: Path) -> None:
    (modules / "raises.py").write_text("raise OSError('libwrong.so: cannot open')")
    (modules / "crashes.py").write_text("import os, signal; print('hello'); os.kill(os.getpid(), signal.SIGILL)")
    (modules / "leaves.py").write_text("raise SystemExit(3)")
    (modules / "hangs.py").write_text("import time; time.sleep(60)")
    assert probe("import", "json")[1] == ""
    assert probe("import", "raises")[1] == "OSError: libwrong.so: cannot open"
    assert probe("import", "crashes")[1] == "the process was ended by SIGILL"
    assert probe("import", "leaves")[1] == "SystemExit: 3"
    assert probe("import", "no_such_package")[1].startswith("ModuleNotFoundError")
    assert probe("import", "hangs", seconds=2)[1] == "no answer within 2 s"


def test_what_deepspeed_needs_is_missing_and_a_broken_mlflow_a_warning(modules: Path) -> None:
    for name in ("torch", "mlflow"):
        (modules / f"{name}.py").write_text("raise RuntimeError('half\\ninstalled')")
    result = run(check("DeepSpeed"), facts())
    assert (result["state"], result["found"]) == (MISSING, "RuntimeError: half installed")
    assert "remove .venv and run make setup" in result["fix"]
    assert "remove .venv/.ready and run make setup" in facts().repair("ModuleNotFoundError: no")
    assert run(check("MLflow"), facts())["state"] == WARNING


@pytest.mark.slow
def test_the_dependencies_are_those_of_the_project_and_deepspeed_trains() -> None:
    import tomllib

    listed = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    for name, said in (("libraries", f"all {len(listed)} packages"), ("DeepSpeed", "takes a training step")):
        result = run(check(name), facts({"device": "cpu"}))
        assert result["state"] == OK and said in result["found"], result["found"]


def test_versions_that_differ_from_the_lock_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    installed = {"torch": "2.13.0+cpu", "Pydantic_Core": "2.50.3", "broken": None}
    found = [SimpleNamespace(name=name, version=version) for name, version in installed.items()]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    Path("requirements-cuda.lock").write_text("torch==2.13.0 \\\n    --hash=sha256:0\nnvidia-nccl==1 \\\n")
    Path("requirements.lock").write_text("# by uv\n")
    assert doctor.versions(facts()).state == OK
    Path("requirements.lock").write_text("pydantic-core==2.50.4 \\\n    --hash=sha256:0\nabsent==1\nbroken==2\n")
    result = doctor.versions(facts())
    assert result.state == WARNING
    assert "2 of 4 differ: pydantic-core 2.50.3 (locked: 2.50.4), broken None (locked: 2)" in result.found
    assert "1 of 4 not installed: absent" in result.found


@pytest.mark.parametrize(("version", "state"), [((3, 10), MISSING), ((3, 11), OK), ((3, 12), MISSING)])
def test_python_against_the_project(version: tuple[int, int], state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    assert doctor.python(facts()).state == state


def test_an_environment_that_is_not_finished_or_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "has not finished" in doctor.environment(Facts()).found
    Path(".venv/bin").mkdir(parents=True)
    Path(".venv/.ready").touch()
    assert doctor.environment(Facts()).state == MISSING  # its Python was removed
    Path(".venv/bin/python").symlink_to(sys.executable)
    assert "is not the Python of .venv" in doctor.environment(Facts()).found
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert doctor.environment(Facts()).state == OK


def test_a_folder_that_git_did_not_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for name in ("doctor", "console"):  # which the child imports from the working directory
        shutil.copy(ROOT / f"tasks/{name}.py", tmp_path / "tasks")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {one: {cmd: 'true'}}")
    monkeypatch.chdir(tmp_path)
    result = run(check("DVC"), facts())
    assert result["state"] == MISSING
    assert "not a git repository" in result["found"] and "clone the repository" in result["fix"]
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    assert run(check("DVC"), facts())["found"].endswith("1 stages")


def test_make_doctor_needs_no_environment() -> None:
    """Otherwise it would set up what failed to be set up."""
    command = ["make", "--dry-run", "--always-make", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "tasks.doctor" in done.stdout
    assert "pip" not in done.stdout


@pytest.mark.parametrize(
    ("device", "torch", "nvidia", "state", "words"),
    [
        ("auto", {}, False, OK, "the models run on the CPU"),
        ("cuda", {}, False, MISSING, "machine.device is cuda"),
        ("auto", {}, True, WARNING, "torch is built for the CPU alone"),
        ("cuda", {}, True, MISSING, "torch is built for the CPU alone"),
        ("auto", {"build": "CUDA 12.9"}, False, WARNING, "built for CUDA 12.9, but finds no GPU"),
        ("cuda", {"build": "CUDA 12.9"}, True, MISSING, "built for CUDA 12.9, but finds no GPU"),
        ("auto", {"build": "CUDA 12.9", "gpus": [GPU]}, True, OK, "a GPU (80 GB)"),
        ("auto", {"gpus": [GPU | {"failure": "no kernel image"}]}, True, MISSING, "a GPU (80 GB): no kernel image"),
        ("cpu", {"gpus": [GPU | {"failure": "no kernel image"}]}, True, OK, "not used"),
    ],
)
def test_gpu_and_build_of_torch(
    device: str, torch: dict[str, Any], nvidia: bool, state: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "DEVICES", tmp_path)
    if nvidia:
        (tmp_path / "nvidia0").touch()
    found = doctor.gpu(facts({"device": device}, **torch))
    assert found.state == state
    assert words in found.found
    assert bool(found.fix) == (state != OK)


@pytest.mark.parametrize(
    ("ready", "free", "state"),
    [(True, 50e9, OK), (True, 3e9, WARNING), (True, 0.1e9, MISSING), (False, 3e9, MISSING), (False, 7e9, WARNING)],
)
def test_a_nearly_full_disk(ready: bool, free: float, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    if ready:
        Path(".venv").mkdir()
        Path(".venv/.ready").touch()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100e9, 100e9 - free, free))
    assert doctor.disk(facts()).state == state
    assert [path.name for path in tmp_path.iterdir()] == ([".venv"] if ready else [])


def test_a_disk_that_takes_no_file_and_a_torch_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    given = facts()
    given.__dict__["torch"] = (None, "the process was ended by SIGILL")
    for name, state, words in (("disk", MISSING, "No space left"), ("torch", MISSING, "SIGILL"), ("GPU", WARNING, "")):
        result = run(check(name), given)
        assert result["state"] == state and words in result["found"]


@pytest.mark.parametrize(
    ("limit", "threads", "state"),
    [(None, 0, OK), (None, 9, WARNING), (2.0, 0, WARNING), (2.0, 2, OK), (8.0, 0, OK), (8.0, 6, WARNING)],
)
def test_threads_beyond_cores_or_limits(limit: float | None, threads: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr(machine, "core_limit", lambda: limit)
    assert doctor.cores(facts({"threads": threads})).state == state


def test_little_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "memory_limit", lambda: None)
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n")
    assert doctor.memory(facts()) == Finding(OK, "8.2 GB available")
    monkeypatch.setattr(machine, "memory_limit", lambda: 1 << 30)
    assert "limit is 1.1 GB" in doctor.memory(facts()).found
    assert doctor.memory(facts()).state == WARNING


def test_without_a_compiler_decoding_is_slower_or_not_as_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "probe", functools.cache(probe))  # each of its processes imports torch
    for settings, state in (({}, WARNING), ({"runtime": "native"}, MISSING), ({"dtype": "int8"}, MISSING)):
        result = run(check("compiler"), facts(settings))
        assert result["state"] == state
        assert "g++" in result["fix"] and "slower" in result["needed_for"]


def test_a_compiler_that_fails_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiler = tmp_path / "fails"
    compiler.write_text("#!/bin/sh\necho 'In file x' >&2; echo 'error: no header' >&2; exit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    found = doctor.compiler(facts())
    assert found.state == WARNING
    assert found.found.endswith("fails fails: error: no header")
    monkeypatch.delenv("CXX")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert doctor.compiler(facts()).found.endswith("builds the native runtime")
