"""The doctor on a machine where something is missing, taken, full or broken: it goes on, and says what for."""

from __future__ import annotations

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
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.doctor import libraries, ports, software
from tasks.doctor.__main__ import main
from tasks.doctor.facts import Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding, run
from tasks.doctor.probing import ProbeError, ask, probe
from tests.machine_facts import check, facts

ROOT = Path(__file__).parents[3]


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
