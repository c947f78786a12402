"""Words in any script, for ROUGE, and whether a metric's tokenizer fits the script of the references."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable

from tasks.evaluation.metrics import ROUGES, MetricSettings, metric_of, reported_with

_WITHOUT_SPACES = {
    "kana": ((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F)),
    "han": ((0x2E80, 0x2FDF), (0x3005, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
    # Thai and Lao, Burmese, Khmer, Tai scripts, Balinese, Javanese, Bopomofo
    "other": (
        *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x1B00, 0x1B7F)),
        *((0x3100, 0x312F), (0x31A0, 0x31BF), (0xA980, 0xA9FF), (0xAA60, 0xAADF)),
    ),
}
"""Code points of scripts that put no spaces between words, first and last."""
_READ_BY = {"zh": ("han",), "ja-mecab": ("han", "kana"), "char": tuple(_WITHOUT_SPACES), "flores200": tuple(_WITHOUT_SPACES)}
"""Which of them a tokenizer of BLEU splits."""
_WORTH_SAYING = 0.005
"""A share of letters above which a tokenizer does not fit."""
_WORTH_SAYING_BESIDE = 0.1
"""The same for a metric that only stands beside the task's."""


@functools.cache
def script_without_spaces(character: str) -> str:
    """Whether a letter's script puts no spaces between words: `han`, `kana`, `other`, or empty where it does."""
    code = ord(character)
    for name, ranges in _WITHOUT_SPACES.items():
        if any(low <= code <= high for low, high in ranges):
            return name
    return ""


@functools.cache
def _kind(character: str) -> str:
    """`word` for a letter or digit, `single` for one of a script without spaces, `mark`, `joined` where invisible, or `gap`."""
    category = unicodedata.category(character)
    if category[0] in "LN":
        return "single" if script_without_spaces(character) else "word"
    return {"M": "mark", "C": "joined" if category == "Cf" else "gap"}.get(category[0], "gap")


def unicode_words(text: str) -> list[str]:
    """The words of a text in any script.

    A word is a run of letters, digits and their marks; a letter of a script that puts no spaces between words (Chinese,
    Japanese, Thai, Lao, Burmese, Khmer) is one by itself. Compatible forms are one (NFKC: full-width letters, ligatures), and
    so are upper and lower case (case folding: ß is ss). Invisible characters, such as joiners and soft hyphens, do not count.
    """
    words, before = list[str](), "gap"
    for character in unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()):
        kind = _kind(character)
        if kind == before == "word" or (kind == "mark" and before != "gap"):
            words[-1] += character
        elif kind in ("word", "single"):
            words.append(character)
        if kind not in ("mark", "joined"):
            before = kind
    return words


def misfit(texts: Iterable[str], metric: str) -> str:
    """What a metric's tokenizers cannot read of references, in a line with the fix; empty where they fit.

    Args:
        texts: The references.
        metric: Its full name. BLEU or ROUGE-L that only stands beside it counts as well, where it is far off.
    """
    settings, letters = metric_of(metric), _letters(texts)
    total, shown = max(1, sum(letters.values())), reported_with(settings.name)
    read = _READ_BY.get(settings.bleu_tokenizer, ())
    unsplit = sum(letters[name] for name in _WITHOUT_SPACES if name not in read) / total
    dropped = (
        0.0
        if settings.rouge_tokenizer == "unicode"
        else sum(count for name, count in letters.items() if name != "ascii") / total
    )
    found, changes = list[str](), dict[str, str]()
    if "bleu" in shown and unsplit >= (_WORTH_SAYING if settings.name == "bleu" else _WORTH_SAYING_BESIDE):
        found.append(
            f"BLEU's tokenizer {settings.bleu_tokenizer} does not split {unsplit:.1%} of the references' letters, whose script "
            "has no spaces"
        )
        changes["bleu_tokenizer"] = _bleu_tokenizer_for(letters)
    if "rougeL" in shown and dropped >= (_WORTH_SAYING if settings.name in ROUGES else _WORTH_SAYING_BESIDE):
        found.append(f"ROUGE's default tokenizer drops {dropped:.1%} of the references' letters, all but a-z and 0-9")
        changes["rouge_tokenizer"] = "unicode"
    return f"{', and '.join(found)}; set {_block(settings, changes)}" if found else ""


def _letters(texts: Iterable[str]) -> dict[str, int]:
    """Letters and digits of texts: `ascii`, of a script without spaces, or `spaced` for all others."""
    counts = dict.fromkeys(("ascii", "spaced", "han", "kana", "other"), 0)
    for text in texts:
        if text.isascii():
            counts["ascii"] += sum(map(str.isalnum, text))
            continue
        for character in text:
            if character.isalnum():
                counts["ascii" if character.isascii() else script_without_spaces(character) or "spaced"] += 1
    return counts


def _bleu_tokenizer_for(letters: dict[str, int]) -> str:
    if letters["kana"] > letters["han"] / 100:  # Japanese: kana is half of it; Chinese has none
        return "ja-mecab"
    return "zh" if letters["han"] > letters["other"] else "flores200"


def _block(settings: MetricSettings, changes: dict[str, str]) -> str:
    """The setting `metric` with tokenizers changed, as in params.yaml."""
    usual = {"bleu_tokenizer": "13a", "rouge_tokenizer": "default"}
    changed = {name: value for name, value in {**vars(settings), **changes}.items() if usual.get(name) != value}
    return f"metric: {{{', '.join(f'{name}: {value}' for name, value in changed.items())}}}"
