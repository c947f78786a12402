"""Beam search, alone and with a draft, against plain searches."""

import copy
import functools
import math

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation, total
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.beam import BeamSettings, SpeculativeBeamSettings, rank
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.errors import InputError
from tests.architectures import generated
from tests.toys import END, START, Predict, Prefix, PrefixDecoder, Toys, prefix_pair, random_table, toy_sources

LIMIT = 16
SOURCES = toy_sources(14)
TABLE_SOURCES = [[first, second, END] for first in range(2, 6) for second in range(2, 6)]


def bigrams(probabilities: dict[int, dict[int, float]], vocabulary: int = 6) -> Predict:
    """Next-token probabilities given the last token; unlisted tokens have probability zero."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        logits = torch.full((vocabulary,), -math.inf)
        for token, probability in probabilities[prefix[-1]].items():
            logits[token] = math.log(probability)
        return logits

    return predict


def plain_beam_search(predict: Predict, source: list[int], width: int, limit: int) -> list[int]:
    """Beam search over all candidates of every step, each predicted from its whole prefix."""
    running: list[tuple[Prefix, float]] = [((START,), 0.0)]
    finished: list[tuple[float, Prefix]] = []
    for length in range(1, limit + 1):
        candidates: list[tuple[Prefix, float]] = []
        for text, score in running:
            scores = torch.softmax(predict(tuple(source), text).double(), -1).log().tolist()
            candidates += [((*text, token), score + more) for token, more in enumerate(scores)]
        candidates.sort(key=lambda candidate: -candidate[1])
        finished += [(score / length, text) for text, score in candidates[:width] if text[-1] == END or length == limit]
        finished = sorted(finished, key=lambda text: -text[0])[:width]
        running = [candidate for candidate in candidates if candidate[0][-1] != END][:width]
        if len(finished) == width and running[0][1] / length <= finished[-1][0]:
            break
    return list(finished[0][1][1:])


def beam(pair: Pair, sources: Rows, width: int, limit: int = LIMIT) -> list[Generation]:
    return decode("beam_large", BeamSettings(beams=width), pair, sources, Request(limit))


def drafted(pair: Pair, sources: Rows, sizes: tuple[int, int, int], limit: int = LIMIT) -> list[Generation]:
    width, draft_width, draft_length = sizes
    settings = SpeculativeBeamSettings(beams=width, draft_beams=draft_width, draft_length=draft_length)
    return decode("speculative_beam", settings, pair, sources, Request(limit))


def texts(generations: list[Generation]) -> Rows:
    return [one.tokens for one in generations]


def test_any_of_several_end_tokens_ends_a_text(toys: Toys) -> None:
    model = copy.deepcopy(toys.large)
    model.generation_config.eos_token_id = [END, 5, 9]
    pair = Pair(toys.cached.small, open_decoder(model, "large"))
    found = texts(beam(pair, SOURCES, 3))
    options = {"num_beams": 3, "length_penalty": 1.0, "early_stopping": False}
    assert found == [generated(model, source, LIMIT, **options) for source in SOURCES]
    assert {END, 5, 9} < {text[-1] for text in found}
    assert texts(drafted(pair, SOURCES, (3, 4, 3))) == found


@functools.cache
def tables(agreement: float) -> tuple[Predict, Predict]:
    small, large = (random_table(name, agreement=agreement, sharpness=2.0, end=1.0) for name in ("small", "large"))
    return small, large


@pytest.mark.parametrize("limit", [1, 2, 6])
@pytest.mark.parametrize("width", [1, 3, 12])
def test_beam_search_equals_the_plain_search(width: int, limit: int) -> None:
    """A width of 12 exceeds the vocabulary, so the first steps have fewer beams."""
    large = tables(0.5)[1]
    found = texts(beam(prefix_pair(large, large), TABLE_SOURCES, width, limit))
    assert found == [plain_beam_search(large, source, width, limit) for source in TABLE_SOURCES]


def test_texts_that_end_below_the_best_beams_are_dropped() -> None:
    """Step 2 ranks 2 END (.341), 24 (.209), 3 END (.18), 35 (.158), of which 3 END is third.

    If kept, it would be the second finished text, and at ln(.18)/2 = -.86 beat all beams of step 3, ln(.0731)/3 = -.87 at
    most: the search would end. If dropped, 246… continues at no further cost, and beats 2 END, ln(.341)/2 = -.54, at the limit.
    """
    late = bigrams(
        {
            START: {2: 0.55, 3: 0.45},
            2: {END: 0.62, 4: 0.38},
            3: {END: 0.4, 5: 0.35, 4: 0.25},
            4: {6: 0.35, 7: 0.33, 5: 0.32},
            5: {6: 0.4, 7: 0.35, 4: 0.25},
            6: {6: 1.0},
            7: {7: 1.0},
        },
        vocabulary=8,
    )
    pair = prefix_pair(late, late)
    for found in (beam(pair, [[5, END]], 2, 10), drafted(pair, [[5, END]], (2, 2, 3), 10)):
        assert texts(found) == [[2, 4, *[6] * 8]]


@pytest.mark.parametrize("name", ["beam_large", "speculative_beam"])
def test_a_temperature_is_refused(name: str, toys: Toys) -> None:
    settings = BeamSettings() if name == "beam_large" else SpeculativeBeamSettings()
    with pytest.raises(InputError, match=rf"{name} draws no tokens, and the temperature is 0\.5; set it to 0"):
        decode(name, settings, toys.cached, SOURCES, Request(LIMIT, SamplingSettings(temperature=0.5)))


def test_rank_omits_impossible_tokens() -> None:
    [one, other] = rank(torch.tensor([[0.0, -math.inf, 0.0, math.log(2)], [-math.inf, -math.inf, 5.0, -math.inf]]), 3)
    assert one[0][1] == 3
    assert sorted(token for _, token in one) == [0, 2, 3]
    assert [math.exp(score) for score, _ in one] == pytest.approx([0.5, 0.25, 0.25])
    assert other == [(0.0, 2)]


@pytest.fixture(scope="module")
def perturbed(toys: Toys) -> Pair:
    """A drafter that is the large model with a little noise."""
    model = copy.deepcopy(toys.large)
    noise = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.lm_head.weight.add_(0.03 * noise)
    return Pair(TransformersDecoder(model, "perturbed"), toys.cached.large)


GRID = [(1, 4, 2), (2, 2, 1), (3, 4, 2), (4, 6, 3)]


@pytest.mark.parametrize("sizes", GRID)
def test_speculative_beam_search_is_beam_search(toys: Toys, perturbed: Pair, sizes: tuple[int, int, int]) -> None:
    plain = beam(toys.cached, SOURCES, sizes[0])
    for pair in (toys.cached, perturbed):
        found = drafted(pair, SOURCES, sizes)
        assert texts(found) == texts(plain)
        counts = total(found)
        assert 0 < counts.accepted < counts.drafted == counts.small_steps
        assert 0 < counts.rollbacks < counts.large_calls < total(plain).large_calls


ON_TABLES = [((1, 1, 2), 0.5), ((2, 3, 2), 0.0), ((3, 3, 5), 1.0), ((4, 12, 3), 0.9), ((12, 12, 2), 0.0)]


@pytest.mark.parametrize(("sizes", "agreement"), ON_TABLES)
def test_speculative_beam_search_on_tables(agreement: float, sizes: tuple[int, int, int]) -> None:
    pair = prefix_pair(*tables(agreement))
    for limit in (1, 2, 9):
        found, plain = drafted(pair, TABLE_SOURCES, sizes, limit), beam(pair, TABLE_SOURCES, sizes[0], limit)
        assert texts(found) == texts(plain)
        assert total(found).large_calls <= total(plain).large_calls
        if agreement == 1 and sizes[0] == sizes[1]:
            assert total(found).rollbacks == 0


@pytest.mark.parametrize("draft_length", [1, 6])
def test_a_drafter_equal_to_the_target_is_always_accepted(toys: Toys, draft_length: int) -> None:
    pair = Pair(TransformersDecoder(toys.large, "twin"), toys.cached.large)
    plain = beam(toys.cached, SOURCES, 3)
    for one, alone in zip(drafted(pair, SOURCES, (3, 3, draft_length)), plain, strict=True):
        assert one.tokens == alone.tokens
        assert one.counts.rollbacks == 0
        assert one.counts.large_calls == -(-alone.counts.large_calls // (draft_length + 1))
        assert set(one.proposers) <= {"s", "l"}


@pytest.mark.parametrize("sizes", [(2, 2, 3), (3, 6, 4)])
def test_counts_equal_the_runs(sizes: tuple[int, int, int]) -> None:
    pair = prefix_pair(*tables(0.7))
    width, _, draft_length = sizes
    assert isinstance(pair.small, PrefixDecoder)
    assert isinstance(pair.large, PrefixDecoder)
    most = set()
    for source in TABLE_SOURCES:
        [one] = drafted(pair, [source], sizes, 12)
        assert len(pair.large.runs) == one.counts.large_calls == sum(one.counts.verified.values())
        assert len(pair.small.runs) == one.counts.small_steps == one.counts.drafted
        most.add(max(map(max, pair.large.runs)))
        [alone] = beam(pair, [source], width, 12)
        assert len(pair.large.runs) == alone.counts.large_calls
        assert max(map(max, pair.large.runs)) == 1
    # One branch of the draft and the token before it: accepted tokens are never run again.
    assert max(most) == draft_length + 1


def test_fewer_draft_beams_than_beams_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_beams is 3; it must be at least beams, 4"):
        SpeculativeBeamSettings(beams=4, draft_beams=3)
