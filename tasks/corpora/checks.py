"""Checks a corpus: counts, lengths, duplicates and overlaps, with warnings, and errors where training would be senseless."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.console import aligned_columns
from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example

_MEASURED = 20_000
"""Examples of a split whose tokens are counted, evenly spread over it."""
_COMPARED = 5_000
"""Examples of a split whose sides are compared."""
_TOLD_APART = 0.8
"""Share of them whose sides words tell apart, from which on the others count."""
_SURE = math.log(20)
"""How much likelier a text has to be on one side than on the other."""
TRAIN, VALIDATION, TEST = SPLITS

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
class TextCounts:
    """What the texts of one split show by themselves."""

    examples: int
    empty_sources: int
    empty_references: int
    copies: int
    """Examples whose first reference equals the source."""
    distinct_targets: int
    repeated_examples: int
    """Examples whose source and first reference are those of an earlier example, apart from case and white space."""
    sources_in_train: int
    """Examples whose source is in the training split."""
    sources_in_unlabelled: int
    """Examples whose source is among the unlabelled ones."""
    examples_in_train: int
    """Examples of which source and a reference are an example of the training split."""
    examples_in_test: int
    """The same for the split `test`; of validation alone."""
    swapped: float
    """Share whose source reads like a target of the training split, and whose target like a source, by their words."""
    broken: int
    """Texts with a NUL or with U+FFFD, which stands for bytes that were no text."""


Counts = Mapping[str, TextCounts]
"""By split."""


@dataclass(frozen=True, kw_only=True)
class SplitReport(TextCounts):
    """One split, or the unlabelled sources, which have no references; with its texts in tokens."""

    sources: TokenLengths
    targets: TokenLengths | None
    """Of first references."""


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """All splits by name."""

    task: str
    splits: dict[str, SplitReport]


def count_texts(corpus: Corpus) -> dict[str, TextCounts]:
    """Count what needs no tokenizer, by split; splits without an example are left out.

    Args:
        corpus: The splits, further test splits and unlabelled sources; all but these have references.
    """
    train = corpus[TRAIN]
    known, unlabelled = ({_key(example.source) for example in corpus.get(name, [])} for name in (TRAIN, UNLABELLED))
    pairs, tested = _pairs(train), _pairs(corpus.get(TEST, []))
    sides = [_frequencies(example.source for example in train), _frequencies(_first(example) for example in train)]
    found = {}
    for name, examples in corpus.items():
        if not examples:
            continue
        keys = [_key(example.source) for example in examples]
        targets = [example.references[0] for example in examples if example.references]
        own = [(source, _key(text)) for source, text in zip(keys, targets, strict=False)]
        others = name != TRAIN
        found[name] = TextCounts(
            examples=len(examples),
            empty_sources=sum(not key for key in keys),
            empty_references=sum(not text.strip() for text in targets),
            copies=sum(example.source == text for example, text in zip(examples, targets, strict=False)),
            distinct_targets=len(set(targets)),
            repeated_examples=len(own) - len(set(own)),
            sources_in_train=sum(key in known for key in keys) if others else 0,
            sources_in_unlabelled=sum(key in unlabelled for key in keys) if name != UNLABELLED else 0,
            examples_in_train=_known(examples, pairs) if others else 0,
            examples_in_test=_known(examples, tested) if name == VALIDATION else 0,
            swapped=_swapped(examples, sides),
            broken=sum(any(mark in text for mark in "\0\ufffd") for one in examples for text in (one.source, *one.references)),
        )
    return found


def measure_corpus(
    task: str, corpus: Corpus, counts: Counts, tokenise: tuple[Tokenise, Tokenise], unknown: int | None, limits: tuple[int, int]
) -> CorpusReport:
    """Measure the texts of every split in tokens.

    Args:
        task: Name of the task.
        corpus: Its splits.
        counts: What `count_texts` found in them.
        tokenise: Makes tokens of sources, and of references.
        unknown: The unknown token; None where the tokenizer has none.
        limits: The longest source and the longest target that models read and write, in tokens.
    """
    found = {}
    for name, counted in counts.items():
        sources = [example.source for example in corpus[name]]
        targets = [example.references[0] for example in corpus[name] if example.references]
        found[name] = SplitReport(
            **vars(counted),
            sources=_lengths(sources, tokenise[0], unknown, limits[0]),
            targets=_lengths(targets, tokenise[1], unknown, limits[1]) if targets else None,
        )
    return CorpusReport(task=task, splits=found)


def _key(text: str) -> str:
    """A text apart from case and white space."""
    return " ".join(text.casefold().split())


def _pairs(examples: Sequence[Example]) -> set[tuple[str, str]]:
    return {(_key(example.source), _key(text)) for example in examples for text in example.references}


def _known(examples: Sequence[Example], pairs: set[tuple[str, str]]) -> int:
    """Examples of which the source and a reference are among the pairs."""
    return sum(not pairs.isdisjoint(_pairs([example])) for example in examples)


def _first(example: Example) -> str:
    return example.references[0] if example.references else ""


def _frequencies(texts: Iterable[str]) -> Callable[[str], float]:
    """How often a word is in some of the texts, as a share of all words; never 0."""
    counts = Counter(word for text in itertools.islice(texts, _MEASURED) for word in _key(text).split())
    total = counts.total() + 1
    return lambda word: (counts[word] + 0.5) / total


def _swapped(examples: Sequence[Example], sides: Sequence[Callable[[str], float]]) -> float:
    """Share of the examples whose sides are swapped; 0 where words do not tell most sources from their targets."""
    source, target = sides

    def like_source(text: str) -> float:
        return sum(math.log(source(word) / target(word)) for word in set(_key(text).split()))

    sample = examples[:: -(-len(examples) // _COMPARED) or 1]
    found = [(like_source(one.source), like_source(one.references[0])) for one in sample if one.references]
    right, wrong = (sum(left * sign > _SURE and right * sign < -_SURE for left, right in found) for sign in (1, -1))
    return wrong / len(found) if right + wrong > _TOLD_APART * len(found) else 0.0


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
        unknown=sum(token == unknown for row in rows for token in row) / sum(lengths),
    )


def _percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest length that at least this share of the texts does not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


_CUT_OFF = 0.01
_UNKNOWN = (0.001, 0.2)
"""Shares of unknown tokens that are worth a warning, and that leave too little to learn from."""
_COPIES = (0.1, 0.99)
_REPEATED = {TRAIN: 0.1}
_REPEATED_ELSEWHERE = 0.01
"""Repeated examples of a split that is measured on count twice in its intervals; in training they cost little."""
_OVERLAP = 0.01
_FATAL = 0.05
"""Share of swapped examples, and of those that another split has as they are, which no result survives."""


_LEGEND = (
    "(tokens: median / 95 % / longest; cut off: texts that are longer than the limit; unknown: tokens that the tokenizer "
    "lacks; in train: sources that train has too)"
)


def text_errors(counts: Counts) -> list[str]:
    """What makes training or its measurement senseless, each in a line with its fix; empty where nothing does."""
    return [f"{name}: {line}" for name, split in counts.items() for line in _text_errors(name, split)]


def token_errors(report: CorpusReport) -> list[str]:
    """The same of texts in tokens: too many that the tokenizer does not know."""
    fix = "choose one that was made for this language, or leave tokenizer.pretrained out to train one"
    return [
        f"{name}: {lengths.unknown:.0%} of the {column} tokens are unknown to the tokenizer; {fix}"
        for name, split in report.splits.items()
        for column, lengths in _columns(split)
        if lengths.unknown >= _UNKNOWN[1]
    ]


def warnings(report: CorpusReport) -> list[str]:
    """What is worth a look, each in a line with number and fix."""
    by_split = [f"{name}: {line}" for name, split in report.splits.items() for line in _warnings(name, split)]
    return [*_cut_off(report), *by_split]


def summary(report: CorpusReport) -> list[str]:
    """A table: examples of each split, and tokens of its sources and targets as median, 95 % and longest. A legend ends it."""
    rows = [["split", "examples", "source tokens", "cut off", "target tokens", "cut off", "unknown", "in train"]]
    for name, split in report.splits.items():
        columns = [split.sources, *([split.targets] if split.targets else [])]
        unknown = max(one.unknown for one in columns)
        lengths = [text for one in columns for text in (f"{one.p50} / {one.p95} / {one.longest}", f"{one.cut_off:.1%}")]
        lengths += ["", ""] * (2 - len(columns))
        overlap = "" if name == TRAIN else f"{split.sources_in_train / split.examples:.1%}"
        rows.append([name, str(split.examples), *lengths, f"{unknown:.2%}", overlap])
    return [*aligned_columns(rows), _LEGEND]


def _cut_off(report: CorpusReport) -> Iterator[str]:
    for column in ("source", "target"):
        found = {name: dict(_columns(split)).get(column) for name, split in report.splits.items()}
        cut = {name: lengths for name, lengths in found.items() if lengths is not None and lengths.cut_off > _CUT_OFF}
        if cut:
            shares = ", ".join(f"{lengths.cut_off:.1%} of {name}" for name, lengths in cut.items())
            p95, longest = (max(getattr(lengths, name) for lengths in cut.values()) for name in ("p95", "longest"))
            said = f"{column}s longer than text.max_{column}_tokens, {next(iter(cut.values())).limit}, are cut off: {shares}"
            yield f"{said}; raise it (95 % have at most {p95} tokens, the longest has {longest})"


def _text_errors(name: str, split: TextCounts) -> Iterator[str]:
    if split.empty_sources:
        yield f"{split.empty_sources} of {split.examples} sources are empty; fill them, or remove the examples"
    if split.empty_references == split.examples:
        yield "every reference is empty; look at the columns that are read"
    if name == TRAIN and split.examples > 1 and split.distinct_targets == 1:
        yield f"all {split.examples} references are the same text, which teaches nothing; look at the columns that are read"
    if name == TRAIN and split.examples > 1 and split.copies >= _COPIES[1] * split.examples:
        yield f"the reference equals the source in {_count(split.copies, split)}; name different columns for the two"
    if split.swapped > _FATAL:
        yield f"{split.swapped:.0%} of the examples have source and target swapped, by their words; swap their columns back"
    for other, count in ((TRAIN, split.examples_in_train), (TEST, split.examples_in_test)):
        if count > _FATAL * split.examples:
            fix = f"remove them from {other}" if 2 * count < split.examples else f"give {name} other examples"
            yield f"{_count(count, split)} are in {other} as they are, which would measure memory; {fix}"


def _warnings(name: str, split: SplitReport) -> Iterator[str]:
    for column, lengths in _columns(split):
        if _UNKNOWN[0] < lengths.unknown < _UNKNOWN[1]:
            effect = "characters that train lacks cannot be written"
            yield f"{lengths.unknown:.2%} of the {column} tokens are unknown to the tokenizer; {effect}"
    if split.empty_references and split.empty_references < split.examples:
        yield f"{_count(split.empty_references, split)} have an empty reference; that is right for unanswerable questions alone"
    if split.copies > _COPIES[0] * split.examples:
        yield f"the reference equals the source in {_count(split.copies, split)}; check that they are meant to be copied"
    if split.broken:
        yield f"{split.broken} texts hold a NUL or U+FFFD, the mark of bytes that were no text; read the files as what they are"
    if split.targets is not None and split.repeated_examples > _REPEATED.get(name, _REPEATED_ELSEWHERE) * split.examples:
        what = "they weigh more" if name == TRAIN else "intervals take them for independent"
        yield f"{_count(split.repeated_examples, split)} repeat an earlier example, and {what}; remove them"
    yield from _overlap(name, split)


def _overlap(name: str, split: TextCounts) -> Iterator[str]:
    if name in (TRAIN, UNLABELLED):
        return
    if split.sources_in_unlabelled:
        found = _count(split.sources_in_unlabelled, split)
        yield f"the sources of {found} are also unlabelled, apart from case and white space; remove them there"
    if split.sources_in_train <= _OVERLAP * split.examples:
        return
    whole = f", {split.examples_in_train} of them with a reference of theirs" if split.examples_in_train else ""
    fix = "quality on them is memory: remove them from train"
    yield f"the sources of {_count(split.sources_in_train, split)} are also in train{whole}; {fix}"


def _columns(split: SplitReport) -> Iterator[tuple[str, TokenLengths]]:
    yield "source", split.sources
    if split.targets is not None:
        yield "target", split.targets


def _count(count: int, split: TextCounts) -> str:
    return f"{count} of {split.examples} examples ({count / split.examples:.1%})"
