"""Quality by sacrebleu and rouge-score, paired differences, and outputs that need no model."""

import random
from typing import Any

import numpy as np
import pytest
import sacrebleu
from rouge_score import rouge_scorer

from tasks.corpora.example import Example
from tasks.evaluation.scoring import quality as scoring
from tasks.evaluation.scoring.metrics import ROUGES, bleu_of, bleu_statistics, bleus_of

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
    quality = scoring.score(hypotheses, references, "bleu", samples=100, seed=0)
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
    quality = scoring.score(hypotheses, references, metric, samples=100, seed=0)
    assert quality.value == pytest.approx(100 * sum(best) / len(best))
    assert quality.interval[0] < quality.value < quality.interval[1]


@pytest.mark.parametrize("period", [1, 2, 4, 5, 16])
def test_a_text_loops_from_three_times_and_twelve_words_on(period: int) -> None:
    group, times = [f"w{number}" for number in range(period)], max(3, -(-12 // period))
    before, after = ["once", "upon"], ["the", "end"]
    for text in (group * times, [*before, *group * times], [*before, *group * times, *after]):
        assert scoring.loops(" ".join(text))
    assert not scoring.loops(" ".join([*before, *group * (times - 1), *after]))
    assert not scoring.loops("") and not scoring.loops(" ".join(f"w{number}" for number in range(60)))


def test_rouge_by_hand() -> None:
    # Three of four words in common, in order: precision and recall 3/4. The second reference shares two.
    quality = scoring.score(["cats sat on mats"], [("cat sat on sofas", "mats mats cats sofas")], "rougeL", samples=10, seed=0)
    assert quality.value == pytest.approx(75.0)
    assert quality.scores["rouge2"] == pytest.approx(100 * 2 / 3)
    assert quality.interval == pytest.approx((75.0, 75.0))


def test_a_translation_shows_rouge_l_and_a_summary_shows_everything() -> None:
    hypotheses, references = corpus()
    translation = scoring.score(hypotheses, references, "bleu", samples=10, seed=0)
    summary = scoring.score(hypotheses, references, "rouge2", samples=10, seed=0)
    assert set(translation.scores) == {"bleu", "rougeL"}
    assert set(summary.scores) == {"bleu", *ROUGES}
    assert translation.scores["rougeL"] == summary.scores["rougeL"]
    assert summary.value == summary.scores["rouge2"]


@pytest.mark.parametrize("metric", ["bleu", "rougeL"])
def test_a_paired_difference_is_narrower_than_a_quality(metric: str) -> None:
    hypotheses, references = corpus(examples=120)
    better = [texts[0] if at % 10 == 0 else text for at, (text, texts) in enumerate(zip(hypotheses, references, strict=True))]
    alone, other = (scoring.score(texts, references, metric, samples=300, seed=0) for texts in (better, hypotheses))
    low, high = alone.minus(other)
    assert 0 < low < alone.value - other.value < high
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
        scoring.score(hypotheses, references, metric, samples=10, seed=0)


def test_many_bleus_are_each_sacrebleus() -> None:
    """Long and short of the references, with and without orders that nothing matches."""
    rng = np.random.default_rng(0)
    total = rng.integers(5, 60, size=(300, 1)) - np.arange(4)
    matched = (total * rng.random((300, 4)) ** 2).astype(int)
    lengths = np.stack([total[:, 0], total[:, 0] + rng.integers(-4, 12, size=300)], axis=1)
    sums = np.concatenate([lengths, matched, total], axis=1).astype(np.float64)
    assert 20 < (matched > 0).all(axis=1).sum() < 280
    assert bleus_of(sums) == pytest.approx([bleu_of(row) for row in sums], rel=1e-12)


VOCABULARY = [f"word{number}" for number in range(60)]


def unlike(count: int = 80) -> list[Example]:
    """Sources and references of eight random words, unlike each other."""
    rng = random.Random(1)
    return [Example(" ".join(rng.sample(VOCABULARY, 8)), (" ".join(rng.sample(VOCABULARY, 8)),)) for _ in range(count)]


def checked(outputs: list[str], examples: list[Example]) -> scoring.OutputCheck:
    return scoring.check_outputs(outputs, examples, "bleu", samples=200)


def test_a_model_near_the_references_has_nothing_against_it() -> None:
    examples = unlike()
    outputs = [example.references[0].replace("word1 ", "other ") for example in examples]
    check = checked(outputs, examples)
    assert scoring.against_teacher(check) == scoring.length_warning(check) == []
    assert (check.distinct, check.distinct_references, check.length_ratio) == (80, 80, 1.0)
    assert {one.name for one in check.baselines} == {"constant", "copy"}
    assert all(one.difference_interval[0] > 20 for one in check.baselines)
    assert all(one.difference == pytest.approx(check.quality - one.quality) for one in check.baselines)


def test_a_collapsed_model_is_named_with_its_output_and_its_share() -> None:
    examples = unlike()
    outputs = ["Exp"] * 78 + [example.references[0] for example in examples[78:]]
    check = checked(outputs, examples)
    clauses = scoring.against_teacher(check)
    assert clauses[0] == (
        "the large model gives 3 distinct outputs for 80 inputs, 'Exp' for 98% of them, where the references have 80"
    )
    assert any("is not shown to be better than giving one constant output" in clause for clause in clauses)
    assert scoring.length_warning(check)[0].startswith("the outputs of the large model have 0.15 times as many words")


def test_labels_that_repeat_in_the_references_are_no_collapse() -> None:
    labels = ["yes it is so"] * 50 + ["no it is not"] * 30
    examples = [Example(f"question {number}", (label,)) for number, label in enumerate(labels)]
    assert scoring.against_teacher(checked(labels, examples)) == []
    always = checked(["yes it is so"] * 80, examples)
    [clause] = scoring.against_teacher(always)
    assert "not shown to be better than giving one constant output" in clause
    assert "difference +0.00 [+0.00, +0.00]" in clause


def test_a_model_that_copies_the_source_is_no_better_than_a_copy() -> None:
    examples = [Example(one.source, (one.source.replace("word3", "three"),)) for one in unlike()]
    [clause] = scoring.against_teacher(checked([one.source for one in examples], examples), "the small model")
    assert clause.startswith("the small model is not shown to be better than copying the source")


def test_the_interval_decides_and_not_the_difference_alone() -> None:
    examples = [Example(one.source, (one.source,)) for one in unlike(40)]
    lucky = [one.source for one in examples]
    examples[0] = Example(examples[0].source, ("one odd reference of eight words in all",))
    better = [examples[0].references[0], *lucky[1:]]
    check = checked(better, examples)
    copied = next(one for one in check.baselines if one.name == "copy")
    assert copied.difference > 0 >= copied.difference_interval[0]
    assert any("copying" in clause for clause in scoring.against_teacher(check))


def test_the_line_names_quality_baselines_distinct_outputs_and_length() -> None:
    examples = [Example("a b c d", ("a b c d",)), Example("e f g h", ("e f g h",))]
    line = scoring.described(checked(["a b c d", "e f g h e f g h"], examples))
    assert "on 2 held-out inputs (constant" in line
    assert "copy 100.00" in line
    assert "100% of the outputs distinct, 1.50 times the references' words" in line
