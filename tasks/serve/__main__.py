"""Serve a pair over HTTP: `/v1/completions` as OpenAI's clients speak it, `/health`, `/metrics` for Prometheus.

`python -m tasks.serve --task translation` serves the pair that the report recommends, `--pair FOLDER` a copy of it, `--large`
with `--small` two models of your own. Requests that arrive while others are decoded form a batch. Whether drafting pays is
measured while serving, for each number of texts; where it does not, the large model decodes alone (`--drafting auto`). Answers
say which method ran. The server listens on loopback unless `--host` says otherwise. Clients have to send the key that the
environment variable DRAFTLINE_API_KEY holds, if any.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import socket
from pathlib import Path

from tasks.console import add_json, command_parser, log
from tasks.decoding.inference import DecodingPair, load_pair
from tasks.decoding.method import Request
from tasks.decoding.pair_folder import read_examples
from tasks.errors import InputError, stage
from tasks.models.pair import check_sizes
from tasks.paths import TaskPaths
from tasks.serve.api import Completions, create_app
from tasks.serve.door import KEY_VARIABLE, PatientProtocol
from tasks.serve.pacing import Engine, Pacing, PairEngine, findings, warm_up
from tasks.serve.scheduler import Scheduler, ServerMetrics, ServerSettings
from tasks.settings import add_options, read_options


def set_startup_aside() -> None:
    """Move every object that is alive now out of the garbage collector's sight.

    CPython collects all generations only once the objects that have survived younger collections since the last time are a
    quarter of those that survived that one. A server holds some hundred thousand objects of its libraries from the start, so
    that reference cycles of ten thousand requests (the tracebacks of clients that hang up, above all) wait as garbage.

    The second collection is needed: it alone makes CPython count anew, and from then on a quarter of what requests left.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


_DRAFTING = {"auto": None, "always": True, "never": False}
"""`Pacing.fixed` by the name of the choice."""


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
    bound: socket.socket,
    pair: DecodingPair,
    engine: Engine,
    name: str,
    texts: list[str],
    settings: ServerSettings,
    *,
    as_json: bool = False,
) -> None:
    """Serve until the process is told to end (Ctrl-C, SIGTERM); texts that wait are then answered with an error.

    Args:
        bound: Where to listen (`listen`).
        pair: Encodes and decodes texts.
        engine: What decodes.
        name: The model's name for clients.
        texts: Examples to warm up with; may be empty.
        settings: Limits, and how to pace.
        as_json: Print one line of JSON as soon as requests are answered.
    """
    import uvicorn

    metrics, pacing = ServerMetrics(), Pacing(engine.drafts, _DRAFTING[settings.drafting])
    scheduler = Scheduler(engine, pacing, metrics, max_batch=settings.max_batch, max_queue=settings.max_queue)
    app = create_app(Completions(pair, engine, scheduler, metrics, name, settings), os.environ.get(KEY_VARIABLE, ""))
    PatientProtocol.patience = settings.patience
    request = Request(min(pair.manifest.text.max_target_tokens, settings.max_tokens))
    done = warm_up(engine, pacing, pair.encode(texts), request, settings.max_batch, settings.warm_up)
    set_startup_aside()
    log.info("%s", findings(pacing, done))
    log.info("serving %s on %s: %s (%s)", name, address_of(bound), engine.name, pair.manifest.chosen)
    if as_json:
        print(json.dumps({"model": name, "url": address_of(bound), "method": engine.name}), flush=True)
    # uvicorn ends in order and raises the signal again, which does nothing where a shell started the server in the background.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(app, http=PatientProtocol, log_level="warning", access_log=False)).run(sockets=[bound])
    log.info("stopped")


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    pair = parser.add_argument_group("the pair")
    pair.add_argument("--task", help="a task whose report is made: results/TASK/pair")
    pair.add_argument("--pair", type=Path, help="a folder with pair.json")
    pair.add_argument("--large", help="a large model of your own: a folder or a name on the hub, with its tokenizer")
    pair.add_argument("--small", help="the small model that drafts for it; speculative decoding, draft length 5")
    pair.add_argument("--dtype", default="float32", help="float32, bfloat16 or int8 (default: %(default)s)")
    pair.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads; 0: torch's number (default: 0)")
    add_options(parser, ServerSettings)
    where = parser.add_argument_group("where it listens")
    where.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s, this machine alone)")
    where.add_argument("--port", type=int, default=8000, help="port; 0: any free one (default: %(default)s)")
    add_json(parser)
    return parser


def pair_of(arguments: argparse.Namespace) -> tuple[DecodingPair, str, list[str]]:
    """Open what the arguments name, and return it with its name for clients and the example texts beside it.

    Raises:
        InputError: none or several are named, or the pair cannot be opened.
    """
    own = (arguments.large, arguments.small) != (None, None)
    if sum((arguments.task is not None, arguments.pair is not None, own)) != 1:
        raise InputError("name what to serve by one of --task, --pair, or --large with --small")
    options = {"dtype": arguments.dtype, "threads": arguments.threads}
    if own:
        if arguments.large is None or arguments.small is None:
            missing = "--large" if arguments.large is None else "--small"
            raise InputError(f"{missing} is missing; a pair of your own needs --large and --small")
        pair = load_pair(large=arguments.large, drafter=arguments.small, **options)
        check_sizes(pair.models["small"], pair.models["large"], f"--small {arguments.small}", f"--large {arguments.large}")
        return pair, Path(arguments.large).name, []
    folder = arguments.pair
    if folder is None:
        folder = TaskPaths(arguments.task).results / "pair"
        if not folder.is_dir():
            made = sorted(one.parent.name for one in folder.parent.parent.glob(f"*/{folder.name}"))
            others = f"; there are pairs of {', '.join(made)}" if made else ""
            fix = f"make it with dvc repro report@{arguments.task} (make repro runs all tasks)"
            raise InputError(f"{folder} is missing; {fix}{others}")
    pair = load_pair(folder, **options)
    return pair, pair.manifest.task or folder.name, read_examples(folder)


def main() -> None:
    """Open the pair and serve it."""
    arguments = _parser().parse_args()
    settings = read_options(ServerSettings, arguments)
    if not 0 <= arguments.port <= 65535:
        raise InputError(f"--port is {arguments.port}; it must be from 0 to 65535")
    # A taken port is said before models are loaded for seconds.
    with listen(arguments.host, arguments.port) as bound:
        pair, name, texts = pair_of(arguments)
        serve(bound, pair, PairEngine(pair), name, texts, settings, as_json=arguments.json)


if __name__ == "__main__":
    with stage():
        try:
            main()
        except KeyboardInterrupt:  # while it loads; a server that runs ends in order
            raise SystemExit(128 + signal.SIGINT) from None
