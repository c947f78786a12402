"""Puts a server together and runs it until the process is told to end."""

from __future__ import annotations

import contextlib
import socket
import sys
from dataclasses import dataclass

from tasks.decoding.inference import DecodingPair
from tasks.decoding.method import Request
from tasks.errors import InputError
from tasks.serve.app import create_app
from tasks.serve.completions import Limits
from tasks.serve.executing import Engine
from tasks.serve.garbage import set_startup_aside
from tasks.serve.metrics import ServerMetrics
from tasks.serve.pacing import Pacing
from tasks.serve.scheduler import Scheduler
from tasks.serve.warming import findings, warm_up

DRAFTING = {"auto": None, "always": True, "never": False}
"""`Pacing.fixed` by the name of the choice."""


@dataclass(frozen=True)
class ServerSettings:
    """A server's limits, and how it paces its work."""

    drafting: str = "auto"
    """One of `DRAFTING`."""
    max_batch: int = 32
    max_queue: int = 256
    max_tokens: int = 512
    max_body: int = 1 << 20
    """Bytes."""
    warm_up: float = 20.0
    """Seconds."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        InputError: the address is not this machine's, or the port is taken.
    """
    try:
        bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
        # Accepted connections inherit it. An answer's head and body are two writes: without this the second one waits up to
        # 40 ms for the client's delayed acknowledgement. asyncio sets it only on sockets that it binds itself.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host} port {port} ({reason}); give another --host or --port") from None


def address_of(bound: socket.socket) -> str:
    """Return where clients find a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


def serve(
    bound: socket.socket, pair: DecodingPair, engine: Engine, name: str, texts: list[str], settings: ServerSettings
) -> None:
    """Serve until the process is told to end (Ctrl-C, SIGTERM); texts that wait are then answered with an error.

    Args:
        bound: Where to listen (`listen`).
        pair: Encodes and decodes texts.
        engine: What decodes.
        name: The model's name for clients.
        texts: Examples to warm up with; may be empty.
        settings: Limits, and how to pace.
    """
    import uvicorn

    metrics, pacing = ServerMetrics(), Pacing(engine.drafts, DRAFTING[settings.drafting])
    scheduler = Scheduler(engine, pacing, metrics, max_batch=settings.max_batch, max_queue=settings.max_queue)
    limits = Limits(max_body=settings.max_body, max_tokens=settings.max_tokens)
    app = create_app(pair, engine, scheduler, metrics, name, limits)
    request = Request(min(pair.manifest.text.max_target_tokens, limits.max_tokens))
    done = warm_up(engine, pacing, pair.encode(texts), request, settings.max_batch, settings.warm_up)
    set_startup_aside()
    print(findings(pacing, done), file=sys.stderr)
    print(f"serving {name} on {address_of(bound)}: {engine.name}", file=sys.stderr, flush=True)
    # uvicorn ends in order and raises the signal again, which does nothing where a shell started the server in the background.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[bound])
    print("stopped", file=sys.stderr)
