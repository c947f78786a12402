"""Compares the speed of labelling with that of `transformers.generate`: texts in, checked texts out."""

from __future__ import annotations

import dataclasses
import random
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.alignment.calibrating.labelling import Labeller
from tasks.bench.baselines import generate, new_tokens
from tasks.bench.timing import TimedWork, fastest, median_ratio, time_interleaved, timed_by
from tasks.config import load
from tasks.corpora.example import read_jsonl
from tasks.decoding.decoder import REFERENCE, Decoder, Rows, Runtime
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.settings import VanillaSettings
from tasks.errors import InputError
from tasks.evaluation.mismatches import MARGIN_TOLERANCE, find_mismatches, widest_margin
from tasks.evaluation.timing import synchronised_clock
from tasks.machine import MachineSettings, set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import vocabulary_size
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCHES = (64, 128, 256)
"""Batch sizes that `generate` is tried with, in addition to the task's own."""
_COMPARED = 48
_OURS = "ours"


class UnequalError(RuntimeError):
    """Labels differ from those of `generate`."""


class GenerateLabeller:
    """Labels texts with `generate`."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: TextSettings) -> None:
        """Take the large model, its tokenizer and the length limits."""
        self._model, self._tokenizer, self._text = model, tokenizer, text

    def label(self, sources: list[str], size: int) -> list[str]:
        """Return the outputs in the order of their inputs; batches hold `size` inputs of similar length, longest first."""
        rows = encode_sources(self._tokenizer, sources, self._text)
        order, found = sorted(range(len(rows)), key=lambda index: -len(rows[index])), dict[int, str]()
        for begin in range(0, len(order), size):
            batch = order[begin : begin + size]
            output = generate(self._model, [rows[index] for index in batch], self._text.max_target_tokens)
            found.update(zip(batch, self._tokenizer.batch_decode(output, skip_special_tokens=True), strict=True))
        return [found[index] for index in range(len(rows))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabellingComparison:
    """Speed of labelling beside `generate` at its fastest batch size."""

    ratio: float
    """Median over rounds of generate's seconds over ours."""
    ours: float
    """Tokens per second."""
    generate: float
    """Tokens per second."""
    setting: str
    """The batch size of `generate`, described."""
    runtime: str
    inputs: int
    kept: int
    """Outputs that are fit for training."""
    compared: int
    """Texts whose tokens were compared."""
    differ: int
    """Those of them that differ at a margin within float32's rounding (see `evaluation.mismatches`)."""


def compare_labelling(task: str, params: str, threads: int, inputs: int, rounds: int) -> LabellingComparison:
    """Time both on the first training inputs of a task.

    Raises:
        UnequalError: tokens differ by more than float32's rounding explains.
        InputError: the models or the text are missing.
    """
    loaded, paths = load(Path(params)), TaskPaths(task)
    settings = dataclasses.replace(loaded.task(task).calibrate, top_logits=0)
    if not settings.sampling.greedy:
        raise InputError(f"calibrate.sampling of {task} draws at random; set its temperature to 0 to compare outputs")
    text = loaded.task(task).text
    device, _ = set_up(MachineSettings(threads=threads))
    folder = paths.model("large")
    tokenizer, model = load_tokenizer(folder), load_model(folder, device)
    runtime = Runtime.of(loaded.machine.runtime, "float32")
    decoder = open_decoder(load_model(folder, device), "large", vocabulary_size(tokenizer, model), runtime)
    labeller = Labeller(decoder, tokenizer, text, settings)
    examples = read_jsonl(paths.split("train"))[:inputs]
    sources = [one.source for one in examples]
    baseline = GenerateLabeller(model, tokenizer, text)
    counts = labeller.label(examples).counts
    timed: dict[str, TimedWork] = {_OURS: timed_by(lambda _: labeller.label(examples), synchronised_clock(device.type))}
    for size in sorted({*BATCHES, settings.batch_size}):
        run = partial(_generated, baseline, sources, size)
        timed[f"batches of {size}"] = timed_by(run, synchronised_clock(device.type))
    seconds = time_interleaved(timed, rounds, random.Random(0))  # noqa: S311 (an order, not a secret)
    best = fastest({name: taken for name, taken in seconds.items() if name != _OURS})
    rows = encode_sources(tokenizer, sources[:_COMPARED], text)
    return LabellingComparison(
        ratio=round(median_ratio(seconds[_OURS], seconds[best]), 3),
        ours=round(counts["tokens"] / statistics.median(seconds[_OURS]), 1),
        generate=round(counts["tokens"] / statistics.median(seconds[best]), 1),
        setting=best,
        runtime=getattr(decoder, "described", type(decoder).__name__),
        inputs=len(sources),
        kept=counts["kept"],
        compared=len(rows),
        differ=_count_differences(decoder, model, rows, text),
    )


def _generated(baseline: GenerateLabeller, sources: list[str], size: int, _round: int) -> list[str]:
    return baseline.label(sources, size)


def _count_differences(decoder: Decoder, model: PreTrainedModel, rows: Rows, text: TextSettings) -> int:
    request = Request(text.max_target_tokens)
    ours = [one.tokens for one in decode("vanilla_large", VanillaSettings(), Pair(decoder, decoder), rows, request)]
    theirs = new_tokens(model, generate(model, rows, text.max_target_tokens), rows)
    different = find_mismatches(open_decoder(model, "large", runtime=REFERENCE), rows, ours, theirs)
    if widest_margin(different) >= MARGIN_TOLERANCE:
        raise UnequalError(f"labelling and generate differ at a top-2 logit margin of {widest_margin(different):.2g}")
    return len(different)
