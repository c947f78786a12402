"""What the native and the fused runtime share: the reference's numbers, one call for several steps, and refusals."""

import copy
import math
import random
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import BrokenLogitsError, EncoderOutput, GreedyAcceptance, Rows
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.fused import ONE_AHEAD, WHOLE_DRAFT, SyncPolicy
from tasks.errors import InputError
from tests import laws
from tests.acceptance import kept_by, often_top
from tests.tape import TapeRecorder
from tests.toys import END, toy_sources, toy_t5
from tests.unit.decoding.runtimes import odd

MOST = 200
"""Tokens of a row; the caches grow three times."""
# Every kind natively; each kind of computation in the fused runtime, recorded or not: a recording differs by positions alone.
FUSED = (
    "t5 gated-gelu",
    "llama with biases",
    "qwen2",
    "qwen3, tied",
    "gemma2, tied, without caps",
    "gemma3, windows alone",
    "bart",
)
RECORDED = ("t5 relu", "gemma3", "marian")
COVERING = [
    *((kind, "native") for kind in odd.KINDS),
    *((kind, "fused") for kind in FUSED),
    *((kind, "recorded") for kind in RECORDED),
    *(pytest.param(kind, "recorded", marks=pytest.mark.slow) for kind in ("llama", "qwen3, windows", "gemma2", "gpt2")),
]
covering = pytest.mark.parametrize(("kind", "runtime"), COVERING)
broken_logits = r"^the (native|fused) model gave NaN, .infinity or no finite logit at step "


class Twins:
    """A fast decoder and the reference, which receive the same operations."""

    def __init__(self, kind: str, runtime: str, rng: random.Random) -> None:
        self.rng = rng
        self.both = odd.fast(odd.model_of(kind), runtime), odd.reference(odd.model_of(kind))
        sources = odd.random_rows(rng, [rng.choice([1, 2, 5, 70]) for _ in range(rng.randint(1, 4))])
        self.start(sources)

    def start(self, sources: Rows) -> None:
        starts = [odd.begin(one, sources) for one in self.both]
        assert starts[0] == starts[1]
        self.forward(starts[0])

    def forward(self, tokens: Rows) -> None:
        ours, theirs = (one.forward(tokens) for one in self.both)
        odd.assert_close(ours, theirs)

    def forward_anything(self) -> None:
        """Ragged rows, some of them empty, and sometimes more tokens than are allocated."""
        most = self.rng.choice([1, 1, 4, 13, 18, 70])
        counts = [min(self.rng.randint(0, most), MOST - cached) for cached in self.both[0].lengths]
        if any(counts):
            self.forward(odd.random_rows(self.rng, counts))

    def rewind(self, back: int | None = None) -> None:
        most = self.rng.choice([1, 5, MOST]) if back is None else back
        lengths = [self.rng.randint(max(1, length - most), length) for length in self.both[0].lengths]
        for one in self.both:
            one.rewind(lengths)

    def reorder(self, rows: list[int] | None = None) -> None:
        """Drop, permute and duplicate rows."""
        count = len(self.both[0].lengths)
        if rows is None and self.rng.random() < 0.5:
            rows = self.rng.sample(range(count), self.rng.randint(1, count))
        chosen = rows or [self.rng.randrange(count) for _ in range(self.rng.randint(1, 6))]
        for one in self.both:
            one.reorder(chosen)


@covering
def test_random_operations_are_the_references(kind: str, runtime: str) -> None:
    for seed in range(2 if runtime == "native" else 1):
        twins = Twins(kind, runtime, random.Random(seed))
        for _ in range(20):
            twins.rng.choice([twins.forward_anything, twins.forward_anything, twins.rewind, twins.reorder])()
            assert twins.both[0].lengths == twins.both[1].lengths
        twins.forward_anything()
        # Whole prompts again, so that both omit the same predictions.
        rows = len(twins.both[0].lengths)
        for one in twins.both:
            one.rewind([0] * rows)
        twins.forward(odd.random_rows(twins.rng, [80] * rows))


