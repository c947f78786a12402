"""The doctor on a machine where something is missing, taken, full or broken: it goes on, and says what for."""

from __future__ import annotations

import errno
import http.server
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import venv
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.doctor import cgroups, compiling, devices, libraries, ports, resources, software, toolchain
from tasks.doctor.__main__ import CHECKS, main
from tasks.doctor.facts import Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding, run
from tasks.doctor.probing import Answer, ProbeError, ask, probe

ROOT = Path(__file__).parents[2]
TORCH: dict[str, Any] = {
    "version": "2.13.0",
    "cuda": None,
    "hip": None,
    "vectors": "AVX2",
    "threads": 2,
    "driver": "",
    "gpus": [],
}


def facts(machine: dict[str, Any] | None = None, **torch: Any) -> Facts:
    """Facts with these settings, and with torch as described."""
    given = Facts()
    given.__dict__.update(machine=machine or {}, torch=Answer([{"value": TORCH | torch}]), install="install them")
    return given


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)


# The command


def test_each_check_prints_its_line_and_what_is_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        Check("one", "first things", lambda _: Finding(OK, "here")),
        Check("another", "second things", lambda _: Finding(WARNING, "odd", "look")),
    ]
    assert main([], checks) == 0
    table, last = capsys.readouterr().out.rsplit("\n\n", 1)
    first, second, needed, fix = table.splitlines()
    assert first.index("here") == second.index("odd") == needed.index("needed for: second") == fix.index("to do: look")
    assert last == "everything that make repro needs is there; warnings: another\n"


def test_something_missing_is_status_1_and_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("a", "x", lambda _: Finding(MISSING, "gone", "get it"), required=True), check("make")]
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
    assert (result.state, result.found) == (state, "not checked: ZeroDivisionError: one and another line")
    assert result.needed_for
    assert result.fix


def test_wrong_use_is_status_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--nothing"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "root folder of the repository" in capsys.readouterr().err


def test_it_starts_without_any_package(tmp_path: Path) -> None:
    """In a Python that has the standard library alone, as where the set-up failed; no check fails by a mistake of its own."""
    venv.create(tmp_path / "bare")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(tmp_path / "bare" / "bin" / "python"), "-m", "tasks.doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert {"torch", "libraries", "DeepSpeed", "DVC"} <= set(said["missing"])
    assert [one["found"] for one in said["checks"] if "not checked" in one["found"]] == []
    assert all(one["fix"] and one["needed_for"] for one in said["checks"] if one["state"] != OK)


# Packages


def test_a_broken_package_is_named_with_its_exception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("raise OSError('libwrong.so: cannot open')")
    (tmp_path / "crashes.py").write_text("import os, signal; print('hello'); os.kill(os.getpid(), signal.SIGILL)")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    failures = libraries.import_failures(["json", "raises", "crashes", "leaves", "no_such_package", "csv"])
    assert set(failures) == {"raises", "crashes", "leaves", "no_such_package"}
    assert failures["raises"] == "OSError: libwrong.so: cannot open"
    assert failures["crashes"] == "the process was ended by SIGILL"
    assert failures["no_such_package"].startswith("ModuleNotFoundError")


