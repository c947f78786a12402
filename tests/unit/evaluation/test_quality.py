from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import sacrebleu
from rouge_score import rouge_scorer

from tasks.evaluation.metrics import ROUGES, bleu_of, bleu_statistics, bleus_of
from tasks.evaluation.quality import score
from tasks.evaluation.words import split_sentences

TEXT = "the a station trains running quickly bridges old mayor opened again yesterday, near houses were closing"
WORDS = TEXT.split()
Corpus = tuple[list[str], list[tuple[str, ...]]]


def corpus(examples: int = 40, noise: float = 0.3) -> Corpus:
    """Noisy copies of the first of one to three references, some of two sentences, one of them empty."""
    rng = random.Random(7)
    references, hypotheses = [], []
    for _ in range(examples):
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(6, 14))) + "." for _ in range(rng.randint(1, 3))]
        texts[0] += " " + " ".join(rng.choices(WORDS, k=5)) + "."
        references.append(tuple(texts))
        hypotheses.append(" ".join(rng.choice(WORDS) if rng.random() < noise else word for word in texts[0].split()))
    hypotheses[3] = ""
    return hypotheses, references


def ragged(references: list[tuple[str, ...]]) -> Any:
    """sacrebleu's streams of references, where None stands for a missing one, though its types do not say so."""
    most = max(map(len, references))
    return [[texts[index] if index < len(texts) else None for texts in references] for index in range(most)]


def test_bleu_is_sacrebleus_and_so_is_bleu_from_summed_counts() -> None:
    hypotheses, references = corpus()
    expected = sacrebleu.corpus_bleu(hypotheses, ragged(references)).score
    quality = score(hypotheses, references, "bleu", samples=100, seed=0)
    assert quality.value == quality.scores["bleu"] == expected
    assert bleu_of(bleu_statistics(hypotheses, references).sum(axis=0).tolist()) == expected
    assert 20 < expected < 80
    assert "tok:13a" in quality.signature and "nrefs:var" in quality.signature


@pytest.mark.parametrize("metric", ROUGES)
def test_rouge_is_the_mean_of_rouge_scores_best_reference(metric: str) -> None:
    hypotheses, references = corpus()
    scorer = rouge_scorer.RougeScorer([metric], use_stemmer=True)
    lines = [[text.replace(". ", ".\n") for text in texts] for texts in references]
    best = [
        max(scorer.score(text, hypothesis.replace(". ", ".\n"))[metric].fmeasure for text in texts)
        for hypothesis, texts in zip(hypotheses, lines, strict=True)
    ]
    quality = score(hypotheses, references, metric, samples=100, seed=0)
    assert quality.value == pytest.approx(100 * sum(best) / len(best))
    assert quality.interval[0] < quality.value < quality.interval[1]


def test_rouge_by_hand() -> None:
    # Three of four words in common, in order: precision and recall 3/4. The second reference shares two.
    quality = score(["cats sat on mats"], [("cat sat on sofas", "mats mats cats sofas")], "rougeL", samples=10, seed=0)
    assert quality.value == pytest.approx(75.0)
    assert quality.scores["rouge2"] == pytest.approx(100 * 2 / 3)
    assert quality.interval == pytest.approx((75.0, 75.0))


def test_a_translation_shows_rouge_l_and_a_summary_shows_everything() -> None:
    hypotheses, references = corpus()
    translation = score(hypotheses, references, "bleu", samples=10, seed=0)
    summary = score(hypotheses, references, "rouge2", samples=10, seed=0)
    assert set(translation.scores) == {"bleu", "rougeL"}
    assert set(summary.scores) == {"bleu", *ROUGES}
    assert translation.scores["rougeL"] == summary.scores["rougeL"]
    assert summary.value == summary.scores["rouge2"]


def test_sentences_matter_to_rouge_lsum_alone() -> None:
    text, swapped = "Trains ran late. The bridge closed.", "The bridge closed. Trains ran late."
    quality = score([swapped], [(text,)], "rougeLsum", samples=10, seed=0)
    assert quality.scores["rougeLsum"] == pytest.approx(100.0)
    assert quality.scores["rougeL"] == pytest.approx(50.0)
    assert split_sentences(" Ran at 3.5 km. Why?  Yes! ") == "Ran at 3.5 km.\nWhy?\nYes!"


def test_perfect_text_scores_100_without_width() -> None:
    _, references = corpus()
    quality = score([texts[-1] for texts in references], references, "bleu", samples=50, seed=0)
    assert quality.value == pytest.approx(100.0)
    assert quality.interval == pytest.approx((100.0, 100.0))


def test_nothing_said_scores_nothing() -> None:
    quality = score(["", ""], [("a b",), ("c d",)], "bleu", samples=20, seed=0)
    assert (quality.value, quality.interval) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize("metric", ["bleu", "rougeL"])
def test_a_paired_difference_is_narrower_than_a_quality(metric: str) -> None:
    hypotheses, references = corpus(examples=120)
    better = [
        texts[0] if index % 10 == 0 else text for index, (text, texts) in enumerate(zip(hypotheses, references, strict=True))
    ]
    alone, other = (score(texts, references, metric, samples=300, seed=0) for texts in (better, hypotheses))
    low, high = alone.minus(other)
    gained = alone.value - other.value
    assert 0 < low < gained < high
    assert high - low < alone.interval[1] - alone.interval[0]
    assert alone.minus(alone) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("hypotheses", "references", "metric", "words"),
    [
        (["a"], [("a",)], "meteor", "unknown metric"),
        (["a"], [("a",), ("b",)], "bleu", "1 hypotheses for 2"),
        ([], [], "bleu", "at least one"),
        (["a", "b"], [("a",), ()], "bleu", "example 1 has no reference"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    hypotheses: list[str], references: list[tuple[str, ...]], metric: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        score(hypotheses, references, metric, samples=10, seed=0)


def test_many_bleus_are_each_sacrebleus() -> None:
    """Long and short of the references, with and without orders that nothing matches."""
    rng = np.random.default_rng(0)
    total = rng.integers(5, 60, size=(300, 1)) - np.arange(4)
    matched = (total * rng.random((300, 4)) ** 2).astype(int)
    lengths = np.stack([total[:, 0], total[:, 0] + rng.integers(-4, 12, size=300)], axis=1)
    sums = np.concatenate([lengths, matched, total], axis=1).astype(np.float64)
    assert 20 < (matched > 0).all(axis=1).sum() < 280
    assert bleus_of(sums) == pytest.approx([bleu_of(row) for row in sums], rel=1e-12)
