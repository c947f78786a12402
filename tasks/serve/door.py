"""The door of a server: who may come in, how long a client may take to ask, and the number of each request."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tasks.console import log
from tasks.serve.protocol import error_body

KEY_VARIABLE = "DRAFTLINE_API_KEY"
"""The environment variable that holds the key; a command line can be read by every user of the machine."""


class Door:
    """An ASGI application around another one: it asks for the key, and numbers each request for its answer and the log."""

    def __init__(self, app: ASGIApp, key: str, refused: Callable[[int, str], dict[str, Any]]) -> None:
        """Take what to guard.

        Args:
            app: Answers those who come in.
            key: That clients of `/v1` have to send as `Authorization: Bearer KEY`; empty: everyone comes in.
            refused: Counts a refusal, and returns its body, of a status and a reason.
        """
        self._app, self._key, self._refused = app, f"Bearer {key}".encode() if key else b"", refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number, begun, status = uuid.uuid4().hex, time.perf_counter(), 0

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", number.encode())]
            await send(message)

        scope.setdefault("state", {})["number"] = number
        app, sent = self._app, dict(scope["headers"]).get(b"authorization", b"")
        if self._key and scope["path"].startswith("/v1/") and not hmac.compare_digest(sent, self._key):
            body = self._refused(401, "the key is missing or wrong; send it as Authorization: Bearer KEY")
            app = JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})
        try:
            await app(scope, receive, numbered)
        finally:
            said = "request %s: %s %s, status %d after %.1f ms"
            seconds = time.perf_counter() - begun
            (log.warning if status >= 500 else log.debug)(said, number, scope["method"], scope["path"], status, 1000 * seconds)


class PatientProtocol(H11Protocol):
    """Closes a connection whose request line and headers do not arrive in time; uvicorn itself waits for ever."""

    patience = 30.0
    """Seconds from the connection, or from the first byte of a later request on it, to the last header."""
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows it too
        """Begin to wait."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait no longer once a request is whole; begin again with the first byte of the next one."""
        if self._late is None and not self._is_answering:
            self._wait()
        super().data_received(data)
        if self._is_answering:
            self._end_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._end_wait()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP in the form of every other refusal."""
        body = json.dumps(error_body(f"{msg.rstrip('.')}: this is no HTTP/1.1", "invalid_request_error")).encode()
        head = [
            "HTTP/1.1 400 Bad Request",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.patience, self.transport.close)

    def _end_wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
