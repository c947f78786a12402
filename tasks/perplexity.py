"""Perplexity of a text, scored by a small model with fallback to a large one (BiLD-v1, section 4.2).

`python -m tasks.perplexity --small gpt2 --large gpt2-large --text wiki.valid.txt --fallback 0.05` scores a text in chunks with
two decoder-only models. Two encoder-decoders score each line of the text given the same line of `--sources`. The command prints
one line of JSON for each threshold, `--timed 20` adds the speed-up over the large model alone, measured on twenty chunks, and
`--figure curve.svg` draws the thresholds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.corpora.example import stream_jsonl
from tasks.decoding.decoder import Rows, Runtime
from tasks.decoding.drafters import make_drafter
from tasks.decoding.drafters.base import DraftRule
from tasks.decoding.generation import Counts, total
from tasks.decoding.given_text import UNTRUNCATED, GivenText, TextPredictions, score, without_end_tokens
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import DecodingMethod, Pair
from tasks.decoding.methods.baselines import single_model_method
from tasks.decoding.rules import accept_all
from tasks.decoding.runtimes.choose import open_pair
from tasks.errors import InputError, read_text_file, stage
from tasks.evaluation.report.charts import save
from tasks.evaluation.report.figures_detail import ScoredText, fallback_curve
from tasks.evaluation.sweep.given_text import read_along
from tasks.evaluation.timing import Latencies, measure, synchronised_clock
from tasks.locks import timing_lock, working_lock
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_architectures, check_pair, max_positions, vocabulary_size
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.settings import setting, settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@settings
class PerplexitySettings:
    """Settings of scoring a text."""

    fallback_threshold: float = setting(
        "The small model scores positions where its top probability is above this; 0 for all positions, 1 for none.",
        default=0.05,
        ge=0,
        le=1,
    )
    chunk: int = setting("Tokens scored together as one piece; the first one is only read.", default=512, unit="tokens", ge=2)


@dataclass(frozen=True)
class Perplexity:
    """The score of a text, and the model runs that it takes to decode it."""

    log_likelihood: float
    """Σ log P(token) over all positions, in nats."""
    counts: Counts

    @property
    def value(self) -> float:
        """exp(-mean log-likelihood); infinity where a token's probability underflows float32."""
        mean = self.log_likelihood / self.counts.tokens
        return math.exp(-mean) if mean > -700 else math.inf

    @property
    def large_share(self) -> float:
        """Share of positions that the large model scored, one with each of its runs."""
        return self.counts.large_calls / self.counts.tokens


@dataclass(frozen=True)
class FallbackPoint:
    """One threshold of a sweep."""

    threshold: float
    found: Perplexity
    times: Latencies[None] | None
    """Beside the large model alone; None where nothing was timed."""


def with_fallback(pair: Pair, given: GivenText, threshold: float) -> SpeculativeLoop:
    """The small model with fallback to the large one; the length of a draft is not limited, and there is no rollback.

    The large model scores a position where the small one's top probability is not above the threshold, in one run over all
    positions that it has not read (BiLD-v1, 3.3).
    """
    rule = DraftRule(window=sys.maxsize, fallback_threshold=threshold, ends_unverified=True)
    drafter = make_drafter("small", pair, UNTRUNCATED, given)
    return SpeculativeLoop(pair.large, accept_all, UNTRUNCATED, given, drafter, rule)


def chunks(tokens: Sequence[int], size: int) -> tuple[Rows, Rows]:
    """Chunks of `size` tokens, each as its first token, which is only read, and the tokens to score.

    The last chunk may be shorter; a single remaining token cannot be scored and is dropped.
    """
    pieces = [list(tokens[begin : begin + size]) for begin in range(0, len(tokens) - 1, size)]
    return [piece[:1] for piece in pieces], [piece[1:] for piece in pieces]


