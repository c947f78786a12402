"""Answers of `/v1/completions`: from the body of a request to its outputs, whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
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


_Event = tuple[int, str, Any]
"""Position of a text in its request, what became of it (`grown`, `done` or `failed`), and with what."""


class _Texts:
    """The texts of one request: the jobs that the worker thread runs, and their events, which reach the event loop in order."""

    def __init__(self, rows: list[list[int]], decoding: DecodingRequest, *, streamed: bool, seeded: bool) -> None:
        """Make a job of each row of token ids; its draws are those of its position where the request has a seed."""
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        numbered = seeded and not decoding.sampling.greedy
        self.jobs = [
            Job(
                row,
                decoding,
                done=functools.partial(self._put, index, "done"),
                failed=functools.partial(self._put, index, "failed"),
                grown=functools.partial(self._put, index, "grown") if streamed else None,
                example=index if numbered else None,
            )
            for index, row in enumerate(rows)
        ]

    def _put(self, index: int, kind: str, *value: Any) -> None:
        """Hand an event of the worker thread to the event loop; a loop that has ended has no client either."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, kind, value))

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
        texts = self._texts(asked)
        try:
            self.scheduler.add(texts.jobs)
        except QueueFullError:
            raise RefusedError(429, "the queue is full; try again later") from None
        if asked.stream:
            return StreamingResponse(self._events(texts), media_type="text/event-stream")
        return await self._whole(request, texts)

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

    def _texts(self, asked: CompletionRequest) -> _Texts:
        text = self.pair.manifest.text
        decoding = asked.decoding(min(text.max_target_tokens, self.limits.max_tokens))
        try:
            rows = encode_prompts(self.pair, asked.prompts)
        except TooLongError as error:
            raise RefusedError(400, str(error), "prompt") from None
        return _Texts(rows, decoding, streamed=asked.stream, seeded=asked.seed is not None)

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
            choices[index] = self._choice(index, self.pair.decode(generation.tokens), generation, method)
            tokens += len(generation.tokens)
        counts = usage(sum(len(job.row) for job in texts.jobs), tokens)
        return JSONResponse(answer(completion_id(), self.name, [choices[index] for index in sorted(choices)], usage=counts))

    def _choice(self, index: int, text: str, generation: Generation, method: str) -> dict[str, Any]:
        """Return a finished output, or the last piece of it."""
        reason = finish_reason(generation, self.engine.ends)
        return {**choice(index, text, reason), "draftline": decoding_facts(generation, method)}

    async def _events(self, texts: _Texts) -> AsyncIterator[str]:
        """Server-sent events: a piece of text for each turn, the reason with the last one, then `[DONE]`."""
        identity = completion_id()
        written = [NewText(self.pair.decode) for _ in texts.jobs]
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
                        yield _event(answer(identity, self.name, [choice(index, piece, None)]))
                        # Lets the loop see that a client has hung up, before more is written to its closed socket.
                        await asyncio.sleep(0)
                    continue
                generation, method = value
                last = self._choice(index, written[index].rest(generation.tokens), generation, method)
                yield _event(answer(identity, self.name, [last]))
                left -= 1
            yield "data: [DONE]\n\n"
        finally:
            # Also where the client has hung up: the generator is closed then.
            self.metrics.aborted.inc(left)
            texts.cancel()


def _failure(error: Exception) -> dict[str, Any]:
    return error_body(str(error) or type(error).__name__, "server_error")


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
