"""The fused runtime gives the reference's tokens, recorded and not, whatever is cut, moved, copied or left out."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import REFERENCE, BrokenLogitsError, GreedyAcceptance, Runtime, Step, StopRule
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.generation import total
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes import fused_draft_check
from tasks.decoding.runtimes.blueprint_readers import blueprint_of
from tasks.decoding.runtimes.choose import open_decoder, open_pair, shares_encoder
from tasks.decoding.runtimes.cuda_graphs import fetch, rounded
from tasks.decoding.runtimes.fused import FusedDecoder
from tasks.decoding.runtimes.fused_cache import assign_slots
from tasks.decoding.runtimes.fused_greedy_loop import EACH_STEP, ONE_AHEAD, WHOLE_DRAFT
from tasks.decoding.runtimes.fused_step import SyncPolicy
from tasks.decoding.settings import (
    BeamSettings,
    BildSettings,
    ConfidentSettings,
    SamplingSettings,
    SpeculativeBeamSettings,
    SpeculativeSettings,
    VanillaSettings,
)
from tasks.errors import InputError
from tests.architectures import models
from tests.tape import TapeRecorder
from tests.toys import VOCABULARY, toy_sources, toy_t5

LIMIT = 14
NAMES = ("t5", "mt5", "llama", "gpt2")
every = pytest.mark.parametrize("name", NAMES)
recorded_or_not = pytest.mark.parametrize("recorded", [False, True], ids=["as it comes", "recorded"])
GREEDY: list[tuple[str, Any]] = [
    ("vanilla_large", VanillaSettings()),
    ("vanilla_small", VanillaSettings()),
    ("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=0.2, max_draft=4)),
    ("speculative", SpeculativeSettings(draft_length=4)),
    ("speculative_confident", ConfidentSettings(max_draft=4, stop_below=0.5)),
    ("beam_large", BeamSettings(beams=3)),
    ("speculative_beam", SpeculativeBeamSettings(beams=2, draft_beams=4, draft_length=2)),
]


def fused(
    model: Any, *, recorded: bool = False, sync_policy: SyncPolicy = EACH_STEP, vocabulary: int | None = None
) -> FusedDecoder:
    blueprint = blueprint_of(model)
    assert blueprint is not None
    return FusedDecoder(
        model, blueprint, "toy", vocabulary, recorder=TapeRecorder() if recorded else None, sync_policy=sync_policy
    )


def fused_pair(name: str, *, recorded: bool, sync_policy: SyncPolicy) -> Pair:
    small, large = (fused(model, recorded=recorded, sync_policy=sync_policy) for model in models(name))
    return Pair(small, large, shares_encoder=shares_encoder(*models(name)))


def reference_pair(name: str) -> Pair:
    return open_pair(*models(name), runtime=REFERENCE)


def llama_with_biases() -> Any:
    """Four heads on two of keys, biases, and no tied weights: (rows of several tokens are laid out by group)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "mlp_bias": True}
    shape = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    config = LlamaConfig(**heads, **shape, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = LlamaForCausalLM(config).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.2)
    return model


@every
@recorded_or_not
@pytest.mark.parametrize("method, settings", GREEDY, ids=[method for method, _ in GREEDY])
def test_tokens_and_counts_are_the_references(name: str, recorded: bool, method: str, settings: Any) -> None:
    sources = toy_sources(6)
    ours = fused_pair(name, recorded=recorded, sync_policy=ONE_AHEAD if recorded else EACH_STEP)
    expected = decode(method, settings, reference_pair(name), sources, Request(LIMIT))
    assert decode(method, settings, ours, sources, Request(LIMIT)) == expected
    alone = [decode(method, settings, ours, [source], Request(LIMIT), [place])[0] for place, source in enumerate(sources)]
    assert alone == expected
    if method in ("bild", "speculative"):
        assert total(expected).rollbacks > 2


@every
def test_drawn_tokens_are_the_references(name: str) -> None:
    request = Request(LIMIT, SamplingSettings(temperature=0.8, top_p=0.95), seed=3)
    settings = SpeculativeSettings(draft_length=3)
    ours = fused_pair(name, recorded=True, sync_policy=ONE_AHEAD)
    expected = decode("speculative", settings, reference_pair(name), toy_sources(6), request)
    assert [one.tokens for one in decode("speculative", settings, ours, toy_sources(6), request)] == [
        one.tokens for one in expected
    ]


