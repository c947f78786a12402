"""Check in another engine what a pair's certificate promises: how many drafted tokens the large model accepts.

`python -m tasks.verify results/translation/pair --engine transformers` decodes texts greedily, here and in the engine, with the
same fixed number of drafted tokens, and compares how much is accepted and the texts, token by token. Texts are the folder's
examples or the lines of `--file`; for the certificate's own numbers, give the sources of the validation split. The exit status
is 0 where the certificate holds and 1 where it does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from tasks.decoding.drafters.retokenized import TranslatedDecoder
from tasks.decoding.inference import load_pair
from tasks.decoding.pair_folder import engine_draft_length, read_examples, read_manifest
from tasks.errors import InputError, read_text_file, stage
from tasks.models.pruned_head import pruned_head
from tasks.verify.comparison import Engine, compare
from tasks.verify.decoding import decode_here, decode_here_from_the_second, decode_there, speculative
from tasks.verify.openvino_engine import OpenvinoEngine
from tasks.verify.printing import as_json, described, verdict
from tasks.verify.transformers_engine import TransformersEngine

ENGINES: dict[str, Callable[[Path, int], Engine]] = {
    TransformersEngine.name: TransformersEngine,
    OpenvinoEngine.name: OpenvinoEngine,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", type=Path, metavar="PAIR", help="a folder with pair.json, which the report stage writes")
    parser.add_argument("--engine", required=True, choices=ENGINES, help="the engine to run the pair in")
    parser.add_argument("--file", type=Path, metavar="TEXTS", help="texts, one a line, UTF-8 (default: the folder's examples)")
    parser.add_argument("--draft-length", type=int, metavar="N", help="tokens drafted at a time (default: the point's)")
    parser.add_argument("--json", action="store_true", help="one line of JSON in place of the table")
    return parser


def read_texts(pair: Path, file: Path | None) -> list[str]:
    """Return the texts of a file, or the examples of a pair folder.

    Raises:
        InputError: there is none, one is empty, or the file cannot be read.
    """
    if file is None:
        if found := read_examples(pair):
            return found
        raise InputError(f"{pair} has no examples; name a file of texts with --file")
    lines = read_text_file(file).splitlines()
    if not lines:
        raise InputError(f"{file} holds no text; write one a line")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InputError(f"{file}, line {number}: it is empty; write one text a line")
    return lines


def main() -> int:
    """Run the pair in both and return the exit status."""
    arguments = _parser().parse_args()
    manifest = read_manifest(arguments.pair)
    draft_length = engine_draft_length(manifest) if arguments.draft_length is None else arguments.draft_length
    texts = read_texts(arguments.pair, arguments.file)
    pair = load_pair(arguments.pair, device="cpu")
    if isinstance(pair.opened.pair.small, TranslatedDecoder):
        raise InputError(
            f"the drafter of {arguments.pair} has a tokenizer of its own, which is translated here alone; name a pair of one "
            "tokenizer"
        )
    sources, limit = pair.encode(texts), manifest.text.max_target_tokens
    speculative(pair, draft_length, limit)  # a wrong draft length ends the command before the engine opens its models
    engine = ENGINES[arguments.engine](arguments.pair, draft_length)
    if pruned_head(pair.opened.models["small"]) is not None:
        print(f"note: {engine.name} does not read the drafter's draft vocabulary, and may draft other tokens", file=sys.stderr)
    certifiable = decode_here(pair, draft_length, sources, limit)
    ours = certifiable if engine.drafts_on_prompt else decode_here_from_the_second(pair, draft_length, sources, limit)
    found = compare(pair, draft_length, sources, certifiable, ours, decode_there(engine, sources, limit), engine)
    if arguments.json:
        print(json.dumps(as_json(found, engine)))
    else:
        print(described(found, engine))
        print(verdict(found))
    return 0 if found.holds else 1


if __name__ == "__main__":
    with stage():
        raise SystemExit(main())
