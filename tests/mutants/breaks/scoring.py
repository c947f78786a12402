"""Breaks of metrics and of programs that are run for one."""

from __future__ import annotations

from tests.mutants.patching import Break

_UNIT = "tests/unit/evaluation"

BREAKS = (
    Break(
        "unanswerable-beside-an-answer", "tasks.evaluation.scoring.answers", "_golds",
        "map(normalised, references) if gold] or", "map(normalised, references)] or",
        (f"{_UNIT}/scoring/test_answers.py",),
    ),
    Break(
        "sentences-end-at-titles", "tasks.evaluation.scoring.sentences", "_ends",
        "plain in _NEVER_LAST or", "",
        (f"{_UNIT}/scoring/test_sentences.py",),
    ),
    Break(
        "sentences-end-at-abbreviations", "tasks.evaluation.scoring.sentences", "_ends",
        "return following in _STARTERS and", "return",
        (f"{_UNIT}/scoring/test_sentences.py",),
    ),
    Break(
        "words-of-other-scripts-dropped", "tasks.evaluation.scoring.scripts", "_kind",
        'category[0] in "LN"', 'category[0] in "LN" and character.isascii()',
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "chinese-is-one-word", "tasks.evaluation.scoring.scripts", "_kind",
        '"single" if script_without_spaces(character) else "word"', '"word"',
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "tokenizer-of-bleu-forgotten", "tasks.evaluation.scoring.bleu", "_sentence_bleu",
        ", tokenize=tokenizer", "",
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "published-beside-another-tokenizer", "tasks.evaluation.metrics", "compared_as",
        "{key: metric.tokenizer} if metric.tokenizer else {}", "{}",
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "misfit-unsaid", "tasks.evaluation.scoring.references", "check_references",
        "[unread] if unread else []", "[]",
        (f"{_UNIT}/scoring/test_scripts.py",),
    ),
    Break(
        "signs-are-lost", "tasks.evaluation.scoring.answers", "last_number",
        'value.copy_negate() if sign in ("-", "−") else value', "value",
        (f"{_UNIT}/scoring/test_answers.py",),
    ),
    Break(
        "a-program-passes-by-leaving", "tasks.evaluation.scoring.programs", "passes",
        "passed = 3 + secrets.randbelow(250)", "passed = 0",
        (f"{_UNIT}/scoring/test_programs.py",),
    ),
    Break(
        "programs-write-anywhere", "tasks.evaluation.scoring.isolation", "_restrict_files",
        "version < 1", "version > 0",
        (f"{_UNIT}/scoring/test_programs.py",),
    ),
    Break(
        "programs-start-processes", "tasks.evaluation.scoring.isolation", "_restrict_calls",
        "(0x06, 0, 0, _REFUSE)", "(0x06, 0, 0, _ALLOW)",
        (f"{_UNIT}/scoring/test_programs.py",),
    ),
    Break(
        "brevity-penalty-forgotten", "tasks.evaluation.scoring.bleu", "bleus_of",
        " + brevity", "",
        (f"{_UNIT}/test_quality.py::test_many_bleus_are_each_sacrebleus",),
    ),
)  # fmt: skip
