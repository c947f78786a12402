"""Every executor of the speculative loop takes the turns of the written-out algorithm, counts included."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding import registry
from tasks.decoding.decoder import AUTO, REFERENCE, Rows, Runtime
from tasks.decoding.generation import Counts, Generation, total
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import PredictionCache
from tasks.decoding.registry import decode
from tasks.decoding.replay import replay_pair
from tasks.decoding.turn import RowState
from tests.architectures import pair_of, predictions
from tests.toys import END, START, Predict, Prefix, prefix_pair, random_table, toy_sources

SOURCES = toy_sources(6, seed=5)
METHODS: dict[str, tuple[str, Any]] = {
    "bild": ("bild", BildSettings(fallback_threshold=0.45, rollback_threshold=1.5, max_draft=4)),
    "bild, short drafts": ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=3.0, max_draft=2)),
    "speculative": ("speculative", SpeculativeSettings(draft_length=3)),
}


def written_out(
    small: Predict, large: Predict, source: Prefix, settings: Any, limit: int, unsure: Callable[[Tensor], bool] | None = None
) -> Generation:
    """One text by whole forward passes: BiLD's Algorithm 1, or greedy speculative decoding (SD, Algorithm 1).

    `unsure` takes the place of BiLD's fallback threshold.
    """
    bild = isinstance(settings, BildSettings)
    window = settings.max_draft if bild else settings.draft_length
    text: list[int] = []
    who = ""
    counts = Counts()
    while True:
        draft: list[int] = []
        fell_back = False
        room = limit - len(text) - (0 if bild else 1)
        while len(draft) < min(window, room) and END not in draft:
            q = torch.softmax(small(source, (START, *text, *draft)), -1)
            counts.small_steps += 1
            if bild and (float(q.max()) <= settings.fallback_threshold if unsure is None else unsure(q)):
                fell_back = True
                break
            draft.append(int(q.argmax()))
        counts.drafted += len(draft)
        counts.fallbacks += fell_back
        if bild and draft and (draft[-1] == END or len(text) + len(draft) == limit):
            text, who = text + draft, who + "s" * len(draft)
            break
        counts.large_calls += 1
        counts.verified[len(draft) + 1] += 1
        kept = 0
        for token in draft:
            q, p = (torch.softmax(model(source, (START, *text, *draft[:kept])), -1) for model in (small, large))
            if bild and -math.log(max(float(p[token]), 1e-45)) > settings.rollback_threshold:
                break
            if not bild and int(p.argmax()) != token:
                break
            kept += 1
        if draft:
            counts.kept[len(draft), kept] += 1
        counts.accepted += kept
        counts.rollbacks += kept < len(draft)
        text, who = text + draft[:kept], who + "s" * kept
        if text[-1:] == [END]:
            break
        text.append(int(large(source, (START, *text)).argmax()))
        who += "l" if kept == len(draft) else "c"
        if text[-1] == END or len(text) == limit:
            break
    counts.tokens = len(text)
    return Generation(text, who, counts)


def by_the_loop(method: str, settings: Any, limit: int) -> list[Generation]:
    return decode(method, settings, pair_of("t5", REFERENCE), SOURCES, Request(limit))


def by_the_native_loop(method: str, settings: Any, limit: int) -> list[Generation]:
    return [decode(method, settings, pair_of("t5"), [source], Request(limit))[0] for source in SOURCES]


def by_replay(method: str, settings: Any, limit: int) -> list[Generation]:
    pair = pair_of("t5", REFERENCE)
    return decode(method, settings, replay_pair(pair, PredictionCache(pair)), SOURCES, Request(limit))


Executor = Callable[[str, Any, int], list[Generation]]
EXECUTORS: dict[str, Executor] = {"loop": by_the_loop, "native": by_the_native_loop, "replay": by_replay}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_executor_takes_the_written_out_turns(executor: str) -> None:
    decoded: list[Generation] = []
    sources: Rows = SOURCES
    for method, settings in METHODS.values():
        for limit in (1, 3, 14):
            found = EXECUTORS[executor](method, settings, limit)
            assert found == [written_out(*predictions("t5"), tuple(source), settings, limit) for source in sources]
            decoded += found
    counts = total(decoded)
    assert min(counts.fallbacks, counts.rollbacks, counts.accepted) > 10
    assert {one.proposers[-1] for one in decoded if one.tokens[-1] == END} == {"s", "l", "c"}
    assert {one.proposers[-1] for one in decoded if one.tokens[-1] != END} >= {"s", "l"}


THRESHOLDS = [(0, 0.5), (0, math.inf), (0.3, 0), (0.3, 2), (0.3, 5), (0.6, 0.5), (0.6, math.inf), (0.9, 2), (1, 0)]
"""(fallback, rollback): every value of each, and the extremes together."""


@pytest.mark.parametrize("max_draft", [1, 3, 10])
def test_bild_is_algorithm_1_on_random_tables(max_draft: int) -> None:
    small, large = (random_table(name, agreement=0.7, sharpness=4.0, end=-1.5) for name in ("small", "large"))
    sources = toy_sources(20)
    decoded: list[Generation] = []
    for fallback, rollback in THRESHOLDS:
        settings = BildSettings(fallback_threshold=fallback, rollback_threshold=rollback, max_draft=max_draft)
        generations = decode("bild", settings, prefix_pair(small, large), sources, Request(14))
        assert generations == [written_out(small, large, tuple(one), settings, 14) for one in sources]
        decoded += generations
    counts, ends = total(decoded), Counter(one.proposers[-1] if one.tokens[-1] == END else "limit" for one in decoded)
    assert min(counts.fallbacks, counts.rollbacks, counts.accepted, *(ends[end] for end in ("s", "l", "c", "limit"))) >= 3


def test_bild_falls_back_at_the_threshold() -> None:
    def flat(source: Prefix, prefix: Prefix) -> Tensor:
        return torch.zeros(8)

    settings = BildSettings(fallback_threshold=0.125, rollback_threshold=math.inf)
    [found] = decode("bild", settings, prefix_pair(flat, flat), [[5, END]], Request(4))
    assert found.proposers == "llll"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("runtime", [REFERENCE, AUTO], ids=["reference", "native"])
def test_a_watched_text_grows_by_final_tokens(name: str, runtime: Runtime) -> None:
    """One row or several, in any runtime: the same texts and counts, each seen after each of its turns."""
    method, settings = METHODS[name]
    pair = pair_of("t5", runtime)
    expected = decode(method, settings, pair, SOURCES, Request(12))
    seen: dict[int, list[tuple[list[int], str]]] = {}

    def watch(row: RowState) -> None:
        seen.setdefault(row.example, []).append((row.tokens[row.prompt :], row.proposers))

    built = registry.METHODS[method].make(settings, pair, Request(12))
    assert isinstance(built, SpeculativeLoop)
    watched = dataclasses.replace(built, watch=watch)
    assert watched.run(SOURCES[:-1], range(len(SOURCES) - 1), 12) == expected[:-1]
    assert watched.run(SOURCES[-1:], [len(SOURCES) - 1], 12) == expected[-1:]
    for example, generation in enumerate(expected):
        turns = seen[example]
        assert turns[-1] == (generation.tokens, generation.proposers)
        assert all(generation.tokens[: len(tokens)] == tokens for tokens, _ in turns)
        # The last turn of BiLD may be a draft that the large model never sees.
        assert len(turns) - generation.counts.large_calls in (0, 1)
