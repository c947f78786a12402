"""Beam search against `transformers` and against a slow search without a cache; speculative beam search against it."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, LlamaForCausalLM

from tasks.decoding.beam import rank
from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.generation import Counts, Generation, total
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.choose import open_decoder, open_pair
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.decoding.settings import BeamSettings, SamplingSettings, SpeculativeBeamSettings, VanillaSettings
from tasks.errors import InputError
from tests.toys import END, START, VOCABULARY, Predict, Prefix, PrefixDecoder, Toys, prefix_pair, random_table, toy_sources

LIMIT = 16
SOURCES = toy_sources(120)
TABLE_SOURCES = [[first, second, END] for first in range(2, 6) for second in range(2, 6)]


def bigrams(chances: dict[int, dict[int, float]], vocabulary: int = 6) -> Predict:
    """The next token's probabilities by the last token; what is not named is impossible."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        logits = torch.full((vocabulary,), -math.inf)
        for token, chance in chances[prefix[-1]].items():
            logits[token] = math.log(chance)
        return logits

    return predict


def slow_beam(predict: Predict, source: list[int], width: int, limit: int) -> list[int]:
    """Every candidate of every step, each predicted from its whole prefix."""
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


@pytest.fixture(scope="module")
def perturbed(toys: Toys) -> Pair:
    """A drafter that is the large model but for a little noise."""
    model = copy.deepcopy(toys.large)
    noise = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.lm_head.weight.add_(0.03 * noise)
    return Pair(TransformersDecoder(model, "perturbed"), toys.cached.large)


def generated_by_transformers(model: Any, width: int, ends: frozenset[int] = frozenset((END,))) -> Rows:
    longest = max(map(len, SOURCES))
    rows = model.generate(
        input_ids=torch.tensor([source + [START] * (longest - len(source)) for source in SOURCES]),
        attention_mask=torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in SOURCES]),
        past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()),
        max_new_tokens=LIMIT,
        do_sample=False,
        num_beams=width,
        length_penalty=1.0,
        early_stopping=False,
        eos_token_id=sorted(ends),
    )
    return [corpus_source(row[1:], ends) for row in rows.tolist()]


def corpus_source(row: list[int], ends: frozenset[int]) -> list[int]:
    """Without the padding, which is the start token in greedy search and the end token in beam search."""
    return next((row[: place + 1] for place, token in enumerate(row) if token in ends), row)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_beam_search_is_what_transformers_generates(toys: Toys, width: int) -> None:
    found = texts(beam(toys.cached, SOURCES, width))
    assert found == generated_by_transformers(toys.large, width)
    assert 40 < sum(text[-1] == END for text in found) < 80
    greedy = texts(decode("vanilla_large", VanillaSettings(), toys.cached, SOURCES, Request(LIMIT)))
    differ = sum(text != other for text, other in zip(found, greedy, strict=True))
    assert differ == 0 if width == 1 else differ > 60


def test_any_of_several_end_tokens_ends_a_text(toys: Toys) -> None:
    model = copy.deepcopy(toys.large)
    model.generation_config.eos_token_id = [END, 5, 9]
    pair = Pair(toys.cached.small, open_decoder(model, "large"))
    found = texts(beam(pair, SOURCES, 3))
    assert found == generated_by_transformers(model, 3, frozenset((END, 5, 9)))
    assert {END, 5, 9} < {text[-1] for text in found}
    assert texts(drafted(pair, SOURCES, (3, 4, 3))) == found


