"""What fewer bits a number cost and buy: the large model in bfloat16 and in int8, beside itself in float32."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tasks.bench.cases import Case, LoadedCase
from tasks.bench.mismatches import find_mismatches, widest_margin
from tasks.bench.timing import median_ratio, time_interleaved, timed_by
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.opened import Runtime
from tasks.decoding.settings import VanillaSettings
from tasks.decoding.strategies import Pair, Request, decode
from tasks.errors import InputError

EXACT = "float32"
Quality = Callable[[Decoder], float]
"""Of all that a decoder writes."""


def number_formats(opened: LoadedCase, rounds: int, quality: Quality | None) -> dict[str, dict[str, Any]]:
    """Of each format that decoding here takes: speed over float32, texts that differ, and quality where it is measured.

    `worst_margin` is the widest top-2 logit margin, in float32, at which a text takes another token.
    """
    case = opened.case
    decoders = _decoders(opened)
    runs = {name: timed_by(partial(_decode_round, decoder, case)) for name, decoder in decoders.items()}
    seconds = time_interleaved(runs, rounds, random.Random(0))  # noqa: S311 (an order, not a secret)
    texts = {name: _written(decoder, case.sources, case.limit) for name, decoder in decoders.items()}
    found = {}
    for name, decoder in decoders.items():
        different = find_mismatches(opened.large, case.sources, texts[EXACT], texts[name])
        found[name] = {
            "over_float32": round(median_ratio(seconds[name], seconds[EXACT]), 3),
            "texts": len(case.sources),
            "differ": len(different),
            "worst_margin": round(widest_margin(different), 4),
            "quality": None if quality is None else round(quality(decoder), 3),
        }
    return found


def _decoders(opened: LoadedCase) -> dict[str, Decoder]:
    made = {EXACT: opened.pair.large}
    makers: dict[str, Callable[[], Decoder]] = {
        "bfloat16": lambda: open_decoder(copy.deepcopy(opened.large).to(torch.bfloat16), "large", opened.case.vocabulary),
        "int8": lambda: open_decoder(opened.large, "large", opened.case.vocabulary, Runtime(int8=True)),
    }
    for name, make in makers.items():
        try:
            made[name] = make()
        except InputError:  # no runtime here takes it
            continue
    return made


def _decode_round(decoder: Decoder, case: Case, round_index: int) -> None:
    for source in case.window(round_index, case.examples):
        _written(decoder, [source], case.limit)


def _written(decoder: Decoder, sources: Rows, limit: int) -> Rows:
    done = decode("vanilla_large", VanillaSettings(), Pair(decoder, decoder), sources, Request(limit))
    return [one.tokens for one in done]