def perplexity(pair: Pair, known: Sequence[TextPredictions], threshold: float) -> Perplexity:
    """Score texts as they would be decoded token by token with fallback at a threshold."""
    parts = with_fallback(without_end_tokens(pair), GivenText([]), threshold)
    done = [score(parts, text, example) for example, text in enumerate(known)]
    return Perplexity(math.fsum(value for one in done for value in one.log_probabilities), total(done))


def latencies(
    pair: Pair, sources: Rows, texts: Rows, threshold: float, examples: int, clock: Callable[[], float]
) -> Latencies[None]:
    """Time decoding `examples` random texts token by token, beside the large model alone, at batch 1."""
    endless, given = without_end_tokens(pair), GivenText(texts)

    def timed(method: DecodingMethod) -> Callable[[int], None]:
        def run(index: int) -> None:
            method.run([sources[index]], [index], len(texts[index]))

        return run

    rng = random.Random(0)  # noqa: S311 (a sample and an order, not a secret)
    chosen = rng.sample(range(len(texts)), min(examples, len(texts)))
    method, vanilla = with_fallback(endless, given, threshold), single_model_method(endless.large, UNTRUNCATED, given)
    return measure(timed(method), timed(vanilla), chosen, warmup=1, rng=rng, clock=clock)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, or of all examples of a split that `prepare` wrote (.jsonl): each source and its reference.

    Raises:
        InputError: the file cannot be read or is not UTF-8.
    """
    if path.suffix == ".jsonl":
        return "\n".join(text for example in stream_jsonl(path) for text in (example.source, *example.references[:1]))
    return read_text_file(path)


def stream(tokenizer: PreTrainedTokenizerBase, path: Path, chunk: int) -> tuple[Rows, Rows]:
    """The chunks of a text, each as its first token, which is only read, and the tokens to score.

    Raises:
        InputError: the text has fewer than two tokens.
    """
    tokens: list[int] = tokenizer(read_text(path), add_special_tokens=False, verbose=False)["input_ids"]
    sources, texts = chunks(tokens, chunk)
    if not texts:
        raise InputError(f"{path} has {len(tokens)} tokens; give a text of at least 2")
    return sources, texts


def pairs(tokenizer: PreTrainedTokenizerBase, source_path: Path, text_path: Path, limit: int) -> tuple[Rows, Rows]:
    """The source and the text to score of each line, each cut to `limit` tokens with the end token last.

    Raises:
        InputError: a file is empty or has an empty line, or the files differ in their number of lines.
    """
    columns = []
    for path in (source_path, text_path):
        lines = read_text(path).splitlines()
        empty = next((number for number, line in enumerate(lines, start=1) if not line.strip()), 0 if lines else 1)
        if empty:
            raise InputError(f"{path}, line {empty}: the line is empty; each line must hold a text")
        columns.append(encode(tokenizer, lines, limit))
    sources, texts = columns
    if len(sources) != len(texts):
        counts = f"{source_path} has {len(sources)} lines and {text_path} has {len(texts)}"
        raise InputError(f"{counts}; each line of one must be the source of the same line of the other")
    return sources, texts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.perplexity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", required=True, help="the small model: a folder or a name on the hub")
    parser.add_argument("--large", required=True, help="the large model, with the same tokenizer")
    parser.add_argument(
        "--text", required=True, type=Path, help="the text to score, UTF-8, or a split that prepare wrote (.jsonl)"
    )
    parser.add_argument("--sources", type=Path, help="for encoder-decoders: a source for each line of the text")
    parser.add_argument(
        "--fallback",
        type=float,
        nargs="+",
        default=[0.05],
        metavar="THRESHOLD",
        help="fallback thresholds, 0 to 1 (default: 0.05)",
    )
    parser.add_argument("--chunk", type=int, default=512, help="most tokens of a chunk or of a line (default: %(default)s)")
    parser.add_argument("--timed", type=int, default=0, help="chunks to time at batch 1 (default: %(default)s)")
    parser.add_argument("--figure", type=Path, help="draw perplexity at all thresholds to this file, .svg or .png")
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16", "int8"), help="number format of the models"
    )
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Check the arguments before any model is loaded."""
    if arguments.timed < 0:
        raise InputError(f"--timed is {arguments.timed}; it must be at least 0")
    if arguments.figure is not None and arguments.figure.suffix not in (".svg", ".png"):
        raise InputError(f"--figure is {arguments.figure}; its name must end in .svg or .png")
    if arguments.figure is not None and not arguments.figure.parent.is_dir():
        raise InputError(f"--figure is {arguments.figure}; there is no folder {arguments.figure.parent}")
    try:
        for threshold in arguments.fallback:
            PerplexitySettings(fallback_threshold=threshold, chunk=arguments.chunk)
    except ValueError as error:
        raise InputError(str(error)) from None


