"""Keys, numbers of requests, and clients that take too long to ask."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from fastapi.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.decoding import DecodingPair
from tasks.serve.api import Completions
from tasks.serve.door import Door, PatientProtocol
from tasks.serve.scheduler import ServerSettings
from tests.unit.serve.conftest import HeldEngine, app_of, held_encoding

ASKED = {"prompt": "a text"}
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


def echo(pair: DecodingPair, key: str = "", patience: float = 30.0) -> Door:
    """The application of a server that gives each text back."""
    engine = HeldEngine()
    engine.released.set()
    return app_of(pair, engine, ServerSettings(patience=patience), key=key)


def test_without_the_key_nobody_is_answered(pair: DecodingPair) -> None:
    with TestClient(echo(pair, "planted")) as client:
        for sent in ({}, {"Authorization": "Bearer plante"}, {"Authorization": "planted"}):
            refused = client.post("/v1/completions", json=ASKED, headers=sent)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert refused.json()["error"]["type"] == "authentication_error"
            assert "planted" not in refused.text
        assert client.get("/v1/models").status_code == 401
        known = {"Authorization": "Bearer planted"}
        assert client.post("/v1/completions", json=ASKED, headers=known).status_code == 200
        assert client.get("/health").status_code == 200
        assert 'requests_refused_total{status="401"} 4.0' in client.get("/metrics").text


def test_a_request_has_one_number_in_answer_header_and_log(
    pair: DecodingPair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.DEBUG, "draftline"), TestClient(echo(pair), raise_server_exceptions=False) as client:
        answers = [client.post("/v1/completions", json={**ASKED, "stream": stream}) for stream in (False, True)]
        monkeypatch.setattr(Completions, "_parsed", lambda *_: 1 / 0)
        broken = client.post("/v1/completions", json=ASKED)
    whole, streamed = answers
    assert whole.json()["id"] == f"cmpl-{whole.headers['x-request-id']}"
    assert json.loads(streamed.text.split("\n")[0].removeprefix("data: "))["id"] == f"cmpl-{streamed.headers['x-request-id']}"
    assert len({answer.headers["x-request-id"] for answer in answers}) == 2
    lines = [(one.levelname, one.getMessage()) for one in caplog.records if one.getMessage().startswith("request ")]
    for answer, (level, line) in zip(answers, lines, strict=False):
        assert level == "DEBUG"
        assert line.startswith(f"request {answer.headers['x-request-id']}: POST /v1/completions, status 200 after ")
    assert (broken.status_code, broken.json()["error"]["type"]) == (500, "server_error")
    assert "division" not in broken.text
    assert lines[-1][0] == "WARNING" and ": POST /v1/completions, status 500 after " in lines[-1][1]


def served(app: ASGIApp, client: Client, patience: float = 30.0) -> bytes:
    """What a client on a connection of its own reads from a server."""

    async def run() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            config = uvicorn.Config(app, http=PatientProtocol, log_level="warning", access_log=False)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[bound]))
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            try:
                return await client(reader, writer)
            finally:
                writer.close()
                server.should_exit = True
                await serving

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PatientProtocol, "patience", patience)
        return asyncio.run(run())


HEALTH = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.mark.parametrize("begun", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nX-Slow:"])
@pytest.mark.parametrize("answered", [False, True])
def test_a_client_that_never_ends_its_headers_is_let_go(pair: DecodingPair, begun: bytes, answered: bool) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        if answered:
            writer.write(HEALTH)
            await reader.readuntil(b'"ok"}')
        writer.write(begun)
        return await reader.read()

    assert served(echo(pair), client, patience=0.1) == b""


def test_a_body_that_does_not_arrive_is_408(pair: DecodingPair) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{")
        return await reader.readuntil(b"at once")

    answer = served(echo(pair, patience=0.1), client)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"the body did not arrive within 0.1 s" in answer


def test_what_is_no_http_is_refused_like_all_else(pair: DecodingPair) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"\x16\x03\x01 this is TLS\r\n\r\n")
        return await reader.read()

    head, _, body = served(echo(pair), client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_an_answer_may_take_longer_than_the_question() -> None:
    async def late(_scope: Scope, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"late"})

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEALTH)
        return await reader.readuntil(b"late")

    assert served(late, client, patience=0.1).endswith(b"late")


def test_a_half_closed_client_is_let_go_in_silence(pair: DecodingPair, caplog: pytest.LogCaptureFixture) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        logging.getLogger("uvicorn.error").addHandler(caplog.handler)  # it does not pass records on
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{")
        writer.write_eof()
        return await reader.read()

    try:
        served(echo(pair), client)
    finally:
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert not [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]


def test_others_are_answered_while_a_long_text_is_encoded(pair: DecodingPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding happens off the event loop: here it waits until somebody else had an answer."""
    begun, answered = held_encoding(monkeypatch)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        body = json.dumps(ASKED).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.to_thread(begun.wait, 60)
        further, writing = await asyncio.open_connection(*writer.get_extra_info("peername"))
        writing.write(HEALTH)
        await further.readuntil(b'"ok"}')
        answered.set()
        writing.close()
        return await reader.readuntil(b"encoded at last")

    assert served(echo(pair), client).startswith(b"HTTP/1.1 400 ")