@pytest.mark.parametrize(
    ("kind", "runtime"), [*((kind, "native") for kind in odd.FEW), ("llama", "recorded"), ("t5 relu", "fused")]
)
def test_a_decoder_is_used_again_for_batches_of_other_sizes(kind: str, runtime: str) -> None:
    """Long sources, more tokens than go through the layers together, and rows that are doubled while texts are long."""
    twins = Twins(kind, runtime, random.Random(1))
    for lengths, counts in (
        ([5, 1, 150, 9, 2, 70, 1], [2, 66]),
        ([1], [1, 1]),
        ([200, 1, 200], [1, 70, 1]),
        ([90, 60, 7] * 4, [30, 1]),
        ([300, 1, 299, 17], [64]),
    ):
        twins.start(odd.random_rows(twins.rng, lengths))
        for count in counts:
            twins.forward(odd.random_rows(twins.rng, [twins.rng.randint(0, count) for _ in lengths[1:]] + [count]))
        twins.reorder([len(lengths) - 1, 0, 0])
        twins.forward(odd.random_rows(twins.rng, [40, 0, 2]))


@odd.every_runtime
def test_learned_positions_may_be_used_up_but_not_exceeded(runtime: str) -> None:
    ours, theirs = odd.fast(odd.model_of("gpt2"), runtime), odd.reference(odd.model_of("gpt2"))
    [row] = odd.random_rows(random.Random(0), [odd.POSITIONS])
    for decoder in (ours, theirs):
        odd.begin(decoder, [row[:5]])
    odd.assert_close(ours.forward([row]), theirs.forward([row]))
    too_long = f"a text of {odd.POSITIONS + 1} tokens, but the model has {odd.POSITIONS} positions"
    with pytest.raises(ValueError, match=too_long):
        ours.forward([row[:1]])
    assert ours.lengths == [odd.POSITIONS]
    for decoder in (ours, theirs):
        decoder.rewind([odd.POSITIONS - 1])
    with pytest.raises(ValueError, match=too_long):
        ours.continue_greedily(row[:1], 2, DraftRule())
    with pytest.raises(ValueError, match=too_long):
        ours.check_draft(row[:1], row[1:2], RULES[0])
    assert 1 <= len(ours.continue_greedily(row[:1], 1, DraftRule()).tokens) <= 2
    ours.rewind([odd.POSITIONS - 1])
    odd.assert_close(ours.forward([row[-1:]]), theirs.forward([row[-1:]]))


@odd.every_runtime
def test_sources_are_held_to_learned_positions(runtime: str) -> None:
    ours, theirs = odd.fast(odd.model_of("bart"), runtime), odd.reference(odd.model_of("bart"))
    sources = odd.random_rows(random.Random(0), [odd.POSITIONS, 3])
    starts = [odd.begin(decoder, sources) for decoder in (ours, theirs)]
    odd.assert_close(ours.forward(starts[0]), theirs.forward(starts[1]))
    with pytest.raises(ValueError, match=f"a text of {odd.POSITIONS + 1} tokens, but the model has {odd.POSITIONS} positions"):
        ours.encode([[4], [*sources[0], 5]])


def test_the_default_dtype_does_not_matter() -> None:
    expected, decoder = odd.native(odd.model_of("t5 relu")), odd.native(odd.model_of("t5 relu"))
    starts = odd.begin(expected, [[4, 9], [5]])
    step = expected.forward(starts)
    torch.set_default_dtype(torch.float64)
    try:
        assert odd.begin(decoder, [[4, 9], [5]]) == starts
        assert torch.equal(decoder.forward(starts).logits, step.logits)
    finally:
        torch.set_default_dtype(torch.float32)


STOPS = [
    (DraftRule(), 9),
    (DraftRule(), 1),
    (DraftRule(fallback_threshold=0.3), 9),
    (DraftRule(fallback_threshold=0.6), 9),
    (DraftRule(stop_below=0.2), 9),
    (DraftRule(fallback_threshold=0.3, stop_below=0.4), 9),
    (DraftRule(max_entropy=2.6), 9),
    (DraftRule(stop_below=1e-4, max_entropy=2.2), 9),
    (DraftRule(fallback_threshold=1e-6), 80),
]
POLICIES = {"one ahead": ONE_AHEAD, "whole draft": WHOLE_DRAFT, "three steps": SyncPolicy(steps_per_sync=3, syncs_in_flight=1)}


