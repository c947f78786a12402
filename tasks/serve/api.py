"""The HTTP surface: completions and chats, whole or as a stream, with models, health and metrics.

Every refusal is a 4xx with its reason; a text that fails while it is decoded is a 500 with its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from tasks.decoding.inference import DecodingPair
from tasks.decoding.method import Request as DecodingRequest
from tasks.serve import protocol
from tasks.serve.door import Door
from tasks.serve.pacing import Engine
from tasks.serve.protocol import Form, NewText, RefusedError, cut
from tasks.serve.scheduler import Job, QueueFullError, Scheduler, ServerMetrics, ServerSettings, finish_reason

_FULL = "the queue is full; try again later"
_POLL = 0.05
"""Seconds between two looks at whether the client is still there."""


_Event = tuple[int, str, Any]
"""Position of a text in its request, what became of it (`grown`, `done` or `failed`), and with what."""


class _Texts:
    """The texts of one request: the jobs that the worker thread runs, and their events, which reach the event loop in order."""

    def __init__(
        self, pair: DecodingPair, rows: list[list[int]], decoding: DecodingRequest, asked: protocol.Asked, form: Form, name: str
    ) -> None:
        """Make a job of each row of token ids; its draws are those of its position where the request has a seed."""
        self.stops, self.form, self.name = asked.stops, form, name
        self._decode, self._streamed = pair.decode, asked.stream
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        numbered = asked.seed is not None and not decoding.sampling.greedy
        self.jobs = [
            Job(
                row,
                decoding,
                done=functools.partial(self._put, index, "done"),
                failed=functools.partial(self._put, index, "failed"),
                grown=functools.partial(self._grown, index) if asked.stream or self.stops else None,
                example=index if numbered else None,
            )
            for index, row in enumerate(rows)
        ]

    def _put(self, index: int, kind: str, *value: Any) -> None:
        """Hand an event of the worker thread to the event loop; a loop that has ended has no client either."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, kind, value))

    def _grown(self, index: int, tokens: list[int]) -> bool:
        """Hand on the first tokens of a text where it is streamed; returns whether a stop ends it there."""
        if self._streamed:
            self._put(index, "grown", tokens)
        return bool(self.stops) and cut(self._decode(tokens), self.stops)[1]

    async def next(self, seconds: float | None = None) -> _Event | None:
        """Return the next event; None if none comes within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._events.get()
        except TimeoutError:
            return None

    def cancel(self) -> None:
        """Tell the worker that nobody waits for these texts."""
        for job in self.jobs:
            job.cancelled.set()


@dataclass
class Completions:
    """Answers `/v1/completions` and `/v1/chat/completions`."""

    pair: DecodingPair
    engine: Engine
    scheduler: Scheduler
    metrics: ServerMetrics
    name: str
    limits: ServerSettings
    _encoding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _encoded: int = 0
    """Requests whose texts are encoded, or wait for that."""

    async def answer(self, request: Request, form: Form) -> Response:
        """Queue the texts of a request and answer with their outputs, or with a stream of them."""
        asked, text = self._parsed(await self._body(request), form), self.pair.manifest.text
        decoding = asked.decoding(min(text.max_target_tokens, self.limits.max_tokens))
        if self._encoded >= self.limits.max_queue:
            raise RefusedError(429, _FULL)
        self._encoded += 1
        try:
            async with self._encoding:  # a tokenizer serves one thread at a time, and the loop goes on meanwhile
                rows = await asyncio.to_thread(asked.rows, self.pair)
        finally:
            self._encoded -= 1
        texts = _Texts(self.pair, rows, decoding, asked, form, f"{form.prefix}{request.state.number}")
        try:
            self.scheduler.add(texts.jobs)
        except QueueFullError:
            raise RefusedError(429, _FULL) from None
        if asked.stream:
            return StreamingResponse(self._events(texts), media_type="text/event-stream")
        return await self._whole(request, texts)

    async def _body(self, request: Request) -> bytes:
        body, most, patience = bytearray(), self.limits.max_body, self.limits.patience
        try:
            async with asyncio.timeout(patience):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise RefusedError(413, f"the body has more than {most} bytes; send fewer or shorter prompts")
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {patience:g} s; send it at once") from None
        except ClientDisconnect:  # nobody reads the answer
            raise RefusedError(400, "the connection was closed before the whole body had arrived") from None
        return bytes(body)

    def _parsed(self, body: bytes, form: Form) -> protocol.CompletionRequest | protocol.ChatRequest:
        try:
            asked = form.request.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            # Of a field that may be a text or a list, the place also names the kind that was tried.
            place = ".".join(str(part) for part in first["loc"] if part not in ("str", "list[str]")) or "the body"
            raise RefusedError(400, f"{place}: {first['msg'].removeprefix('Value error, ')}", place) from None
        unsupported = asked.unsupported()
        if unsupported is not None:
            raise RefusedError(400, f"{unsupported} is not supported; leave it out", unsupported)
        if asked.model not in (None, self.name):
            raise RefusedError(404, f"there is no model {asked.model}; this server has {self.name}", "model")
        if len(asked.prompts) > self.limits.max_prompts:
            raise RefusedError(400, f"there are {len(asked.prompts)} prompts; at most {self.limits.max_prompts}", "prompt")
        if (asked.max_tokens or 0) > self.limits.max_tokens:
            raise RefusedError(400, f"max_tokens is {asked.max_tokens}; at most {self.limits.max_tokens}", "max_tokens")
        return asked

    async def _whole(self, request: Request, texts: _Texts) -> Response:
        choices: dict[int, dict[str, Any]] = {}
        tokens = 0
        while len(choices) < len(texts.jobs):
            event = await texts.next(_POLL)
            if event is None:
                if await request.is_disconnected():
                    self.metrics.aborted.inc(len(texts.jobs) - len(choices))
                    texts.cancel()
                    return Response(status_code=499)
                continue
            index, kind, value = event
            if kind == "failed":
                texts.cancel()
                return JSONResponse(_failure(*value), 500)
            generation, method = value
            text, stopped = cut(self.pair.decode(generation.tokens), texts.stops)
            reason = "stop" if stopped else finish_reason(generation, self.engine.ends)
            said = texts.form.choice(index, text, reason, streamed=False)
            choices[index] = {**said, "draftline": protocol.decoding_facts(generation, method)}
            tokens += len(generation.tokens)
        prompt = sum(len(job.row) for job in texts.jobs)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        found = [choices[index] for index in sorted(choices)]
        return JSONResponse(protocol.answer(texts.name, texts.form.whole, self.name, found, usage=usage))

    async def _events(self, texts: _Texts) -> AsyncIterator[str]:
        """Server-sent events: a piece of text for each turn, the reason with the last one, then `[DONE]`."""
        written = [NewText(self.pair.decode, texts.stops) for _ in texts.jobs]

        def event_of(index: int, piece: str, reason: str | None, **facts: object) -> str:
            said = texts.form.choice(index, piece, reason, streamed=True)
            return _event(protocol.answer(texts.name, texts.form.piece, self.name, [said | facts]))

        begun: set[int] = set()
        left = len(texts.jobs)
        try:
            while left and (event := await texts.next()) is not None:
                index, kind, value = event
                if kind == "failed":
                    yield _event(_failure(*value))
                    left -= 1
                    continue
                if index not in begun:
                    begun.add(index)
                    self.metrics.first_token.observe(time.perf_counter() - texts.jobs[index].arrived)
                if kind == "grown":
                    piece = written[index].of(*value)
                    if piece:
                        yield event_of(index, piece, None)
                        # Lets the loop see that a client has hung up, before more is written to its closed socket.
                        await asyncio.sleep(0)
                    continue
                generation, method = value
                piece = written[index].rest(generation.tokens)
                reason = "stop" if written[index].stopped else finish_reason(generation, self.engine.ends)
                yield event_of(index, piece, reason, draftline=protocol.decoding_facts(generation, method))
                left -= 1
            yield "data: [DONE]\n\n"
        finally:
            # Also where the client has hung up: the generator is closed then.
            self.metrics.aborted.inc(left)
            texts.cancel()


def _failure(error: Exception) -> dict[str, Any]:
    """What a client reads of a failure: our own words. Those of a library name its insides, and are in the log."""
    own = type(error).__module__.startswith("tasks.")
    said = str(error) if own else "this text could not be decoded; the server's log says why"
    return protocol.error_body(said, "server_error")


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


_KINDS = {401: "authentication_error", 429: "rate_limit_error"}
"""Kinds of errors that OpenAI's clients know, by status; others are the request's own fault."""


def create_app(completions: Completions, key: str = "") -> Door:
    """Return the application, which starts the scheduler of `completions` and stops it at its end.

    Args:
        completions: Answers.
        key: That clients of `/v1` have to send; empty: none.
    """
    scheduler, metrics, name = completions.scheduler, completions.metrics, completions.name

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        scheduler.start()
        yield
        await asyncio.to_thread(scheduler.stop)

    app = FastAPI(title="Draftline", lifespan=lifespan, docs_url=None, redoc_url=None)

    def refusal(status: int, message: str, param: str | None = None) -> dict[str, Any]:
        metrics.refused.labels(str(status)).inc()
        return protocol.error_body(message, _KINDS.get(status, "invalid_request_error"), param)

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.status == 429 else None
        return JSONResponse(refusal(error.status, str(error), error.param), error.status, headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse(protocol.error_body("the server failed; its log says why", "server_error"), 500)

    @app.exception_handler(404)
    async def unknown(request: Request, _: Exception) -> JSONResponse:
        routes = "/v1/completions, /v1/chat/completions, /v1/models, /health and /metrics"
        return JSONResponse(refusal(404, f"there is no {request.url.path}; this server has {routes}"), 404)

    @app.exception_handler(405)
    async def other_method(request: Request, error: HTTPException) -> JSONResponse:
        said = f"{request.url.path} does not take {request.method}; it takes {(error.headers or {}).get('Allow', 'another')}"
        return JSONResponse(refusal(405, said), 405, error.headers)

    # Plain routes: `Completions` checks the body itself, with the protocol's own errors.
    app.add_route("/v1/completions", functools.partial(completions.answer, form=protocol.COMPLETION), methods=["POST"])
    app.add_route("/v1/chat/completions", functools.partial(completions.answer, form=protocol.CHAT), methods=["POST"])

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        entry = {"id": name, "object": "model", "owned_by": "draftline", "operating_point": completions.engine.name}
        return {"object": "list", "data": [entry]}

    @app.get("/health")
    def health() -> JSONResponse:
        if scheduler.alive:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "the worker has ended; start the server anew"}, 503)

    @app.get("/metrics")
    def show_metrics() -> Response:
        metrics.paces(scheduler.paces())
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    return Door(app, key, refusal)
