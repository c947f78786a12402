"""Lenient and lossy acceptance: what they emit, by hand, on random positions, and through the loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.acceptance_rules import speculative_sampling
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.generation import total
from tasks.decoding.lenience import lenient, lossy, tuned_beta
from tasks.decoding.registry import Request, decode
from tasks.decoding.settings import (
    LenientSettings,
    LossySettings,
    SamplingSettings,
    SpeculativeSettings,
    VanillaSettings,
)
from tests import laws
from tests.emission import DRAWN, GREEDY, block, dist, emission, positions, repeatable
from tests.laws import FALSE_ALARM, LARGE, SAMPLINGS, SMALL, Law, law_of, p_value
from tests.toys import END, START, Prefix, Toys, toy_sources

Q = [0.6, 0.3, 0.1]
P = [0.2, 0.3, 0.5]
Q2 = [0.1, 0.8, 0.1]
P2 = [0.25, 0.25, 0.5]
LIMIT = 14
Emit = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(q, p) at a drafted position to the probabilities that a token is kept there, and that it is put in another's place."""


def replaced(kept: np.ndarray, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return kept, (1 - kept.sum()) * residual / residual.sum() if kept.sum() < 1 - 1e-12 else 0 * residual


def leniently(lenience: float) -> Emit:
    return lambda q, p: replaced(np.minimum(q, p / lenience), np.maximum(0, p - lenience * q))


def lossily(alpha: float, beta: Callable[[np.ndarray, np.ndarray], float]) -> Emit:
    return lambda q, p: replaced(np.minimum(q, p / (1 - alpha)), np.maximum(0, p / beta(q, p) - q))


def bisected(q: np.ndarray, p: np.ndarray, alpha: float) -> float:
    """β by halving the interval of its inverse."""
    wanted = np.maximum(0, q - p / (1 - alpha)).sum()
    low, high = 0.0, 1 / (1 - alpha)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(0, middle * p - q).sum() < wanted else (low, middle)
    return 1 / high


def drafted_law(emit: Emit, sampling: SamplingSettings, draft_length: int, limit: int) -> Law:
    """The probability of each text where `emit` checks drafted tokens, and the one after a whole draft comes from p."""
    law: Law = defaultdict(float)

    def branch(text: Prefix, probability: float, shares: np.ndarray, left: int | None) -> None:
        for token, share in enumerate(shares):
            if share > 0:
                grow((*text, token), probability * share, left)

    def grow(text: Prefix, probability: float, left: int | None) -> None:
        room = limit - (len(text) - 1)
        if room == 0 or text[-1] == END:
            law[text[1:]] += probability
            return
        q, p = (laws.dist(model, text, sampling) for model in (SMALL, LARGE))
        left = min(draft_length, room - 1) if left is None else left
        if left == 0:
            branch(text, probability, p, None)
            return
        kept, put = emit(q, p)
        branch(text, probability, kept, left - 1)
        branch(text, probability, put, None)

    grow((START,), 1.0, None)
    return law


@pytest.mark.parametrize(
    ("lenience", "accept", "replacement"),
    [
        (0.5, [2 / 3, 1, 1], [0, 0.15, 0.45]),
        (0.25, [1, 1, 1], [0.05, 0.225, 0.475]),
        (1.0, [1 / 3, 1, 1], [0, 0, 0.4]),
    ],
)
def test_lenience_by_hand(lenience: float, accept: list[float], replacement: list[float]) -> None:
    one = emission(lenient(lenience), block(Q), block(P))
    np.testing.assert_allclose(one.accept, accept, atol=1e-6)
    np.testing.assert_allclose(one.replacement, replacement, atol=1e-6)


@pytest.mark.parametrize(("lenience", "accept"), [(0.41, [0, 1, 1]), (0.39, [1, 1, 1]), (0.61, [0, 0, 1]), (1.0, [0, 0, 1])])
def test_greedy_lenience_by_hand(lenience: float, accept: list[float]) -> None:
    """Of max p = 0.5, token 0 has a share of 0.4 and token 1 of 0.6; what is not kept gives way to token 2."""
    q, p = block(Q, GREEDY), block(P, GREEDY)
    verdict = lenient(lenience).apply(torch.tensor([[0]]), q, p)
    assert verdict.accept.tolist() == [accept[:1]]
    assert verdict.residual_probabilities.argmax(-1).tolist() == [[2]]
    for token in (1, 2):
        drafts_it = block([float(one == token) for one in range(3)], GREEDY)
        assert lenient(lenience).apply(torch.tensor([[token]]), drafts_it, p).accept.tolist() == [[accept[token]]]


def test_greedy_lenience_of_one_goes_by_the_argmax_alone() -> None:
    """Two tokens are likeliest; the large model alone would take the first."""
    even = block([0.4, 0.4, 0.2], GREEDY)
    second = block([0.1, 0.8, 0.1], GREEDY)
    assert lenient(1.0).apply(torch.tensor([[1]]), second, even).accept.tolist() == [[0.0]]
    assert lenient(0.99).apply(torch.tensor([[1]]), second, even).accept.tolist() == [[1.0]]


@given(pair=positions(), lenience=st.floats(0.01, 1))
@repeatable
def test_lenience_gives_no_token_too_much(pair: tuple[PredictionBlock, PredictionBlock], lenience: float) -> None:
    q, p = pair
    one = emission(lenient(lenience), q, p)
    assert one.replacement.min() >= 0
    assert one.law.sum() == pytest.approx(1)
    assert (one.law <= dist(p) / lenience + 2e-6).all()
    # A.5: the acceptance rate is Σ min(p/l, q).
    assert 1 - one.rejected == pytest.approx(np.minimum(dist(p) / lenience, dist(q)).sum(), abs=2e-6)


@given(pair=positions())
@repeatable
def test_lenience_one_and_lossiness_zero_are_strict(pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    q, p = pair
    for rule in (lenient(1.0), lossy(0.0, tuned=False), lossy(0.0, tuned=True)):
        np.testing.assert_allclose(emission(rule, q, p).law, dist(p), atol=2e-6)


@pytest.mark.parametrize(
    ("tuned", "replacement", "law"),
    [
        # α = 0.5 keeps min(q, 2p) = (0.1, 0.5, 0.1) and rejects 0.3; max(0, p - q) has shares 0.15 and 0.4 of 0.55.
        (False, [0.15, 0, 0.4], [0.1 + 0.3 * 3 / 11, 0.5, 0.1 + 0.3 * 8 / 11]),
        # 0.75/β - 0.2 = 0.3 gives β = 1.5: max(0, p/β - q) = (1/6 - 0.1, 0, 1/3 - 0.1).
        (True, [1 / 15, 0, 7 / 30], [1 / 6, 0.5, 1 / 3]),
    ],
)
def test_lossy_by_hand(tuned: bool, replacement: list[float], law: list[float]) -> None:
    one = emission(lossy(0.5, tuned=tuned), block(Q2), block(P2))
    np.testing.assert_allclose(one.accept, [1, 0.625, 1], atol=1e-6)
    np.testing.assert_allclose(one.replacement, replacement, atol=1e-6)
    np.testing.assert_allclose(one.law, law, atol=1e-6)


def test_untuned_lossy_does_not_follow_the_target() -> None:
    """With β = 1, max(min(q, p/(1 - α)), p/β) is (0.25, 0.5, 0.5): not even a distribution."""
    q, p = np.array(Q2), np.array(P2)
    target = np.maximum(np.minimum(q, 2 * p), p)
    assert target.sum() == 1.25
    law = emission(lossy(0.5, tuned=False), block(Q2), block(P2)).law
    assert np.abs(law - target / target.sum()).max() > 0.01


@pytest.mark.parametrize("tuned", [False, True])
@given(pair=positions(), alpha=st.floats(0, 0.99))
@repeatable
def test_lossy_emits_its_law(tuned: bool, pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    q, p = pair
    one = emission(lossy(alpha, tuned=tuned), q, p)
    beta = bisected(dist(q), dist(p), alpha) if tuned else 1.0
    kept, residual = np.minimum(dist(q), dist(p) / (1 - alpha)), np.maximum(0, dist(p) / beta - dist(q))
    assert one.replacement.min() >= 0
    assert one.replacement.sum() > 0
    assert one.rejected == pytest.approx(1 - kept.sum(), abs=2e-6)
    np.testing.assert_allclose(one.kept, kept, atol=2e-6)
    if 1 - kept.sum() > 1e-4:
        np.testing.assert_allclose(one.law, kept + (1 - kept.sum()) * residual / residual.sum(), atol=5e-6)
    if tuned:
        np.testing.assert_allclose(one.law, np.maximum(kept, dist(p) / beta), atol=5e-6)


@given(pair=positions((*DRAWN, GREEDY)), alpha=st.floats(0, 0.999))
@repeatable
def test_tuned_beta_satisfies_its_equation(pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    q, p = dist(pair[0]), dist(pair[1])
    beta = float(tuned_beta(torch.from_numpy(q), torch.from_numpy(p), alpha))
    assert beta >= 1 - alpha
    assert np.maximum(0, p / beta - q).sum() == pytest.approx(np.maximum(0, q - p / (1 - alpha)).sum(), abs=1e-12)


def test_tuned_beta_of_many_positions_at_once() -> None:
    generator = torch.Generator().manual_seed(2)
    q, p = (torch.softmax(3 * torch.randn(3, 7, 50, generator=generator), -1) for _ in "qp")
    together = tuned_beta(q, p, 0.4)
    assert together.shape == (3, 7)
    for row in range(3):
        for place in range(7):
            alone = tuned_beta(q[row, place], p[row, place], 0.4)
            assert float(together[row, place]) == pytest.approx(float(alone))
            wanted = bisected(q[row, place].double().numpy(), p[row, place].double().numpy(), 0.4)
            assert float(alone) == pytest.approx(wanted, rel=1e-5)


def test_where_nothing_is_rejected_q_is_emitted() -> None:
    """p/(1 - α) covers q; the equation then holds for every β from max p/q on, which may be infinite."""
    for q, p in ((Q, Q), ([0.5, 0.5, 0.0], [0.4, 0.4, 0.2])):
        for tuned in (False, True):
            one = emission(lossy(0.5, tuned=tuned), block(q), block(p))
            assert one.accept.tolist() == [1, 1, 1]
            np.testing.assert_allclose(one.law, q, atol=1e-6)
    one = emission(lossy(0.5, tuned=True), block([0.5, 0.5, 0.0]), block([0.4, 0.4, 0.2]))
    np.testing.assert_allclose(one.replacement, [0.5, 0.5, 0])


@given(pair=positions((GREEDY,)), alpha=st.floats(0, 0.99), tuned=st.booleans())
@repeatable
def test_greedy_lossy_is_strict(pair: tuple[PredictionBlock, PredictionBlock], alpha: float, tuned: bool) -> None:
    q, p = pair
    drafted = int(q.dist.argmax())
    strict, one = emission(speculative_sampling, q, p), emission(lossy(alpha, tuned=tuned), q, p)
    assert one.accept[drafted] == strict.accept[drafted]
    assert one.replacement.argmax() == strict.replacement.argmax()


UNTUNED = lossily(0.5, lambda q, p: 1.0)
TUNED = lossily(0.5, lambda q, p: bisected(q, p, 0.5))
CASES = {
    "lenient": ("speculative_lenient", LenientSettings(lenience=0.5, draft_length=2), leniently(0.5), "cool, top-k"),
    "lossy": ("speculative_lossy", LossySettings(lossiness=0.5, draft_length=2), UNTUNED, "plain"),
    "tuned": ("speculative_lossy", LossySettings(lossiness=0.5, tuned=True, draft_length=2), TUNED, "all three"),
}


@pytest.mark.parametrize(("method", "settings", "emit", "sampling"), CASES.values(), ids=CASES)
def test_sampling_follows_the_emitted_law(method: str, settings: SpeculativeSettings, emit: Emit, sampling: str) -> None:
    transform = SAMPLINGS[sampling]
    generations = laws.draw(method, settings, transform, limit=3)
    assert p_value(generations, drafted_law(emit, transform, 2, 3)) > FALSE_ALARM
    assert p_value(generations, law_of(LARGE, transform, 3)) < 1e-9
    assert {"s", "c", "l"} == set("".join(one.proposers for one in generations))


@pytest.mark.parametrize(("tuned", "own", "other"), [(False, UNTUNED, TUNED), (True, TUNED, UNTUNED)], ids=["untuned", "tuned"])
def test_the_two_lossy_laws_are_told_apart(tuned: bool, own: Emit, other: Emit) -> None:
    transform = SAMPLINGS["warm, top-p"]
    settings = LossySettings(lossiness=0.5, tuned=tuned, draft_length=2)
    generations = laws.draw("speculative_lossy", settings, transform, limit=3)
    assert p_value(generations, drafted_law(own, transform, 2, 3)) > FALSE_ALARM
    assert p_value(generations, drafted_law(other, transform, 2, 3)) < 1e-6


def test_the_law_of_strict_acceptance_is_that_of_p() -> None:
    """What the tests above compare with is right where the answer is known."""
    transform = SAMPLINGS["all three"]
    law, known = drafted_law(leniently(1.0), transform, 2, 3), law_of(LARGE, transform, 3)
    assert law.keys() == known.keys()
    assert all(law[text] == pytest.approx(known[text]) for text in known)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(temperature=0.9)], ids=["greedy", "sampled"])
def test_lenience_one_decodes_as_speculative_does(toys: Toys, sampling: SamplingSettings) -> None:
    sources, request = toy_sources(12, seed=3), Request(LIMIT, sampling)
    strict = decode("speculative", SpeculativeSettings(draft_length=3), toys.cached, sources, request)
    lenient_one = LenientSettings(lenience=1.0, draft_length=3)
    assert decode("speculative_lenient", lenient_one, toys.cached, sources, request) == strict


def test_greedy_lenience_keeps_what_it_may(toys: Toys) -> None:
    """Every small token has its share of max p; every other is the large model's, in place of a small one without."""
    sources = toy_sources(24, seed=4)
    settings = LenientSettings(lenience=0.3, draft_length=3)
    generations = decode("speculative_lenient", settings, toys.cached, sources, Request(LIMIT))
    small, large = toys.predicts
    kept_otherwise = 0
    for source, generation in zip(sources, generations, strict=True):
        text: Prefix = (START,)
        for token, proposer in zip(generation.tokens, generation.proposers, strict=True):
            scores = torch.softmax(large(tuple(source), text), -1)
            share = scores / scores.max()
            if proposer == "s":
                assert share[token] >= 0.3
                kept_otherwise += token != int(scores.argmax())
            else:
                assert token == int(scores.argmax())
            if proposer == "c":
                assert share[int(small(tuple(source), text).argmax())] < 0.3
            text = (*text, token)
    assert kept_otherwise > 10
    assert total(generations).rollbacks > 10


@pytest.mark.parametrize("tuned", [False, True])
def test_greedy_lossy_output_is_vanilla(toys: Toys, tuned: bool) -> None:
    sources, request = toy_sources(12, seed=3), Request(LIMIT)
    vanilla = decode("vanilla_large", VanillaSettings(), toys.cached, sources, request)
    settings = LossySettings(lossiness=0.9, tuned=tuned, draft_length=3)
    lossy_texts = decode("speculative_lossy", settings, toys.cached, sources, request)
    assert [one.tokens for one in lossy_texts] == [one.tokens for one in vanilla]


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (LenientSettings, {"lenience": 0.0}, "lenience is 0.0; it must be more than 0"),
        (LenientSettings, {"lenience": 1.1}, "lenience is 1.1; it must be at most 1"),
        (LossySettings, {"lossiness": 1.0}, "lossiness is 1.0; it must be less than 1"),
        (LossySettings, {"lossiness": -0.1}, "lossiness is -0.1; it must be at least 0"),
    ],
)
def test_what_is_out_of_bounds_is_refused(kind: type, values: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**values)