def toy_llama(seed: int, layers: int) -> Any:
    """An untrained decoder-only model; the head that all share makes two of them agree on many tokens."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=4,
        pad_token_id=START, bos_token_id=START, eos_token_id=END, initializer_range=0.1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
        torch.manual_seed(1)
        model.model.embed_tokens.weight.normal_()
        model.lm_head.weight.normal_(std=0.6)
    return model


def test_decoder_only_models() -> None:
    large = toy_llama(1, 3)
    pair = open_pair(toy_llama(2, 1), large)
    prompts = [source[:-1] for source in SOURCES[:40]]
    found = texts(beam(pair, prompts, 3))
    for prompt, text in zip(prompts, found, strict=True):
        [row] = large.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=LIMIT,
            do_sample=False,
            num_beams=3,
            length_penalty=1.0,
            early_stopping=False,
        ).tolist()
        assert text == corpus_source(row[len(prompt) :], frozenset((END,)))
    assert 5 < sum(text[-1] == END for text in found) < 35
    speculative = drafted(pair, prompts, (3, 5, 3))
    assert texts(speculative) == found
    assert total(speculative).accepted > 50


@functools.cache
def tables(agreement: float) -> tuple[Predict, Predict]:
    small, large = (random_table(name, agreement=agreement, sharpness=2.0, end=1.0) for name in ("small", "large"))
    return small, large


@pytest.mark.parametrize("limit", [1, 2, 6])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 12])
def test_beam_search_is_the_slow_one(width: int, limit: int) -> None:
    """Twelve is more than the vocabulary, so that the first steps have fewer beams."""
    large = tables(0.5)[1]
    found = texts(beam(prefix_pair(large, large), TABLE_SOURCES, width, limit))
    assert found == [slow_beam(large, source, width, limit) for source in TABLE_SOURCES]


def test_a_beam_wide_enough_finds_the_best_text() -> None:
    predict = random_table("wide", agreement=0, sharpness=2.0, vocabulary=4, end=-1.0)
    found = texts(beam(prefix_pair(predict, predict), TABLE_SOURCES, 64, 3))

    def score(source: list[int], text: Prefix) -> float:
        steps = ((START, *text[:place]) for place in range(len(text)))
        logs = [torch.log_softmax(predict(tuple(source), prefix), -1) for prefix in steps]
        return sum(float(log[token]) for log, token in zip(logs, text, strict=True)) / len(text)

    alive = (START, 2, 3)
    whole = [(*begin, END) for length in (0, 1, 2) for begin in itertools.product(alive, repeat=length)]
    whole += list(itertools.product(alive, repeat=3))
    assert found == [list(max(whole, key=functools.partial(score, source))) for source in TABLE_SOURCES]
    assert {len(text) for text in found} == {1, 2, 3}


GRID = [(1, 1, 3), (1, 4, 2), (2, 2, 1), (2, 5, 3), (3, 4, 2), (4, 6, 3)]


@pytest.mark.parametrize("sizes", GRID)
def test_speculative_beam_search_is_beam_search(toys: Toys, perturbed: Pair, sizes: tuple[int, int, int]) -> None:
    plain = beam(toys.cached, SOURCES[:60], sizes[0])
    for pair in (toys.cached, perturbed):
        found = drafted(pair, SOURCES[:60], sizes)
        assert texts(found) == texts(plain)
        counts = total(found)
        assert 0 < counts.accepted < counts.drafted == counts.small_steps
        assert 0 < counts.rollbacks < counts.large_calls < total(plain).large_calls


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("sizes", [(1, 1, 2), (2, 3, 2), (3, 3, 5), (4, 12, 3), (12, 12, 2)])
def test_speculative_beam_search_on_tables(agreement: float, sizes: tuple[int, int, int]) -> None:
    pair = prefix_pair(*tables(agreement))
    for limit in (1, 2, 9):
        found, plain = drafted(pair, TABLE_SOURCES, sizes, limit), beam(pair, TABLE_SOURCES, sizes[0], limit)
        assert texts(found) == texts(plain)
        assert total(found).large_calls <= total(plain).large_calls
        if agreement == 1 and sizes[0] == sizes[1]:
            assert total(found).rollbacks == 0


@pytest.mark.parametrize("draft_length", [1, 3, 6])
def test_a_drafter_equal_to_the_target_is_always_accepted(toys: Toys, draft_length: int) -> None:
    pair = Pair(TransformersDecoder(toys.large, "twin"), toys.cached.large)
    plain = beam(toys.cached, SOURCES[:60], 3)
    for one, alone in zip(drafted(pair, SOURCES[:60], (3, 3, draft_length)), plain, strict=True):
        assert one.tokens == alone.tokens
        assert one.counts.rollbacks == 0
        assert one.counts.large_calls == -(-alone.counts.large_calls // (draft_length + 1))
        assert set(one.proposers) <= {"s", "l"}


def test_a_hostile_drafter_costs_time_and_no_token(toys: Toys) -> None:
    hostile = copy.deepcopy(toys.large)
    with torch.no_grad():
        hostile.lm_head.weight.neg_()
    pair = Pair(TransformersDecoder(hostile, "hostile"), toys.cached.large)
    plain = beam(toys.cached, SOURCES[:40], 2)
    for one, alone in zip(drafted(pair, SOURCES[:40], (2, 3, 3)), plain, strict=True):
        assert one.tokens == alone.tokens
        assert one.counts.accepted == 0
        assert one.counts.large_calls == alone.counts.large_calls


# After 2 the text all but ends, after 3 it goes on with 4. Beam search of width 2 with ENDS:
#   step 1: 2 (.6), 3 (.4)
#   step 2: 2 END (.54) has ended with ln(.54)/2 = -.31; 34 (.32) and 24 (.06) go on; 3 END (.08) is third and dropped
#   step 3: 34 END (.224) has ended with ln(.224)/3 = -.50; 345 (.096) and 245 (.018) go on, the best at ln(.096)/3 = -.78
#           is under both ended texts: over, and 2 END is the better of them.
ENDS = bigrams({START: {2: 0.6, 3: 0.4}, 2: {END: 0.9, 4: 0.1}, 3: {4: 0.8, END: 0.2}, 4: {END: 0.7, 5: 0.3}, 5: {END: 1.0}})
# Prefers 5 wherever ENDS has 4: its two best beams at step 2 are 25 and 35, its four best have 24 and 34 as well.
FIVES = bigrams(
    {START: {2: 0.6, 3: 0.4}, 2: {5: 0.8, 4: 0.1, END: 0.1}, 3: {5: 0.8, 4: 0.1, END: 0.1}, 4: {5: 1.0}, 5: {5: 0.9, 4: 0.1}}
)
LOW = bigrams({token: {2: 0.6, 3: 0.4} if token == 3 else {2: 0.7, 3: 0.3} for token in range(6)})
HIGH = bigrams({token: {4: 0.6, 5: 0.4} if token == 5 else {4: 0.7, 5: 0.3} for token in range(6)})
"""Neither ends; the two have no token in common."""
STOPS = bigrams({token: {END: 1.0} for token in range(6)})


def test_counts_of_beam_search() -> None:
    [generation] = beam(prefix_pair(ENDS, ENDS), [[5, END]], 2)
    counts = Counts(tokens=2, large_calls=3, verified=Counter({1: 1, 2: 2}))
    assert generation == Generation([2, END], "ll", counts)


def test_what_ends_under_the_best_w_is_dropped() -> None:
    """Step 2 ranks 2 END (.341), 24 (.209), 3 END (.18), 35 (.158), of which 3 END is third.

    Kept, it would be the second text to end, and at ln(.18)/2 = -.86 above all that goes on at step 3, ln(.0731)/3 = -.87 at
    most: the search would be over. Dropped, 246… goes on at no further cost, and at the limit beats 2 END, ln(.341)/2 = -.54.
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


