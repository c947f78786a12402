"""What references a metric needs, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.corpora.example import UNLABELLED, Example
from tasks.errors import InputError
from tasks.evaluation.metrics import PROGRAMS, metric_of, reported_with
from tasks.evaluation.scoring.answers import last_number
from tasks.evaluation.scoring.scripts import misfit
from tasks.evaluation.scoring.tokenizers import require_bleu_tokenizer


def check_references(corpus: Mapping[str, Sequence[Example]], metric: str) -> list[str]:
    """Check that references suit the metric, and that its tokenizer is there; return warnings, a line each with number and fix.

    Raises:
        InputError: a program without tests, a split in which no reference has a number, or a tokenizer that is not installed.
    """
    settings = metric_of(metric)
    if "bleu" in reported_with(settings.name):
        require_bleu_tokenizer(settings.bleu_tokenizer)
    scored = [example for name, examples in corpus.items() if name not in ("train", UNLABELLED) for example in examples]
    unread = misfit((text for example in scored for text in example.references), metric)
    found = [unread] if unread else []
    for name, examples in corpus.items():
        if metric == PROGRAMS and name != UNLABELLED:
            _require_tests(name, examples)
        if metric == "numeric_answer" and name != UNLABELLED:
            without = sum(all(last_number(text) is None for text in one.references) for one in examples)
            if examples and without == len(examples):
                raise InputError(
                    f"{name}: no reference has a number, which the metric numeric_answer needs; choose another metric"
                )
            if without:
                found.append(
                    f"{name}: {without} of {len(examples)} examples have a reference without a number and can never be right"
                )
    return found


def _require_tests(name: str, examples: Sequence[Example]) -> None:
    for number, example in enumerate(examples, start=1):
        if len(example.references) < 2:
            raise InputError(
                f"{name}, example {number}: the metric pass_at_1 needs a program and then its tests as references; name the "
                "field of the tests in reference_fields, after that of the program"
            )
