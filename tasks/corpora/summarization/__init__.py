"""The embedded summarization corpus: invented news reports with summaries, deterministic for a seed.

A report tells an abstract event in shuffled order among distractors. The content alone decides which fact a summary has to
state (the goal that decided the match, the cause that was confirmed, the vote that counted), in other words than the report's.
Wording, order and the choice between two side facts are free, so that two models trained on one sampled reference each can
differ without either being wrong. Validation and test have several references.
"""

from __future__ import annotations

import random

from tasks.corpora.example import SPLITS, Corpus, Example
from tasks.corpora.summarization.kinds import KINDS
from tasks.corpora.summarization.stories import draw_event, summarise, write_report
from tasks.errors import InputError

REFERENCES = {"train": 1, "validation": 8, "test": 8}

# Names and figures would give many more reports, but they would differ in nothing else.
MAX_EXAMPLES = 1_000_000
_PATIENCE = 1_000


def _check(sizes: dict[str, int]) -> None:
    if sorted(sizes) != sorted(SPLITS):
        raise InputError(f"sizes of the summarization corpus name {', '.join(sizes)}; they must name {', '.join(SPLITS)}")
    for split, size in sizes.items():
        if size < 1:
            raise InputError(f"size of the summarization split {split} is {size}; it must be at least 1")
    if sum(sizes.values()) > MAX_EXAMPLES:
        raise InputError(f"summarization corpus: {sum(sizes.values())} examples asked for; give at most {MAX_EXAMPLES}")


def _draw(split: str, size: int, rng: random.Random, reports: set[str], elsewhere: set[str]) -> list[Example]:
    """Draw `size` examples with new reports, which are added to `reports`, and without summaries that are in `elsewhere`."""
    examples: list[Example] = []
    refused = 0
    while len(examples) < size:
        event = draw_event(rng.choice(tuple(KINDS.values())), rng)
        report, references = write_report(event, rng), summarise(event, rng, REFERENCES[split])
        short = len(references) < REFERENCES[split]
        if short or report in reports or not elsewhere.isdisjoint(references):
            refused += 1
            if refused == _PATIENCE:
                raise InputError(
                    f"summarization split {split}: only {len(examples)} distinct examples found; ask for fewer than {size}"
                )
            continue
        refused = 0
        reports.add(report)
        examples.append(Example(report, references))
    return examples


def generate(sizes: dict[str, int], seed: int) -> Corpus:
    """Return the corpus; `sizes` gives the number of examples for each name in `SPLITS`.

    Test is drawn first and train last, each from its own random stream, so that more training examples leave the held-out
    splits unchanged. No two splits share a report or a summary. Train examples have one reference, the others have eight.

    Raises:
        InputError: `sizes` names other splits, or asks for more examples than can be distinct.
    """
    _check(sizes)
    reports: set[str] = set()
    elsewhere: set[str] = set()
    corpus: Corpus = {}
    for split in reversed(SPLITS):
        rng = random.Random(f"summarization/{seed}/{split}")  # noqa: S311 - draws examples, keeps no secret
        corpus[split] = _draw(split, sizes[split], rng, reports, elsewhere)
        elsewhere.update(reference for example in corpus[split] for reference in example.references)
    return {split: corpus[split] for split in SPLITS}