def assert_same(ours: Step, theirs: Step) -> None:
    assert ours.lengths == theirs.lengths
    assert ours.best is not None
    assert ours.hidden is not None and theirs.hidden is not None
    for row, count in enumerate(theirs.lengths):
        torch.testing.assert_close(ours.logits[row, :count], theirs.logits[row, :count], atol=1e-4, rtol=0)
        torch.testing.assert_close(ours.hidden[row, :count], theirs.hidden[row, :count], atol=1e-4, rtol=0)
        assert ours.best[row] == ours.logits[row, :count].argmax(-1).tolist()


def walk(model: Any, decoder: FusedDecoder, seed: int, moves: int, kept: int = 60) -> set[str]:
    """Does the same random things to the reference and to a fused decoder; the kinds of things done."""
    chance, other = random.Random(seed), open_decoder(model, "toy", runtime=REFERENCE)
    sources = toy_sources(3, seed)
    starts = decoder.start(decoder.encode(sources))
    assert other.start(other.encode(sources)) == starts
    assert_same(decoder.forward(starts), other.forward(starts))
    done = set()
    for _ in range(moves):
        rows = len(decoder.lengths)
        kind = chance.choice(["forward", "forward", "forward", "rewind", "reorder"])
        if kind == "rewind" or max(decoder.lengths) > kept - 20:
            lengths = [chance.randint(max(1, length - 4 - 20 * (kind != "rewind")), length) for length in decoder.lengths]
            decoder.rewind(lengths)
            other.rewind(lengths)
        elif kind == "reorder":
            chosen = [chance.randrange(rows) for _ in range(chance.randint(1, 6))]
            kind += " with a row twice" if len(set(chosen)) < len(chosen) else ""
            decoder.reorder(chosen)
            other.reorder(chosen)
        else:
            counts = [chance.choice((0, 1, 1, 2, 3)) for _ in range(rows)]
            counts[chance.randrange(rows)] = chance.choice((1, 2, 3, 18))
            tokens = [[chance.randrange(2, VOCABULARY) for _ in range(count)] for count in counts]
            assert_same(decoder.forward(tokens), other.forward(tokens))
            kind += " with nothing new in a row" if 0 in counts else ""
        assert decoder.lengths == other.lengths
        done.add(kind)
    return done


@every
@recorded_or_not
def test_a_wound_back_cache_is_the_references(name: str, recorded: bool) -> None:
    model = models(name)[1]
    decoder = fused(model, recorded=recorded)
    done = set().union(*(walk(model, decoder, seed, moves=25) for seed in range(4)))
    assert {"forward with nothing new in a row", "rewind", "reorder with a row twice"} <= done


@recorded_or_not
def test_grouped_heads_and_biases(recorded: bool) -> None:
    model = llama_with_biases()
    walk(model, fused(model, recorded=recorded), 1, moves=25)


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu", "gated-silu"])
def test_feed_forwards(feed_forward: str) -> None:
    model = toy_t5(3, 2, 2, feed_forward)
    walk(model, fused(model), 2, moves=12)


@pytest.mark.parametrize("name", ["t5", "llama"])
@recorded_or_not
def test_caches_grow_past_what_was_allocated(name: str, recorded: bool) -> None:
    """Long sources first read by short ones' recordings, texts beyond 64 and 128 positions, and rows that multiply."""
    model = models(name)[1]
    decoder = fused(model, recorded=recorded)
    other = open_decoder(model, "toy", runtime=REFERENCE)
    chance = random.Random(0)
    for length in (5, 70):
        sources = [[chance.randrange(2, VOCABULARY) for _ in range(length)]]
        starts = decoder.start(decoder.encode(sources))
        assert other.start(other.encode(sources)) == starts
        assert_same(decoder.forward(starts), other.forward(starts))
        for _ in range(12):
            tokens = [[chance.randrange(2, VOCABULARY) for _ in range(12)] for _ in decoder.lengths]
            assert_same(decoder.forward(tokens), other.forward(tokens))
        for rows in ([0, 0, 0], [2, 1, 0, 0, 1], [4]):
            decoder.reorder(rows)
            other.reorder(rows)
            tokens = [[chance.randrange(2, VOCABULARY)] for _ in rows]
            assert_same(decoder.forward(tokens), other.forward(tokens))


