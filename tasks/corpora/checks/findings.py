"""What a corpus report says to its reader: a table, warnings, and what makes training senseless."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.corpora.checks.measures import TRAIN, CorpusReport, SplitReport, TokenLengths
from tasks.corpora.example import UNLABELLED

_CUT_OFF = 0.01
_UNKNOWN = (0.001, 0.2)
"""Shares of unknown tokens that are worth a warning, and that leave too little to learn from."""
_SWAPPED = (0.01, 0.9)
_COPIES = (0.1, 0.99)
_REPEATED = {TRAIN: 0.1}
_REPEATED_ELSEWHERE = 0.01
"""Repeated examples of a split that is measured on count twice in its intervals; in training they cost little."""
_OVERLAP = 0.01


_LEGEND = (
    "(tokens: median / 95 % / longest; cut off: texts that are longer than the limit; unknown: tokens that the tokenizer "
    "lacks; in train: sources that train has too)"
)


def errors(report: CorpusReport) -> list[str]:
    """What makes training or its measurement senseless, each in a line with its fix; empty where nothing does."""
    return [f"{name}: {line}" for name, split in report.splits.items() for line in _errors(name, split)]


def warnings(report: CorpusReport) -> list[str]:
    """What is worth a look, each in a line with number and fix."""
    by_split = [f"{name}: {line}" for name, split in report.splits.items() for line in _warnings(name, split)]
    return [*_cut_off(report), *by_split]


def summary(report: CorpusReport) -> list[str]:
    """A table: examples of each split, and tokens of its sources and targets as median, 95 % and longest. A legend ends it."""
    rows = [("split", "examples", "source tokens", "cut off", "target tokens", "cut off", "unknown", "in train")]
    for name, split in report.splits.items():
        columns = [split.sources, *([split.targets] if split.targets else [])]
        unknown = max(one.unknown for one in columns)
        lengths = [text for one in columns for text in (f"{one.p50} / {one.p95} / {one.longest}", f"{one.cut_off:.1%}")]
        lengths += ["", ""] * (2 - len(columns))
        overlap = "" if name == TRAIN else f"{split.sources_in_train / split.examples:.1%}"
        rows.append((name, str(split.examples), lengths[0], lengths[1], lengths[2], lengths[3], f"{unknown:.2%}", overlap))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, _LEGEND]


def _cut_off(report: CorpusReport) -> Iterator[str]:
    for column in ("source", "target"):
        found = {name: dict(_columns(split)).get(column) for name, split in report.splits.items()}
        cut = {name: lengths for name, lengths in found.items() if lengths is not None and lengths.cut_off > _CUT_OFF}
        if cut:
            shares = ", ".join(f"{lengths.cut_off:.1%} of {name}" for name, lengths in cut.items())
            p95, longest = (max(getattr(lengths, name) for lengths in cut.values()) for name in ("p95", "longest"))
            yield (
                f"{column}s longer than text.max_{column}_tokens, {next(iter(cut.values())).limit}, are cut off: {shares}; "
                f"raise it (95 % have at most {p95} tokens, the longest has {longest})"
            )


def _errors(name: str, split: SplitReport) -> Iterator[str]:
    if split.empty_sources:
        yield f"{split.empty_sources} of {split.examples} sources are empty; fill them, or remove the examples"
    if split.empty_references == split.examples:
        yield "every reference is empty; look at the columns that are read"
    if name == TRAIN and split.examples > 1 and split.distinct_targets == 1:
        yield f"all {split.examples} references are the same text, which teaches nothing; look at the columns that are read"
    if name == TRAIN and split.examples > 1 and split.copies >= _COPIES[1] * split.examples:
        yield f"the reference equals the source in {_count(split.copies, split)}; name different columns for the two"
    if split.swapped is not None and split.swapped >= _SWAPPED[1]:
        yield f"source and reference are swapped against train in {split.swapped:.0%} of the examples; exchange its two columns"
    for column, lengths in _columns(split):
        if lengths.unknown >= _UNKNOWN[1]:
            yield (
                f"{lengths.unknown:.0%} of the {column} tokens are unknown to the tokenizer; choose one that was made for this "
                "language, or leave tokenizer.pretrained out to train one"
            )


def _warnings(name: str, split: SplitReport) -> Iterator[str]:
    for column, lengths in _columns(split):
        if _UNKNOWN[0] < lengths.unknown < _UNKNOWN[1]:
            yield (
                f"{lengths.unknown:.2%} of the {column} tokens are unknown to the tokenizer; characters that train lacks "
                "cannot be written"
            )
    if split.empty_references and split.empty_references < split.examples:
        yield f"{_count(split.empty_references, split)} have an empty reference; that is right for unanswerable questions alone"
    if split.copies > _COPIES[0] * split.examples:
        yield f"the reference equals the source in {_count(split.copies, split)}; check that they are meant to be copied"
    if split.swapped is not None and _SWAPPED[0] <= split.swapped < _SWAPPED[1]:
        yield (
            f"source and reference seem swapped in {split.swapped:.1%} of the examples, by their letters; exchange the "
            "columns of these lines"
        )
    if split.broken:
        yield f"{split.broken} texts hold a NUL or U+FFFD, the mark of bytes that were no text; read the files as what they are"
    if split.targets is not None and split.repeated_examples > _REPEATED.get(name, _REPEATED_ELSEWHERE) * split.examples:
        what = "they weigh more" if name == TRAIN else "intervals take them for independent"
        yield f"{_count(split.repeated_examples, split)} repeat an earlier example, and {what}; remove them"
    yield from _overlap(name, split)


def _overlap(name: str, split: SplitReport) -> Iterator[str]:
    if name in (TRAIN, UNLABELLED):
        return
    if split.sources_in_unlabelled:
        found = _count(split.sources_in_unlabelled, split)
        yield f"the sources of {found} are also unlabelled, apart from case and white space; remove them there"
    if split.sources_in_train <= _OVERLAP * split.examples:
        return
    whole = f", {split.examples_in_train} of them with a reference of theirs" if split.examples_in_train else ""
    yield (
        f"the sources of {_count(split.sources_in_train, split)} are also in train{whole}; quality on them is memory: "
        "remove them from train"
    )


def _columns(split: SplitReport) -> Iterator[tuple[str, TokenLengths]]:
    yield "source", split.sources
    if split.targets is not None:
        yield "target", split.targets


def _count(count: int, split: SplitReport) -> str:
    return f"{count} of {split.examples} examples ({count / split.examples:.1%})"
