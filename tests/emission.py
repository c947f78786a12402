"""The exact output of an acceptance rule at one position, and random positions to test it on."""

from dataclasses import dataclass

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st

from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.method import SamplingSettings
from tasks.decoding.rules import AcceptanceRule, token_probabilities

GREEDY = SamplingSettings()
DRAWN = (
    SamplingSettings(temperature=1.0),
    SamplingSettings(temperature=0.6, top_k=3),
    SamplingSettings(temperature=1.5, top_p=0.8),
)
repeatable = hypothesis.settings(deadline=None, derandomize=True, database=None, max_examples=40)
"""The same examples in every run, without a deadline."""


@st.composite
def positions(draw: st.DrawFn, samplings: tuple[SamplingSettings, ...] = DRAWN) -> tuple[PredictionBlock, PredictionBlock]:
    """q and p at one position, (1, 1, vocabulary): near or far apart, sometimes equal, sometimes with masked tokens."""
    size = draw(st.integers(2, 8))
    logits = st.lists(
        st.one_of(st.floats(-3, 3, width=32), st.floats(-30, 30, width=32), st.just(-torch.inf)), min_size=size, max_size=size
    ).filter(lambda row: max(row) > -torch.inf)
    sampling = draw(st.sampled_from(samplings))
    small = draw(logits)
    large = draw(st.one_of(logits, st.just(small)))
    q, p = (PredictionBlock(torch.tensor([[row]], dtype=torch.float32), sampling) for row in (small, large))
    return q, p


def block(probabilities: list[float], sampling: SamplingSettings = DRAWN[0]) -> PredictionBlock:
    """One position by hand: (1, 1, vocabulary)."""
    return PredictionBlock(torch.tensor([[probabilities]]).log(), sampling)


@dataclass(frozen=True)
class Emission:
    """The output at one position, by token; each array is (vocabulary,), float64."""

    accept: np.ndarray
    """Probability that a drafted token is kept."""
    kept: np.ndarray
    """Probability that the token is drafted and kept."""
    replacement: np.ndarray
    """The residual as the rule returns it, not normalised."""

    @property
    def rejected(self) -> float:
        return 1 - float(self.kept.sum())

    @property
    def emitted(self) -> np.ndarray:
        """The distribution of the emitted token: accepted, or drawn from the replacement."""
        return np.asarray(self.kept + self.rejected * self.replacement / self.replacement.sum())


def emission(rule: AcceptanceRule, q: PredictionBlock, p: PredictionBlock) -> Emission:
    """Apply the rule to each token of the vocabulary once, each at a position of its own."""
    size = q.logits.shape[-1]
    blocks = (PredictionBlock(one.logits.expand(1, size, size), one.sampling) for one in (q, p))
    result = rule.apply(torch.arange(size)[None], *blocks)
    assert result.accept.shape == (1, size)
    assert token_probabilities(result.residual).shape == (1, size, size)
    accept = result.accept[0].double().numpy()
    replacement = token_probabilities(result.residual)[0].double().numpy()
    assert (replacement == replacement[0]).all()
    return Emission(accept, dist(q) * accept, replacement[0])


def dist(block: PredictionBlock) -> np.ndarray:
    """The sampling distribution of one position: (vocabulary,), float64, summing to 1."""
    values = block.dist[0, 0].double().numpy()
    return np.asarray(values / values.sum())
