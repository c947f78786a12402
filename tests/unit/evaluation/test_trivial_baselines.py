"""Which large models are no teachers: outputs beside a constant, a copy of the source and the references."""

from __future__ import annotations

import random

import pytest

from tasks.corpora.example import Example
from tasks.evaluation.quality import check_outputs
from tasks.evaluation.results.pair import OutputCheck, against_teacher, described, length_warning

WORDS = [f"word{number}" for number in range(60)]


def corpus(count: int = 80) -> list[Example]:
    """Sources and references of eight random words, unlike each other."""
    rng = random.Random(1)
    return [Example(" ".join(rng.sample(WORDS, 8)), (" ".join(rng.sample(WORDS, 8)),)) for _ in range(count)]


def checked(outputs: list[str], examples: list[Example], metric: str = "bleu") -> OutputCheck:
    return check_outputs(outputs, examples, metric, samples=200)


@pytest.mark.parametrize("metric", ["bleu", "rougeL"])
def test_a_model_near_the_references_has_nothing_against_it(metric: str) -> None:
    examples = corpus()
    outputs = [example.references[0].replace("word1 ", "other ") for example in examples]
    check = checked(outputs, examples, metric)
    assert against_teacher(check) == length_warning(check) == []
    assert (check.distinct, check.distinct_references, check.length_ratio) == (80, 80, 1.0)
    assert {one.name for one in check.baselines} == {"constant", "copy"}
    assert all(one.difference_interval[0] > 20 for one in check.baselines)
    assert all(one.difference == pytest.approx(check.quality - one.quality) for one in check.baselines)


def test_a_collapsed_model_is_named_with_its_output_and_its_share() -> None:
    examples = corpus()
    outputs = ["Exp"] * 78 + [example.references[0] for example in examples[78:]]
    check = checked(outputs, examples)
    clauses = against_teacher(check)
    assert clauses[0] == (
        "the large model gives 3 distinct outputs for 80 inputs, 'Exp' for 98% of them, where the references have 80"
    )
    assert any("is not better than giving one constant output, beyond the 95 % interval" in clause for clause in clauses)
    assert length_warning(check)[0].startswith("the outputs of the large model have 0.15 times as many words")


def test_few_outputs_that_take_turns_are_a_collapse_too() -> None:
    examples = corpus()
    check = checked([WORDS[index % 4] for index in range(80)], examples)
    assert check.most_common_count == 20
    assert against_teacher(check)[0].startswith("the large model gives 4 distinct outputs for 80 inputs")


def test_labels_that_repeat_in_the_references_are_no_collapse() -> None:
    labels = ["yes it is so"] * 50 + ["no it is not"] * 30
    examples = [Example(f"question {number}", (label,)) for number, label in enumerate(labels)]
    assert against_teacher(checked(labels, examples)) == []
    always = checked(["yes it is so"] * 80, examples)
    [clause] = against_teacher(always)
    assert "not better than giving one constant output" in clause
    assert "difference +0.00 [+0.00, +0.00]" in clause


def test_a_model_that_copies_the_source_is_no_better_than_a_copy() -> None:
    examples = [Example(one.source, (one.source.replace("word3", "three"),)) for one in corpus()]
    [clause] = against_teacher(checked([one.source for one in examples], examples), "the small model")
    assert clause.startswith("the small model is not better than copying the source, beyond the 95 % interval")


def test_the_interval_decides_and_not_the_difference_alone() -> None:
    examples = [Example(one.source, (one.source,)) for one in corpus(40)]
    lucky = [one.source for one in examples]
    examples[0] = Example(examples[0].source, ("one odd reference of eight words in all",))
    better = [examples[0].references[0], *lucky[1:]]
    check = checked(better, examples)
    copied = next(one for one in check.baselines if one.name == "copy")
    assert copied.difference > 0 >= copied.difference_interval[0]
    assert any("copying" in clause for clause in against_teacher(check))


def test_the_line_names_quality_baselines_distinct_outputs_and_length() -> None:
    examples = [Example("a b c d", ("a b c d",)), Example("e f g h", ("e f g h",))]
    line = described(checked(["a b c d", "e f g h e f g h"], examples))
    assert "on 2 held-out inputs (constant" in line
    assert "copy 100.00" in line
    assert "100% of the outputs distinct, 1.50 times the references' words" in line
