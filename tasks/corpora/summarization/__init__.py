"""An embedded summarization corpus: made-up news reports and what matters in them, deterministic from a seed.

A report tells an abstract event in shuffled order among distractors; which of its facts a summary states follows from the
content alone (the goal that decided the match, the cause that was confirmed, the vote that counted), in other words than
the report's. Wording, order and the choice between two facts of equal weight are free, so that two models trained on one
sampled reference each differ without either being wrong; validation and test hold several references.
"""

from __future__ import annotations

import random

from tasks.corpora.example import SPLITS, Corpus, Example
from tasks.corpora.summarization.company import COMPANY
from tasks.corpora.summarization.council import COUNCIL
from tasks.corpora.summarization.expedition import EXPEDITION
from tasks.corpora.summarization.festival import FESTIVAL
from tasks.corpora.summarization.football import FOOTBALL
from tasks.corpora.summarization.harbour import HARBOUR
from tasks.corpora.summarization.laboratory import LABORATORY
from tasks.corpora.summarization.school import SCHOOL
from tasks.corpora.summarization.stories import draw_event, summarise, write_report
from tasks.corpora.summarization.traffic import TRAFFIC
from tasks.corpora.summarization.weather import WEATHER
from tasks.errors import InputError

KINDS = (COMPANY, COUNCIL, EXPEDITION, FESTIVAL, FOOTBALL, HARBOUR, LABORATORY, SCHOOL, TRAFFIC, WEATHER)
REFERENCES = {"train": 1, "validation": 8, "test": 8}

# Names and figures would give many more reports, but past this they say nothing new.
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
    """`size` examples whose reports are not in `reports` (extended) and whose summaries are not `elsewhere`."""
    examples: list[Example] = []
    refused = 0
    while len(examples) < size:
        event = draw_event(rng.choice(KINDS), rng)
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
    """Makes the corpus; `sizes` gives the number of examples under each of the names in `SPLITS`.

    Test is drawn first and train last, each from a stream of its own, so that more training examples leave the held-out
    splits as they are. No two splits share a report or a summary. Train examples have one reference, the others eight.

    Raises:
        InputError: sizes that are not those of the splits, or more examples than can be told apart.
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
