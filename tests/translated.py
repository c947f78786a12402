"""A small toy model with a vocabulary of its own, and its translation, written down by hand.

Texts of the two vocabularies: the large model's tokens 0, 2, 3, 4 stand for x, y, xy, z and the small model's 0, 2, 3, 4 for w,
x, y, z. So y and z are common; x and xy are written with the small model's x, y.
"""

import functools
import itertools

import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.decoding.drafters.retokenized import TranslatedDecoder, Translation
from tasks.decoding.method import Pair
from tests.toys import END, START, Predict, Prefix, PrefixDecoder

COMMON = {END: END, 2: 3, 4: 4}
WRITTEN = {0: [2], 3: [2, 3]}


def translation(vocabulary: int) -> Translation:
    """For a large model of so many tokens; its sources begin with a token that the small model's lack."""
    common = {token: same for token, same in COMMON.items() if token < vocabulary}

    def sources(rows: Rows) -> Rows:
        return [row[1:] for row in rows]

    return Translation(common, WRITTEN.__getitem__, sources, functools.partial(retokenized, vocabulary))


def retokenized(vocabulary: int, text: list[int], drafted: list[int]) -> list[int]:
    """xy is one token where the large model has it; w is none."""
    found: list[int] = []
    drafted = list(itertools.takewhile(lambda token: token != 0 and token < vocabulary + (token == 3), drafted))
    while drafted:
        if drafted[:2] == [2, 3] and vocabulary > 3:
            found, drafted = [*found, 3], drafted[2:]
        else:
            found, drafted = [*found, {END: END, 2: 0, 3: 2, 4: 4}[drafted[0]]], drafted[1:]
    return found


def translated_pair(small: Predict, large: Predict, vocabulary: int) -> Pair:
    """The pair of a small model in its own tokens and a large one of `vocabulary` tokens."""
    target = PrefixDecoder(large, "large")
    return Pair(TranslatedDecoder(PrefixDecoder(small, "small"), target, translation(vocabulary), [START]), target)


def in_large_tokens(small: Predict, vocabulary: int) -> Predict:
    """What the small model predicts of the large one's tokens: those of both, the others never."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        written = [START]
        for token in prefix[1:]:
            written += WRITTEN[token] if token in WRITTEN else [COMMON[token]]
        found = small(source[1:], tuple(written))
        logits = torch.full((vocabulary,), -torch.inf, dtype=found.dtype)
        for token, same in COMMON.items():
            if token < vocabulary:
                logits[token] = found[same]
        return logits

    return predict
