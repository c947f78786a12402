"""Exact distributions of sampled texts, by enumeration."""

import functools
from collections.abc import Callable

import numpy as np
from torch import Tensor

from tasks.decoding.method import SamplingSettings
from tests.toys import END, START, Predict, Prefix, random_table

SOURCE = (5, END)
FALSE_ALARM = 1e-4
SequenceDistribution = dict[Prefix, float]

SMALL = random_table("small", agreement=0.5, sharpness=2.0, end=0.5)
LARGE = random_table("large", agreement=0.5, sharpness=2.0, end=0.5)
SAMPLINGS = {
    "plain": SamplingSettings(temperature=1.0),
    "cool, top-k": SamplingSettings(temperature=0.7, top_k=4),
    "warm, top-p": SamplingSettings(temperature=1.4, top_p=0.8),
    "all three": SamplingSettings(temperature=1.2, top_k=5, top_p=0.9),
}


def softmax(logits: Tensor) -> np.ndarray:
    exponents = np.exp(logits.double().numpy() - float(logits.max()))
    return np.asarray(exponents / exponents.sum())


@functools.cache
def scores(predict: Predict, prefix: Prefix) -> np.ndarray:
    """The model's untruncated softmax."""
    return softmax(predict(SOURCE, prefix))


@functools.cache
def dist(predict: Predict, prefix: Prefix, sampling: SamplingSettings) -> np.ndarray:
    """The sampling transform: temperature, then top-k, then the nucleus of the remaining tokens."""
    probabilities = softmax(predict(SOURCE, prefix) / sampling.temperature)
    ranked = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    kept = ranked[: sampling.top_k or None]
    total, nucleus = 0.0, []
    for token in kept:
        if total >= sampling.top_p * probabilities[kept].sum():
            break
        nucleus.append(token)
        total += probabilities[token]
    result = np.zeros_like(probabilities)
    result[nucleus] = probabilities[nucleus] / total
    return result


def continued(text: Prefix, shares: np.ndarray) -> list[tuple[Prefix, float]]:
    """The texts that one more token makes of a text, with their shares, where these are not 0."""
    return [((*text, token), share) for token, share in enumerate(shares) if share > 0]


def sequence_distribution(shares: Callable[[Prefix], np.ndarray], limit: int) -> SequenceDistribution:
    """The probability of each text whose next token is drawn from `shares(text so far, start token included)`."""
    distribution: SequenceDistribution = {}

    def grow(text: Prefix, probability: float) -> None:
        if len(text) - 1 == limit or text[-1] == END:
            distribution[text[1:]] = probability
            return
        for longer, share in continued(text, shares(text)):
            grow(longer, probability * share)

    grow((START,), 1.0)
    return distribution


@functools.cache
def model_distribution(predict: Predict, sampling: SamplingSettings, limit: int) -> SequenceDistribution:
    """The probability of each text drawn from one model."""
    return sequence_distribution(lambda text: dist(predict, text, sampling), limit)
