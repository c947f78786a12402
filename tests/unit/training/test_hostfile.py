"""A hostfile is read as a whole, and its hosts are reached, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.errors import InputError
from tasks.training.hostfile import is_local, reach, read_hostfile
from tests.commands import stand_in


def hostfile(folder: Path, text: str) -> Path:
    path = folder / "hosts.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_hostfile_gives_the_processes_of_each_host(tmp_path: Path) -> None:
    path = hostfile(tmp_path, "# ours\n\nnode1 slots=2\nme@10.0.0.2   slots=4\n")
    assert list(read_hostfile(path).items()) == [("node1", 2), ("me@10.0.0.2", 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# none\n", r"hosts\.txt names no host"),
        ("node1 slots=2\nnode2\n", r"hosts\.txt, line 2: 'node2' is not `host slots=N`"),
        ("node1 slots=0\n", r"hosts\.txt, line 1: 'node1 slots=0' is not"),
        ("\nnode1 slot=2\n", r"hosts\.txt, line 2: 'node1 slot=2' is not"),
        ("-oProxyCommand=x slots=1\n", r"hosts\.txt, line 1: '-oProxyCommand=x slots=1' is not"),
        ("me@node1 slots=2\nnode1 slots=2\n", r"hosts\.txt, line 2: node1 is already on line 1"),
        ("localhost slots=1\n127.0.0.1 slots=1\n", r"hosts\.txt, line 2: 127.0.0.1 is already on line 1"),
        (f"node1 slots={'9' * 5000}\n", r"hosts\.txt, line 1: 'node1 slots=9+' is not"),
        ("node2 slots=1\nlocalhost slots=1\n", r"hosts\.txt names the loopback address and other hosts"),
    ],
)
def test_a_hostfile_of_another_form_is_refused_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_hostfile(hostfile(tmp_path, text))


def test_a_missing_hostfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt cannot be read: No such file or directory"):
        read_hostfile(tmp_path / "nowhere.txt")


def test_this_machine_is_known_by_its_names() -> None:
    assert is_local("localhost")
    assert is_local("127.0.0.1")
    assert not is_local("node1")
    assert not is_local("me@localhost"), "another user's session is not this one's"


SSH = 'while [ "$#" -gt 2 ]; do shift; done; host=$1; line=$2\n'


def test_hosts_that_answer_give_a_free_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, ssh=SSH + 'exec sh -c "$line"', pdsh="")
    assert 1024 <= reach(["one", "two"], tmp_path) < 65536


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            '[ "$host" = one ] && exec sh -c "$line"; echo "ssh: no route" >&2; exit 255',
            r"two cannot be used \(ssh: no route\)",
        ),
        ("exit 255", r"one cannot be used \(no reason given\); `ssh one true` must work"),
        ("exit 1", r"one cannot be used.* must be at the same path there"),
        ("exit 0", "one cannot be used"),
    ],
)
def test_a_host_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    stand_in(tmp_path, monkeypatch, ssh=SSH + script, pdsh="")
    with pytest.raises(InputError, match=f"the host {message}"):
        reach(["one", "two"], tmp_path)


@pytest.mark.parametrize("missing", ["ssh", "pdsh"])
def test_a_program_that_is_missing_is_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, **{name: "" for name in ("ssh", "pdsh") if name != missing})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(InputError, match=f"needs {missing}, which is not on PATH"):
        reach(["one"], tmp_path)
