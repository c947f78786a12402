"""SpecDec++: drafts end where the head expects a rejection, by hand and at its ends; they stay exact with any head."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.drafters.predicted import PredictedDrafter, predicted_drafter
from tasks.decoding.generation import total
from tasks.decoding.randomness import TokenSource
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.decoding.settings import PredictedSettings, SamplingSettings, SpeculativeSettings, VanillaSettings
from tasks.decoding.turn import DraftRule
from tasks.errors import InputError
from tasks.models.extras import AcceptanceHead, add_acceptance_head
from tests.architectures import NAMES, models, pair_of
from tests.toys import END, Predict, PrefixDecoder, StatefulDecoder, Toys, prefix_pair, says, toy_sources, toy_t5

SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95)
SIX = [2, 3, 4, 5, 6, 7]


def sure_of(chances: Sequence[float]) -> Predict:
    """A state of one number for each token of a text, of which a plain head makes this chance of acceptance."""
    return lambda _, prefix: torch.tensor([chances[len(prefix) - 1]]).logit()


def drafted(chances: Sequence[float], max_rejection: float, max_draft: int) -> tuple[list[int], bool, int]:
    """The tokens of one draft after the start token, whether it fell back, and the small model's runs."""
    decoder = StatefulDecoder(says(SIX), sure_of(chances))
    drafter = predicted_drafter(decoder, SamplingSettings(), TokenSource(0))
    drafter.start(decoder.encode([[9, END]]), [[9, END]])
    found = []
    for _ in range(2):
        draft = drafter.draft([[0]], [0], [max_draft], DraftRule(max_draft, fallback_threshold=1 - max_rejection))
        found.append((draft.tokens[0], draft.fallback[0], draft.steps[0]))
        assert decoder.rows[0] == [0, *SIX][: len(decoder.rows[0])]
        decoder.rewind([0])
    one, again = found
    assert one == again
    return one


@pytest.mark.parametrize(
    ("max_rejection", "max_draft", "expected"),
    [
        (0.55, 6, ([2, 3, 4], True, 4)),  # 0.9, 0.81 and then 0.81 · 0.5 = 0.405
        (0.15, 6, ([2, 3], True, 3)),
        (0.05, 6, ([2], True, 2)),
        (0.62, 6, ([2, 3, 4, 5], True, 5)),  # 0.405 · 0.9 = 0.3645
        (0.55, 3, ([2, 3, 4], False, 3)),  # nothing is read after the last token of a window
        (0.55, 2, ([2, 3], False, 2)),
        (0.99, 6, (SIX, False, 6)),
    ],
)
def test_a_draft_ends_after_the_token_that_is_one_too_many(
    max_rejection: float, max_draft: int, expected: tuple[list[int], bool, int]
) -> None:
    """The start token's chance counts for nothing: it was not drafted."""
    assert drafted([0.001, 0.9, 0.9, 0.5, 0.9, 0.9, 0.9], max_rejection, max_draft) == expected


def test_a_head_is_its_layers_and_a_sum() -> None:
    head = AcceptanceHead(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]]))
        head.bias.copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        head.out.copy_(torch.tensor([2.0, -1.0]))
        head.out_bias.fill_(0.25)
        found = head(torch.tensor([[[0.5, 3.0]]]))

    def silu(number: float) -> Tensor:
        return torch.nn.functional.silu(torch.tensor(number))

    one, other = 0.5 + silu(0.5), 3.0 + silu(1.0)
    torch.testing.assert_close(found[0, 0], 2 * one - (other + silu(float(one + other))) + 0.25)
    assert found.shape == (1, 1)


