"""Decode texts with a trained pair, see who proposed each token, and time the method against vanilla.

`python -m tasks.generate --task translation "…"` takes the point that the report recommends. Texts come from the command line,
from the lines of `--file`, or from those of standard input. Tokens are written as soon as they are final, those of the small
model in colour (BiLD, Figure 9), or in [brackets] where there is no colour. `--tune ms=2` or `--tune quality=75` takes the best
timed point within that bound, `--method bild --set fallback_threshold=0.7` any method at any setting, and `--large` with
`--small` a pair of your own. Decoding is greedy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tasks.console import command_parser, log
from tasks.decoding.generation import CORRECTED, SMALL, UNFINISHED, Counts, Detokenise, Generation, pieces_by_proposer
from tasks.decoding.inference import VANILLA, DecodingPair
from tasks.decoding.loop import watched
from tasks.decoding.method import Request
from tasks.decoding.registry import ConfiguredMethod
from tasks.decoding.turn import RowState
from tasks.errors import InputError, checked_lines, read_lines, stage
from tasks.evaluation.scoring.statistics import ratio_interval
from tasks.evaluation.timing import measure_in_turn, synchronised_clock
from tasks.generate.pair import pair_of
from tasks.models.prompting import SourceEncoder
from tasks.paths import ARMS

_COUNTS = ("tokens", "large_calls", "small_steps", "drafted", "accepted", "fallbacks", "rollbacks")
Marks = dict[str, tuple[str, str]]
"""What stands before and behind a piece of each proposer."""
COLOURS: Marks = {SMALL: ("\033[32m", "\033[0m"), CORRECTED: ("\033[31m", "\033[0m")}
BRACKETS: Marks = {SMALL: ("[", "]"), CORRECTED: ("{", "}")}


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="what the models read; none: --file or standard input")
    parser.add_argument("--file", type=Path, help="read texts from this file, one a line, UTF-8")
    pair = parser.add_argument_group("the pair")
    pair.add_argument("--task", help="a task of params.yaml (default: the only active one)")
    pair.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    pair.add_argument("--arm", choices=ARMS, help="the arm whose drafter drafts (default: the point's, or aligned)")
    pair.add_argument("--pair", type=Path, help="a folder with pair.json, which the report stage writes: results/TASK/pair")
    pair.add_argument("--large", help="a large model of your own: a folder or a name on the hub, with its tokenizer")
    pair.add_argument("--small", help="the small model that drafts for it")
    pair.add_argument("--chat-template", action="store_true", help="with --large: put each text as a user's message")
    pair.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to generate (default: the task's, or 128)")
    method = parser.add_argument_group("the method (default: the recommended point; speculative for a pair of your own)")
    method.add_argument("--method", help="a method of python -m tasks.config --methods")
    method.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of it; may be repeated")
    method.add_argument("--tune", metavar="BOUND", help="ms=… or quality=…: the best timed point within this bound")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--rounds", type=int, default=3, help="timings of each text, in turn with vanilla; 0: none (default: 3)")
    shown.add_argument("--json", action="store_true", help="one line of JSON for each text, written when it is whole")
    return parser


def read_texts(arguments: argparse.Namespace) -> Iterable[str]:
    """Give the texts of the command line, a file or standard input.

    Raises:
        InputError: there is none, one is empty, or the file cannot be read.
    """
    if arguments.texts and arguments.file is not None:
        raise InputError("texts stand on the command line and in --file; give one of the two")
    where, lines = "standard input", sys.stdin
    if arguments.texts:
        where, lines = "the command line", arguments.texts
    elif arguments.file is not None:
        return read_lines(arguments.file)
    elif sys.stdin.isatty():
        log.info("reading texts from standard input, one a line, until Ctrl-D")
    texts = checked_lines(where, lines)
    # What is known already is checked as a whole, before a model is opened; standard input is read line by line.
    return list(texts) if isinstance(lines, list) else texts


def _warn_of_what_is_not_read(pair: DecodingPair, source: str) -> None:
    text, tokenizer = pair.manifest.text, pair.tokenizer
    encoder = SourceEncoder(tokenizer, text)
    tokens, [read_tokens] = encoder.whole_length(source), encoder([source])
    # Tokenizers of bytes know every text; some name their end token here.
    unknown = 0 if tokenizer.unk_token_id in (None, tokenizer.eos_token_id) else read_tokens.count(tokenizer.unk_token_id)
    if tokens > text.max_source_tokens:
        read = f"the models read the first {text.max_source_tokens} (text.max_source_tokens)"
        log.warning("the text has %d tokens; %s", tokens, read)
    if unknown:
        log.warning("%d of the text's %d tokens are unknown to the models", unknown, len(read_tokens))


def legend(marks: Marks) -> str:
    """Return what marks mean."""
    drafted, corrected = (word.join(marks[one]) for word, one in (("drafted", SMALL), ("corrected", CORRECTED)))
    return f"{drafted} and kept, {corrected} by the large model, others the large model's own"


class TextWriter:
    """Writes one text piece by piece."""

    def __init__(self, text: Detokenise, marks: Marks, out: TextIO | None = None) -> None:
        """Take what makes a text of tokens, what sets its pieces apart, and where to write."""
        self._text, self._marks, self._out = text, marks, out or sys.stdout
        self._shown = 0
        """Characters that are written."""
        self._open = ""
        """Proposer of the last character written, whose mark is not closed yet."""

    def watch(self, row: RowState) -> None:
        """Write what a turn has added; `loop.LoopParts.watch` takes this."""
        self._write(row.tokens[row.prompt :], row.proposers)

    def finish(self, generation: Generation) -> None:
        """Write what is left of a text, and end its line."""
        self._write(generation.tokens, generation.proposers, whole=True)
        self._change_to("")
        self._out.write("\n")
        self._out.flush()

    def _write(self, tokens: list[int], proposers: str, *, whole: bool = False) -> None:
        pieces = pieces_by_proposer(tokens, proposers, self._text)
        written = "".join(piece for piece, _ in pieces)
        if not whole and written.endswith(UNFINISHED):
            return
        begin = 0
        for piece, proposer in pieces:
            new = piece[max(0, self._shown - begin) :]
            begin += len(piece)
            if new:
                self._change_to(proposer)
                self._out.write(new)
        self._shown = max(self._shown, len(written))
        self._out.flush()

    def _change_to(self, proposer: str) -> None:
        if proposer != self._open:
            self._out.write(self._marks.get(self._open, ("", ""))[1] + self._marks.get(proposer, ("", ""))[0])
        self._open = proposer


class Times(NamedTuple):
    """Milliseconds of the rounds."""

    method: list[float]
    vanilla: list[float]


def swept_speedup(measured: Mapping[str, Any]) -> str:
    """Return what the sweep measured of the point over many texts, as test has it; empty where no sweep timed it."""
    for split in ("test", "validation"):
        if (found := measured.get(split)) and found.get("speedup"):
            return f"the sweep measured {found['speedup']:.2f}× over {found['timed_examples']} texts of {split}"
    return ""


_SHORT = 100.0
"""Milliseconds of vanilla below which a ratio is mostly chance, and not shown."""
_SAMPLES = 1000


def statistics_line(generation: Generation, times: Times | None, *, same: bool | None, swept: str = "") -> str:
    """Return what the decoding of a text took, in words.

    Args:
        generation: What the method decoded.
        times: Of the method and of vanilla; None where they were not measured.
        same: Whether the text is vanilla's own, token for token; None where vanilla did not decode.
        swept: See `swept_speedup`.
    """
    counts = generation.counts
    tokens, runs = ("s" * (count != 1) for count in (counts.tokens, counts.large_calls))
    parts = [f"{counts.tokens} token{tokens}, {counts.large_calls} run{runs} of the large model"]
    if times is not None:
        method, vanilla = map(statistics.median, times)
        ratio = f": {vanilla / method:.2f}× as fast" if vanilla >= _SHORT else ""
        parts[:0] = [f"{_with_spread(times.method)}, vanilla {_with_spread(times.vanilla)}{ratio}", *filter(None, [swept])]
    if counts.drafted:
        rejected, unverified = not_accepted(counts)
        ended = f", {unverified} ended unverified" * (unverified > 0)
        parts.append(f"{counts.drafted} drafted: {counts.accepted} accepted, {rejected} rejected{ended}")
    if same is not None:
        parts.append("the same text as vanilla's" if same else "not vanilla's text")
    return "; ".join(parts)


def not_accepted(counts: Counts) -> tuple[int, int]:
    """Return how many drafted tokens the large model rejected, and how many it never checked.

    A draft that ends the text, or at which the text reaches its limit, may stay without a check.
    """
    verified = sum(drafted * drafts for (drafted, _), drafts in counts.kept.items())
    return verified - counts.accepted, counts.drafted - verified


def _with_spread(times: list[float]) -> str:
    spread = f" ({min(times):.1f} to {max(times):.1f})" if len(times) > 1 else ""
    return f"{statistics.median(times):.1f} ms{spread}"


def total_line(times: list[Times]) -> str:
    """Return how much faster the method was over several texts of this run, with the 95 % interval over texts."""
    method, vanilla = ([statistics.median(one) for one in side] for side in zip(*times, strict=True))
    if sum(vanilla) < _SHORT:
        return f"{len(times)} texts: {sum(method):.1f} ms, vanilla {sum(vanilla):.1f} ms: too short for a ratio"
    low, high = ratio_interval(vanilla, method, _SAMPLES, seed=0)
    return f"{len(times)} texts: {sum(vanilla) / sum(method):.2f}× [{low:.2f}, {high:.2f}] as fast as vanilla"


@dataclass(frozen=True)
class Decoded:
    """One text with what its decoding took."""

    source: str
    generation: Generation
    vanilla: Generation | None = None
    """None where nothing was timed."""
    times: Times | None = None

    @property
    def same(self) -> bool | None:
        """Whether the text is vanilla's, token for token; None where vanilla did not decode."""
        return None if self.vanilla is None else self.generation.tokens == self.vanilla.tokens

    def as_json(self, decode: Detokenise, point: ConfiguredMethod) -> dict[str, object]:
        """Return it as plain data: times in milliseconds, the acceptance rate of the tokens that were checked."""
        counts = self.generation.counts
        rejected, unverified = not_accepted(counts)
        line: dict[str, object] = {
            "source": self.source,
            "text": decode(tuple(self.generation.tokens)),
            "tokens": self.generation.tokens,
            "proposers": self.generation.proposers,
            "method": point.method,
            "settings": point.plain_settings,
            "counts": {name: getattr(counts, name) for name in _COUNTS} | {"rejected": rejected, "unverified": unverified},
            "acceptance_rate": counts.accepted / (counts.accepted + rejected) if counts.accepted + rejected else None,
        }
        if self.times is not None and self.vanilla is not None:
            method, vanilla = map(statistics.median, self.times)
            speedup = vanilla / method if vanilla >= _SHORT else None
            line |= {"latency_ms": method, "vanilla_latency_ms": vanilla, "speedup": speedup}
            line |= {"vanilla_text": decode(tuple(self.vanilla.tokens)), "same_as_vanilla": self.same}
        return line


