"""The acceptance head learns from drafted tokens: their states and labels by single runs, its loss and its area by hand."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment import acceptance_head
from tasks.alignment.acceptance_head import (
    DraftedTokens,
    TokenDrafts,
    area_under_curve,
    balanced_loss_sum,
    held_out_auc,
    train_head,
)
from tasks.alignment.settings import AlignSettings
from tasks.decoding import distributions
from tasks.decoding.generation import total
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.decoding.settings import PredictedSettings, SpeculativeSettings, VanillaSettings
from tasks.models.extras import acceptance_head_of, add_acceptance_head
from tasks.training import predictions
from tasks.training.data import Batch, TokenDataset
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.distillation import CAUSAL, SOURCES, TARGETS, by_single_steps, pair, whole
from tests.toys import END, START, toy_sources, toy_t5

CPU = torch.device("cpu")


@torch.inference_mode()
def state_after(model: Any, source: list[int], read: list[int]) -> Tensor:
    """The decoder's last state once it has read these tokens, by a run of their own."""
    if model.config.is_encoder_decoder:
        given = torch.tensor([[model.config.decoder_start_token_id, *read]])
        run = model(input_ids=torch.tensor([source]), decoder_input_ids=given, output_hidden_states=True)
        last: Tensor = run.decoder_hidden_states[-1][0, -1]
    else:
        last = model(input_ids=torch.tensor([source + read]), output_hidden_states=True).hidden_states[-1][0, -1]
    return last


@dataclasses.dataclass
class Seen:
    """What was drafted and what was read, of the last batch."""

    drawn: list[int]
    read: list[int]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen([], [])

    def probability(dist: Tensor, tokens: Tensor) -> Tensor:
        found.drawn = tokens.tolist()
        return distributions.probability(dist, tokens)

    def states_after(model: Any, batch: Batch, tokens: Tensor) -> Tensor:
        found.read = tokens.tolist()
        return predictions.states_after(model, batch, tokens)

    monkeypatch.setattr(acceptance_head, "probability", probability)
    monkeypatch.setattr(acceptance_head, "states_after", states_after)
    return found


