"""The metrics that quality is measured in, by name; apart from `quality`, so that the schema need not import it."""

from __future__ import annotations

ROUGES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
PROGRAMS = "pass_at_1"
"""The metric that runs outputs as programs; the first reference of an example is a program, the others are its tests."""
METRICS = ("bleu", *ROUGES, "exact_match", "token_f1", "numeric_answer", PROGRAMS)


def reported_with(metric: str) -> tuple[str, ...]:
    """The metrics that are usually reported with a metric, itself among them.

    With BLEU that is ROUGE-L; with a ROUGE it is BLEU and all of `ROUGES`; exact match and F1 go together.
    """
    if metric == "bleu":
        return ("bleu", "rougeL")
    if metric in ROUGES:
        return ("bleu", *ROUGES)
    return ("exact_match", "token_f1") if metric in ("exact_match", "token_f1") else (metric,)


def texts_to_match(references: tuple[str, ...], metric: str) -> tuple[str, ...]:
    """The references that an output may equal; tests of a program are none of them."""
    return references[:1] if metric == PROGRAMS else references
