"""What labelling costs here, and by `transformers.generate` in the same batches: texts in, checked texts out."""

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
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.paths import TaskPaths

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCHES = (64, 128, 256)
"""Examples side by side that `generate` is tried with, beside the task's own number."""
_COMPARED = 48
_OURS = "ours"


class UnequalError(RuntimeError):
    """Labels differ from those of `generate`."""


class Generating:
    """Labels texts with `generate`, in place of the labeller."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: TextSettings) -> None:
        """Take the large model, its tokenizer and the length limits."""
        self._model, self._tokenizer, self._text = model, tokenizer, text

    def label(self, sources: list[str], size: int) -> list[str]:
        """Outputs for some inputs, in order, from batches of `size` inputs of similar length, longest first."""
        rows = encode(self._tokenizer, sources, self._text.max_source_tokens)
        order, found = sorted(range(len(rows)), key=lambda index: -len(rows[index])), dict[int, str]()
        for begin in range(0, len(order), size):
            batch = order[begin : begin + size]
            output = generate(self._model, [rows[index] for index in batch], self._text.max_target_tokens)
            found.update(zip(batch, self._tokenizer.batch_decode(output, skip_special_tokens=True), strict=True))
        return [found[index] for index in range(len(rows))]


def labelled(task: str, params: str, threads: int, inputs: int, rounds: int) -> dict[str, object]:
    """Both on the first training inputs of a task, after their tokens were seen to be the same.

    Returns:
        `ratio`, the median over the rounds of their seconds over ours, `generate` at its fastest batch; tokens a second of
        both, and how many texts differ (see `evaluation.mismatches`).

    Raises:
        UnequalError: tokens differ by more than float32 may.
        InputError: the models or the text are missing.
    """
    loaded, paths = load(Path(params)), TaskPaths(task)
    settings = dataclasses.replace(loaded.task(task).calibrate, top_logits=0)
    if not settings.sampling.greedy:
        raise InputError(f"calibrate.sampling of {task} draws; what is drawn here and by generate cannot be compared")
    text = loaded.task(task).text
    device, _ = set_up(MachineSettings(threads=threads))
    folder = paths.model("large")
    tokenizer, model = load_tokenizer(folder), load_model(folder, device)
    runtime = Runtime.of(loaded.machine.runtime, "float32")
    decoder = open_decoder(load_model(folder, device), "large", vocabulary_size(tokenizer, model), runtime)
    labeller = Labeller(decoder, tokenizer, text, settings)
    sources = [one.source for one in read_jsonl(paths.split("train"))[:inputs]]
    rival = Generating(model, tokenizer, text)
    counts = labeller.label(sources).counts
    timed: dict[str, TimedWork] = {_OURS: timed_by(lambda _: labeller.label(sources), synchronised_clock(device.type))}
    for size in sorted({*BATCHES, settings.batch_size}):
        run = partial(_generated, rival, sources, size)
        timed[f"batches of {size}"] = timed_by(run, synchronised_clock(device.type))
    seconds = time_interleaved(timed, rounds, random.Random(0))  # noqa: S311 (an order, not a secret)
    best = fastest({name: taken for name, taken in seconds.items() if name != _OURS})
    return {
        "ratio": round(median_ratio(seconds[_OURS], seconds[best]), 3),
        "ours": round(counts["tokens"] / statistics.median(seconds[_OURS]), 1),
        "generate": round(counts["tokens"] / statistics.median(seconds[best]), 1),
        "setting": best,
        "runtime": getattr(decoder, "described", type(decoder).__name__),
        "inputs": len(sources),
        "kept": counts["kept"],
        **_compared(decoder, model, encode(tokenizer, sources[:_COMPARED], text.max_source_tokens), text),
    }


def _generated(rival: Generating, sources: list[str], size: int, _turn: int) -> list[str]:
    return rival.label(sources, size)


def _compared(decoder: Decoder, model: PreTrainedModel, rows: Rows, text: TextSettings) -> dict[str, int]:
    request = Request(text.max_target_tokens)
    ours = [one.tokens for one in decode("vanilla_large", VanillaSettings(), Pair(decoder, decoder), rows, request)]
    theirs = new_tokens(model, generate(model, rows, text.max_target_tokens), rows)
    different = find_mismatches(open_decoder(model, "large", runtime=REFERENCE), rows, ours, theirs)
    if widest_margin(different) >= MARGIN_TOLERANCE:
        raise UnequalError(f"labels here and by generate differ at a top-2 logit margin of {widest_margin(different):.2g}")
    return {"compared": len(rows), "differ": len(different)}