def decode_text(pair: DecodingPair, source: str, rounds: int, writer: TextWriter | None = None) -> Decoded:
    """Decode one text greedily, then decode it again `rounds` times, in turn with vanilla.

    Args:
        pair: The pair with its operating point.
        source: What the models read.
        rounds: Timed rounds; 0 times nothing.
        writer: Writes the text as it grows; a method of several passes writes it whole.
    """
    [row] = pair.encode([source])
    request = Request(pair.manifest.text.max_target_tokens)
    method = pair.method(pair.manifest.point, request)
    shown = method if writer is None else watched(method, writer.watch)
    [generation] = shown.run([row], [0], request.max_new_tokens)
    if writer is not None:
        writer.finish(generation)
    if not rounds:
        return Decoded(source, generation)
    vanilla = pair.method(VANILLA, request)
    times, outputs = measure_in_turn(
        {
            "vanilla": lambda _: vanilla.run([row], [0], request.max_new_tokens)[0],
            "method": lambda _: method.run([row], [0], request.max_new_tokens)[0],
        },
        range(rounds),
        warmup=1,
        rng=random.Random(0),  # noqa: S311 (the order of timed calls)
        clock=synchronised_clock(pair.device),
    )
    return Decoded(source, generation, outputs["vanilla"][0], Times(times["method"], times["vanilla"]))


