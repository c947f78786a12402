"""Servers on loopback, each ended with its block: PostgreSQL, an S3-compatible store, MLflow and Prefect."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil

from tasks import supervisor
from tests.served import PATIENCE, until

HOST = "127.0.0.1"
_DEBIAN = Path("/usr/lib/postgresql")
_PROGRAMS = os.pathsep.join([*map(str, sorted(_DEBIAN.glob("*/bin"), reverse=True)), os.environ.get("PATH", os.defpath)])
"""Debian keeps the programs of PostgreSQL's server outside PATH."""
INITDB, POSTGRES = (shutil.which(name, path=_PROGRAMS) for name in ("initdb", "postgres"))
NO_POSTGRES = "PostgreSQL is not installed (Debian, Ubuntu: apt install postgresql)"
_USER, _PASSWORD = "draftline", "a secret of the test"
S3_VARIABLES = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def free_port() -> int:
    """Return a port of loopback that no process has."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a server answers at an address, even if only with an error."""
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 (loopback)
            return True
    except HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def service(
    command: Sequence[str], health: str, log: Path, variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server during the block, which begins when `health`, an address, answers."""
    environment = os.environ | dict(variables or {})
    with (
        log.open("ab") as output,
        supervisor.running(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        until(health, lambda: process.poll() is not None or answers(health))
        assert process.poll() is None, log.read_text(errors="replace")
        yield process


@contextlib.contextmanager
def mlflow_server(
    folder: Path, store: str, artifacts: str, port: int, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run MLflow's server, which hands artifacts on to their store, and yield its address."""
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store, "--artifacts-destination", artifacts]
    with service(command, f"{url}/health", folder / "mlflow.log", variables, folder):
        yield url


@contextlib.contextmanager
def prefect_server(folder: Path, variables: Mapping[str, str], port: int) -> Iterator[str]:
    """Run Prefect's server and yield the address of its API."""
    url = f"http://{HOST}:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    with service(command, f"{url}/health", folder / "prefect-server.log", variables, folder):
        yield url


@contextlib.contextmanager
def s3_store(folder: Path, *buckets: str) -> Iterator[str]:
    """Run a store that speaks S3, holds objects in memory and has these buckets; yield its address."""
    import boto3

    port = free_port()
    url = f"http://{HOST}:{port}"
    with service([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], url, folder / "s3.log"):
        client = boto3.client(
            "s3",
            endpoint_url=url,
            aws_access_key_id=S3_VARIABLES["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=S3_VARIABLES["AWS_SECRET_ACCESS_KEY"],
            region_name=S3_VARIABLES["AWS_DEFAULT_REGION"],
        )
        for bucket in buckets:
            client.create_bucket(Bucket=bucket)
        yield url


class Postgres:
    """A cluster of its own, with a password, on a free port. PostgreSQL refuses root, which runs it as the user `postgres`."""

    def __init__(self, folder: Path) -> None:
        """Make the cluster in a folder that its user may enter."""
        self.port, self._folder = free_port(), folder
        self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        password, passwords = folder / "password", folder / "passwords"
        password.write_text(_PASSWORD, encoding="utf-8")
        passwords.write_text(f"{HOST}:{self.port}:*:{_USER}:{_PASSWORD}\n", encoding="utf-8")
        passwords.chmod(0o600)
        self.variables = {"PGPASSFILE": str(passwords)}
        """For its clients: no command line shows the password."""
        if self._as_user:
            for path in (folder, password):
                shutil.chown(path, "postgres", "postgres")
        options = ["--username", _USER, "--pwfile", str(password), "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"]
        command = [*self._as_user, str(INITDB), "--pgdata", str(folder / "data"), *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str, driver: str = "postgresql") -> str:
        """Return the address of a database, for SQLAlchemy."""
        return f"{driver}://{_USER}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        settings = {"listen_addresses": HOST, "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*self._as_user, str(POSTGRES), "-D", str(self._folder / "data"), *options]
        with (self._folder / "log").open("ab") as output:
            process = supervisor.start(command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT)
        self._process = process
        until("PostgreSQL", lambda: process.poll() is not None or self._connects())
        assert process.poll() is None, (self._folder / "log").read_text()

    def create(self, database: str) -> None:
        with contextlib.closing(self._connect()) as connection:
            connection.autocommit = True
            connection.cursor().execute(f'CREATE DATABASE "{database}"')

    def kill(self) -> None:
        """End all processes of the server by SIGKILL."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not psutil.wait_procs(below, timeout=PATIENCE)[1]
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        if self._process is not None:
            supervisor.stop(self._process)

    def _connects(self) -> bool:
        import psycopg2

        with contextlib.suppress(psycopg2.OperationalError):
            self._connect().close()
            return True
        return False

    def _connect(self) -> Any:
        import psycopg2

        return psycopg2.connect(self.url("postgres"), password=_PASSWORD, connect_timeout=5)


@contextlib.contextmanager
def postgres(*databases: str) -> Iterator[Postgres]:
    """Run PostgreSQL with these databases during the block."""
    with tempfile.TemporaryDirectory(prefix="draftline-postgres-", dir=_shared_folder()) as folder:
        cluster = Postgres(Path(folder))
        try:
            cluster.start()
            for database in databases:
                cluster.create(database)
            yield cluster
        finally:
            cluster.stop()


def _shared_folder() -> Path:
    """Return the folder for temporary files, or the nearest above it that other users may enter: pytest's own are closed."""
    folder = Path(tempfile.gettempdir())
    return next(one for one in (folder, *folder.parents) if all(path.stat().st_mode & 1 for path in (one, *one.parents)))
