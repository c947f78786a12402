"""A greedy continuation in one call of the fused runtime equals single steps, for every policy of synchronisation."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.decoding.decoder import StopRule
from tasks.decoding.runtimes.fused import EACH_STEP, ONE_AHEAD, WHOLE_DRAFT, SyncPolicy
from tests import laws
from tests.architectures import models
from tests.toys import VOCABULARY, toy_sources
from tests.unit.decoding.runtimes.fused_decoders import fused

POLICIES = (EACH_STEP, ONE_AHEAD, WHOLE_DRAFT, SyncPolicy(steps_per_sync=3, syncs_in_flight=1))
# Every policy recorded and not; every architecture with the policy of its kind of run.
COVERING = [
    *(("t5", recorded, policy) for policy in POLICIES for recorded in (False, True)),
    *((name, True, ONE_AHEAD) for name in ("mt5", "llama", "gpt2")),
    *((name, False, EACH_STEP) for name in ("mt5", "llama", "gpt2")),
]


@pytest.mark.parametrize(("name", "recorded", "sync_policy"), COVERING, ids=str)
def test_a_continuation_equals_single_steps(name: str, recorded: bool, sync_policy: SyncPolicy) -> None:
    model = models(name)[0]
    decoder, stepping = fused(model, recorded=recorded, sync_policy=sync_policy), fused(model)
    cuts = 0
    for index, source in enumerate(toy_sources(5)):
        [pending] = decoder.start(decoder.encode([source]))
        stepping.start(stepping.encode([source]))
        for until, budget in (
            (StopRule(0.5), 6),
            (StopRule(cumulative_confidence=0.3), 5),
            (StopRule(), 4),
            (StopRule(0.2, 0.1), 1),
            (StopRule(max_entropy=1.0), 5),
            (StopRule(0.01, max_entropy=0.4), 5),
        ):
            found = decoder.continue_greedily(pending, budget, until)
            expected: list[int] = []
            fed, cumulative_confidence = list(pending), 1.0
            while len(expected) < budget:
                step = stepping.forward([fed])
                logits = step.logits[0, -1]
                torch.testing.assert_close(found.logits[0, len(expected)], logits, atol=1e-4, rtol=0)
                expected.append(int(logits.argmax()))
                sure = float(logits.softmax(-1).amax())
                nats = laws.nats(torch.softmax(logits, -1).tolist())
                asked = until.max_entropy < math.inf
                assert found.entropies[len(expected) - 1] == pytest.approx(nats if asked else 0.0, abs=1e-4)
                if until.confidence or until.cumulative_confidence:
                    assert found.confidence[len(expected) - 1] == pytest.approx(sure, abs=1e-5)
                cumulative_confidence *= sure
                fed = expected[-1:]
                if (
                    fed[0] in decoder.end_tokens
                    or sure <= until.confidence
                    or cumulative_confidence < until.cumulative_confidence
                    or nats > until.max_entropy
                ):
                    break
            cuts += len(expected) < budget
            assert found.tokens == expected
            assert found.logits.shape == (1, len(expected), VOCABULARY)
            assert decoder.lengths == stepping.lengths
            # The last token was not fed: another one follows, after up to two tokens are rewound.
            kept = decoder.lengths[0] - (index % 3 if len(expected) > 3 else 0)
            decoder.rewind([kept])
            stepping.rewind([kept])
            pending = [3 + index] if index % 2 else [3, 4 + index]
    assert cuts > 2


def test_logits_that_are_not_asked_for() -> None:
    """One call writes a text longer than the buffer for logits, while the caches grow."""
    model = models("llama")[1]
    decoder, other = fused(model, recorded=True, sync_policy=ONE_AHEAD), fused(model)
    decoder.end_tokens = other.end_tokens = frozenset()
    source = toy_sources(1)[0]
    found, expected = (
        one.continue_greedily(one.start(one.encode([source]))[0], 150, StopRule(), with_logits=kept)
        for one, kept in ((decoder, False), (other, True))
    )
    assert found.tokens == expected.tokens
    assert len(found.tokens) == 150
    torch.testing.assert_close(found.logits, expected.logits[:, -1:], atol=1e-4, rtol=0)
    # The recorded graphs write into a buffer that is too small for so many logits.
    again = decoder.continue_greedily(decoder.start(decoder.encode([source]))[0], 100, StopRule())
    torch.testing.assert_close(again.logits, expected.logits[:, :100], atol=1e-4, rtol=0)
