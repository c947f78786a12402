"""ROUGE in points from 0 to 100 (Lin, 2004), by `rouge-score`: F-measure, the best of several references.

Words are rouge-score's, stemmed by Porter's rules, or those of any script, not stemmed (`scripts.unicode_words`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.scoring.scripts import unicode_words
from tasks.evaluation.scoring.sentences import split_sentences

_REMEMBERED = 1 << 16


def rouge_table(
    hypotheses: Sequence[str], references: Sequence[tuple[str, ...]], names: tuple[str, ...], tokenizer: str = "default"
) -> NDArray[np.float64]:
    """F-measures, `[examples, names]`, in points."""
    pairs = zip(hypotheses, references, strict=True)
    return np.array([_rouge_example(text, tuple(right), names, tokenizer) for text, right in pairs], dtype=np.float64)


@functools.lru_cache(maxsize=_REMEMBERED)
def _rouge_example(hypothesis: str, references: tuple[str, ...], names: tuple[str, ...], tokenizer: str) -> tuple[float, ...]:
    """The F-measures of one example in points, the best reference for each metric."""
    scorer = _rouge_scorer(names, tokenizer)
    best = scorer.score_multi([split_sentences(text) for text in references], split_sentences(hypothesis))
    return tuple(100.0 * best[name].fmeasure for name in names)


def forget() -> None:
    """Clear the cache of scored examples, for benchmarks of the scoring."""
    _rouge_example.cache_clear()


def signature(tokenizer: str) -> str:
    """How ROUGE was computed, in the form of sacrebleu's signatures."""
    stemmer = "porter" if tokenizer == "default" else "no"
    return f"tok:{tokenizer}|stem:{stemmer}|sent:rules|version:{version('rouge-score')}"


@functools.cache
def _rouge_scorer(names: tuple[str, ...], tokenizer: str) -> Any:
    # Importing rouge-score takes more than a second because it imports nltk.
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(
        list(names), tokenizer=_StemmingTokenizer() if tokenizer == "default" else _UnicodeTokenizer()
    )


class _StemmingTokenizer:
    """rouge-score's tokenizer with a cached stemmer: stemming took two thirds of the time."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer
        from rouge_score import tokenize

        self._tokenize = tokenize.tokenize
        self.stem = functools.lru_cache(maxsize=_REMEMBERED)(PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """The stemmed words of `text`, in lower case."""
        stems: list[str] = self._tokenize(text, self)
        return stems


class _UnicodeTokenizer:
    """`unicode_words` as rouge-score's scorer calls it."""

    def tokenize(self, text: str) -> list[str]:
        """The words of `text` in any script."""
        return unicode_words(text)