def compare(model: Any, decoder: Any, sources: Rows, pendings: Rows, *, exact: bool) -> list[int]:
    """Compare a continuation with single steps for all rules, rewinding after each; return the length of each."""
    other, counts = (odd.native if exact else odd.fused)(model), []
    for source in sources:
        [text] = odd.begin(decoder, [source])
        assert odd.begin(other, [source]) == [text]
        for (until, budget), pending in zip(STOPS * 2, pendings, strict=False):
            cached, fed = decoder.lengths[0], [*text[decoder.lengths[0] :], *pending]
            made = decoder.continue_greedily(fed, budget, until)
            expected: list[int] = []
            following, cumulative, going = fed, 1.0, True
            while going:
                logits = other.forward([following]).logits[0, -1]
                assert torch.equal(made.logits[0, len(expected)], logits) or not exact
                torch.testing.assert_close(made.logits[0, len(expected)], logits, atol=1e-4, rtol=0)
                sure, nats = float(logits.softmax(-1).amax()), laws.nats(torch.softmax(logits, -1).tolist())
                reads, reads_entropy = until.fallback_threshold > 0 or until.stop_below > 0, until.max_entropy < math.inf
                assert made.entropies[len(expected)] == pytest.approx(nats if reads_entropy else 0.0, abs=1e-4)
                if reads or not reads_entropy:
                    assert made.confidence[len(expected)] == pytest.approx(sure if reads else 1.0, abs=1e-5)
                expected.append(int(logits.argmax()))
                following, cumulative = expected[-1:], cumulative * sure
                unsure = sure <= until.fallback_threshold or cumulative < until.stop_below or nats > until.max_entropy
                going = len(expected) < budget and not unsure and following[0] not in decoder.end_tokens
            assert made.tokens == expected and made.logits.shape[:2] == (1, len(expected))
            assert decoder.lengths == other.lengths == [cached + len(fed) + len(expected) - 1]
            counts.append(len(expected))
            for one in (decoder, other):
                one.rewind([min(cached + len(fed) + len(expected) // 2, decoder.lengths[0])])
            text = []
    return counts


@covering
def test_a_continuation_equals_single_steps(kind: str, runtime: str) -> None:
    rng, model = random.Random(3), odd.model_of(kind)
    pendings = odd.random_rows(rng, [1, 2, 1, 5, 1, 40, 3, 1, 1, 70, 1, 2, 1, 1])
    compare(model, odd.fast(model, runtime), odd.random_rows(rng, [12]), pendings, exact=runtime == "native")


@pytest.mark.parametrize("policy", [None, *POLICIES])
def test_it_stops_at_every_kind_of_end(policy: str | None) -> None:
    """On a toy that is sometimes confident and ends its texts; the fused runtime under every policy of synchronisation."""
    rng, model = random.Random(0), toy_t5(1, 2, 1)
    decoder = odd.native(model) if policy is None else odd.fused(model, recorder=TapeRecorder(), sync_policy=POLICIES[policy])
    pendings = [[rng.randrange(2, 24)] for _ in STOPS * 2]
    assert {1, 2, 3, 9} <= set(compare(model, decoder, toy_sources(8 if policy is None else 2), pendings, exact=policy is None))


@odd.every_runtime
def test_it_stops_at_each_of_several_end_tokens(runtime: str) -> None:
    model = toy_t5(1, 2, 1)
    free = odd.begun(odd.fast(model, runtime), [[5, 9, END]])
    text = free.continue_greedily([0], 12, DraftRule()).tokens
    model.generation_config.eos_token_id = [END, text[4]]
    ending = odd.begun(odd.fast(model, runtime), [[5, 9, END]])
    assert ending.continue_greedily([0], 12, DraftRule()).tokens == text[: text.index(text[4]) + 1]


@pytest.mark.parametrize(("kind", "runtime"), [*((kind, "native") for kind in odd.FEW), ("llama", "recorded")])
def test_logits_that_are_not_asked_for_change_nothing(kind: str, runtime: str) -> None:
    """One call writes a text longer than a recorded buffer for logits, while the caches grow."""
    one, other = odd.fast(odd.model_of(kind), runtime), odd.fast(odd.model_of(kind), runtime)
    [pending] = odd.random_rows(random.Random(1), [4])
    for decoder in (one, other):
        odd.begin(decoder, [[5, 3]])
    kept = one.continue_greedily(pending, 150, DraftRule())
    dropped = other.continue_greedily(pending, 150, DraftRule(), with_logits=False)
    assert dropped.tokens == kept.tokens
    assert one.lengths == other.lengths
    torch.testing.assert_close(dropped.logits, kept.logits[:, -1:], atol=1e-5, rtol=0)
    # The graphs recorded so far write into a buffer that is too small for so many logits.
    odd.begin(other, [[5, 3]])
    again = other.continue_greedily(pending, 100, DraftRule())
    torch.testing.assert_close(again.logits, kept.logits[:, : len(again.tokens)], atol=1e-5, rtol=0)


@odd.every_runtime
def test_a_reordered_row_continues(runtime: str) -> None:
    moved, alone = odd.fast(odd.model_of("t5 relu"), runtime), odd.fast(odd.model_of("t5 relu"), runtime)
    odd.begin(moved, [[4], [9, 8, 7], [3, 3]])
    moved.forward([[0], [0, 5], [0]])
    moved.reorder([1])
    odd.begin(alone, [[9, 8, 7]])
    alone.forward([[0, 5]])
    one, other = (decoder.continue_greedily([6], 90, DraftRule()) for decoder in (moved, alone))
    assert one.tokens == other.tokens
    torch.testing.assert_close(one.logits, other.logits, atol=1e-5, rtol=0)


def test_an_empty_continuation_is_refused() -> None:
    decoder = odd.begun(odd.native(odd.model_of("llama")), [[5, 6]])
    for pending, budget in (([], 3), ([5, 6], 0)):
        with pytest.raises(ValueError, match="at least one"):
            decoder.continue_greedily(pending, budget, DraftRule())
    odd.begin(decoder, [[5, 6], [7]])
    with pytest.raises(ValueError, match="unpack"):
        decoder.continue_greedily([5, 6], 3, DraftRule())


RULES = [
    GreedyAcceptance(-1.0, keep_agreed=True),
    GreedyAcceptance(math.inf, keep_agreed=False),
    GreedyAcceptance(1.0, keep_agreed=False),
    GreedyAcceptance(4.0, keep_agreed=True),
    GreedyAcceptance(9.0, keep_agreed=False),
    GreedyAcceptance(-1.0, keep_agreed=False, min_share=1.0),
    GreedyAcceptance(-1.0, keep_agreed=False, min_share=0.3),
    GreedyAcceptance(0.5, keep_agreed=True, min_share=0.05),
    GreedyAcceptance(-1.0, keep_agreed=True, max_gap=0.02),
    GreedyAcceptance(-1.0, keep_agreed=False, max_gap=0.3),
]


@covering
def test_a_check_equals_a_plain_run_and_the_rule(kind: str, runtime: str) -> None:
    """Drafts of likely and unlikely tokens, each rewound to its accepted tokens; the first follows a whole prompt."""
    rng, exact = random.Random(2), runtime == "native"
    one, other = odd.fast(odd.model_of(kind), runtime), (odd.native if exact else odd.fused)(odd.model_of(kind))
    [pending] = odd.begin(one, [[5, 9, 3]])
    odd.begin(other, [[5, 9, 3]])
    found = set()
    for turn in range(2 * len(RULES)):
        rule, length = RULES[turn // 2], rng.choice([0, 1, 4, 13, 16, 18, 40])
        [drafted] = odd.random_rows(rng, [length])
        begun, fed = other.lengths, pending
        for position in range(length if turn % 2 else 0):
            step = other.forward([fed])
            drafted[position] = often_top(step.logits[0, -1], drafted[position], 0.8, rng)
            fed = drafted[position : position + 1]
        other.rewind(begun)
        checked, step = one.check_draft(pending, drafted, rule), other.forward([pending + drafted])
        positions = length + 1
        for ours, theirs in ((checked.step.logits, step.logits), (checked.step.hidden, step.hidden)):
            assert torch.equal(ours[0], theirs[0, -positions:]) or not exact
            torch.testing.assert_close(ours[0], theirs[0, -positions:], atol=1e-4, rtol=0)
        assert checked.step.lengths == [positions]
        assert checked.step.argmax == [checked.step.logits[0].argmax(-1).tolist()]
        assert checked.accepted == kept_by(checked.step.logits[0], drafted, rule)
        assert checked.next_token == checked.step.argmax[0][checked.accepted]
        assert one.lengths == other.lengths
        found.add("all" if checked.accepted == length else "some" if checked.accepted else "none")
        for decoder in (one, other):
            decoder.rewind([decoder.lengths[0] - length + checked.accepted])
        pending = [checked.next_token]
        if one.lengths[0] > odd.POSITIONS - 60:
            [pending] = odd.begin(one, [[5, 9, 3]])
            odd.begin(other, [[5, 9, 3]])
    assert found == {"all", "some", "none"}


@odd.every_runtime
def test_only_a_rule_that_accepts_all_accepts_a_masked_token(runtime: str) -> None:
    decoder = odd.fast(with_logits({7: -math.inf}), runtime)
    for rule, kept in ((GreedyAcceptance(math.inf, keep_agreed=False), 2), (GreedyAcceptance(200.0, keep_agreed=True), 0)):
        odd.begin(decoder, [[4, 5]])
        assert decoder.check_draft([4, 5], [7, 7], rule).accepted == kept


@pytest.mark.parametrize("kind", ["native", "fused"])
def test_drafts_that_cannot_be_checked_are_refused(kind: str) -> None:
    model = odd.model_of("t5 relu")
    decoder = open_decoder(model, "toy", 30, odd.NATIVE) if kind == "native" else odd.fused(model, vocabulary=30, name="toy")
    odd.begin(decoder, [[9, 3]])
    assert hasattr(decoder, "check_draft")
    for pending, drafted in (([], [4]), ([0], [4, 30]), ([0], [36])):
        with pytest.raises(ValueError, match="a draft needs at least one pending token"):
            decoder.check_draft(pending, drafted, RULES[0])
    with pytest.raises(IndexError, match=f"the toy model has {odd.VOCABULARY} tokens, and was given 0 to {odd.VOCABULARY}"):
        decoder.check_draft([0], [odd.VOCABULARY], RULES[0])
    assert decoder.lengths == [0]


def with_logits(values: dict[int, float]) -> Any:
    """A Llama whose head adds these numbers to these tokens' logits."""
    model = copy.deepcopy(odd.model_of("llama"))
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.clone())
    head.bias = torch.nn.Parameter(torch.zeros(odd.VOCABULARY))
    with torch.no_grad():
        for token, value in values.items():
            head.bias[token] = value
    return model


@pytest.mark.parametrize("masked", [[0], [7, 36], [*range(36)]])
def test_a_mask_is_legal(masked: list[int]) -> None:
    model = with_logits(dict.fromkeys(masked, -math.inf))
    ours, theirs = odd.native(model), odd.reference(model)
    for decoder in (ours, theirs):
        odd.begin(decoder, [[4, 5], [6]])
    step, expected = (decoder.forward([[4, 5], [6]]) for decoder in (ours, theirs))
    odd.assert_close(step, expected)
    assert torch.isneginf(step.logits[0, 0, masked]).all()
    assert not {token for row in step.argmax for token in row} & set(masked)
    assert step.argmax[0][0] == int(expected.logits[0, 0].argmax())


BROKEN = [{position: value, 3: -math.inf} for position in (0, 15, 16, 36) for value in (math.nan, math.inf)]


@pytest.mark.parametrize("logits", [*BROKEN, dict.fromkeys(range(odd.VOCABULARY), -math.inf)], ids=str)
def test_one_broken_logit_is_enough(logits: dict[int, float]) -> None:
    """Or none that is finite."""
    decoder = odd.begun(odd.native(with_logits(logits)), [[4, 5], [6]])
    for step in (1, 2):
        with pytest.raises(BrokenLogitsError, match=f"{broken_logits}{step}$"):
            decoder.forward([[4, 5], [6]])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_padding_of_the_vocabulary_is_not_read(value: float) -> None:
    """The padded part of the head may hold any value."""
    plain, padded = (open_decoder(with_logits(values), "toy", 30) for values in ({}, {30: value, 36: value}))
    steps = []
    for decoder in (plain, padded):
        odd.begin(decoder, [[4, 5], [6, 2, 9]])
        steps.append(decoder.forward([[4, 5], [6, 2, 9]]))
    assert steps[0].logits.shape == (2, 2, 30)
    assert torch.equal(steps[0].logits, steps[1].logits)
    assert steps[0].argmax == steps[1].argmax


@pytest.mark.parametrize("part", ["layers", "embedding", "norm"])
@pytest.mark.parametrize("kind", odd.FEW)
def test_broken_weights_are_noticed_anywhere(kind: str, part: str) -> None:
    model = copy.deepcopy(odd.model_of(kind))
    inner = model.get_decoder()
    block = (inner.block if kind.startswith("t5") else inner.h if kind == "gpt2" else inner.layers)[0]
    weight = {
        "layers": next(weight for weight in block.parameters() if weight.dim() == 2),
        "embedding": inner.get_input_embeddings().weight,
        "norm": [weight for weight in inner.parameters() if weight.dim() == 1][-1],
    }[part]
    with torch.no_grad():
        weight[5 if part == "embedding" else 0] = math.nan
    decoder = odd.begun(odd.native(model), [[5, 4, END]])
    with pytest.raises(BrokenLogitsError, match=broken_logits):
        decoder.forward([[5, 4, END]])


def with_broken_token(model: Any, token: int) -> Any:
    """A T5 whose decoder reads NaN for this token."""
    broken = copy.deepcopy(model)
    embedding = broken.decoder.embed_tokens.weight = torch.nn.Parameter(broken.decoder.embed_tokens.weight.clone())
    with torch.no_grad():
        embedding[token] = math.nan
    return broken


@odd.every_runtime
@pytest.mark.parametrize("pending, drafted", [([7], [5, 6, 9]), ([4], [5, 7, 9]), ([4], [5, 6, 7]), ([4, 7], [5]), ([7], [])])
def test_broken_logits_are_named_in_every_call(runtime: str, pending: list[int], drafted: list[int]) -> None:
    """At the last pending token and at each drafted one, whatever the rule; no broken value remains in the caches."""
    decoder = odd.fast(with_broken_token(odd.model_of("t5 relu"), 7), runtime)
    starts = odd.begin(decoder, [[9, 3]])
    decoder.forward(starts)
    for rule in RULES:
        decoder.rewind([1])
        with pytest.raises(BrokenLogitsError, match=broken_logits + r"\d+$"):
            decoder.check_draft(pending, drafted, rule)
        odd.begin(decoder, [[9, 3]])
        decoder.forward(starts)
    decoder.rewind([1])
    with pytest.raises(BrokenLogitsError, match=broken_logits + "2$"):
        decoder.forward([[7]])
    odd.begin(decoder, [[9, 3]])
    with pytest.raises(BrokenLogitsError, match=broken_logits + "1$"):
        decoder.continue_greedily([0, 7], 3, DraftRule())
    odd.begin(decoder, [[9, 3]])
    assert bool(torch.isfinite(decoder.forward(starts).logits).all())


def test_broken_logits_within_a_continuation_are_reported() -> None:
    model = toy_t5(1, 2, 1)
    sound = odd.begun(odd.native(model), [[5, 9, END]])
    text = sound.continue_greedily([0], 6, DraftRule()).tokens
    position = next(position for position, token in enumerate(text) if position and token not in text[:position])
    for runtime in odd.RUNTIMES:
        broken = odd.begun(odd.fast(with_broken_token(model, text[position]), runtime), [[5, 9, END]])
        with pytest.raises(BrokenLogitsError, match=f"{broken_logits}{position + 2}$"):
            broken.continue_greedily([0], 6, DraftRule())


@odd.every_runtime
@pytest.mark.parametrize("token", [-1, odd.VOCABULARY, 2**31, -(2**40)])
def test_tokens_that_a_model_does_not_have_are_refused(runtime: str, token: int) -> None:
    decoder = odd.fast(odd.model_of("t5 relu"), runtime)
    unknown = f"^the (native|fused) model has {odd.VOCABULARY} tokens, and was given"
    with pytest.raises(IndexError, match=unknown):
        odd.begin(decoder, [[4], [4, token]])
    odd.begin(decoder, [[4], [4, 5]])
    with pytest.raises(IndexError, match=unknown):
        decoder.forward([[4], [token, 4]])
    assert decoder.lengths == [0, 0]
    odd.begin(decoder, [[4, 5]])
    with pytest.raises(IndexError, match=unknown):
        decoder.continue_greedily([token], 3, DraftRule())


@odd.every_runtime
def test_cuts_and_rows_beyond_what_is_cached_are_refused(runtime: str) -> None:
    """A cut to a length, and what a run is given: compiled code would take either as an address."""
    decoder = odd.fast(odd.model_of("llama"), runtime)
    decoder.forward(odd.begin(decoder, [[4, 5, 6], [7, 8]]))
    for lengths in ([3, -1], [-(2**40), 2], [4, 2], [3, 2**31], [3], [3, 2, 0]):
        with pytest.raises(ValueError, match=r"cannot be cut|zip"):
            decoder.rewind(lengths)
    for rows in ([[4]], [[4], [5], [6]]):
        with pytest.raises(ValueError, match=f"was started with 2 rows, and was given {len(rows)}$"):
            decoder.forward(rows)
    with pytest.raises(IndexError):
        decoder.reorder([0, 2])
    assert decoder.lengths == [3, 2]


def test_a_mask_of_other_sources_is_refused() -> None:
    decoder = odd.native(odd.model_of("t5 relu"))
    for shape in ((1, 4), (2, 3)):
        with pytest.raises(ValueError, match=r"^the mask of 1 sources of 3 tokens has the shape "):
            decoder.start(EncoderOutput(torch.zeros(1, 3, 20), torch.ones(shape, dtype=torch.long)))


@pytest.mark.parametrize("token", [-1, odd.VOCABULARY, 2**40])
def test_a_start_or_padding_token_that_a_model_does_not_have_is_one_line(token: int) -> None:
    starts, pads = (copy.deepcopy(odd.model_of("t5 relu")) for _ in range(2))
    starts.config.decoder_start_token_id = starts.generation_config.decoder_start_token_id = token
    for open_model in (odd.native, odd.reference):
        with pytest.raises(InputError, match=rf"begins its outputs with the token {token}, .* config.json to one of its 37 "):
            open_model(starts)
    pads.config.pad_token_id = token
    with pytest.raises(InputError, match=r"pads with .* set pad_token_id in its config.json to one of its"):
        odd.native(pads)


def test_empty_sources_and_those_of_another_kind_or_width_are_refused() -> None:
    empty: list[int] = []
    with pytest.raises(InputError, match=r"^source 2 is empty; the native model is decoder-only and needs a prompt"):
        odd.native(odd.model_of("llama")).encode([[4], empty])
    for sources, position in (([[4], empty], 2), ([empty], 1)):
        with pytest.raises(InputError, match=f"^source {position} is empty; the native model needs at least one token to"):
            odd.native(odd.model_of("t5 relu")).encode(sources)
    encoded = EncoderOutput(torch.zeros(1, 3, 19), torch.ones(1, 3, dtype=torch.long))
    for one in (odd.native, odd.fused):
        with pytest.raises(ValueError, match="model is decoder-only"):
            one(odd.model_of("gpt2")).start(encoded)
    for other, width in ((encoded, 19), (odd.native(odd.model_of("gpt2")).encode([[4, 5]]), 0)):
        with pytest.raises(ValueError, match=f"the native model reads sources of width 20, not {width}"):
            odd.native(odd.model_of("t5 relu")).start(other)
