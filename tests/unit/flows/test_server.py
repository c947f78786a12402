"""The lock file that names its owner, and the Prefect server that a flow starts, keeps or finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows import server
from flows.server import AlreadyLockedError, lock_file, prefect_server
from tasks import supervisor
from tasks.errors import InputError
from tests.served import until

ROOT = Path(__file__).parents[3]


def test_a_second_owner_is_refused_with_the_note_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "held"
    with lock_file(path):
        path.write_text("run 1")
        with pytest.raises(AlreadyLockedError, match=r"^run 1$"), lock_file(path):
            pass
    with pytest.raises(KeyError), lock_file(path) as stale:
        assert stale == ""
        path.write_text("run 2")
        raise KeyError
    with lock_file(path) as stale:
        assert stale == "", "an error releases the file"


def test_the_note_of_a_killed_owner_is_found(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from flows.server import lock_file\n"
        "with lock_file(path := Path(sys.argv[1])):\n    path.write_text('run 1'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "held")], cwd=ROOT)
    with lock_file(tmp_path / "held") as stale:
        assert stale == "run 1"


def test_a_killed_server_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, log: Path) -> subprocess.Popen[bytes]:
        started.append(supervisor.start(["sleep", "300"]))
        return started[-1]

    monkeypatch.setattr(server, "_start_server", start)
    monkeypatch.setattr(server, "is_up", lambda url: True)
    with server._own_server(tmp_path / "log"):
        started[0].kill()
        until("another server", lambda: len(started) == 2)
        assert started[1].poll() is None
    assert all(process.poll() is not None for process in started)
    assert len(started) == 2
    assert "the Prefect server ended with status -9; starting it again\n" in capsys.readouterr().err


def test_a_server_that_does_not_start_is_named_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_start_server", lambda *_: supervisor.start([sys.executable, "-c", "raise SystemExit(3)"]))
    with pytest.raises(InputError, match=r"did not start within .* its log is .*/log"), server._own_server(tmp_path / "log"):
        pass


def test_a_second_serving_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with lock_file(tmp_path / "served"):
        (tmp_path / "served").write_text("http://127.0.0.1:1/api")
        with pytest.raises(InputError, match=r"already served from .* at http://127.0.0.1:1/"), prefect_server(announce=True):
            pass


def test_a_flow_reports_to_the_server_that_another_process_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setattr(server, "is_up", lambda url: True)
    with lock_file(tmp_path / "served"):
        (tmp_path / "served").write_text("http://127.0.0.1:1/api")
        with prefect_server() as url:
            assert url == os.environ["PREFECT_API_URL"] == "http://127.0.0.1:1/api"
    assert "PREFECT_API_URL" not in os.environ


def test_a_configured_server_that_does_not_answer_is_named() -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    silent = {PREFECT_API_URL: "http://127.0.0.1:1/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(silent), pytest.raises(InputError, match="no Prefect server answers at"), prefect_server():
        pass


@pytest.mark.parametrize("kept", [{}, {"PREFECT_HOME": "elsewhere", "DO_NOT_TRACK": "0"}])
def test_prefect_keeps_its_files_inside_the_project_unless_told_otherwise(tmp_path: Path, kept: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    code = "import os, flows; print(os.environ['PREFECT_HOME'], os.environ['DO_NOT_TRACK'])"
    variables = environment | {"PYTHONPATH": str(ROOT)} | kept
    variables = variables if "DO_NOT_TRACK" in kept else {n: v for n, v in variables.items() if n != "DO_NOT_TRACK"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    expected = kept or {"PREFECT_HOME": str(tmp_path / ".cache" / "prefect"), "DO_NOT_TRACK": "1"}
    assert ran.stdout.split() == [expected["PREFECT_HOME"], expected["DO_NOT_TRACK"]]
    assert (tmp_path / ".cache").exists() is not bool(kept)
