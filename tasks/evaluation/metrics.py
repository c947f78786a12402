"""The metrics that quality is measured in, by name; apart from `quality`, so that the schema need not import it.

A metric's full name is its name where the tokenizers are the usual ones, and otherwise also says which they are:
`bleu[bleu_tokenizer=zh]`. Rows, summaries and every function that scores take full names.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from tasks.settings import setting, settings

ROUGES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
PROGRAMS = "pass_at_1"
"""The metric that runs outputs as programs; the first reference of an example is a program, the others are its tests."""
PERPLEXITY = "perplexity"
"""The metric of given texts, of which less is better; all others score outputs, and more is better."""
METRICS = ("bleu", *ROUGES, "exact_match", "token_f1", "numeric_answer", PROGRAMS, PERPLEXITY)
BLEU_TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "flores200", "char", "none")
"""sacrebleu's, by its names."""
ROUGE_TOKENIZERS = ("default", "unicode")
_FULL_NAME = re.compile(r"(\w+)(?:\[(.*)\])?")


@settings
class MetricSettings:
    """A metric and how texts are split into words for it."""

    name: str = setting("The metric; `metric: NAME` is short for `metric: {name: NAME}`.", choices=METRICS)
    bleu_tokenizer: str = setting(
        "How BLEU splits texts into words, by sacrebleu: 13a for languages with spaces, zh for Chinese, ja-mecab for Japanese, "
        "ko-mecab for Korean, flores200 for any language, char into characters.",
        default="13a",
        choices=BLEU_TOKENIZERS,
    )
    rouge_tokenizer: str = setting(
        "How ROUGE splits texts into words: default is rouge-score's with stems of English words, which keeps a-z and 0-9 "
        "alone; unicode takes letters and digits of all scripts, without stems.",
        default="default",
        choices=ROUGE_TOKENIZERS,
    )

    def validate(self) -> None:
        """Check that a tokenizer that was set is used."""
        shown = reported_with(self.name)
        if self.bleu_tokenizer != "13a" and "bleu" not in shown:
            raise ValueError(f"bleu_tokenizer is {self.bleu_tokenizer}, but {self.name} takes no BLEU; leave it out")
        if self.rouge_tokenizer != "default" and not set(shown) & set(ROUGES):
            raise ValueError(f"rouge_tokenizer is {self.rouge_tokenizer}, but {self.name} takes no ROUGE; leave it out")

    def __str__(self) -> str:
        """Return the full name."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if field.name != "name" and getattr(self, field.name) != field.default
        ]
        return f"{self.name}[{','.join(changed)}]" if changed else self.name

    @property
    def tokenizer(self) -> str:
        """The tokenizer of the metric itself, where it is not the usual one; otherwise empty."""
        own = {"bleu": (self.bleu_tokenizer, "13a")} | dict.fromkeys(ROUGES, (self.rouge_tokenizer, "default"))
        used, usual = own.get(self.name, ("", ""))
        return "" if used == usual else used


@functools.cache
def metric_of(full_name: str) -> MetricSettings:
    """Return the metric of a full name.

    Raises:
        ValueError: there is no such metric or tokenizer.
    """
    found = _FULL_NAME.fullmatch(full_name)
    if found is None or found[1] not in METRICS:
        raise ValueError(f"unknown metric {full_name!r}; it must be one of {', '.join(METRICS)}")
    pairs = [part.partition("=")[::2] for part in (found[2] or "").split(",") if part]
    unknown = sorted({name for name, _ in pairs} - {"bleu_tokenizer", "rouge_tokenizer"})
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]} of the metric {found[1]}; remove it")
    return MetricSettings(name=found[1], **dict(pairs))


def compared_as(full_name: str) -> str:
    """The metric without what does not change its own number: BLEU's beside a ROUGE, and the other way round."""
    metric = metric_of(full_name)
    key = "bleu_tokenizer" if metric.name == "bleu" else "rouge_tokenizer"
    return str(MetricSettings(name=metric.name, **({key: metric.tokenizer} if metric.tokenizer else {})))


def reported_with(metric: str) -> tuple[str, ...]:
    """The names of the metrics that are usually reported with a metric, itself among them.

    With BLEU that is ROUGE-L; with a ROUGE it is BLEU and all of `ROUGES`; exact match and F1 go together.
    """
    if metric == "bleu":
        return ("bleu", "rougeL")
    if metric in ROUGES:
        return ("bleu", *ROUGES)
    return ("exact_match", "token_f1") if metric in ("exact_match", "token_f1") else (metric,)


def points_of(name: str, value: float) -> float:
    """Quality in points, of which more is better: the value of a metric, by its name, or minus a perplexity."""
    return -value if name == PERPLEXITY else value


def texts_to_match(references: tuple[str, ...], metric: str) -> tuple[str, ...]:
    """The references that an output may equal; tests of a program are none of them."""
    return references[:1] if metric == PROGRAMS else references