def main() -> None:
    """Decode each text and write it with its counts and times."""
    arguments = _parser().parse_args()
    for name, least in (("rounds", 0), ("max_tokens", 2)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
    texts = read_texts(arguments)
    pair = pair_of(arguments)
    manifest = pair.manifest
    # Say nothing before it is known that there is a text, which the models can read, and that the method fits them.
    texts = iter(texts)
    pair.encode([first := next(texts)])
    pair.method(manifest.point, Request(manifest.text.max_target_tokens))
    marks = COLOURS if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else BRACKETS
    log.info("%s (%s); %s", manifest.point, manifest.chosen, pair.decoders.described)
    if not arguments.json:
        log.info("%s", legend(marks))
    times = list[Times]()
    for source in itertools.chain([first], texts):
        _warn_of_what_is_not_read(pair, source)
        if arguments.json:
            done = decode_text(pair, source, arguments.rounds)
            line = done.as_json(pair.decode, manifest.point)
            print(json.dumps(line, ensure_ascii=False), flush=True)
        else:
            done = decode_text(pair, source, arguments.rounds, TextWriter(pair.decode, marks))
            swept = swept_speedup(manifest.measured)
            print(f"  {statistics_line(done.generation, done.times, same=done.same, swept=swept)}", flush=True)
            if done.vanilla is not None and not done.same:
                print(f"  vanilla: {pair.decode(done.vanilla.tokens)}", flush=True)
            times += filter(None, [done.times])
    if len(times) > 1:
        print(total_line(times))


if __name__ == "__main__":
    with stage():
        main()
