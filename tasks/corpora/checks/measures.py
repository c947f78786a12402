"""Counts, lengths, duplicates and overlaps of a corpus, as they are written to `corpus_report.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tasks.corpora.checks.columns import Columns
from tasks.corpora.example import UNLABELLED, Corpus, Example

_MEASURED = 20_000
"""Examples of a split whose tokens are counted, evenly spread over it."""
TRAIN = "train"

Tokenise = Callable[[list[str]], list[list[int]]]
"""Texts to token ids, each with its end token and not truncated."""


@dataclass(frozen=True, kw_only=True)
class TokenLengths:
    """The texts of one column in tokens, end token included."""

    texts: int
    """That were measured."""
    p50: int
    p95: int
    longest: int
    limit: int
    """`text.max_source_tokens` or `text.max_target_tokens`."""
    cut_off: float
    """Share of the texts that are longer than the limit."""
    unknown: float
    """Share of the tokens that are the unknown token."""


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """One split, or the unlabelled sources, which have no references."""

    examples: int
    sources: TokenLengths
    targets: TokenLengths | None
    """Of first references."""
    empty_sources: int
    empty_references: int
    copies: int
    """Examples whose first reference equals the source."""
    distinct_targets: int
    repeated_sources: int
    """Examples whose source is that of an earlier example of the split, apart from case and white space."""
    repeated_examples: int
    """The same for source and first reference."""
    sources_in_train: int
    """Examples whose source is in the training split."""
    sources_in_unlabelled: int
    """Examples whose source is among the unlabelled ones."""
    examples_in_train: int
    """Examples of which source and a reference are an example of the training split."""
    swapped: float | None
    """Share of examples whose columns are swapped (`columns.py`); None where that cannot be told."""
    broken: int
    """Texts with a NUL or with U+FFFD, which stands for bytes that were no text."""


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """All splits by name."""

    task: str
    splits: dict[str, SplitReport]

    def as_json(self) -> dict[str, object]:
        """The report in values of JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class TextLimits:
    """The longest texts that models read and write, in tokens."""

    source: int
    target: int


def measure_corpus(
    task: str, corpus: Corpus, tokenise: tuple[Tokenise, Tokenise], unknown: int | None, limits: TextLimits
) -> CorpusReport:
    """Measure every split.

    Args:
        task: Name of the task.
        corpus: Its splits, further test splits and unlabelled sources; all but these have references.
        tokenise: Makes tokens of sources, and of references.
        unknown: The unknown token; None where the tokenizer has none.
        limits: Longest texts.
    """
    train = corpus[TRAIN]
    columns = Columns(train)
    known, unlabelled = ({_key(example.source) for example in corpus.get(name, [])} for name in (TRAIN, UNLABELLED))
    pairs = {(_key(example.source), _key(text)) for example in train for text in example.references}
    found = {}
    for name, examples in corpus.items():
        if not examples:
            continue
        keys = [_key(example.source) for example in examples]
        targets = [example.references[0] for example in examples if example.references]
        own = [(source, _key(text)) for source, text in zip(keys, targets, strict=False)]
        others = name != TRAIN
        found[name] = SplitReport(
            examples=len(examples),
            sources=_lengths([example.source for example in examples], tokenise[0], unknown, limits.source),
            targets=_lengths(targets, tokenise[1], unknown, limits.target) if targets else None,
            empty_sources=sum(not key for key in keys),
            empty_references=sum(not text.strip() for text in targets),
            copies=sum(example.source == text for example, text in zip(examples, targets, strict=False)),
            distinct_targets=len(set(targets)),
            repeated_sources=len(keys) - len(set(keys)),
            repeated_examples=len(own) - len(set(own)),
            sources_in_train=sum(key in known for key in keys) if others else 0,
            sources_in_unlabelled=sum(key in unlabelled for key in keys) if name != UNLABELLED else 0,
            examples_in_train=sum(_in_train(key, one, pairs) for key, one in zip(keys, examples, strict=True)) if others else 0,
            swapped=None if name == UNLABELLED else columns.swapped(examples) if others else columns.swapped_in_train(),
            broken=sum(any(mark in text for mark in "\0\ufffd") for one in examples for text in (one.source, *one.references)),
        )
    return CorpusReport(task=task, splits=found)


def _key(text: str) -> str:
    """A text apart from case and white space."""
    return " ".join(text.casefold().split())


def _in_train(key: str, example: Example, pairs: set[tuple[str, str]]) -> bool:
    return any((key, _key(text)) in pairs for text in example.references)


def _lengths(texts: Sequence[str], tokenise: Tokenise, unknown: int | None, limit: int) -> TokenLengths:
    sample = list(texts[:: -(-len(texts) // _MEASURED) or 1])
    rows = tokenise(sample)
    lengths = sorted(map(len, rows))
    return TokenLengths(
        texts=len(rows),
        p50=_percentile(lengths, 0.5),
        p95=_percentile(lengths, 0.95),
        longest=lengths[-1],
        limit=limit,
        cut_off=sum(length > limit for length in lengths) / len(lengths),
        unknown=_share(unknown, rows),
    )


def _percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest length that at least this share of the texts does not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _share(unknown: int | None, rows: Iterable[Sequence[int]]) -> float:
    total = count = 0
    for row in rows:
        total += len(row)
        count += sum(token == unknown for token in row)
    return count / total
