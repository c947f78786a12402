"""A judge learns which mismatches cost quality: its labels and states by single runs, its loss and its optimum by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment.judge import balanced_loss, fit, measured
from tasks.alignment.judge_labels import JudgedTokens, Mismatch, MismatchLabeller, References, continued
from tasks.decoding.decoder import REFERENCE
from tasks.decoding.runtimes.choose import open_decoder
from tasks.evaluation.quality import sentence_scores
from tasks.models.extras import Judge, add_judge, judge_of
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.distillation import CAUSAL, SOURCES, pair
from tests.toys import END, START, toy_sources, toy_t5

LIMIT = 7


class Words:
    """A tokenizer whose tokens are words."""

    pad_token_id = START

    def batch_decode(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(f"w{token}" for token in row if token not in (START, END)) for row in rows]


@torch.inference_mode()
def run(model: Any, source: list[int], read: Sequence[int]) -> tuple[int, Tensor]:
    """The likeliest token after a text, and the decoder's last state there, by a run of the whole text."""
    if model.config.is_encoder_decoder:
        given = torch.tensor([[model.config.decoder_start_token_id, *read]])
        found = model(input_ids=torch.tensor([source]), decoder_input_ids=given, output_hidden_states=True)
        states = found.decoder_hidden_states
    else:
        found = model(input_ids=torch.tensor([[*source, *read]]), output_hidden_states=True)
        states = found.hidden_states
    return int(found.logits[0, -1].argmax()), states[-1][0, -1]


def greedily(model: Any, source: list[int], begun: Sequence[int]) -> list[int]:
    text = list(begun)
    while len(text) < LIMIT and END not in text:
        text.append(run(model, source, text)[0])
    return text


def opened(causal: bool) -> tuple[Any, Any, MismatchLabeller]:
    drafter, large = pair(causal)
    # The token that ends a text of the toys ends one of the plain GPT-2 too.
    for model in (drafter, large):
        model.generation_config.eos_token_id = model.config.eos_token_id = END
    return drafter, large, MismatchLabeller(drafter, open_decoder(large, "large", 24, REFERENCE), 24, LIMIT, Words())


def expected(drafter: Any, large: Any, sources: list[list[int]], references: References) -> Iterator[tuple[Tensor, bool]]:
    """State and label of each mismatch, text by text and position by position."""

    def points(index: int, text: Sequence[int]) -> float:
        [words] = Words().batch_decode([text], skip_special_tokens=True)
        return sentence_scores([words], [references.texts[index]], references.metric)[0]

    for index, source in enumerate(sources):
        own = greedily(large, source, [])
        for position, token in enumerate(own):
            other, _ = run(drafter, source, own[:position])
            if other != token:
                begun = [*own[:position], other]
                lost = points(index, own) - points(index, greedily(large, source, begun))
                yield run(large, source, begun)[1], lost <= references.tolerance


@CAUSAL
@pytest.mark.parametrize("tolerance", [0.0, 30.0])
def test_states_and_labels_are_those_of_single_runs(causal: bool, tolerance: float) -> None:
    """References near the large model's texts, so that some mismatches cost words of them and some do not."""
    drafter, large, labeller = opened(causal)
    sources = SOURCES if causal else [*SOURCES, *toy_sources(2, seed=2)]
    near = [greedily(large, source, [*greedily(large, source, [])[:1], 5]) for source in sources]
    references = References([(text,) for text in Words().batch_decode(near, skip_special_tokens=True)], "token_f1", tolerance)
    found, wanted = labeller.label(sources, references), list(expected(drafter, large, sources, references))
    assert found.good.tolist() == [good for _, good in wanted]
    torch.testing.assert_close(found.states, torch.stack([state for state, _ in wanted]), atol=1e-4, rtol=1e-4)
    assert len(wanted) > 3
    if not causal:
        assert 0 < int(found.good.sum()) < len(wanted)


@CAUSAL
def test_mismatches_are_the_drafter_s_tokens_along_a_text(causal: bool) -> None:
    drafter, _, labeller = opened(causal)
    texts = [[3, 4, 5, END], [run(drafter, SOURCES[1], [])[0], END], [2, 2, 6, 4]]
    found = labeller.mismatches(SOURCES, texts)
    assert found == [
        Mismatch(index, position, token)
        for index, (source, text) in enumerate(zip(SOURCES, texts, strict=True))
        for position in range(len(text))
        if (token := run(drafter, source, text[:position])[0]) != text[position]
    ]
    assert (1, 0) not in {one[:2] for one in found}


