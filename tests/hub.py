"""A stand-in of the Hugging Face Hub on loopback: data sets with several commits, for the hub's own client and `datasets`."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Commit = dict[str, bytes]
"""The files of a commit, by path."""


def commit_of(files: Commit) -> str:
    """The name of a commit: 40 hexadecimal digits, as git gives."""
    return hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()


class Hub:
    """Data sets by name; the branch `main` of each is the last of its commits."""

    def __init__(self) -> None:
        self.branches: dict[str, str] = {}
        """Further names of revisions, for all data sets."""
        self.breaks_off = False
        """Whether requests for data sets are answered by closing the connection."""
        self.commits: dict[str, list[Commit]] = {}
        self.requests: list[str] = []

    def add(self, name: str, files: Commit) -> str:
        """Add a commit to a data set and return its name."""
        self.commits.setdefault(name, []).append(files)
        return commit_of(files)

    def commit(self, name: str, revision: str) -> Commit | None:
        """The commit of a revision; None if there is no such data set or revision."""
        commits, revision = self.commits.get(name, []), self.branches.get(revision, revision)
        if revision == "main":
            return commits[-1] if commits else None
        return next((files for files in commits if commit_of(files) == revision), None)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *arguments: Any) -> None:
        """Keep the output of tests clean."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(json.loads(body) if body.startswith(b"{") else {})

    def _answer(self, body: dict[str, Any] | None = None) -> None:
        # The client quotes the slashes of a branch.
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.hub.requests.append(f"{self.command} {'/'.join(parts)}")
        if parts == [""]:
            self._send(200, b"")
        elif self.hub.breaks_off:
            self.close_connection = True
        elif parts[:2] == ["api", "datasets"]:
            action, revision, *path = parts[4:] or ["revision", "main"]
            self._api("/".join(parts[2:4]), action, revision, "/".join(path), body or {})
        elif parts[0] == "datasets" and parts[3:4] == ["resolve"]:
            self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        else:
            self._send(404, b"")

    def _api(self, name: str, action: str, revision: str, path: str, body: dict[str, Any]) -> None:
        files = self.hub.commit(name, revision)
        if files is None:
            missing = "RevisionNotFound" if name in self.hub.commits else "RepoNotFound"
            self._send(404, b"", {"X-Error-Code": missing})
            return
        if action == "revision":
            found = {"id": name, "sha": commit_of(files), "siblings": [{"rfilename": file} for file in files]}
            self._send(200, json.dumps(found).encode())
            return
        wanted = body.get("paths")
        entries = [entry for entry in _tree(files) if wanted is None or entry["path"] in wanted]
        if wanted is None and path:
            entries = [entry for entry in entries if entry["path"].startswith(f"{path}/")]
        if entries or wanted is not None:
            self._send(200, json.dumps(entries).encode())
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _file(self, name: str, revision: str, path: str) -> None:
        files = self.hub.commit(name, revision)
        if files is None or path not in files:
            missing = "EntryNotFound" if files else "RepoNotFound"
            headers = {"X-Error-Code": missing} | ({"X-Repo-Commit": commit_of(files)} if files else {})
            self._send(404, b"", headers)
            return
        content = files[path]
        etag = hashlib.sha256(content).hexdigest()
        self._send(200, content, {"X-Repo-Commit": commit_of(files), "ETag": f'"{etag}"'})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for header, value in (headers or {}).items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _tree(files: Commit) -> list[dict[str, Any]]:
    folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    entries: list[dict[str, Any]] = [{"type": "directory", "path": folder, "oid": "0" * 40} for folder in sorted(folders)]
    for path, content in files.items():
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        entries.append({"type": "file", "path": path, "size": len(content), "oid": oid})
    return entries


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serve the hub on loopback; yields its address, which `HF_ENDPOINT` takes."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
