"""Serve a pair over HTTP: `/v1/completions` as OpenAI's clients speak it, `/health`, `/metrics` for Prometheus.

`python -m tasks.serve --task translation` serves the pair that the report recommends, `--pair FOLDER` a copy of it, `--large`
with `--small` two models of your own. Requests that arrive while others are decoded form a batch. Whether drafting pays is
measured while serving, for each number of texts; where it does not, the large model decodes alone (`--drafting auto`). Answers
say which method ran. The server listens on loopback unless `--host` says otherwise, and has no authentication.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
from pathlib import Path

from tasks.decoding.inference import DecodingPair, load_pair
from tasks.decoding.pair_folder import read_examples
from tasks.errors import InputError, stage
from tasks.paths import TaskPaths
from tasks.serve.executing import PairEngine
from tasks.serve.running import DRAFTING, ServerSettings, listen, serve


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pair = parser.add_argument_group("the pair")
    pair.add_argument("--task", help="a task whose report is made: results/TASK/pair")
    pair.add_argument("--pair", type=Path, help="a folder with pair.json")
    pair.add_argument("--large", help="a large model of your own: a folder or a name on the hub, with its tokenizer")
    pair.add_argument("--small", help="the small model that drafts for it; speculative decoding, draft length 5")
    pair.add_argument("--dtype", default="float32", help="float32, bfloat16 or int8 (default: %(default)s)")
    pair.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads; 0: torch's number (default: 0)")
    work = parser.add_argument_group("the work")
    work.add_argument("--drafting", choices=DRAFTING, default="auto", help="auto: where it is faster (default: auto)")
    work.add_argument("--max-batch", type=int, default=32, metavar="N", help="most texts of a batch (default: 32)")
    work.add_argument("--max-queue", type=int, default=256, metavar="N", help="most texts that wait (default: 256)")
    work.add_argument("--max-tokens", type=int, default=512, metavar="N", help="most tokens of an output (default: 512)")
    work.add_argument("--max-body", type=int, default=1 << 20, metavar="BYTES", help="largest request (default: 1 MiB)")
    work.add_argument("--warm-up", type=float, default=20.0, metavar="SECONDS", help="longest warm-up (default: 20)")
    where = parser.add_argument_group("where it listens")
    where.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s, this machine alone)")
    where.add_argument("--port", type=int, default=8000, help="port; 0: any free one (default: %(default)s)")
    return parser


def open_pair(arguments: argparse.Namespace) -> tuple[DecodingPair, str, list[str]]:
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
        return load_pair(large=arguments.large, drafter=arguments.small, **options), Path(arguments.large).name, []
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
    for name in ("max_batch", "max_queue", "max_tokens", "max_body"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; it must be at least 1")
    if arguments.warm_up < 0:
        raise InputError(f"--warm-up is {arguments.warm_up}; it must be at least 0")
    if not 0 <= arguments.port <= 65535:
        raise InputError(f"--port is {arguments.port}; it must be from 0 to 65535")
    wanted = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(ServerSettings)}
    # A taken port is said before models are loaded for seconds.
    with listen(arguments.host, arguments.port) as bound:
        pair, name, texts = open_pair(arguments)
        serve(bound, pair, PairEngine(pair), name, texts, ServerSettings(**wanted))


if __name__ == "__main__":
    with stage():
        try:
            main()
        except KeyboardInterrupt:  # while it loads; a server that runs ends in order
            raise SystemExit(128 + signal.SIGINT) from None