@CAUSAL
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_states_and_labels_are_those_of_single_runs(
    causal: bool, temperature: float, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end token is read and learned from nowhere: the text's own token stands in its place."""
    monkeypatch.setattr(acceptance_head, "_LARGE_SHARE", 0.0)
    drafter, large = pair(causal)
    ends = {END, 13, 22}
    drafter.generation_config.eos_token_id = sorted(ends)
    found = TokenDrafts(drafter, large, 24, temperature).along(whole(causal), seed=5)
    drawn, states, accepted = iter(seen.drawn), iter(found.states), iter(found.accepted)
    text: list[int] = []
    for source, target, q, p in zip(
        SOURCES, TARGETS, by_single_steps(drafter, causal), by_single_steps(large, causal), strict=True
    ):
        read: list[int] = []
        for place, written in enumerate(target):
            token = next(drawn)
            read.append(written if token in ends else token)
            if temperature:
                mine, theirs = ((log[place] / temperature).softmax(-1)[token] for log in (q, p))
            else:
                mine, theirs = torch.tensor(1.0), (p[place].argmax() == token).float()
                assert token == q[place].argmax()
            if token not in ends:
                torch.testing.assert_close(next(states), state_after(drafter, source, read), atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(next(accepted), (theirs / mine).clamp(max=1.0), atol=1e-4, rtol=1e-4)
        text += read
    assert text == seen.read
    assert next(states, None) is None and next(accepted, None) is None
    assert len(set(seen.drawn) - ends) > 2


@CAUSAL
def test_a_share_of_the_text_is_the_large_model_s_and_teaches_nothing(
    causal: bool, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, written, kept = TokenDrafts(*pair(causal), 24, 2.0), [token for target in TARGETS for token in target], 0
    for seed in range(40):
        found = drafts.along(whole(causal), seed)
        assert all(read in (drawn, mine) for read, drawn, mine in zip(seen.read, seen.drawn, written, strict=True))
        own = sum(drawn != END for drawn in seen.drawn) - len(found.states)
        differing = sum(read != drawn for read, drawn in zip(seen.read, seen.drawn, strict=True) if drawn != END)
        assert differing <= own
        kept += own
    assert 0.08 < kept / (40 * len(written)) < 0.22
    monkeypatch.setattr(acceptance_head, "_LARGE_SHARE", 1.0)
    assert len(drafts.along(whole(causal), 0).states) == 0
    assert seen.read == written


@CAUSAL
def test_a_seed_repeats_and_no_gradient_reaches_a_model(causal: bool) -> None:
    drafter, large = pair(causal)
    drafts = TokenDrafts(drafter, large, 24, 1.0)
    one, same, other = (drafts.along(whole(causal), seed) for seed in (1, 1, 2))
    assert torch.equal(one.states, same.states) and torch.equal(one.accepted, same.accepted)
    assert not torch.equal(one.states, other.states) if one.states.shape == other.states.shape else True
    assert not one.states.requires_grad
    nothing = dataclasses.replace(whole(causal), labels=torch.full_like(whole(causal).labels, -100))
    assert drafts.along(nothing, 1).states.shape == (0, 32)


def test_the_loss_by_hand() -> None:
    """-log σ(l) of an accepted token, and w times -log(1 - σ(l)) of a rejected one; soft labels are both."""
    logits, accepted = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([1.0, 0.0, 0.25])
    chances = torch.sigmoid(logits)
    expected = -chances[0].log() - 6 * (1 - chances[1]).log() - 0.25 * chances[2].log() - 6 * 0.75 * (1 - chances[2]).log()
    loss, weight = balanced_loss_sum(logits, accepted, 6.0)
    torch.testing.assert_close(loss, expected)
    assert float(weight) == 1 + 6 + 0.25 + 4.5


def test_the_area_by_hand() -> None:
    """Of the six pairs of an accepted and a rejected token, four are in order and one is a tie."""
    scores, accepted = torch.tensor([0.1, 0.4, 0.4, 0.8, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0])
    assert area_under_curve(scores, accepted) == pytest.approx((1 + 0.5 + 0 + 1 + 1 + 0) / 6)
    assert area_under_curve(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.75])) == pytest.approx(
        # Half a token accepted at 0 and three quarters at 1, against half a token rejected at 0 and a quarter at 1.
        (0.75 * 0.5 + 0.5 * 0.5 * 0.5 + 0.75 * 0.25 * 0.5) / (1.25 * 0.75)
    )
    assert area_under_curve(torch.tensor([0.3, 0.4]), torch.ones(2)) is None


@pytest.fixture(scope="module")
def world() -> tuple[Any, Any, TokenDataset, TokenDataset]:
    """A drafter, a large model, and what the large one writes, to learn from and held out."""
    small, large = toy_t5(1, 2, 1), toy_t5(2, 1, 3, "gated-gelu")
    decoder = TransformersDecoder(large, "large")

    def texts(count: int, seed: int) -> TokenDataset:
        sources = toy_sources(count, seed)
        outputs = decode("vanilla_large", VanillaSettings(), Pair(decoder, decoder), sources, Request(12))
        return TokenDataset(sources, [one.tokens for one in outputs], START)

    return small, large, texts(400, 1), texts(100, 2)


def test_a_trained_head_knows_rejections_and_saves_drafts(world: tuple[Any, Any, TokenDataset, TokenDataset]) -> None:
    """On texts that it has not seen; of windows with as many drafted tokens, those that it ends keep more of them."""
    small, large, seen, held_out = world
    small, before = copy.deepcopy(small), copy.deepcopy(small.state_dict())
    drafts = TokenDrafts(small, large, 24, 0.0)
    head = add_acceptance_head(small, 2, seed=0)
    settings = AlignSettings(acceptance_head=2, acceptance_steps=200, rejection_weight=2.0, batch_size=32)
    untrained = held_out_auc(head, drafts, held_out, CPU)["acceptance_head_auc"]
    train_head(head, drafts, seen, settings, CPU)
    trained = held_out_auc(head, drafts, held_out, CPU)["acceptance_head_auc"]
    assert untrained < 0.65 < 0.75 < trained
    assert all(torch.equal(weight, small.state_dict()[name]) for name, weight in before.items())
    models = Pair(TransformersDecoder(small, "small"), TransformersDecoder(large, "large"))
    shares = []
    for method, chosen in (
        ("speculative_predicted", PredictedSettings(max_draft=6, max_rejection=0.6)),
        ("speculative", SpeculativeSettings(draft_length=2)),
    ):
        counts = total(decode(method, chosen, models, held_out.sources, Request(12)))
        shares.append((counts.drafted / counts.large_calls, counts.accepted / counts.drafted))
    (length, kept), (fixed_length, fixed_kept) = shares
    assert kept > fixed_kept + 0.03
    assert length < fixed_length + 0.5


def test_a_higher_weight_of_rejections_lowers_every_prediction(world: tuple[Any, Any, TokenDataset, TokenDataset]) -> None:
    small, large, seen, held_out = world
    means = []
    for weight in (0.5, 8.0):
        drafter = copy.deepcopy(small)
        drafts, head = TokenDrafts(drafter, large, 24, 0.0), add_acceptance_head(drafter, 1, seed=0)
        settings = AlignSettings(acceptance_head=1, acceptance_steps=40, rejection_weight=weight)
        train_head(head, drafts, seen, settings, CPU)
        found: DraftedTokens = drafts.along(held_out.batch(range(50)), 0)
        means.append(torch.sigmoid(head(found.states)).mean().item())
    assert means[0] > means[1] + 0.2


def test_training_a_model_drops_the_head_of_its_old_weights() -> None:
    model = toy_t5(1, 1, 1)
    add_acceptance_head(model, 1, seed=0)
    Objective(model, TrainingSettings())
    assert acceptance_head_of(model) is None
    Objective(model, TrainingSettings())


def test_both_arms_have_the_same_heads() -> None:
    settings = AlignSettings(
        loss="forward_kl",
        acceptance_head=2,
        acceptance_steps=7,
        acceptance_temperature=0.5,
        rejection_weight=3.0,
        judge=40,
        judge_tolerance=1.5,
    )
    names = ("acceptance_head", "acceptance_steps", "acceptance_temperature", "rejection_weight", "judge", "judge_tolerance")
    assert [getattr(settings.control, name) for name in names] == [2, 7, 0.5, 3.0, 40, 1.5]
