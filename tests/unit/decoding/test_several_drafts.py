"""Several drafts at once: selection by hand and in law, greedy texts, batches and counts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tasks.decoding.batches import decode_all
from tasks.decoding.generation import total
from tasks.decoding.k_sequential import k_sequential_selection
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.replay_decoder import replay_pair
from tasks.decoding.replay.replayer import NotReplayableError
from tasks.decoding.settings import SamplingSettings, SeveralDraftsSettings, SpeculativeSettings, VanillaSettings
from tests.architectures import pair_of
from tests.toys import END, Prefix, prefix_pair, says, toy_sources

SAMPLED = SamplingSettings(temperature=1.0)


def selected(q: np.ndarray, p: np.ndarray, drafts: int) -> tuple[np.ndarray, float]:
    """The law of the selected token and the probability that it is a drafted one, over all draws from q."""
    rule = k_sequential_selection(torch.from_numpy(q), torch.from_numpy(p), drafts)
    accept, residual = rule.accept.numpy(), rule.residual.numpy()
    assert residual.min() >= 0
    law, kept = np.zeros(len(q)), 0.0
    for tokens in itertools.product(range(len(q)), repeat=drafts):
        left = math.prod(q[list(tokens)])
        for token in tokens:
            law[token] += left * accept[token]
            kept += left * accept[token]
            left *= 1 - accept[token]
        law += left * residual / residual.sum()
    return law, kept


@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_the_selected_token_follows_p(drafts: int) -> None:
    rng = np.random.default_rng(drafts)
    for _ in range(20):
        q, p = (rng.dirichlet([0.5] * 4) for _ in range(2))
        p[rng.integers(4)] = q[rng.integers(4)] = 0
        law, kept = selected(q / q.sum(), p / p.sum(), drafts)
        np.testing.assert_allclose(law, p / p.sum(), atol=1e-12)
        shared = np.minimum(q / q.sum(), p / p.sum()).sum()
        # Of one draft the acceptance of speculative sampling; of more at least that, and at most what is possible at all.
        best = sum(min(p[v] / p.sum(), 1 - (1 - q[v] / q.sum()) ** drafts) for v in range(4))
        assert shared - 1e-12 <= kept <= best + 1e-12
        assert drafts > 1 or kept == pytest.approx(shared)


def test_selection_by_hand() -> None:
    """q is even and p is certain of the first of two tokens: ρ = 3/2 and β = 1/2, so that 1 - (1 - β)² = ρ β."""
    rule = k_sequential_selection(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]), 2)
    assert rule.accept.tolist() == [1.0, 0.0]
    _, kept = selected(np.array([0.5, 0.5]), np.array([1.0, 0.0]), 2)
    assert kept == pytest.approx(0.75)
    equal = k_sequential_selection(torch.tensor([0.3, 0.7]), torch.tensor([0.3, 0.7]), 3)
    assert equal.accept.tolist() == [1.0, 1.0]
    apart = k_sequential_selection(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), 2)
    assert (apart.accept.tolist()[0], apart.residual.tolist()) == (0.0, [0.0, 1.0])


@pytest.mark.parametrize("name", ["t5", "llama", "bart"])
def test_greedy_texts_are_the_large_models_own(name: str) -> None:
    pair, sources, request = pair_of(name), toy_sources(8), Request(14)
    vanilla = [one.tokens for one in decode("vanilla_large", VanillaSettings(), pair, sources, request)]
    alone = total(decode("speculative", SpeculativeSettings(draft_length=4), pair, sources, request))
    calls = [alone.large_calls]
    for drafts in (2, 5):
        settings = SeveralDraftsSettings(draft_length=4, drafts=drafts)
        found = decode("speculative_several", settings, pair, sources, request)
        assert [one.tokens for one in found] == vanilla
        calls.append(total(found).large_calls)
    # The first of the drafts is the one that is drafted alone, so that no further run is needed for others.
    assert calls == sorted(calls, reverse=True)
    assert calls[-1] < calls[0]


@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["small", "bigram"])
def test_a_batch_gives_the_same(drafter: str, sampling: SamplingSettings) -> None:
    pair = Pair(pair_of("t5").small, pair_of("t5").large, calibration=[[5, 6, 7, END], [6, 7, 8, END]])
    settings = SeveralDraftsSettings(drafter=drafter, draft_length=3, drafts=3)
    request = Request(12, sampling, seed=4)
    alone = decode_all("speculative_several", settings, pair, toy_sources(7), request, 1)
    assert decode_all("speculative_several", settings, pair, toy_sources(7), request, 4) == alone


def test_more_drafts_are_accepted_more_often() -> None:
    pair, sources = pair_of("t5"), toy_sources(40)
    shares = []
    for drafts in (2, 8):
        settings = SeveralDraftsSettings(draft_length=3, drafts=drafts)
        counts = total(decode("speculative_several", settings, pair, sources, Request(16, SAMPLED)))
        shares.append(counts.tokens / counts.large_calls)
    one = total(decode("speculative", SpeculativeSettings(draft_length=3), pair, sources, Request(16, SAMPLED)))
    assert one.tokens / one.large_calls < shares[0] < shares[1]


def test_the_turns_of_a_text_by_hand() -> None:
    """The small model takes 2 for the likeliest first token and 0 for the next one, with which the large model begins."""

    def small(source: Prefix, prefix: Prefix) -> torch.Tensor:
        logits = says([2, 3, 4, 5])(source, prefix)
        logits[0] = 10.0
        return logits

    pair, settings = prefix_pair(small, says([0, 3, 4, 5])), SeveralDraftsSettings(draft_length=3, drafts=2)
    [text] = decode("speculative_several", settings, pair, [[2, END]], Request(9))
    assert text.tokens == [0, 3, 4, 5, END]
    assert text.proposers == "sssls"
    # Drafts 2 3 4 and 0 3 4, four positions each; then the end token, and 0 with an end token behind it.
    assert dict(text.counts.verified) == {8: 1, 5: 1}
    assert (text.counts.large_calls, text.counts.drafted, text.counts.accepted, text.counts.small_steps) == (2, 4, 4, 5)


def test_it_is_not_replayed() -> None:
    pair = prefix_pair(says([2]), says([2]))
    with pytest.raises(NotReplayableError, match="runs the large model step by step"):
        decode("speculative_several", SeveralDraftsSettings(), replay_pair(pair, PredictionCache(pair)), [[2, END]], Request(4))