@pytest.mark.parametrize(
    ("small", "large", "sizes", "limit", "tokens", "proposers", "counts"),
    [
        pytest.param(
            ENDS, ENDS, (2, 2, 3), 9, [2, END], "ss",
            Counts(tokens=2, small_steps=3, large_calls=1, drafted=3, accepted=3, verified=Counter({7: 1})),
            id="always accepted, over at the draft's last step",
        ),
        pytest.param(
            ENDS, ENDS, (2, 2, 2), 9, [2, END], "ss",
            Counts(tokens=2, small_steps=2, large_calls=1, drafted=2, accepted=2, verified=Counter({5: 1})),
            id="over at the step after a whole draft",
        ),
        pytest.param(
            ENDS, ENDS, (2, 2, 1), 9, [2, END], "sl",
            Counts(tokens=2, small_steps=2, large_calls=2, drafted=2, accepted=2, verified=Counter({3: 1, 4: 1})),
            id="one of two texts ends after a whole draft",
        ),
        pytest.param(
            # Of the second draft's two steps, from 34 and 24, the search needs one.
            FIVES, ENDS, (2, 2, 2), 9, [2, END], "sc",
            Counts(
                tokens=2, small_steps=4, large_calls=2, drafted=4, accepted=2, rollbacks=1, verified=Counter({5: 1, 6: 1})
            ),
            id="sometimes accepted",
        ),
        pytest.param(
            # The first step has no more than two tokens.
            FIVES, ENDS, (2, 4, 2), 9, [2, END], "ss",
            Counts(tokens=2, small_steps=2, large_calls=1, drafted=2, accepted=2, verified=Counter({7: 1})),
            id="accepted for a wider draft",
        ),
        pytest.param(
            LOW, LOW, (2, 3, 2), 7, [2] * 7, "sslssll",
            # 1 + 2 + 3 candidates, then 2 + 3 + 3; the last token needs no draft.
            Counts(tokens=7, small_steps=4, large_calls=3, drafted=4, accepted=4, verified=Counter({6: 1, 8: 1, 2: 1})),
            id="always accepted, up to the limit",
        ),
        pytest.param(
            HIGH, LOW, (2, 2, 2), 4, [2] * 4, "cccl",
            Counts(
                tokens=4, small_steps=5, large_calls=4, drafted=5, rollbacks=3, verified=Counter({5: 1, 6: 1, 4: 1, 2: 1})
            ),
            id="never accepted",
        ),
        pytest.param(
            LOW, LOW, (2, 2, 5), 3, [2] * 3, "ssl",
            Counts(tokens=3, small_steps=2, large_calls=1, drafted=2, accepted=2, verified=Counter({5: 1})),
            id="the limit inside a draft",
        ),
        pytest.param(
            LOW, LOW, (2, 2, 5), 1, [2], "l", Counts(tokens=1, large_calls=1, verified=Counter({1: 1})), id="limit 1"
        ),
        pytest.param(
            STOPS, LOW, (2, 2, 3), 2, [2, 2], "ll",
            Counts(tokens=2, small_steps=1, large_calls=2, verified=Counter({1: 1, 2: 1})),
            id="a drafter that knows no way to go on",
        ),
        pytest.param(
            ENDS, STOPS, (2, 2, 3), 9, [END], "s",
            Counts(tokens=1, small_steps=3, large_calls=1, drafted=3, accepted=1, verified=Counter({7: 1})),
            id="a target that knows no way to go on",
        ),
    ],
)  # fmt: skip
def test_counts_on_toys(
    small: Predict,
    large: Predict,
    sizes: tuple[int, int, int],
    limit: int,
    tokens: list[int],
    proposers: str,
    counts: Counts,
) -> None:
    [generation] = drafted(prefix_pair(small, large), [[5, END]], sizes, limit)
    assert generation == Generation(tokens, proposers, counts)