@CAUSAL
def test_a_beginning_is_continued_to_its_end_or_to_the_limit(causal: bool) -> None:
    """Rows of unequal length, one that has ended and one that is as long as may be."""
    _, large, labeller = opened(causal)
    begun = [[3, 4], [7, END], list(range(2, 2 + LIMIT))]
    texts, states = continued(labeller._large, SOURCES, begun, LIMIT)
    assert texts[:2] == [greedily(large, SOURCES[0], [3, 4]), [7, END]]
    assert texts[2] == begun[2]
    wanted = torch.stack([run(large, source, text)[1] for source, text in zip(SOURCES, begun, strict=True)])
    torch.testing.assert_close(states, wanted, atol=1e-4, rtol=1e-4)


def test_the_loss_by_hand() -> None:
    """Two good tokens weigh as much as one bad one."""
    logits, good = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([True, True, False])
    likely = torch.sigmoid(logits)
    wanted = -(likely[0].log() + likely[1].log()) / 4 - (1 - likely[2]).log() / 2
    torch.testing.assert_close(balanced_loss(logits, good), wanted)


def judged_tokens(count: int, seed: int) -> JudgedTokens:
    """States of very unequal scale, of which the first and the third number tell good tokens, up to noise; most are good."""
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 4, generator=rng)
    good = noise[:, 0] - noise[:, 2] + 0.3 * torch.randn(count, generator=rng) > -1
    return JudgedTokens(noise * torch.tensor([100.0, 1.0, 0.01, 1.0]) + 7, good)


def test_a_judge_is_fitted_to_its_optimum() -> None:
    """There the gradient vanishes: a nudge in any direction, in units of a state's spread, raises loss and penalty."""
    tokens, judge = judged_tokens(400, 1), Judge(4)
    assert fit(judge, tokens)
    scale, mean = tokens.states.double().std(0, correction=0), tokens.states.double().mean(0)
    inputs = (tokens.states.double() - mean) / scale
    weight = judge.weight.detach().double() * scale
    bias = judge.bias.detach().double() + (judge.weight.detach().double() * mean).sum()

    def objective(weight: Tensor, bias: Tensor) -> float:
        return float(balanced_loss(inputs @ weight + bias, tokens.good) + 0.005 * weight.square().sum())

    best = objective(weight, bias)
    for direction in (*torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)):
        for step in (-0.05, 0.05):
            nudged = objective(weight + step * direction, bias if direction.any() else bias + step)
            assert nudged > best
    held_out = measured(judge, judged_tokens(400, 2))
    assert held_out["judge_auc"] > 0.95
    assert 0.6 < held_out["judge_good"] < 0.9
    with torch.no_grad():
        assert measured(Judge(4), judged_tokens(400, 2))["judge_auc"] == 0.5


def test_bad_tokens_that_are_rare_are_seen() -> None:
    """Without states that tell them apart a judge is undecided, however many of the tokens are good."""
    good = torch.arange(100) % 10 > 0
    judge = Judge(2)
    assert fit(judge, JudgedTokens(torch.zeros(100, 2), good))
    assert torch.sigmoid(judge(torch.zeros(1, 2))).item() == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("labels", [[], [True, True], [False]])
def test_tokens_of_one_kind_teach_nothing_and_nothing_is_accepted(labels: list[bool]) -> None:
    judge = Judge(3)
    torch.nn.init.ones_(judge.weight)
    tokens = JudgedTokens(torch.ones(len(labels), 3), torch.tensor(labels, dtype=torch.bool))
    assert not fit(judge, tokens)
    assert torch.sigmoid(judge(torch.full((1, 3), 9.0))).item() == 0
    found = measured(judge, tokens)
    assert found == ({} if not labels else {"judge_good": float(labels[0])})
    assert not any(map(math.isnan, found.values()))


def test_training_a_model_drops_the_judge_of_its_old_weights() -> None:
    model = toy_t5(1, 1, 1)
    add_judge(model, 8)
    Objective(model, TrainingSettings())
    assert judge_of(model) is None