def test_a_broken_deepspeed_is_missing_and_a_broken_mlflow_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("deepspeed", "mlflow"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('half\\ninstalled')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    given = facts()
    given.__dict__["in_environment"] = True
    result = run(check("DeepSpeed"), given)
    assert (result.state, result.found) == (MISSING, "RuntimeError: half installed")
    assert "remove .venv and run make setup" in result.fix
    assert given.repair("ModuleNotFoundError: no") == "install them"
    result = run(check("MLflow"), facts())
    assert (result.state, result.found) == (WARNING, "cannot be imported: RuntimeError: half installed")


def test_a_package_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = probe("imports", "json", "hangs", seconds=2)
    assert (len(answer.values), answer.failure) == (1, "no answer within 2 s")
    with pytest.raises(ProbeError, match="KeyError"):
        ask("no-such-probe")


def test_the_dependencies_are_those_of_the_project_and_deepspeed_trains() -> None:
    for name in ("libraries", "DeepSpeed"):
        result = run(check(name), facts({"device": "cpu"}))
        assert result.state == OK, result.found


def test_versions_that_differ_from_the_lock_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    installed = {"torch": "2.13.0+cpu", "pydantic-core": "2.50.3", "broken": None}

    def version(name: str) -> str | None:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    Path("requirements.lock").write_text("# by uv\ntorch==2.13.0\n")
    assert software.versions(facts()).state == OK
    Path("requirements.lock").write_text("torch==2.13.0\npydantic-core==2.50.4\nabsent==1\nbroken==2\n")
    found = software.versions(facts())
    assert found.state == WARNING
    assert "2 of 4 differ: pydantic-core 2.50.3 (locked: 2.50.4), broken unknown (locked: 2)" in found.found
    assert "1 of 4 not installed: absent" in found.found


@pytest.mark.parametrize(("version", "state"), [((3, 10), MISSING), ((3, 11), OK), ((3, 12), MISSING)])
def test_python_against_the_project(version: tuple[int, int], state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    assert software.python(facts()).state == state


def test_an_environment_that_is_not_finished_or_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("requirements.lock").touch()
    assert "has not been run" in software.environment(Facts()).found
    Path(".venv/bin").mkdir(parents=True)
    assert "was not finished" in software.environment(Facts()).found
    Path(".venv/.ready").touch()
    assert software.environment(Facts()).state == MISSING  # its Python was removed
    Path(".venv/bin/python").symlink_to(sys.executable)
    assert "is not the Python of .venv" in software.environment(Facts()).found
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert software.environment(Facts()).state == OK


@pytest.mark.parametrize(("name", "state"), [("make", MISSING), ("git", WARNING)])
def test_a_program_that_is_not_on_the_path(name: str, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(check(name), facts()).state == state


def test_a_folder_that_git_did_not_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tasks/doctor", tmp_path / "tasks/doctor")  # which the child imports from the working directory
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages: {one: {cmd: 'true'}}")
    monkeypatch.chdir(tmp_path)
    for name in ("git", "DVC"):
        result = run(check(name), facts())
        assert result.state == check(name).absent
        assert "not a git repository" in result.found
        assert "git" in result.fix
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    assert "at commit" in run(check("git"), facts()).found
    assert run(check("DVC"), facts()).found.endswith("1 stages")


# The compiler


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "draftline"


def test_the_compiler_of_the_native_runtime_builds_a_program(cache: Path) -> None:
    given = facts()
    found = toolchain.compiler(given)
    assert given.compiled.folder == cache
    assert found.state == OK, found.found
    assert "-march=native" in found.found or "-mcpu=native" in found.found
    assert "float32 numbers a vector; torch uses AVX2" in toolchain.instruction_sets(given).found
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("machine", "state"), [({}, WARNING), ({"runtime": "native"}, MISSING), ({"dtype": "int8"}, MISSING)], ids=str
)
def test_without_a_compiler_decoding_is_slower_or_what_params_ask_for_is_missing(
    machine: dict[str, Any], state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = facts(machine)
    result = run(check("compiler"), given)
    assert result.state == state
    assert "g++" in result.fix
    assert "slower" in result.needed_for
    assert toolchain.instruction_sets(given).found == "torch uses AVX2; the native runtime was not built"


def write_compiler(path: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def test_a_compiler_that_fails_or_builds_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_compiler(tmp_path / "fails", "echo 'In file x' >&2; echo 'error: no header' >&2; exit 1", monkeypatch)
    found = toolchain.compiler(facts())
    assert found.state == WARNING
    assert found.found.endswith("fails fails: error: no header")
    odd = 'case "$*" in *--version*) exit;; esac; for last; do :; done; echo "no library" > "$last"'
    write_compiler(tmp_path / "odd", odd, monkeypatch)
    assert "builds what cannot be loaded: OSError" in toolchain.compiler(facts()).found
    (tmp_path / "odd").write_bytes(b"\0\0")
    found = toolchain.compiler(facts({"runtime": "native"}))
    assert (found.state, "fails: [Errno" in found.found) == (MISSING, True)


def test_a_compiler_without_openmp_or_without_this_processor(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = shutil.which("c++")
    write_compiler(tmp_path / "serial", f'case "$*" in *-fopenmp*) exit 1;; esac; exec {real} "$@"', monkeypatch)
    assert "without OpenMP" in toolchain.compiler(facts()).found
    write_compiler(tmp_path / "plain", f'case "$*" in *=native*) exit 1;; esac; exec {real} "$@"', monkeypatch)
    assert "no processor in particular" in toolchain.compiler(facts()).found


def test_a_cache_from_which_nothing_can_be_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one on a disk that is mounted noexec."""
    real = probe

    def refusing(name: str, path: str) -> Answer:
        return Answer([], "OSError: failed to map segment") if Path(path).is_relative_to(cache) else real(name, path)

    monkeypatch.setattr(compiling, "probe", refusing)
    found = toolchain.compiler(facts())
    assert found.state == WARNING
    assert f"compiles anew, as nothing can be loaded from {cache}: OSError: failed to map" in found.found


# Devices

GPU = {"name": "a GPU", "bytes": 80e9, "failure": ""}


@pytest.mark.parametrize(
    ("device", "torch", "nvidia", "state", "words"),
    [
        ("auto", {}, False, OK, "the models run on the CPU"),
        ("cuda", {}, False, MISSING, "machine.device is cuda"),
        ("auto", {}, True, WARNING, "torch is built for the CPU alone"),
        ("cuda", {}, True, MISSING, "torch is built for the CPU alone"),
        ("auto", {"cuda": "12.9", "driver": "no driver"}, False, WARNING, "built for CUDA 12.9, but finds no GPU (no driver)"),
        ("cuda", {"cuda": "12.9", "driver": "no driver"}, True, MISSING, "built for CUDA 12.9, but finds no GPU (no driver)"),
        ("auto", {"cuda": "12.9", "gpus": [GPU]}, True, OK, "a GPU (80 GB)"),
        ("cpu", {"cuda": "12.9", "gpus": [GPU]}, True, OK, "not used"),
        ("auto", {"cuda": "12.9", "gpus": [GPU | {"failure": "no kernel image"}]}, True, MISSING, "a GPU: no kernel image"),
        ("cpu", {"cuda": "12.9", "gpus": [GPU | {"failure": "no kernel image"}]}, True, OK, "not used"),
    ],
)
def test_gpu_and_build_of_torch(
    device: str, torch: dict[str, Any], nvidia: bool, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "nvidia_devices", lambda: nvidia)
    found = devices.gpu(facts({"device": device}, **torch))
    assert found.state == state
    assert words in found.found
    assert bool(found.fix) == (state != OK)


def test_nvidia_devices_without_a_driver(tmp_path: Path) -> None:
    (tmp_path / "0000:00:01.0").mkdir()
    (tmp_path / "0000:00:01.0" / "vendor").write_text("0x1af4\n")
    assert not devices.nvidia_devices(tmp_path, tmp_path)
    (tmp_path / "0000:00:02.0").mkdir()
    (tmp_path / "0000:00:02.0" / "vendor").write_text("0x10de\n")
    assert devices.nvidia_devices(tmp_path, tmp_path)


def test_torch_that_does_not_start() -> None:
    given = facts()
    given.__dict__["torch"] = Answer([], "the process was ended by SIGILL")
    assert run(check("torch"), given).state == MISSING
    assert run(check("GPU"), given).state == WARNING


def test_hosts_need_their_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert devices.hosts(facts()).state == OK
    hostfile = tmp_path / "hosts"
    given = facts({"hostfile": str(hostfile)})
    assert "no hostfile" in devices.hosts(given).found
    hostfile.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (devices.hosts(given).state, devices.hosts(given).found) == (MISSING, "ssh and pdsh not on PATH")


# Resources

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("ready", "free", "state"),
    [(True, 50e9, OK), (True, 3e9, WARNING), (True, 0.1e9, MISSING), (False, 3e9, MISSING), (False, 7e9, WARNING)],
)
def test_a_disk_that_is_nearly_full(
    ready: bool, free: float, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if ready:
        Path(".venv").mkdir()
        Path(".venv/.ready").touch()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100e9, 100e9 - free, free))
    assert resources.disk(facts()).state == state
    assert [path.name for path in tmp_path.iterdir()] == ([".venv"] if ready else [])


def test_a_disk_that_takes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run(check("disk"), facts())
    assert (result.state, result.found) == (MISSING, "a file cannot be written here: No space left on device")


@pytest.mark.parametrize(
    ("limit", "threads", "state"), [(None, 0, OK), (None, 9, WARNING), (2.0, 0, WARNING), (2.0, 2, OK), (8.0, 0, OK)]
)
def test_cores_beyond_the_limit_of_a_container(
    limit: float | None, threads: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr(cgroups, "core_limit", lambda: limit)
    assert resources.cores(facts({"threads": threads})).state == state


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_available", lambda: 8e9)
    monkeypatch.setattr(cgroups, "memory_limit", lambda: None)
    assert resources.memory(facts()).state == OK
    monkeypatch.setattr(cgroups, "memory_limit", lambda: 1 << 30)
    assert "limit is 1.1 GB" in resources.memory(facts()).found
    assert resources.memory(facts()).state == WARNING


def test_limits_of_control_groups(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    group = root / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    assert cgroups.core_limit(root, own) is cgroups.memory_limit(root, own) is None
    (group / "cpu.max").write_text("max 100000\n")
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    (group / "memory.max").write_text("max\n")
    (root / "a" / "memory.max").write_text("1000\n")
    assert (cgroups.core_limit(root, own), cgroups.memory_limit(root, own)) == (1.5, 1000)
    for controller, files in {
        "cpu": {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
        "memory": {"memory.limit_in_bytes": "2000"},
    }.items():
        (root / controller).mkdir()
        for name, text in files.items():
            (root / controller / name).write_text(text)
    own.write_text("3:cpu,cpuacct:/of/the/host\n2:memory:/of/the/host\n")
    assert (cgroups.core_limit(root, own), cgroups.memory_limit(root, own)) == (3.0, 2000)
    (root / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    (root / "memory" / "memory.limit_in_bytes").write_text(str((1 << 63) - 4096))
    assert cgroups.core_limit(root, own) is cgroups.memory_limit(root, own) is None


# Ports


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_port_that_is_taken_and_one_that_is_free(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port = listener.getsockname()[1]
    monkeypatch.setattr(ports, "_SECONDS", 0.2)
    monkeypatch.setenv("PORT", str(port))
    result = run(check("port of make ui"), facts())
    assert (result.state, result.found) == (WARNING, f"{port}: another program listens on it")
    other = re.search(r"make ui PORT=(\d+)", result.fix)
    assert other is not None
    assert ports.taken(int(other[1])) == ""
    monkeypatch.setattr(ports, "PREFECT_PORT", port)
    assert ports.prefect(facts()).found == f"{port}: another program listens on it; flows take another port"
    listener.close()
    assert run(check("port of make ui"), facts()).found == f"{port} is free"


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html><title>MLflow</title></html>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_port_on_which_mlflow_runs_already(monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PORT", str(server.server_port))
        found = ports.make_ui(facts())
        server.shutdown()
    assert found.state == OK
    assert "MLflow answers" in found.found


def test_the_ports_are_those_that_make_and_the_flows_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORT", raising=False)
    assert f"PORT ?= {ports.ui_port()}" in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    flows = (ROOT / "flows/server.py").read_text(encoding="utf-8")
    assert f"_USUAL_PORT = {ports.PREFECT_PORT}" in flows.splitlines()
    monkeypatch.setenv("PORT", "70000")
    assert "PORT is '70000', which is no port" in run(check("port of make ui"), facts()).found


def test_make_doctor_needs_no_environment() -> None:
    """Otherwise it would set up what failed to be set up."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "doctor"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "tasks.doctor" in done.stdout
    assert "pip" not in done.stdout
