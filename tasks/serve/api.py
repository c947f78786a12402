"""The HTTP surface: completions in the form of OpenAI's clients, whole or as a stream, with models, health and metrics.

Every refusal is a 4xx with its reason; a text that fails while it is decoded is a 500 with its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tasks.decoding.generation import Generation
from tasks.decoding.inference import DecodingPair
from tasks.decoding.method import COLDEST, SamplingSettings
from tasks.decoding.method import Request as DecodingRequest
from tasks.models.prompting import SourceEncoder
from tasks.serve.door import Door
from tasks.serve.pacing import Engine
from tasks.serve.scheduler import Job, QueueFullError, Scheduler, ServerMetrics, ServerSettings, finish_reason

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""How tokenizers write the first bytes of a character whose others have not come yet."""


class RefusedError(Exception):
    """A request that is answered with 4xx."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        """Take the status, one line for the client, and the field that it is about."""
        super().__init__(message)
        self.status, self.param = status, param


_CHARACTERS = 64
"""Of a prompt for each token that the pair reads: more than any text has."""


def encode_prompts(pair: DecodingPair, prompts: list[str]) -> list[list[int]]:
    """Return the token ids of each prompt.

    Raises:
        RefusedError: one does not fit into `max_source_tokens`; offline it would be cut.
    """
    text = pair.manifest.text
    # Before it is cut into tokens, during which the server answers nobody.
    most = _CHARACTERS * text.max_source_tokens
    if (longest := max(map(len, prompts))) > most:
        raise RefusedError(400, f"a prompt has {longest} characters; at most {most}", "prompt")
    encoder = SourceEncoder(pair.tokenizer, text)
    rows = encoder(prompts)
    for prompt, row in zip(prompts, rows, strict=True):
        if encoder.cut or len(row) == text.max_source_tokens:
            tokens = encoder.whole_length(prompt)
            if tokens > text.max_source_tokens:
                template = " with its chat template" if text.chat_template else ""
                said = f"a prompt has {tokens} tokens{template}; the pair reads at most {text.max_source_tokens}"
                raise RefusedError(400, said, "prompt")
    return rows


class NewText:
    """Gives the text of tokens piece by piece, whole characters only; joined, the pieces are the text."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Take what makes a text of tokens."""
        self._decode = decode
        self._given = ""

    def of(self, tokens: Sequence[int]) -> str:
        """Return what these tokens, the first ones of the text, add to what was given."""
        text = self._decode(tokens)
        # A later token may still change the end of a text, as the second half of a character does.
        if text.endswith(_UNFINISHED) or not text.startswith(self._given):
            return ""
        return self._new(text)

    def rest(self, tokens: Sequence[int]) -> str:
        """Return what is left of the whole text."""
        return self._new(self._decode(tokens))

    def _new(self, text: str) -> str:
        piece, self._given = text[len(self._given) :], text
        return piece


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (None,),
    "suffix": (None, ""),
    "stop": (None, "", []),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": (None, {}),
}
"""Fields of the protocol that this server does not have, with the values that ask for nothing."""


