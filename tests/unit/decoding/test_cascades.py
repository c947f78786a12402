"""Deferral rules and cascades by hand, at their ends, and against the algorithms of the papers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tasks.decoding.cascades import cascade_rule, cascade_target
from tasks.decoding.decoder import Rows
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods import cascades
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import PredictionCache
from tasks.decoding.registry import decode
from tasks.decoding.replay import replay_pair
from tests.architectures import pair_of
from tests.emission import GREEDY, block, emission, positions, repeatable
from tests.toys import END, START, Predict, Prefix, Toys, prefix_pair, random_table, toy_sources
from tests.unit.decoding.test_executors import written_out

Q = [0.5, 0.3, 0.2]
P = [0.1, 0.2, 0.7]


@pytest.mark.parametrize(
    ("rule", "kept", "deferred"),
    [
        # Q has top 0.5 and entropy 1.0297, P top 0.7 and entropy 0.8018; D_TV is 0.5.
        ("chow", 0.51, 0.49),
        ("chow_log", 1.030, 1.029),
        ("diff", 0.21, 0.19),
        ("diff_log", 0.229, 0.227),
        ("opt", 0.41, 0.39),
        ("opt_log", 0.457, 0.454),
        # -Σ q log p = -(0.5 ln 0.1 + 0.3 ln 0.2 + 0.2 ln 0.7) = 1.7055.
        ("bild", 1.706, 1.705),
    ],
)
def test_deferral_by_hand(rule: str, kept: float, deferred: float) -> None:
    q, p = block(Q), block(P)
    assert torch.equal(cascade_target(rule, kept)(q, p), q.dist)
    assert torch.equal(cascade_target(rule, deferred)(q, p), p.dist)


def test_the_distance_of_bild_has_two_forms() -> None:
    """Greedily, it is that of the small model's only token: -ln 0.1 = 2.303."""
    q, p = block(Q, GREEDY), block(P, GREEDY)
    assert cascade_target("bild", 2.31)(q, p).tolist() == [[[1, 0, 0]]]
    assert cascade_target("bild", 2.30)(q, p).tolist() == [[[0, 0, 1]]]
    certain = block([1.0, 0.0, 0.0])
    assert torch.equal(cascade_target("bild", 2.31)(certain, block(P)), certain.dist)
    for alpha in (1e9, math.inf):
        forbidden = cascade_target("bild", alpha)(block(Q), certain)
        assert torch.equal(forbidden, block(Q).dist if alpha == math.inf else certain.dist)


@pytest.mark.parametrize("rule", cascades.CASCADE_RULES)
def test_texts_at_the_smallest_cost_are_those_of_speculative_decoding(rule: str) -> None:
    """One row in the native loop, and replayed."""
    pair, sources = pair_of("t5"), toy_sources(6)
    cascade = cascades.SpeculativeCascadeSettings(rule=rule, deferral_cost=cascades.CASCADE_BOUNDS[rule][0], draft_length=4)

    def texts(method: str, settings: object, pair: Pair) -> list[tuple[list[int], str]]:
        found = [decode(method, settings, pair, [source], Request(14))[0] for source in sources]
        return [(one.tokens, one.proposers) for one in found]

    wanted = texts("speculative", SpeculativeSettings(draft_length=4), pair)
    assert texts("speculative_cascade", cascade, pair) == wanted
    assert texts("speculative_cascade", cascade, replay_pair(pair, PredictionCache(pair))) == wanted