def test_w_1_is_greedy(toys: Toys) -> None:
    greedy = texts(decode("vanilla_large", VanillaSettings(), toys.cached, SOURCES, Request(LIMIT)))
    assert texts(beam(toys.cached, SOURCES, 1)) == greedy
    assert texts(drafted(toys.cached, SOURCES, (1, 3, 4))) == greedy


def test_side_by_side_is_one_by_one_with_and_without_a_cache(toys: Toys) -> None:
    sources, sizes = SOURCES[:8], (2, 3, 3)
    together = drafted(toys.cached, sources, sizes)
    assert together == [one for source in sources for one in drafted(toys.cached, [source], sizes)]
    assert together == drafted(toys.free, sources, sizes)
    alone = beam(toys.cached, sources, sizes[0])
    assert alone == [one for source in sources for one in beam(toys.cached, [source], sizes[0])]
    assert alone == beam(toys.free, sources, sizes[0])


@pytest.mark.parametrize("sizes", [(2, 2, 3), (3, 6, 4)])
def test_runs_are_what_is_counted(sizes: tuple[int, int, int]) -> None:
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
    # A branch of the draft and the token before it: what the target has kept of a draft is never run again.
    assert max(most) == draft_length + 1


class Prompted(PrefixDecoder):
    """Begins with a text of its own length for each source, as a decoder-only model does with its prompt."""

    def start(self, memory: Any) -> Rows:
        super().start(memory)
        return [[START, *source[:-1]] for source in self._sources]


