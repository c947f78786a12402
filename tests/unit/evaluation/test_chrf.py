"""chrF equals sacrebleu's, with one reference or several, and for texts that are short, empty or foreign."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from sacrebleu.metrics.chrf import CHRF

from tasks.evaluation.metrics import chrf_of, chrf_signature


def sacrebleus(hypotheses: list[str], references: Sequence[tuple[str, ...]]) -> float:
    streams: list[Any] = [
        [texts[stream] if stream < len(texts) else None for texts in references] for stream in range(max(map(len, references)))
    ]
    return float(CHRF().corpus_score(hypotheses, streams).score)


def texts(seed: int, count: int = 25) -> list[str]:
    rng = random.Random(seed)
    words = ["the", "train", "leaves", "ein", "Zug,", "über", "naïve", "列車", "a", "late."]
    return [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_it_equals_sacrebleu(seed: int) -> None:
    hypotheses, first, second = texts(seed), texts(seed + 10), texts(seed + 20)
    one = [(text,) for text in first]
    assert chrf_of(hypotheses, one) == pytest.approx(sacrebleus(hypotheses, one), abs=1e-9)
    several = [(a, b) if index % 3 else (a,) for index, (a, b) in enumerate(zip(first, second, strict=True))]
    assert chrf_of(hypotheses, several) == pytest.approx(sacrebleus(hypotheses, several), abs=1e-9)


def test_ends() -> None:
    assert chrf_of(["the same text"], [("the same text",)]) == 100
    assert chrf_of(["", ""], [("a text",), ("b",)]) == sacrebleus(["", ""], [("a text",), ("b",)]) == 0
    pairs = (["ab", "a b c"], [("abc",), ("x y",)])
    assert chrf_of(*pairs) == pytest.approx(sacrebleus(*pairs), abs=1e-9)


def test_the_signature_is_sacrebleu_s() -> None:
    assert chrf_signature(1).startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert chrf_signature(2).startswith("nrefs:2|")