@given(pair=positions((GREEDY,)), alpha=st.floats(0, 1))
@repeatable
def test_greedy_opt_is_diff(pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    """Lemma 8."""
    q, p = pair
    opt, diff = (emission(cascade_rule(rule, alpha), q, p) for rule in ("opt", "diff"))
    drafted = int(q.dist.argmax())
    assert opt.accept[drafted] == diff.accept[drafted]
    assert opt.accept[drafted] in (0, 1)
    np.testing.assert_array_equal(opt.emitted, diff.emitted)


@pytest.mark.parametrize(
    ("kind", "rule", "deferral_cost", "message"),
    [
        (cascades.SpeculativeCascadeSettings, "chow", 1.01, "with the rule chow it must be at most 1"),
        (cascades.SpeculativeCascadeSettings, "diff", -1.01, "with the rule diff it must be at least -1"),
        *(
            (cascades.SpeculativeCascadeSettings, rule, math.nan, "deferral_cost is nan; it must be a number")
            for rule in ("opt", "token_v3", "diff_log")
        ),
        (cascades.SpeculativeCascadeSettings, "bild", -0.5, "is -0.5; with the rule bild it must be at least 0"),
        (cascades.TokenCascadeSettings, "chow", 1.5, "with the rule chow it must be at most 1"),
        (cascades.DiffOracleSettings, "diff", -2.0, "with the rule diff it must be at least -1"),
    ],
)
def test_an_alpha_out_of_the_bounds_of_its_rule_is_refused(kind: Any, rule: str, deferral_cost: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(rule=rule, deferral_cost=deferral_cost)


def test_rules_of_entropy_have_other_bounds() -> None:
    assert cascades.TokenCascadeSettings(rule="chow_log", deferral_cost=1.5).deferral_cost == 1.5
    assert cascades.DiffOracleSettings(rule="diff_log", deferral_cost=-2.0).deferral_cost == -2.0


LIMIT = 14
SMALL, LARGE = (random_table(name, agreement=0.7, sharpness=4.0, end=-1.5) for name in ("small", "large"))
TABLES = SMALL, LARGE
Delta = Callable[[Tensor, Tensor], bool]
"""(q, p), float32, to whether the step is deferred."""


def next_scores(predict: Predict, source: Prefix, text: list[int]) -> Tensor:
    return torch.softmax(predict(source, tuple(text)), -1)


def entropy(scores: Tensor) -> float:
    return -math.fsum(one * math.log(one) for one in scores.double().tolist() if one > 0)


def algorithm_3(small: Predict, large: Predict, source: Prefix, delta: Delta) -> Generation:
    """OracleCascade: both models run at every step, and δ(q, p) decides whose token is taken."""
    text, proposers = [START], ""
    while text[-1] != END and len(text) - 1 < LIMIT:
        q, p = (next_scores(predict, source, text) for predict in (small, large))
        deferred = delta(q, p)
        text.append(int((p if deferred else q).argmax()))
        proposers += "c" if deferred else "s"
    steps, cut = len(proposers), proposers.count("c")
    counts = Counts(tokens=steps, small_steps=steps, large_calls=steps, drafted=steps, accepted=steps - cut, rollbacks=cut)
    counts.verified[1] = steps
    counts.kept.update({(1, kept): number for kept, number in ((1, steps - cut), (0, cut)) if number})
    return Generation(text[1:], proposers, counts)


def diff(cost: float) -> Delta:
    return lambda q, p: float(q.max()) < float(p.max()) - cost


def diff_log(cost: float) -> Delta:
    return lambda q, p: entropy(p) < entropy(q) - cost


def far(threshold: float) -> Delta:
    return lambda q, p: -math.log(max(float(p[int(q.argmax())]), 1e-45)) > threshold


def texts(method: str, settings: Any, pair: Pair, sources: Rows) -> Rows:
    return [one.tokens for one in decode(method, settings, pair, sources, Request(LIMIT))]


def worlds(toys: Toys) -> list[tuple[Pair, tuple[Predict, Predict], Rows]]:
    """Tables, and models with caches; their whole predictions, and sources."""
    return [(prefix_pair(*TABLES), TABLES, toy_sources(10)), (toys.cached, toys.predicts, toy_sources(3))]


def deferred_in(generations: list[Generation]) -> set[str]:
    return set("".join(one.proposers for one in generations))


@pytest.mark.parametrize("max_draft", [1, 3])
@pytest.mark.parametrize(("rule", "cost"), [("chow", 0.0), ("chow", 0.6), ("chow", 1.0), ("chow_log", 0.8), ("chow_log", 1.4)])
def test_the_token_cascade_is_algorithm_2(toys: Toys, rule: str, cost: float, max_draft: int) -> None:
    """From q if it is sure enough, else from p, and from p after max_draft of q: BiLD without rollbacks, by another rule."""

    def unsure(q: Tensor) -> bool:
        return float(q.max()) < 1 - cost if rule == "chow" else entropy(q) > cost

    settings = cascades.TokenCascadeSettings(rule=rule, deferral_cost=cost, max_draft=max_draft)
    bild = BildSettings(rollback_threshold=math.inf, max_draft=max_draft)
    for pair, predicts, sources in worlds(toys):
        found = decode("token_cascade", settings, pair, sources, Request(LIMIT))
        assert found == [written_out(*predicts, tuple(source), bild, LIMIT, unsure) for source in sources]
        assert deferred_in(found) == ({"l"} if cost == 0 else {"s", "l"})


ORACLES: list[tuple[str, Any, Delta, str]] = [
    *(
        ("diff_oracle", cascades.DiffOracleSettings(rule=rule, deferral_cost=cost), delta(cost), proposers)
        for rule, delta, ends in (("diff", diff, "s"), ("diff_log", diff_log, "sc"))
        for cost, proposers in ((0.0, "sc"), (0.3, "sc"), (1.0, ends))
    ),
    *(
        ("bild_oracle", BildOracleSettings(rollback_threshold=threshold), far(threshold), proposers)
        for threshold, proposers in ((0.0, "c"), (2.0, "sc"), (math.inf, "s"))
    ),
]


@pytest.mark.parametrize(("method", "settings", "delta", "proposers"), ORACLES)
def test_an_oracle_is_algorithm_3(toys: Toys, method: str, settings: Any, delta: Delta, proposers: str) -> None:
    for pair, predicts, sources in worlds(toys):
        found = decode(method, settings, pair, sources, Request(LIMIT))
        assert found == [algorithm_3(*predicts, tuple(source), delta) for source in sources]
        assert deferred_in(found) == set(proposers)


def surely(token: int) -> Predict:
    """Gives one token probability 1, exact in every number format; then ends."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        logits = torch.full((8,), -torch.inf)
        logits[token if len(prefix) == 1 else END] = 0.0
        return logits

    return predict


def test_a_token_too_unlikely_for_float32_still_has_a_confidence() -> None:
    """At this temperature a token of probability e^-200 is drawn; its confidence must remain finite."""

    def cold(source: Prefix, prefix: Prefix) -> Tensor:
        return torch.tensor([0.0, -200.0, -200.0, -200.0])

    settings = cascades.SequenceCascadeSettings(confidence="mean", deferral_cost=0.9)
    sampling = SamplingSettings(temperature=1000.0)
    found = decode("sequence_cascade", settings, prefix_pair(cold, cold), [[END]] * 30, Request(3, sampling))
    assert {one.proposers[0] for one in found} == {"s", "l"}


def test_a_sequence_as_confident_as_the_bound_is_kept() -> None:
    certain = prefix_pair(surely(2), surely(4))
    assert texts("sequence_cascade", cascades.SequenceCascadeSettings(deferral_cost=0.0), certain, [[5, END]]) == [[2, END]]