@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED], ids=["greedy", "sampled"])
def test_its_ends_are_windows_of_one_token_and_of_all(sampling: SamplingSettings) -> None:
    pair, sources, request = pair_of("t5"), toy_sources(12), Request(12, sampling)
    never, at_once = (
        decode("speculative_predicted", PredictedSettings(max_draft=4, max_rejection=bound), pair, sources, request)
        for bound in (1.0, 0.0)
    )
    assert never == decode("speculative", SpeculativeSettings(draft_length=4), pair, sources, request)
    for found in at_once:
        assert {drafted for drafted, _ in found.counts.kept} == {1}
        # A run more for each draft, except where the window was one token, and where it drafted the end token.
        assert found.counts.small_steps == found.counts.drafted + found.counts.fallbacks
    if sampling.greedy:
        single = decode("speculative", SpeculativeSettings(draft_length=1), pair, sources, request)
        assert [(one.tokens, one.counts.kept) for one in at_once] == [(one.tokens, one.counts.kept) for one in single]


@pytest.mark.parametrize("sampling", [SamplingSettings(), SAMPLED], ids=["greedy", "sampled"])
def test_a_cache_changes_nothing(toys: Toys, sampling: SamplingSettings) -> None:
    @functools.cache
    def states(source: tuple[int, ...], read: tuple[int, ...]) -> Tensor:
        with torch.inference_mode():
            encoded = toys.small.get_encoder()(input_ids=torch.tensor([source])).last_hidden_state
            run = toys.small.get_decoder()(input_ids=torch.tensor([read]), encoder_hidden_states=encoded, use_cache=False)
        last: Tensor = run.last_hidden_state[0, -1]
        return last

    large = prefix_pair(*toys.predicts).large
    free = Pair(StatefulDecoder(toys.predicts[0], states, toys.small), large)
    sources, request = toy_sources(6, seed=3), Request(12, sampling, seed=5)
    for bound in (0.4, 0.6, 0.8):
        settings = PredictedSettings(max_draft=5, max_rejection=bound)
        cached, plain = (decode("speculative_predicted", settings, pair, sources, request) for pair in (toys.cached, free))
        assert cached == plain
    assert 0 < total(cached).fallbacks < total(cached).large_calls


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_has_states_and_greedy_text_is_the_large_model_s(name: str) -> None:
    """In its own runtime and in the reference, in a batch and alone."""
    sources, settings = toy_sources(6, seed=4), PredictedSettings(max_draft=5, max_rejection=0.6)
    for pair in (pair_of(name), pair_of(name, REFERENCE)):
        vanilla = decode("vanilla_large", VanillaSettings(), pair, sources, Request(12))
        found = decode("speculative_predicted", settings, pair, sources, Request(12))
        assert [one.tokens for one in found] == [one.tokens for one in vanilla]
        assert found == decode_all("speculative_predicted", settings, pair, sources, Request(12), 1)
        assert total(found).fallbacks > 0


def test_it_reads_the_head_of_the_small_model_alone() -> None:
    small, large = models("t5")
    plain, other = toy_t5(1, 2, 1), toy_t5(2, 1, 3, "gated-gelu")
    add_acceptance_head(other, 1, seed=0)
    with pytest.raises(InputError) as caught:
        decode("speculative_predicted", PredictedSettings(), open_pair(plain, other), [[2, END]], Request(4))
    assert str(caught.value) == (
        "speculative_predicted needs an acceptance head, and the small model has none; train it with align.acceptance_head"
    )
    without = Pair(TransformersDecoder(small, "small"), TransformersDecoder(large, "large"))
    assert decode("speculative_predicted", PredictedSettings(), without, [[2, END]], Request(4))
    with pytest.raises(InputError, match="the large model has none"):
        decode("speculative_predicted", PredictedSettings(), Pair(without.large, without.large), [[2, END]], Request(4))


def test_a_runtime_without_states_says_so() -> None:
    head = AcceptanceHead(0, 1)
    decoder = PrefixDecoder(says(SIX), "small")
    drafter = PredictedDrafter(head, decoder, SamplingSettings(), TokenSource(0))
    drafter.start(decoder.encode([[9, END]]), [[9, END]])
    with pytest.raises(RuntimeError, match="runtime gives no hidden states, which the acceptance head reads"):
        drafter.draft([[0]], [0], [3], DraftRule(3))