@every
@recorded_or_not
@pytest.mark.parametrize(
    "sync_policy", [EACH_STEP, ONE_AHEAD, WHOLE_DRAFT, SyncPolicy(steps_per_sync=3, syncs_in_flight=1)], ids=str
)
def test_to_extend_is_to_go_step_by_step(name: str, recorded: bool, sync_policy: SyncPolicy) -> None:
    model = models(name)[0]
    decoder, stepping = fused(model, recorded=recorded, sync_policy=sync_policy), fused(model)
    cuts = 0
    for place, source in enumerate(toy_sources(8)):
        [pending] = decoder.start(decoder.encode([source]))
        stepping.start(stepping.encode([source]))
        for until, budget in (
            (StopRule(0.5), 6),
            (StopRule(cumulative_confidence=0.3), 5),
            (StopRule(), 4),
            (StopRule(0.2, 0.1), 1),
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
                if until.confidence or until.cumulative_confidence:
                    assert found.confidence[len(expected) - 1] == pytest.approx(sure, abs=1e-5)
                cumulative_confidence *= sure
                fed = expected[-1:]
                if (
                    fed[0] in decoder.end_tokens
                    or sure <= until.confidence
                    or cumulative_confidence < until.cumulative_confidence
                ):
                    break
            cuts += len(expected) < budget
            assert found.tokens == expected
            assert found.logits.shape == (1, len(expected), VOCABULARY)
            assert decoder.lengths == stepping.lengths
            # The last token was not fed; another one comes in its place, after a token or two are taken back.
            kept = decoder.lengths[0] - (place % 3 if len(expected) > 3 else 0)
            decoder.rewind([kept])
            stepping.rewind([kept])
            pending = [3 + place] if place % 2 else [3, 4 + place]
    assert cuts > 5


def test_logits_that_are_not_kept() -> None:
    """A whole text by one call, longer than the room for logits, across the growth of what is read."""
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
    # What was recorded writes where there is no room for so many logits.
    again = decoder.continue_greedily(decoder.start(decoder.encode([source]))[0], 100, StopRule())
    torch.testing.assert_close(again.logits, expected.logits[:, :100], atol=1e-4, rtol=0)


KEEPS = [
    GreedyAcceptance(max_surprisal, keep_agreed)
    for max_surprisal in (-1.0, 0.0, 0.05, 2.0, math.inf)
    for keep_agreed in (False, True)
]


def kept_by(logits: torch.Tensor, drafted: list[int], keep: GreedyAcceptance) -> int:
    """Drafted tokens before the first that the rule lets go; `logits` (draft and one more, vocabulary)."""
    block = PredictionBlock(logits[None], SamplingSettings())
    for place, token in enumerate(drafted):
        max_surprisal = -float(block.scores[0, place, token].log())
        if max_surprisal > keep.max_surprisal and not (keep.keep_agreed and block.likeliest[0][place] == token):
            return place
    return len(drafted)


@every
@recorded_or_not
def test_to_check_is_to_run_and_to_apply_the_rule(name: str, recorded: bool) -> None:
    """Drafts of every length, likely and not, wound back to what is kept; the first goes with the whole prompt."""
    model, chance = models(name)[1], random.Random(4)
    decoder, plain = fused(model, recorded=recorded), fused(model)
    found = set()
    for turn, keep in enumerate(KEEPS * 5):
        if turn % 8 == 0:
            source = [chance.randrange(2, VOCABULARY) for _ in range(chance.choice((3, 20)))]
            [pending] = decoder.start(decoder.encode([source]))
            plain.start(plain.encode([source]))
        # No longer than GPT-2's 64 positions allow.
        count = chance.choice([0, 1, 2, 4, 7] if plain.lengths[0] > 30 else [0, 1, 4, 16, 18])
        drafted = [chance.randrange(2, VOCABULARY) for _ in range(count)]
        begun = plain.lengths
        for place in range(count):  # the likeliest, now and then another one
            best = plain.forward([pending + drafted[:place]]).best
            assert best is not None
            drafted[place] = best[0][-1] if chance.random() < 0.85 else drafted[place]
            plain.rewind(begun)
        before = decoder.lengths[0] + len(pending)
        checked, step = decoder.check_draft(pending, drafted, keep), plain.forward([pending + drafted])
        assert step.hidden is not None
        logits, hidden = step.last([count + 1]), step.hidden[:, -count - 1 :]
        assert_same(checked.step, Step(logits, [count + 1], hidden))
        assert checked.accepted == kept_by(checked.step.logits[0], drafted, keep)
        assert checked.next_token == int(checked.step.logits[0, checked.accepted].argmax())
        assert decoder.lengths == plain.lengths
        found.add("all" if checked.accepted == count else "some" if checked.accepted else "none")
        found.add("recorded" if len(pending) == 1 and count <= 16 else "as it comes")
        for one in (decoder, plain):
            one.rewind([before + checked.accepted])
        pending = [checked.next_token]
    assert found == {"all", "some", "none", "recorded", "as it comes"}


@recorded_or_not
def test_each_rule_by_hand(recorded: bool) -> None:
    """The likeliest token, and the second."""
    decoder = fused(models("llama")[1], recorded=recorded)
    [start] = decoder.start(decoder.encode([[5, 9]]))
    step = decoder.forward([start])
    assert step.best is not None
    [first, second] = step.logits[0, -1].topk(2).indices.tolist()
    apart = [-float(step.logits[0, -1].log_softmax(-1)[token]) for token in (first, second)]
    decoder.rewind([1])
    for token, max_surprisal in zip((first, second), apart, strict=True):
        for keep, kept in (
            (GreedyAcceptance(-1.0, keep_agreed=False), 0),
            (GreedyAcceptance(-1.0, keep_agreed=True), int(token == first)),
            (GreedyAcceptance(0.0, keep_agreed=False), 0),
            (GreedyAcceptance(max_surprisal + 1e-3, keep_agreed=False), 1),
            (GreedyAcceptance(max_surprisal - 1e-3, keep_agreed=False), 0),
            (GreedyAcceptance(max_surprisal - 1e-3, keep_agreed=True), int(token == first)),
            (GreedyAcceptance(math.inf, keep_agreed=False), 1),
        ):
            checked = decoder.check_draft([9], [token], keep)
            assert checked.accepted == kept
            assert checked.next_token == (first if not kept else int(checked.step.logits[0, 1].argmax()))
            decoder.rewind([1])


def test_a_masked_token_stays_by_a_rule_that_keeps_all_alone() -> None:
    model = copy.deepcopy(models("llama")[1])
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
    with torch.no_grad():
        model.lm_head.bias[7] = -math.inf
    decoder = fused(model)
    for rule, kept in ((GreedyAcceptance(math.inf, keep_agreed=False), 2), (GreedyAcceptance(200.0, keep_agreed=True), 0)):
        [start] = decoder.start(decoder.encode([[4, 5]]))
        assert decoder.check_draft(start, [7, 7], rule).accepted == kept


def test_a_draft_is_judged_in_float32_whatever_the_weights() -> None:
    decoder = fused(copy.deepcopy(models("t5")[1]).bfloat16(), recorded=True)
    decoder.start(decoder.encode([[5, 9, 1]]))
    drafted = decoder.continue_greedily([0], 5, StopRule()).tokens
    decoder.rewind([0])
    logits = decoder.check_draft([0], drafted, KEEPS[0]).step.logits[0].float()
    distances = [-float(row.log_softmax(-1)[token]) for row, token in zip(logits, drafted, strict=False)]
    for max_surprisal in distances:
        for near in (max_surprisal - 1e-4, max_surprisal + 1e-4):
            decoder.rewind([0])
            keep = GreedyAcceptance(near, keep_agreed=False)
            assert decoder.check_draft([0], drafted, keep).accepted == kept_by(logits, drafted, keep)


def test_a_check_fetches_numbers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest tokens and how many stay; and drafts of one length share what is recorded, whatever the rule."""
    fetched: list[tuple[int, ...]] = []

    def noted(tensor: torch.Tensor) -> Any:
        fetched.append(tuple(tensor.shape))
        return fetch(tensor)

    monkeypatch.setattr(fused_draft_check, "fetch", noted)
    recorder, model = TapeRecorder(), models("t5")[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None
    decoder = FusedDecoder(model, blueprint, "toy", recorder=recorder)
    decoder.start(decoder.encode(toy_sources(1)))
    for turn in range(12):
        decoder.check_draft([4], [5 + turn] * (turn % 2 + 3), GreedyAcceptance(float(turn), keep_agreed=False))
        decoder.rewind([turn])
    assert fetched == [(5,), (6,)] * 6
    # The encoder, three tokens and four.
    assert recorder.recordings == 3


def test_a_checked_step_outlives_the_next_run() -> None:
    decoder = fused(models("t5")[1], recorded=True)
    decoder.start(decoder.encode(toy_sources(1)))
    step = decoder.check_draft([0], [4, 5], KEEPS[0]).step
    assert step.hidden is not None
    before = step.logits.clone(), step.hidden.clone()
    decoder.check_draft([0], [6, 7], KEEPS[0])
    assert torch.equal(step.logits, before[0])
    assert torch.equal(step.hidden, before[1])


@recorded_or_not
@pytest.mark.parametrize("pending, drafted", [([7], [5, 6, 9]), ([4], [5, 7, 9]), ([4], [5, 6, 7]), ([4, 7], [5]), ([7], [])])
def test_broken_logits_of_a_draft_are_named(recorded: bool, pending: list[int], drafted: list[int]) -> None:
    model = toy_t5(3, 1, 1)
    decoder = fused(model, recorded=recorded)
    starts = decoder.start(decoder.encode([[2, 3, 1]]))
    decoder.forward(starts)
    with torch.no_grad():
        model.shared.weight[7] = math.nan
    for keep in KEEPS:
        decoder.rewind([1])
        with pytest.raises(BrokenLogitsError, match="the toy model gave NaN, \\+infinity or no finite logit at step"):
            decoder.check_draft(pending, drafted, keep)
        decoder.start(decoder.encode([[2, 3, 1]]))
        assert decoder.check_draft([0], [5, 6], GreedyAcceptance(math.inf, keep_agreed=False)).accepted == 2


def test_a_draft_that_cannot_be_judged_is_refused() -> None:
    decoder = fused(models("gpt2")[1], vocabulary=20)
    decoder.start(decoder.encode([[2, 3]]))
    for pending, drafted in (([], [4]), ([2, 3], [4, 20]), ([2], [23])):
        with pytest.raises(ValueError, match="a draft needs at least one pending token"):
            decoder.check_draft(pending, drafted, KEEPS[0])
    with pytest.raises(IndexError, match="the toy model has 24 tokens, and was given 4 to 24"):
        decoder.check_draft([2], [4, 24], KEEPS[0])
    with pytest.raises(ValueError, match="a text of 65 tokens, but the model has 64 positions"):
        decoder.check_draft([2] * 60, [3] * 5, KEEPS[0])
    assert decoder.lengths == [0]


def test_few_recordings_serve_many_runs() -> None:
    recorder = TapeRecorder()
    model = models("t5")[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None
    decoder = FusedDecoder(model, blueprint, "toy", recorder=recorder)
    for source in toy_sources(10):
        starts = decoder.start(decoder.encode([source]))
        decoder.forward(starts)
        for token in range(2, 12):
            decoder.forward([[token]])
        decoder.forward([[5, 6, 7]])
    # One each for the encoder, one new token and three.
    assert recorder.recordings == 3
    assert recorder.replays == 130


def test_recordings_of_tables_that_were_replaced_are_made_anew() -> None:
    """A recording does not keep alive what it reads; on a GPU its memory would be somebody else's."""
    recorder, model = TapeRecorder(), models("t5")[1]
    blueprint = blueprint_of(model)
    assert blueprint is not None
    decoder = FusedDecoder(model, blueprint, "toy", recorder=recorder)
    for length, recordings in ((5, 1), (60, 1), (70, 2), (5, 3), (6, 3)):
        decoder.encode([[3] * length])
        assert recorder.recordings == recordings


def test_results_outlive_the_next_run() -> None:
    decoder = fused(models("llama")[1], recorded=True)
    decoder.forward(decoder.start(decoder.encode(toy_sources(2))))
    first = decoder.forward([[4], [5]])
    before = first.logits.clone(), None if first.hidden is None else first.hidden.clone()
    decoder.forward([[6], [7]])
    assert torch.equal(first.logits, before[0])
    assert first.hidden is not None and before[1] is not None and torch.equal(first.hidden, before[1])


@every
def test_bfloat16_is_close(name: str) -> None:
    """As close to float32 as the reference in bfloat16 is, or nearly."""
    exact = models(name)[1]
    model = copy.deepcopy(exact).bfloat16()
    sources = toy_sources(8)
    steps = []
    for decoder in (fused(exact), fused(model), open_decoder(model, "toy", runtime=REFERENCE)):
        starts = decoder.start(decoder.encode(sources))
        steps.append(decoder.forward([[*row, 4, 5, 6] for row in starts]).logits[:, -3:].float())
    ours, theirs = ((steps[0] - other).norm() / steps[0].norm() for other in steps[1:])
    assert 0 < ours < max(2e-2, 1.5 * float(theirs))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@recorded_or_not
def test_broken_logits_are_named(value: float, recorded: bool) -> None:
    model = toy_t5(3, 1, 1)
    decoder = fused(model, recorded=recorded)
    embedding = model.shared.weight
    before = embedding[7].clone()
    starts = decoder.start(decoder.encode([[2, 3, 1]]))
    with torch.no_grad():
        embedding[7] = value
    decoder.forward(starts)
    with pytest.raises(BrokenLogitsError, match="the toy model gave NaN, \\+infinity or no finite logit at step 2"):
        decoder.forward([[7]])
    decoder.start(decoder.encode([[2, 3, 1]]))
    with pytest.raises(BrokenLogitsError, match="step 1"):
        decoder.continue_greedily([0, 7], 3, StopRule())
    with torch.no_grad():
        embedding[7] = before
    # Nothing of it is left in the caches.
    starts = decoder.start(decoder.encode([[2, 3, 1]]))
    assert bool(torch.isfinite(decoder.forward(starts).logits).all())


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_layers_can_be_compiled(name: str) -> None:
    """All of them by one compilation; the tokens stay, and the function itself can be put back."""
    model = models(name)[1]
    decoder, other = fused(model), fused(model)
    [source] = toy_sources(1)
    [start] = decoder.start(decoder.encode([source]))
    other.start(other.encode([source]))
    graphs: list[object] = []
    torch.compiler.reset()

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for wrap in (lambda block: torch.compile(block, dynamic=False, backend=count), None):
        decoder.wrap_layers(wrap)
        assert_same(decoder.forward([start]), other.forward([start]))
        decoder.rewind([0])
        other.rewind([0])
    assert len(graphs) == 1


def test_a_masked_vocabulary_and_foreign_ids() -> None:
    decoder = fused(models("gpt2")[1], vocabulary=20)
    starts = decoder.start(decoder.encode(toy_sources(2)))
    assert decoder.forward(starts).logits.shape[-1] == decoder.vocabulary == 20
    with pytest.raises(IndexError, match="the toy model has 24 tokens, and was given 24 to 24"):
        decoder.forward([[3], [24]])
    with pytest.raises(IndexError, match="-1 to 4"):
        decoder.continue_greedily([-1, 4], 2, StopRule())


def test_a_text_longer_than_the_positions_is_refused() -> None:
    decoder = fused(models("gpt2")[1])
    decoder.start(decoder.encode([[2] * 60]))
    decoder.forward([[2] * 60])
    # Padding of the row with nothing new would reach beyond, and is no text.
    decoder.reorder([0, 0])
    assert decoder.forward([[3, 3, 3, 3], []]).lengths == [4, 0]
    with pytest.raises(ValueError, match="a text of 65 tokens, but the model has 64 positions"):
        decoder.forward([[3], []])


def test_slots_are_arranged_with_few_copies() -> None:
    assert assign_slots([0, 1, 2], 3) == ([0, 1, 2], [])
    assert assign_slots([2, 0], 4) == ([2, 0], [])
    assert assign_slots([1, 1, 0], 4) == ([1, 2, 0], [(1, 2)])
    assert assign_slots([3, 2], 2) == ([0, 1], [(3, 0), (2, 1)])
    assert assign_slots([3, 3, 0], 4) == ([3, 1, 0], [(3, 1)])
    assert assign_slots([5, 1, 5, 1], 4) == ([0, 1, 2, 3], [(5, 0), (5, 2), (1, 3)])
    assert [rounded(number) for number in (1, 2, 3, 5, 8, 33)] == [1, 2, 4, 8, 8, 64]
    assert [rounded(number, 64) for number in (0, 1, 64, 65, 129)] == [64, 64, 64, 128, 256]


def test_what_the_fused_runtime_takes() -> None:
    model = models("llama")[1]
    assert isinstance(open_decoder(model, "large", runtime=Runtime("fused")), FusedDecoder)
    assert not isinstance(open_decoder(model, "large"), FusedDecoder)
    with pytest.raises(InputError, match="the fused runtime does not know models of type bloom configured like the large one"):
        open_decoder(models("bloom")[1], "large", runtime=Runtime("fused"))
    with pytest.raises(InputError, match="the fused runtime takes float32 and bfloat16, not float16; set"):
        open_decoder(copy.deepcopy(model).half(), "large", runtime=Runtime("fused"))
