"""Perplexity of a text, scored by a small model with fallback to a large one (BiLD-v1, section 4.2).

`python -m tasks.perplexity --small gpt2 --large gpt2-large --text wiki.valid.txt --fallback 0.05` scores a text in chunks with
two decoder-only models. Two encoder-decoders score each line of the text given the same line of `--sources`. The command prints
one line of JSON for each threshold, `--timed 20` adds the speed-up over the large model alone, measured on twenty chunks, and
`--figure curve.svg` draws the thresholds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.console import progress
from tasks.corpora.example import stream_jsonl
from tasks.decoding.decoder import Rows, Runtime
from tasks.decoding.drafters import make_drafter
from tasks.decoding.drafters.base import DraftRule
from tasks.decoding.generation import Counts, total
from tasks.decoding.given_text import UNTRUNCATED, GivenText, without_end_tokens
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import DecodingMethod, Pair
from tasks.decoding.methods.baselines import single_model_method
from tasks.decoding.rules import accept_all
from tasks.decoding.runtimes.choose import open_pair
from tasks.errors import InputError, stage
from tasks.evaluation.report.figures.figure import save
from tasks.evaluation.report.figures.perplexity import fallback_curve
from tasks.evaluation.timing import Latencies, measure, synchronised_clock
from tasks.locks import timing_lock, working_lock
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_architectures, check_pair, max_positions, vocabulary_size
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.settings import setting, settings
from tasks.text_files import read_text_file

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
    batch_size: int = setting("Chunks scored as a batch.", default=4, unit="chunks", ge=1)


@dataclass(frozen=True)
class Perplexity:
    """The score of a text, and the model runs that it took."""

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


Compose = Callable[[Pair, GivenText], DecodingMethod]
"""(models, texts) to the method that scores them."""


def with_fallback(threshold: float) -> Compose:
    """The small model with fallback to the large one; the length of a draft is not limited."""

    def compose(pair: Pair, given: GivenText) -> DecodingMethod:
        rule = DraftRule(window=sys.maxsize, fallback_threshold=threshold, ends_unverified=True)
        drafter = make_drafter("small", pair, UNTRUNCATED, given)
        return SpeculativeLoop(pair.large, accept_all, UNTRUNCATED, given, drafter, rule)

    return compose


def _large_alone(pair: Pair, given: GivenText) -> DecodingMethod:
    return single_model_method(pair.large, UNTRUNCATED, given)


def chunks(tokens: Sequence[int], size: int) -> tuple[Rows, Rows]:
    """Chunks of `size` tokens, each as its first token, which is only read, and the tokens to score.

    The last chunk may be shorter; a single remaining token cannot be scored and is dropped.
    """
    pieces = [list(tokens[begin : begin + size]) for begin in range(0, len(tokens) - 1, size)]
    return [piece[:1] for piece in pieces], [piece[1:] for piece in pieces]


def perplexity(pair: Pair, sources: Rows, texts: Rows, options: PerplexitySettings, label: str | None = None) -> Perplexity:
    """Score texts token by token, as they would be decoded.

    Args:
        pair: The two models.
        sources: The context of each text: the source of an encoder-decoder, the first tokens of a decoder-only model.
        texts: The tokens to score, none of them empty.
        options: Threshold and batch size; `chunk` is not used here, but by `chunks`.
        label: Text before a progress bar on standard error; None for no bar.
    """
    compose, parts = with_fallback(options.fallback_threshold), []
    with progress(total=len(texts), desc=label, unit="text", mininterval=2.0, disable=label is None) as bar:
        for batch in _batches(texts, options.batch_size):
            parts.append(_score(compose, pair, [sources[index] for index in batch], [texts[index] for index in batch]))
            bar.update(len(batch))
    return Perplexity(math.fsum(part.log_likelihood for part in parts), sum((part.counts for part in parts), Counts()))


def latencies(
    pair: Pair, sources: Rows, texts: Rows, options: PerplexitySettings, examples: int, clock: Callable[[], float]
) -> Latencies[None]:
    """Time the evaluation beside the large model alone on `examples` random texts, at batch 1."""

    def timed(compose: Compose) -> Callable[[int], None]:
        def run(index: int) -> None:
            _score(compose, pair, [sources[index]], [texts[index]])

        return run

    rng = random.Random(0)  # noqa: S311 (a sample and an order, not a secret)
    chosen = rng.sample(range(len(texts)), min(examples, len(texts)))
    method, vanilla = timed(with_fallback(options.fallback_threshold)), timed(_large_alone)
    return measure(method, vanilla, chosen, warmup=1, rng=rng, clock=clock)


def _score(compose: Compose, pair: Pair, sources: Rows, texts: Rows) -> Perplexity:
    """Score texts of equal length as a batch."""
    given = GivenText(texts)
    done = compose(without_end_tokens(pair), given).run(sources, range(len(texts)), len(texts[0]))
    return Perplexity(given.log_likelihood(), total(done))


def _batches(texts: Rows, size: int) -> Iterator[list[int]]:
    """Indices of texts of equal length, at most `size` at a time, since a batch has one length limit."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    for _, group in itertools.groupby(order, key=lambda index: len(texts[index])):
        same = list(group)
        yield from (same[begin : begin + size] for begin in range(0, len(same), size))


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
    parser.add_argument("--batch", type=int, default=4, help="chunks scored as a batch (default: %(default)s)")
    parser.add_argument("--timed", type=int, default=0, help="chunks to time at batch 1 (default: %(default)s)")
    parser.add_argument("--figure", type=Path, help="draw perplexity at all thresholds to this file, .svg or .png")
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16", "int8"), help="number format of the models"
    )
    return parser