def _load(
    arguments: argparse.Namespace, device: torch.device, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Load both models and their tokenizer, and check them against each other and the arguments."""
    tokenizer = load_tokenizer(arguments.large)
    check_pair(load_tokenizer(arguments.small), tokenizer, arguments.small, arguments.large)
    small, large = (load_model(name, device, dtype) for name in (arguments.small, arguments.large))
    check_architectures(small, large)
    for model, name in ((small, arguments.small), (large, arguments.large)):
        known = max_positions(model)
        if known is not None and known < arguments.chunk:
            raise InputError(f"--chunk is {arguments.chunk}, but {name} has {known} positions; lower it")
    if large.config.is_encoder_decoder and arguments.sources is None:
        raise InputError(f"{arguments.large} is an encoder-decoder; give --sources, a line for each line of --text")
    if not large.config.is_encoder_decoder and arguments.sources is not None:
        raise InputError(f"{arguments.large} is decoder-only and reads no source; leave out --sources")
    return small, large, tokenizer


def _line(point: FallbackPoint) -> dict[str, object]:
    """One threshold as JSON."""
    found, times = point.found, point.times
    line: dict[str, object] = {
        "perplexity": found.value if math.isfinite(found.value) else "inf",
        "fallback_threshold": point.threshold,
        "large_share": found.large_share,
        "positions": found.counts.tokens,
        "large_calls": found.counts.large_calls,
        "small_steps": found.counts.small_steps,
    }
    if times is not None:
        line |= {"latency_ms": times.method, "vanilla_latency_ms": times.vanilla, "speedup": times.speedup}
    return line


def main() -> None:
    """Score the text at each threshold, print each as one line of JSON, and draw them."""
    arguments = _parser().parse_args()
    _check(arguments)
    device, dtype = set_up(MachineSettings(dtype=arguments.dtype))
    small, large, tokenizer = _load(arguments, device, dtype)
    if arguments.sources is None:
        sources, texts = stream(tokenizer, arguments.text, arguments.chunk)
    else:
        sources, texts = pairs(tokenizer, arguments.sources, arguments.text, arguments.chunk)
    pair = open_pair(small, large, vocabulary_size(tokenizer, small, large), runtime=Runtime.of("auto", arguments.dtype))
    same = {"chunk": arguments.chunk, "texts": len(texts), "device": device.type, "dtype": arguments.dtype}
    with working_lock(device.type):
        known = read_along(without_end_tokens(pair), sources, texts, "read")
    points = []
    for threshold in arguments.fallback:
        times = None
        if arguments.timed:
            with timing_lock(device.type):
                clock = synchronised_clock(device.type)
                times = latencies(pair, sources, texts, threshold, arguments.timed, clock)
        points.append(FallbackPoint(threshold, perplexity(pair, known, threshold), times))
        print(json.dumps(_line(points[-1]) | same), flush=True)
    if arguments.figure is not None:
        scored = [
            ScoredText(one.threshold, one.found.value, one.found.large_share, None if one.times is None else one.times.speedup)
            for one in points
        ]
        save(fallback_curve(scored), arguments.figure)


if __name__ == "__main__":
    with stage():
        main()