class Deaf(TransformersDecoder):
    """Has no encoder of its own to run."""

    def encode(self, sources: Rows) -> EncoderOutput:
        raise AssertionError


def test_a_shared_encoder_runs_once(toys: Toys) -> None:
    pair = Pair(Deaf(toys.large, "small"), toys.cached.large, shares_encoder=True)
    found = drafted(pair, SOURCES, (2, 2, 3))
    assert texts(found) == texts(beam(toys.cached, SOURCES, 2))
    assert total(found).rollbacks == 0


def test_prompts_of_unequal_length() -> None:
    """The prompt is no part of the text that is generated, nor of its length."""
    predicts = [functools.partial(_after_prompt, table) for table in tables(0.8)]
    small, large = (Prompted(predict) for predict in predicts)
    sources = [[3, END], [4, 5, 6, END], [END], [7, 2, END]]
    bare = prefix_pair(*tables(0.8))
    assert texts(beam(Pair(small, large), sources, 3, 8)) == texts(beam(bare, sources, 3, 8))
    found, wanted = drafted(Pair(small, large), sources, (3, 4, 2), 8), drafted(bare, sources, (3, 4, 2), 8)
    assert found == wanted
    assert large.runs[0] == [1, 3, 0, 2]
    assert max(map(max, large.runs[1:])) == 3


def _after_prompt(predict: Predict, source: Prefix, prefix: Prefix) -> Tensor:
    """What a table says of the text after the prompt; nobody asks what is inside of the prompt."""
    return predict(source, (START, *prefix[len(source) :]))


@pytest.mark.parametrize("name", ["beam_large", "speculative_beam"])
def test_a_temperature_is_refused(name: str, toys: Toys) -> None:
    settings = BeamSettings() if name == "beam_large" else SpeculativeBeamSettings()
    with pytest.raises(InputError, match=rf"{name} draws no tokens, and the temperature is 0\.5; set it to 0"):
        decode(name, settings, toys.cached, SOURCES, Request(LIMIT, SamplingSettings(temperature=0.5)))


def test_fewer_draft_beams_than_beams_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_beams is 3; it must be at least beams, 4"):
        SpeculativeBeamSettings(beams=4, draft_beams=3)


def test_rank_leaves_out_the_impossible() -> None:
    [one, other] = rank(torch.tensor([[0.0, -math.inf, 0.0, math.log(2)], [-math.inf, -math.inf, 5.0, -math.inf]]), 3)
    assert one[0][1] == 3
    assert sorted(token for _, token in one) == [0, 2, 3]
    assert [math.exp(score) for score, _ in one] == pytest.approx([0.5, 0.25, 0.25])
    assert other == [(0.0, 2)]


def test_rank_sums_in_float32() -> None:
    """Log-probabilities rounded to bfloat16 would tie far more often than the logits do."""
    logits = torch.tensor([[4.0, 4.03125, -3.0]], dtype=torch.bfloat16)
    assert rank(logits, 3) == rank(logits.float(), 3)
    [ranked] = rank(logits, 2)
    assert ranked[0][0] - ranked[1][0] == pytest.approx(0.03125, abs=1e-6)