class CompletionRequest(BaseModel):
    """The body of a request. Temperature 0, greedy, is the default: operating points are measured so."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | list[str]
    max_tokens: int | None = Field(None, ge=2)
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, ge=1e-6, le=1.0)
    top_k: int = Field(0, ge=0, le=1 << 30)
    seed: int | None = None
    stream: bool = False
    user: str | None = None

    @field_validator("prompt")
    @classmethod
    def _no_empty_text(cls, prompt: str | list[str]) -> str | list[str]:
        texts = [prompt] if isinstance(prompt, str) else prompt
        if not texts:
            raise ValueError("there is no text; give one, or a list of some")
        if not all(text.strip() for text in texts):
            raise ValueError("a text is empty; give each prompt some text")
        return prompt

    @property
    def prompts(self) -> list[str]:
        """The texts, one or several."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def unsupported(self) -> str | None:
        """Return the name of a field that asks for what the server does not have; None where there is none."""
        asked = [(name, value) for name, value in (self.model_extra or {}).items() if name != "stream_options"]
        return next((name for name, value in asked if value not in _NEUTRAL.get(name, ())), None)

    def decoding(self, limit: int) -> DecodingRequest:
        """Return length, sampling and seed; `limit` is the length without `max_tokens`."""
        sampling = SamplingSettings()
        if self.temperature >= COLDEST:
            sampling = SamplingSettings(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        return DecodingRequest(limit if self.max_tokens is None else self.max_tokens, sampling, self.seed or 0)


def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    """Return one output, or a piece of one whose `reason` is None."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def answer(name: str, model: str, choices: list[dict[str, Any]], **rest: object) -> dict[str, Any]:
    """Return the body of an answer or of one event of a stream."""
    return {"id": name, "object": "text_completion", "created": int(time.time()), "model": model, "choices": choices, **rest}


def decoding_facts(generation: Generation, method: str) -> dict[str, Any]:
    """Return how a text was decoded: the method that ran, which drafting may have been left out of, and its counts."""
    counts = generation.counts
    return {
        "method": method,
        "large_calls": counts.large_calls,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "proposers": generation.proposers,
    }


def error_body(message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


_POLL = 0.05
"""Seconds between two looks at whether the client is still there."""


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
    limits: ServerSettings
    _encoding: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, request: Request) -> Response:
        """Queue the texts of a request and answer with their outputs, or with a stream of them."""
        asked, text = self._parsed(await self._body(request)), self.pair.manifest.text
        decoding = asked.decoding(min(text.max_target_tokens, self.limits.max_tokens))
        async with self._encoding:  # a tokenizer serves one thread at a time, and the loop goes on meanwhile
            rows = await asyncio.to_thread(encode_prompts, self.pair, asked.prompts)
        texts = _Texts(rows, decoding, streamed=asked.stream, seeded=asked.seed is not None)
        try:
            self.scheduler.add(texts.jobs)
        except QueueFullError:
            raise RefusedError(429, "the queue is full; try again later") from None
        name = f"cmpl-{request.state.number}"
        if asked.stream:
            return StreamingResponse(self._events(texts, name), media_type="text/event-stream")
        return await self._whole(request, texts, name)

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
        return bytes(body)

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

    async def _whole(self, request: Request, texts: _Texts, name: str) -> Response:
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
        prompt = sum(len(job.row) for job in texts.jobs)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        return JSONResponse(answer(name, self.name, [choices[index] for index in sorted(choices)], usage=usage))

    def _choice(self, index: int, text: str, generation: Generation, method: str) -> dict[str, Any]:
        """Return a finished output, or the last piece of it."""
        reason = finish_reason(generation, self.engine.ends)
        return {**choice(index, text, reason), "draftline": decoding_facts(generation, method)}

    async def _events(self, texts: _Texts, name: str) -> AsyncIterator[str]:
        """Server-sent events: a piece of text for each turn, the reason with the last one, then `[DONE]`."""
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
                        yield _event(answer(name, self.name, [choice(index, piece, None)]))
                        # Lets the loop see that a client has hung up, before more is written to its closed socket.
                        await asyncio.sleep(0)
                    continue
                generation, method = value
                last = self._choice(index, written[index].rest(generation.tokens), generation, method)
                yield _event(answer(name, self.name, [last]))
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
        return error_body(message, _KINDS.get(status, "invalid_request_error"), param)

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.status == 429 else None
        return JSONResponse(refusal(error.status, str(error), error.param), error.status, headers)

    @app.exception_handler(404)
    async def unknown(request: Request, _: Exception) -> JSONResponse:
        routes = "/v1/completions, /v1/models, /health and /metrics"
        return JSONResponse(refusal(404, f"there is no {request.url.path}; this server has {routes}"), 404)

    # A plain route: `Completions` checks the body itself, with the protocol's own errors.
    app.add_route("/v1/completions", completions.answer, methods=["POST"])

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
