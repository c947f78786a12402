"""Answers of `/v1/completions`: from the body of a request to its outputs, whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from tasks.decoding.generation import Generation
from tasks.decoding.inference import DecodingPair
from tasks.decoding.method import Request as DecodingRequest
from tasks.serve.api import CompletionRequest, answer, choice, completion_id, decoding_facts, error_body, usage
from tasks.serve.executing import Engine
from tasks.serve.job import Job
from tasks.serve.metrics import ServerMetrics, finish_reason
from tasks.serve.scheduler import QueueFullError, Scheduler
from tasks.serve.text import NewText, TooLongError, encode_prompts

_POLL = 0.05
"""Seconds between two looks at whether the client is still there."""


@dataclass(frozen=True)
class Limits:
    """What a request may ask for."""

    max_body: int = 1 << 20
    """Bytes."""
    max_prompts: int = 64
    max_tokens: int = 512


class RefusedError(Exception):
    """A request that is answered with 4xx."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        """Take the status, one line for the client, and the field that it is about."""
        super().__init__(message)
        self.status, self.param = status, param


@dataclass
class _Pending:
    """One text that the worker decodes; its events reach the event loop in order."""

    job: Job
    events: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)

    async def result(self) -> tuple[Generation, str]:
        """Return what was generated and by which method; events of growth are passed over."""
        while True:
            kind, value = await self.events.get()
            if kind == "failed":
                raise value
            if kind == "done":
                finished: tuple[Generation, str] = value
                return finished


@dataclass
class Completions:
    """Answers `/v1/completions`."""

    pair: DecodingPair
    engine: Engine
    scheduler: Scheduler
    metrics: ServerMetrics
    name: str
    limits: Limits

    async def answer(self, request: Request) -> Response:
        """Queue the texts of a request and answer with their outputs, or with a stream of them."""
        asked = self._parsed(await self._body(request))
        pending = self._pending(asked)
        try:
            self.scheduler.add([one.job for one in pending])
        except QueueFullError:
            raise RefusedError(429, "the queue is full; try again later") from None
        if asked.stream:
            return StreamingResponse(self._events(pending), media_type="text/event-stream")
        return await self._whole(request, pending)

    async def _body(self, request: Request) -> bytes:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > self.limits.max_body:
                raise RefusedError(413, f"the body has more than {self.limits.max_body} bytes; send fewer or shorter prompts")
        return body

    def _parsed(self, body: bytes) -> CompletionRequest:
        try:
            asked = CompletionRequest.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the body"
            raise RefusedError(400, f"{place}: {first['msg']}", place) from None
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

    def _pending(self, asked: CompletionRequest) -> list[_Pending]:
        text = self.pair.manifest.text
        decoding = asked.decoding(min(text.max_target_tokens, self.limits.max_tokens))
        try:
            rows = encode_prompts(self.pair, asked.prompts)
        except TooLongError as error:
            raise RefusedError(400, str(error), "prompt") from None
        return [self._job(row, decoding, asked, number if asked.seed is not None else None) for number, row in enumerate(rows)]

    def _job(self, row: list[int], decoding: DecodingRequest, asked: CompletionRequest, example: int | None) -> _Pending:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

        def send(kind: str) -> Callable[[Any], None]:
            return lambda value: _send(loop, events, (kind, value))

        job = Job(
            row,
            decoding,
            done=lambda generation, method: _send(loop, events, ("done", (generation, method))),
            failed=send("failed"),
            grown=send("grown") if asked.stream else None,
            example=example if not decoding.sampling.greedy else None,
        )
        return _Pending(job, events)

    async def _whole(self, request: Request, pending: list[_Pending]) -> Response:
        gathered = asyncio.gather(*(one.result() for one in pending), return_exceptions=True)
        while not gathered.done():
            await asyncio.wait([gathered], timeout=_POLL)
            if not gathered.done() and await request.is_disconnected():
                self.metrics.aborted.inc(len(pending))
                for one in pending:
                    one.job.cancelled.set()
                gathered.cancel()
                return Response(status_code=499)
        choices, tokens = [], 0
        for index, result in enumerate(await gathered):
            if isinstance(result, BaseException):
                return JSONResponse(error_body(str(result) or type(result).__name__, "server_error"), 500)
            generation, method = result
            text, reason = self.pair.decode(generation.tokens), finish_reason(generation, self.engine.ends)
            choices.append({**choice(index, text, reason), "draftline": decoding_facts(generation, method)})
            tokens += len(generation.tokens)
        counts = usage(sum(len(one.job.row) for one in pending), tokens)
        return JSONResponse(answer(completion_id(), self.name, choices, usage=counts))

    async def _events(self, pending: list[_Pending]) -> AsyncIterator[str]:
        """Server-sent events: a piece of text for each turn, the reason with the last one, then `[DONE]`."""
        identity, merged = completion_id(), asyncio.Queue[tuple[int, str, Any]]()
        forwards = [asyncio.create_task(_forward(index, one, merged)) for index, one in enumerate(pending)]
        texts = [NewText(self.pair.decode) for _ in pending]
        begun = [False] * len(pending)
        left = len(pending)
        try:
            while left:
                index, kind, value = await merged.get()
                if kind == "failed":
                    yield _event(error_body(str(value) or type(value).__name__, "server_error"))
                    left -= 1
                    continue
                if not begun[index]:
                    begun[index] = True
                    self.metrics.first_token.observe(time.perf_counter() - pending[index].job.arrived)
                if kind == "grown":
                    piece = texts[index].of(value)
                    if piece:
                        yield _event(answer(identity, self.name, [choice(index, piece, None)]))
                        # Lets the loop see that a client has hung up, before more is written to its closed socket.
                        await asyncio.sleep(0)
                    continue
                generation, method = value
                last = choice(index, texts[index].rest(generation.tokens), finish_reason(generation, self.engine.ends))
                facts = decoding_facts(generation, method)
                yield _event(answer(identity, self.name, [{**last, "draftline": facts}]))
                left -= 1
            yield "data: [DONE]\n\n"
        finally:
            # Also where the client has hung up: the generator is closed then.
            self.metrics.aborted.inc(left)
            for one, forward in zip(pending, forwards, strict=True):
                one.job.cancelled.set()
                forward.cancel()


async def _forward(index: int, one: _Pending, merged: asyncio.Queue[tuple[int, str, Any]]) -> None:
    while True:
        kind, value = await one.events.get()
        await merged.put((index, kind, value))


def _send(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[tuple[str, Any]], event: tuple[str, Any]) -> None:
    """Hand an event of the worker thread to the event loop; a loop that has ended has no client either."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(events.put_nowait, event)


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
