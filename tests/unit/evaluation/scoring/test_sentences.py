"""Sentences as ROUGE-Lsum compares them."""

from __future__ import annotations

import pytest

from tasks.evaluation.quality import score
from tasks.evaluation.words import split_sentences

SENTENCES = [
    # Abbreviations that never end a sentence, and those that do where one begins.
    ["The U.S. Senate met Mr. Smith and Dr. No.", "He left at 5 p.m.", "The end."],
    ["He lives in the U.S.", "The president of the U.S. said so."],
    ["Apple Inc. said so.", "So did Acme Ltd.", "The firms grew."],
    ["Some fruit, e.g. apples, i.e. Red Delicious, etc. and more.", "Yes."],
    ["J. K. Rowling met George W. Bush in Washington D.C.", "Then she left."],
    ["Take bus No. 5 to St. John.", "He said no.", "Then it left."],
    # Numbers: decimals, years, lists, ordinals.
    ["It rose 3.5 percent in 1990.", "In 1991 it fell by 4.", "Good."],
    ["1. Mix it.", "2. Bake it."],
    ["Am 3. Oktober 1990 war es so weit.", "Der 2. Weltkrieg endete im 20. Jahrhundert.", "Er ist 12.", "Sie ist 13."],
    ["Ludwig XIV. war König, z. B. von Navarra, d. h. im Süden.", "Hunde, Katzen usw.", "Und so weiter."],
    # Ellipses, quotes, brackets.
    ["Wait... what?", "Well...", "No.", "OK … then."],
    ['He said "Go."', "She left.", '"Stop!" he said.', "(It rained.)", "Then it stopped."],
    # A text of tokens, a text without capitals.
    ["the mayor , 12 .", "he left for u.s. soil .", "all right ."],
    ["he came.", "she saw?", "they won!"],
    # Other punctuation.
    ["今天下雨。", "我们走吧！", "「好。」", "他说。"],
    ["वह आया।", "हम गए।"],
]


@pytest.mark.parametrize("sentences", SENTENCES, ids=lambda sentences: sentences[0])
def test_a_text_is_split_into_its_sentences(sentences: list[str]) -> None:
    lines = split_sentences("".join(sentences) if "。" in sentences[0] else " ".join(sentences)).split("\n")
    assert lines == sentences


def test_lines_are_sentences_and_nothing_is_none() -> None:
    assert split_sentences(" One two\n\n three. Four \n") == "One two\nthree.\nFour"
    assert split_sentences(" \n") == ""


def test_an_abbreviation_costs_no_rouge_lsum() -> None:
    """Split at "U.S." and "Mr.", the same words in two sentences would match in pieces, whatever their order."""
    right, wrong = "The U.S. praised Mr. Fox. It rained.", "Mr. Fox praised the U.S. It rained."
    quality = score([wrong], [(right,)], "rougeLsum", samples=10, seed=0)
    assert quality.scores["rougeLsum"] == pytest.approx(100 * 5 / 8), "three words of six in order, and both of two"