def _settings(arguments: argparse.Namespace) -> list[PerplexitySettings]:
    """The settings of each threshold."""
    if arguments.timed < 0:
        raise InputError(f"--timed is {arguments.timed}; it must be at least 0")
    if arguments.figure is not None and arguments.figure.suffix not in (".svg", ".png"):
        raise InputError(f"--figure is {arguments.figure}; its name must end in .svg or .png")
    if arguments.figure is not None and not arguments.figure.parent.is_dir():
        raise InputError(f"--figure is {arguments.figure}; there is no folder {arguments.figure.parent}")
    try:
        return [
            PerplexitySettings(fallback_threshold=threshold, chunk=arguments.chunk, batch_size=arguments.batch)
            for threshold in arguments.fallback
        ]
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


@dataclass(frozen=True)
class _Text:
    """What is scored."""

    sources: Rows
    texts: Rows


def _measure(pair: Pair, text: _Text, options: PerplexitySettings, device: str, timed: int) -> FallbackPoint:
    """Score the text at one threshold, and time it on that many chunks."""
    with working_lock(device):
        found = perplexity(
            pair, text.sources, text.texts, options, label=f"perplexity, fallback {options.fallback_threshold:g}"
        )
    times = None
    if timed:
        with timing_lock(device):
            times = latencies(pair, text.sources, text.texts, options, timed, synchronised_clock(device))
    return FallbackPoint(options.fallback_threshold, found, times)


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
    settings = _settings(arguments)
    device, dtype = set_up(MachineSettings(dtype=arguments.dtype))
    small, large, tokenizer = _load(arguments, device, dtype)
    if arguments.sources is None:
        text = _Text(*stream(tokenizer, arguments.text, arguments.chunk))
    else:
        text = _Text(*pairs(tokenizer, arguments.sources, arguments.text, arguments.chunk))
    pair = open_pair(small, large, vocabulary_size(tokenizer, small, large), runtime=Runtime.of("auto", arguments.dtype))
    same = {"chunk": arguments.chunk, "texts": len(text.texts), "device": device.type, "dtype": arguments.dtype}
    points = []
    for options in settings:
        points.append(_measure(pair, text, options, device.type, arguments.timed))
        print(json.dumps(_line(points[-1]) | same), flush=True)
    if arguments.figure is not None:
        save(fallback_curve(points), arguments.figure)


if __name__ == "__main__":
    with stage():
        main()
