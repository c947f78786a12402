"""What reads the layers of the large model as drafter: the first layers, and heads."""

from typing import Any

import pytest
import torch

from tasks.decoding.decoder import EncoderOutput, Step
from tasks.decoding.distributions import TokenSource
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.layers import HeadsDrafter, early_layer_drafter, heads_drafter
from tasks.decoding.generation import total
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import SpeculativeCascadeSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS, decode, decode_all
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.errors import InputError
from tasks.models.extras import add_heads
from tasks.models.layers import first_layers
from tasks.training.data import Batch, TokenDataset
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.architectures import models
from tests.toys import END, START, VOCABULARY, Toys, prefix_pair, says, toy_sources, toy_t5

GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.9, top_p=0.95)


def deep_t5(exit_layer: int = 1) -> Any:
    model = toy_t5(5, 2, 4, "gated-gelu")
    model.config.exit_layer = exit_layer
    return model


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("architecture", ["t5", "bart", "gpt2"])
def test_it_equals_a_small_model_made_of_those_layers(architecture: str, sampling: SamplingSettings) -> None:
    model = deep_t5() if architecture == "t5" else models(architecture)[1]
    sources, request = toy_sources(6, seed=4), Request(10, sampling, seed=3)
    large = open_decoder(model, "large")
    pair = Pair(open_decoder(first_layers(model, 1), "small"), large)
    drafted = [
        decode("speculative", SpeculativeSettings(drafter=drafter, draft_length=3), pair, sources, request)
        for drafter in ("small", "early_layer")
    ]
    assert drafted[0] == drafted[1]
    assert total(drafted[0]).accepted > 0


def test_the_source_is_encoded_once() -> None:
    large, runs = TransformersDecoder(deep_t5(), "large"), list[int]()
    large.model.encoder.register_forward_hook(lambda *_: runs.append(1))
    decode("speculative", SpeculativeSettings(drafter="early_layer"), Pair(large, large), toy_sources(4), Request(8))
    assert len(runs) == 1


def test_models_with_too_few_layers_are_refused() -> None:
    sampling, source = SamplingSettings(), TokenSource(0)
    with pytest.raises(InputError, match="needs the layers of a transformers model, which the large one is not"):
        early_layer_drafter(prefix_pair(says([2]), says([2])).large, sampling, source)
    with pytest.raises(InputError, match="exit_layer is 1, but the decoder has 1 layers"):
        early_layer_drafter(open_decoder(toy_t5(1, 2, 1), "large"), sampling, source)


HEADS = 3


def one_model(model: Any) -> Pair:
    large = TransformersDecoder(model, "large")
    return Pair(large, large)


def train_heads(model: Any, batch: Batch, steps: int) -> None:
    """Train only the heads."""
    objective = Objective(model, TrainingSettings(draft_heads=HEADS, trunk="frozen"))
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        objective.train()(batch, objective.counts([batch])).backward()
        optimizer.step()
    objective.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def trained() -> Any:
    """A toy with trained heads that predict some of the next tokens."""
    model = toy_t5(5, 1, 2, "gated-gelu")
    sources = toy_sources(100, seed=1)
    texts = [one.tokens for one in decode("vanilla_large", VanillaSettings(), one_model(model), sources, Request(12))]
    train_heads(model, TokenDataset(sources, texts, START).batch(range(len(sources))), steps=60)
    return model


def test_trained_heads_propose_what_comes_at_their_positions(trained: Any) -> None:
    """One run for k + 1 tokens, since predicting and verifying are merged (Stern et al., 2018, section 4).

    Heads that were read one position off would have one token in a hundred accepted.
    """
    settings = SpeculativeSettings(drafter="heads", draft_length=HEADS)
    generations = decode("speculative", settings, one_model(trained), toy_sources(20, seed=7), Request(20))
    assert all(one.proposers[0] == "l" for one in generations)
    counts = total(generations)
    assert counts.accepted > counts.drafted / 3
    assert counts.small_steps == 0


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=0.9)], ids=["greedy", "sampled"])
def test_a_batch_equals_single_rows(trained: Any, sampling: SamplingSettings) -> None:
    pair, sources, request = one_model(trained), toy_sources(5, seed=9), Request(12, sampling, seed=2)
    cases = {
        "speculative": SpeculativeSettings(drafter="heads", draft_length=3),
        "bild": BildSettings(drafter="heads", fallback_threshold=0.5, rollback_threshold=1.0),
        "speculative_cascade": SpeculativeCascadeSettings(drafter="heads", draft_length=2, rule="chow", deferral_cost=0.5),
    }
    for name, settings in cases.items():
        alone = [decode(name, settings, pair, [source], request, [number])[0] for number, source in enumerate(sources)]
        assert decode_all(name, settings, pair, sources, request, 3) == alone


def started(heads: int, rows: int) -> tuple[Any, HeadsDrafter]:
    """A model with new heads, and their drafter before a batch of so many rows."""
    model = toy_t5(5, 1, 2)
    add_heads(model, heads, seed=0)
    drafter = heads_drafter(TransformersDecoder(model.requires_grad_(False), "large"), GREEDY, TokenSource(0))
    drafter.start(EncoderOutput(torch.empty(rows, 0, 0), torch.empty(rows, 0)), [[2]] * rows)
    return model, drafter


def test_proposals_by_hand() -> None:
    """Each row's draft comes from the hidden state at its own position, one token a head."""
    model, drafter = started(heads=2, rows=2)
    rows, hidden = [[START, 5, 6], [START, 7]], torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(1))
    assert drafter.draft(rows, [0, 1], [3, 3], DraftRule(3)).tokens == [[], []]
    drafter.observe(rows, Step(torch.zeros(2, 4, VOCABULARY), [4, 2], hidden), [2, 0])
    expected = model.lm_head(model.draft_heads(torch.stack([hidden[0, 2], hidden[1, 0]])))
    draft = drafter.draft(rows, [0, 1], [3, 1], DraftRule(3))
    first = int(expected[0, 0].argmax())
    assert draft.tokens == [[first] if first == END else expected[0].argmax(-1).tolist(), expected[1, :1].argmax(-1).tolist()]
    torch.testing.assert_close(draft.q.logits[0, 0], expected[0, 0])
    assert draft.steps == [0, 0]
    longer = [[*rows[0], 9], [*rows[1], 9, 9]]
    after = drafter.predict_next(longer, [0, 1])
    torch.testing.assert_close(after.logits[0, 0], expected[0, 1])
    assert after.scores[1, 0].tolist() == pytest.approx([0, 0] + [1 / (VOCABULARY - 2)] * (VOCABULARY - 2))
    drafter.reorder([1])
    assert drafter.draft([rows[1]], [1], [1], DraftRule(3)).tokens == [draft.tokens[1]]


def test_without_a_bonus_token_the_last_token_s_state_is_read() -> None:
    """A rule without a bonus token passes a position past the end of the run."""
    model, drafter = started(heads=1, rows=1)
    hidden = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(1))
    drafter.observe([[START, 5, 6, 7]], Step(torch.zeros(1, 3, VOCABULARY), [3], hidden), [3])
    draft = drafter.draft([[START, 5, 6, 7]], [0], [1], DraftRule(1))
    torch.testing.assert_close(draft.q.logits[0, 0], model.lm_head(model.draft_heads(hidden[0, 2]))[0])


def test_a_model_without_heads_is_refused(toys: Toys) -> None:
    with pytest.raises(InputError, match="the large model has none; train it with draft_heads"):
        METHODS["speculative"].make(SpeculativeSettings(drafter="heads"), toys.cached, Request(8))
