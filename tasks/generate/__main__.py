"""Decode texts with a trained pair, see who proposed each token, and time the method beside vanilla.

`python -m tasks.generate --task translation "…"` takes the point that the report recommends. Texts come from the command line,
from the lines of `--file`, or from those of standard input. Tokens are written as soon as they are final, those of the small
model in colour (BiLD, Figure 9), or in [brackets] where there is no colour. `--tune ms=2` or `--tune quality=75` takes the best
timed point within that bound, `--method bild --set fallback_threshold=0.7` any method at any setting, and `--large` with
`--small` a pair of your own. Decoding is greedy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tasks.decoding.inference import DecodingPair
from tasks.errors import InputError, stage
from tasks.generate.choosing import MethodChoice
from tasks.generate.decoded import decode_text
from tasks.generate.opening import OwnPair, open_folder, open_own, open_task
from tasks.generate.printing import TextWriter, legend, statistics_line
from tasks.models.prompting import SourceEncoder
from tasks.paths import DRAFTERS
from tasks.text_files import read_text_file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="what the models read; none: --file or standard input")
    parser.add_argument("--file", type=Path, help="read texts from this file, one a line, UTF-8")
    pair = parser.add_argument_group("the pair")
    pair.add_argument("--task", help="a task of params.yaml (default: the only active one)")
    pair.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    pair.add_argument("--drafter", choices=DRAFTERS, help="which arm drafts (default: the point's, or aligned)")
    pair.add_argument("--pair", type=Path, help="a folder with pair.json, which the report stage writes: results/TASK/pair")
    pair.add_argument("--large", type=Path, help="a large model of your own: a folder or a name on the hub, with its tokenizer")
    pair.add_argument("--small", type=Path, help="the small model that drafts for it")
    pair.add_argument("--chat-template", action="store_true", help="with --large: put each text as a user's message")
    pair.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate (default: the task's, or 128)")
    method = parser.add_argument_group("the method (default: the recommended point; speculative for a pair of your own)")
    method.add_argument("--method", help="a method of python -m tasks.strategies")
    method.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of it; may be repeated")
    method.add_argument("--tune", metavar="BOUND", help="ms=… or quality=…: the best timed point within this bound")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--rounds", type=int, default=3, help="times each text beside vanilla; 0: no timing (default: 3)")
    shown.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: auto)")
    shown.add_argument("--json", action="store_true", help="one line of JSON for each text, written when it is whole")
    return parser


def read_texts(arguments: argparse.Namespace) -> Iterable[str]:
    """Give the texts of the command line, a file or standard input.

    Raises:
        InputError: there is none, one is empty, or the file cannot be read.
    """
    if arguments.texts and arguments.file is not None:
        raise InputError("texts stand on the command line and in --file; give one of the two")
    where, lines = _lines(arguments)
    texts = _checked(where, lines)
    # What is known already is checked as a whole, before a model is opened; standard input is read line by line.
    return list(texts) if isinstance(lines, list) else texts


def _checked(where: str, lines: Iterable[str]) -> Iterator[str]:
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InputError(f"{where}, text {number}: it is empty; give each text on a line of its own")
        yield line.rstrip("\n")
    if not number:
        raise InputError(f"{where} holds no text; give one, each on a line of its own")


def _lines(arguments: argparse.Namespace) -> tuple[str, Iterable[str]]:
    """Return where the texts stand, and the texts."""
    path = arguments.file
    if arguments.texts:
        return "the command line", arguments.texts
    if path is None:
        if sys.stdin.isatty():
            print("reading texts from standard input, one a line, until Ctrl-D", file=sys.stderr)
        return "standard input", sys.stdin
    return str(path), read_text_file(path).splitlines()


def open_pair(arguments: argparse.Namespace) -> DecodingPair:
    """Open what the arguments ask for; raise `InputError` where they contradict each other."""
    asked = MethodChoice(arguments.method, arguments.set, arguments.drafter, arguments.tune)
    if asked.tune is not None and asked.method is not None:
        raise InputError(f"--tune {asked.tune} chooses the method, but --method is {asked.method}; leave out one of them")
    if arguments.large is None and arguments.small is None:
        if arguments.chat_template:
            raise InputError("--chat-template is for a pair of your own; a task has text.chat_template in params.yaml")
        if arguments.pair is not None:
            if arguments.task is not None:
                raise InputError(f"--task is {arguments.task}, but --pair is {arguments.pair}; leave out one of them")
            return open_folder(arguments.pair, asked, arguments.max_tokens)
        return open_task(arguments.params, arguments.task, asked, arguments.max_tokens)
    if arguments.large is None or arguments.small is None:
        missing = "--large" if arguments.large is None else "--small"
        raise InputError(f"{missing} is missing; a pair of your own needs --large and --small")
    if arguments.pair is not None:
        raise InputError(f"--pair is {arguments.pair}, but --large names a pair of your own; leave out one of them")
    if arguments.task is not None:
        raise InputError(f"--task is {arguments.task}, but --large names a pair of your own; leave out one of them")
    return open_own(OwnPair(arguments.large, arguments.small, arguments.chat_template), asked, arguments.max_tokens)


def _warn_of_what_is_not_read(pair: DecodingPair, source: str) -> None:
    text, tokenizer = pair.manifest.text, pair.tokenizer
    encoder = SourceEncoder(tokenizer, text)
    tokens, [read_tokens] = encoder.whole_length(source), encoder([source])
    # Tokenizers of bytes know every text; some name their end token here.
    unknown = 0 if tokenizer.unk_token_id in (None, tokenizer.eos_token_id) else read_tokens.count(tokenizer.unk_token_id)
    if tokens > text.max_source_tokens:
        read = f"the models read the first {text.max_source_tokens} (text.max_source_tokens)"
        print(f"warning: the text has {tokens} tokens; {read}", file=sys.stderr)
    if unknown:
        print(f"warning: {unknown} of the text's {len(read_tokens)} tokens are unknown to the models", file=sys.stderr)


def _coloured(asked: str) -> bool:
    return asked == "always" or (asked == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def main() -> None:
    """Decode each text and write it with its counts and times."""
    arguments = _parser().parse_args()
    for name, least in (("rounds", 0), ("max_tokens", 2)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
    texts = read_texts(arguments)
    pair = open_pair(arguments)
    manifest, coloured = pair.manifest, _coloured(arguments.color)
    print(f"{manifest.point} ({manifest.chosen}); {pair.opened.described}", file=sys.stderr)
    if not arguments.json:
        print(legend(coloured=coloured), file=sys.stderr)
    for source in texts:
        _warn_of_what_is_not_read(pair, source)
        if arguments.json:
            done = decode_text(pair, source, arguments.rounds)
            line = done.as_json(pair.decode, manifest.point)
            print(json.dumps(line, ensure_ascii=False), flush=True)
        else:
            done = decode_text(pair, source, arguments.rounds, TextWriter(pair.decode, coloured=coloured))
            print(f"  {statistics_line(done.generation, done.times, same=done.same)}", flush=True)
            if done.vanilla is not None and not done.same:
                print(f"  vanilla: {pair.decode(done.vanilla.tokens)}", flush=True)


if __name__ == "__main__":
    with stage():
        main()
