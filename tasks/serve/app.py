"""The routes of the server: completions, models, health and metrics. Every refusal is a 4xx with its reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tasks.decoding.inference import DecodingPair
from tasks.serve.api import error_body
from tasks.serve.completions import Completions, Limits, RefusedError
from tasks.serve.executing import Engine
from tasks.serve.metrics import ServerMetrics
from tasks.serve.scheduler import Scheduler

_INVALID = "invalid_request_error"
"""The kind of an error that OpenAI's clients know as the request's own fault."""


def create_app(
    pair: DecodingPair, engine: Engine, scheduler: Scheduler, metrics: ServerMetrics, name: str, limits: Limits
) -> FastAPI:
    """Return the application.

    Args:
        pair: Encodes and decodes texts, and knows the longest source and output.
        engine: What the scheduler runs.
        scheduler: Started with the application and stopped with it.
        metrics: What `/metrics` shows.
        name: The model's name for clients.
        limits: What a request may ask for.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        scheduler.start()
        yield
        await asyncio.to_thread(scheduler.stop)

    app = FastAPI(title="Draftline", lifespan=lifespan, docs_url=None, redoc_url=None)
    completions = Completions(pair, engine, scheduler, metrics, name, limits)

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        metrics.refused.labels(str(error.status)).inc()
        headers = {"Retry-After": "1"} if error.status == 429 else None
        kind = "rate_limit_error" if error.status == 429 else _INVALID
        return JSONResponse(error_body(str(error), kind, error.param), error.status, headers)

    @app.exception_handler(404)
    async def unknown(request: Request, _: Exception) -> JSONResponse:
        metrics.refused.labels("404").inc()
        routes = "/v1/completions, /v1/models, /health and /metrics"
        return JSONResponse(error_body(f"there is no {request.url.path}; this server has {routes}", _INVALID), 404)

    # A plain route: `Completions` checks the body itself, with the protocol's own errors.
    app.add_route("/v1/completions", completions.answer, methods=["POST"])

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        entry = {"id": name, "object": "model", "owned_by": "draftline", "operating_point": engine.name}
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

    return app
