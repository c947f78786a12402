"""Short answers: exact match and F1 as in SQuAD (Rajpurkar et al., 2016 and 2018), and numeric answers as in GSM8K.

GSM8K (Cobbe et al., 2021) writes its answer after `####`. Everything is in points from 0 to 100, and the best of several
references counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ANSWER_MARK = "####"
# A sign counts where nothing is subtracted from: "-5" and "x = -5", but not "10-5".
_NUMBER = re.compile(r"(?:(?<![\w.)])([-−+])\s?)?[$€£]?((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")


def answer_table(
    hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], names: tuple[str, ...]
) -> NDArray[np.float64]:
    """Points of each example by each metric, `[examples, names]`; names are of `exact_match`, `token_f1`, `numeric_answer`."""
    pairs = zip(hypotheses, references, strict=True)
    rows = [[100.0 * _SCORES[name](text, right) for name in names] for text, right in pairs]
    return np.array(rows, dtype=np.float64)


def normalised(text: str) -> str:
    """`text` in lower case without ASCII punctuation, English articles and repeated white space, as SQuAD compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, references: Sequence[str]) -> float:
    """1 where the normalised text equals a reference, otherwise 0."""
    return float(normalised(text) in _golds(references))


def token_f1(text: str, references: Sequence[str]) -> float:
    """The F1 of the words of the normalised text against the best reference; without a word it is 1 or 0, as exact match."""
    words = normalised(text).split()
    return max(_f1(words, gold.split()) for gold in _golds(references))


def numeric_answer(text: str, references: Sequence[str]) -> float:
    """1 where the last number of the text equals that of a reference, otherwise 0; a reference without a number never does."""
    found = last_number(text)
    return float(found is not None and any(last_number(reference) == found for reference in references))


def last_number(text: str) -> Decimal | None:
    """The last number of a text, or of what follows its last `####`; None where there is none.

    Thousands separators, a currency sign and trailing zeros do not matter: "$1,250.00" is 1250. A fraction ends with its
    denominator, and a percentage is its number.
    """
    numbers = _NUMBER.findall(text.rpartition(_ANSWER_MARK)[2])
    if not numbers:
        return None
    sign, digits = numbers[-1]
    value = Decimal(digits.replace(",", ""))
    return value.copy_negate() if sign in ("-", "−") else value


def _golds(references: Sequence[str]) -> list[str]:
    """References as compared: an empty one, that of an unanswerable question, counts only where there is no other."""
    return [gold for gold in map(normalised, references) if gold] or [""]


def _f1(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    common = (Counter(words) & Counter(gold)).total()
    return 2 * common / (len(words) + len(gold))


_SCORES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact_match": exact_match,
    "token_f1": token_f1,
    "numeric_answer": numeric_answer,
}
