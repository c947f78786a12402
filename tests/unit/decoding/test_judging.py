"""Judge Decoding: what the judge holds for good stays, by hand and at its ends; its states are those of whole runs."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.generation import Generation, total
from tasks.decoding.registry import Pair, Request, build_method, decode
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.replay_decoder import replay_pair
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.decoding.settings import JudgeSettings, SamplingSettings, SpeculativeSettings, VanillaSettings
from tasks.errors import InputError
from tasks.models.extras import Judge, add_judge
from tests.architectures import NAMES, models, pair_of
from tests.toys import END, Prefix, PrefixDecoder, StatefulDecoder, Toys, says, toy_sources, toy_t5

SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95)
SAMPLINGS = pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED], ids=["greedy", "sampled"])
SIX = [2, 3, 4, 5, 6, 7]


def told(small: dict[int, list[int]], good: dict[int, float], large: tuple[int, ...] = (7, 7, 7, 7, 7, 7)) -> Pair:
    """A pair whose small model writes by the first token of the source, and whose large model writes always the same.

    `good` has the judge's probabilities by the last token read; tokens that it leaves out are surely bad.
    """

    def drafted(source: Prefix, prefix: Prefix) -> Tensor:
        return says(small[source[0]])(source, prefix)

    def state(_: Prefix, prefix: Prefix) -> Tensor:
        return torch.tensor([good.get(prefix[-1], 1e-6)]).logit()

    return Pair(StatefulDecoder(drafted, state), StatefulDecoder(says(large), state, name="large"))


def texts(pair: Pair, sources: list[int], bound: float, draft_length: int = 3, limit: int = 5) -> list[tuple[list[int], str]]:
    settings = JudgeSettings(min_judgement=bound, draft_length=draft_length)
    found = decode("speculative_judge", settings, pair, [[source, END] for source in sources], Request(limit))
    return [(one.tokens, one.proposers) for one in found]


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (0.95, ([7, 7, 7, 7, 7], "ccccl")),  # the last position has no room for a draft
        (0.85, ([2, 7, 7, 7, 7], "scccl")),
        (0.5, ([2, 3, 7, 7, 7], "ssccl")),  # 4 was drafted, and is bad
        (0.2, ([2, 3, 4, 7, 7], "sssll")),
    ],
)
def test_a_token_stays_where_its_judgement_is_above_the_bound(bound: float, expected: tuple[list[int], str]) -> None:
    assert texts(told({9: SIX}, {2: 0.9, 3: 0.7, 4: 0.3}), [9], bound) == [expected]


def test_nothing_stays_behind_a_token_that_is_rejected() -> None:
    """3 and 4 are good, but behind the bad 2 they are drafted in vain; 3 stays once it is drafted again."""
    assert texts(told({9: [2, 3, 6]}, {3: 0.9, 4: 0.9}), [9], 0.5) == [([7, 3, 7, 7, 7], "csccl")]


def test_a_judgement_is_of_the_state_after_the_token() -> None:
    """The start token is read before the first drafted one, and the last drafted one before the bonus token."""
    assert texts(told({9: SIX}, {0: 0.9}), [9], 0.5) == [([7, 7, 7, 7, 7], "ccccl")]
    assert texts(told({9: SIX}, {2: 0.9}), [9], 0.5, draft_length=1, limit=3) == [([2, 7, 7], "sll")]


def test_rows_have_drafts_of_their_own_length() -> None:
    """A short draft ends with the end token; what pads it is judged by nobody."""
    pair = told({9: SIX, 8: [3], 5: [7, 2, 4]}, {2: 0.9, 3: 0.9, END: 0.9})
    both = texts(pair, [9, 8, 5], 0.5)
    assert both == [texts(pair, [source], 0.5)[0] for source in (9, 8, 5)]
    assert both[1] == ([3, END], "ss")
    assert both[0][0][:3] == [2, 3, 7] and both[2][0][:3] == [7, 2, 7]


@SAMPLINGS
def test_its_ends_are_speculative_decoding_and_every_draft(sampling: SamplingSettings) -> None:
    pair, sources, request = pair_of("t5"), toy_sources(12), Request(12, sampling)
    never, always, half = (
        decode("speculative_judge", JudgeSettings(min_judgement=bound, draft_length=4), pair, sources, request)
        for bound in (1.0, 0.0, 0.5)
    )
    exact = decode("speculative", SpeculativeSettings(draft_length=4), pair, sources, request)
    assert never == exact
    assert total(always).accepted == total(always).drafted
    assert total(exact).accepted / total(exact).drafted < total(half).accepted / total(half).drafted < 1


@SAMPLINGS
def test_a_cache_changes_nothing(toys: Toys, sampling: SamplingSettings) -> None:
    @functools.cache
    def states(source: Prefix, read: Prefix) -> Tensor:
        with torch.inference_mode():
            encoded = toys.large.get_encoder()(input_ids=torch.tensor([source])).last_hidden_state
            run = toys.large.get_decoder()(input_ids=torch.tensor([read]), encoder_hidden_states=encoded, use_cache=False)
        last: Tensor = run.last_hidden_state[0, -1]
        return last

    small, large = toys.predicts
    free = Pair(StatefulDecoder(small, states, toys.small), StatefulDecoder(large, states, toys.large, "large"))
    sources, request = toy_sources(4, seed=3), Request(12, sampling, seed=5)
    for bound in (0.3, 0.6):
        settings = JudgeSettings(min_judgement=bound, draft_length=4)
        cached, plain = (decode("speculative_judge", settings, pair, sources, request) for pair in (toys.cached, free))
        assert cached == plain


@pytest.mark.parametrize("name", NAMES)
def test_every_runtime_gives_the_same_judgements(name: str) -> None:
    """Its own and the reference, in a batch and alone; and the judge changes texts."""
    sources, settings = toy_sources(6, seed=4), JudgeSettings(min_judgement=0.5, draft_length=4)
    found: list[list[Generation]] = []
    for pair in (pair_of(name), pair_of(name, REFERENCE)):
        found.append(decode("speculative_judge", settings, pair, sources, Request(12)))
        assert found[-1] == decode_all("speculative_judge", settings, pair, sources, Request(12), 1)
    assert found[0] == found[1]
    exact = decode("speculative", SpeculativeSettings(draft_length=4), pair_of(name), sources, Request(12))
    assert total(found[0]).accepted / total(found[0]).drafted > total(exact).accepted / total(exact).drafted
    vanilla = decode("vanilla_large", VanillaSettings(), pair_of(name), sources, Request(12))
    assert [one.tokens for one in found[0]] != [one.tokens for one in vanilla]


def test_known_predictions_have_no_judge() -> None:
    """The sweep then decodes the method: it replays none that is not built of known predictions."""
    pair = pair_of("t5")
    with pytest.raises(InputError, match="speculative_judge needs a judge"):
        build_method("speculative_judge", JudgeSettings(), replay_pair(pair, PredictionCache(pair)), Request(4))


def test_the_judge_is_the_small_model_s_and_fits_the_large_one() -> None:
    small, large = models("t5")
    with pytest.raises(InputError) as caught:
        decode("speculative_judge", JudgeSettings(), open_pair(toy_t5(1, 2, 1), large), [[2, END]], Request(4))
    assert str(caught.value) == ("speculative_judge needs a judge, and the small model has none; train one with align.judge")
    other = toy_t5(1, 2, 1)
    add_judge(other, 8)
    with pytest.raises(InputError) as caught:
        decode("speculative_judge", JudgeSettings(), open_pair(other, large), [[2, END]], Request(4))
    assert str(caught.value) == (
        "the judge of the small model reads states of 8 numbers, but the large model's have 32; train it with this large model"
    )
    fits = Pair(TransformersDecoder(small, "small"), TransformersDecoder(large, "large"))
    assert decode("speculative_judge", JudgeSettings(), fits, [[2, END]], Request(4))


def test_a_runtime_without_states_says_so() -> None:
    pair = Pair(told({9: SIX}, {}).small, PrefixDecoder(says(SIX), "large"))
    with pytest.raises(RuntimeError, match="the runtime gives no hidden states"):
        decode("speculative_judge", JudgeSettings(), pair, [[9, END]], Request(4))


def test_a_judge_is_linear() -> None:
    judge = Judge(2)
    with torch.no_grad():
        judge.weight.copy_(torch.tensor([1.0, -2.0]))
        judge.bias.fill_(0.5)
        assert judge(torch.tensor([[[3.0, 1.0]]], dtype=torch.float64)).tolist() == [[1.5]]
