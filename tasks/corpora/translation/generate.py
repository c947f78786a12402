"""Draws the corpus: distinct sentences with one reference for training and several for validation and test."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tasks.corpora.example import SPLITS, Corpus, Example
from tasks.corpora.translation import english, german
from tasks.corpora.translation.choices import Choose, Covering, Sampled
from tasks.corpora.translation.grammar import Grammar
from tasks.corpora.translation.structure import Sentence, clauses_of
from tasks.errors import InputError

REFERENCES = 4
"""Most references of a validation or test sentence."""
_TRIES = 4
# Words up to this length are articles, pronouns and the like, which may be repeated.
_SHORT = 6
_LENGTHS = range(5, 10)
# After so many draws in a row without a new sentence, the grammar is nearly exhausted.
_PATIENCE = 2000


def join_words(words: list[str]) -> str:
    """Join words into a sentence with single, closed-up commas, a capital letter and a full stop."""
    kept: list[str] = []
    for word in words:
        if word == "," and (not kept or kept[-1] == ","):
            continue
        kept.append(word)
    while kept and kept[-1] == ",":
        kept.pop()
    text = " ".join(kept).replace(" ,", ",")
    return text[0].upper() + text[1:] + "."


def _repeats_word(text: str) -> bool:
    """Whether a word occurs twice in a row (tried it on on Monday)."""
    words = text.replace(",", "").rstrip(".").lower().split()
    return any(word == following for word, following in itertools.pairwise(words))


def translation(sentence: Sentence, choose: Choose) -> tuple[str, ...]:
    """Return one English sentence, or none if every attempt repeats a word in a row."""
    for _ in range(_TRIES):
        text = join_words(english.render(sentence, choose))
        if not _repeats_word(text):
            return (text,)
    return ()


def translations(sentence: Sentence, rng: random.Random) -> tuple[str, ...]:
    """Return distinct English sentences, of which every `REFERENCES` in a row cover the alternatives of every choice."""
    found: dict[str, None] = {}
    for _ in range(_TRIES):
        choose = Covering(rng, REFERENCES)
        for number in range(REFERENCES):
            choose.start(number)
            text = join_words(english.render(sentence, choose))
            if not _repeats_word(text):
                found[text] = None
    return tuple(found)


def _repeats(sentence: Sentence, source: str) -> bool:
    """Whether a verb or another content word occurs twice, or any word occurs twice in a row."""
    verbs = [clause.verb.base for clause in clauses_of(sentence)]
    if len(set(verbs)) < len(verbs):
        return True
    words = source.replace(",", "").rstrip(".").split()
    content = [word for word in words if len(word) > _SHORT or word[0].isupper()]
    return len(set(content)) < len(content) or _repeats_word(source)


def _draw_sentences(rng: random.Random) -> Iterator[tuple[Sentence, str]]:
    grammar = Grammar(rng)
    while True:
        sentence = grammar.sentence()
        source = join_words(german.render(sentence))
        if len(source.split()) in _LENGTHS and not _repeats(sentence, source):
            yield sentence, source


def generate(sizes: dict[str, int], seed: int, variation: float = 0.8) -> Corpus:
    """Return a German to English corpus of `sizes[split]` examples; equal arguments give equal corpora.

    `variation` is the share of choices of a training reference that are drawn evenly among all correct wordings; the others
    take the commonest. It leaves the sources, and the references of the other splits, which cover all wordings, as they are.
    No German sentence occurs in two splits, and no English one does, nor one of the further wordings drawn for this check.

    Raises:
        InputError: a size is missing or negative, or larger than the number of sentences that the grammar can generate.
    """
    for split in SPLITS:
        if sizes.get(split, -1) < 0:
            raise InputError(
                f"translation corpus: sizes.{split} is {sizes.get(split)}; it must be a number of sentences, 0 or more"
            )
    sentences = _draw_sentences(random.Random(f"translation sentences {seed}"))  # noqa: S311 (sentences, not secrets)
    rng = random.Random(f"translation references {seed}")  # noqa: S311 (sentences, not secrets)
    sample: Choose = Sampled(rng, variation)
    corpus: Corpus = {split: [] for split in SPLITS}
    sources: set[str] = set()
    owner: dict[str, str] = {}
    fruitless = 0
    for split in ("test", "validation", "train"):
        while len(corpus[split]) < sizes[split]:
            if fruitless == _PATIENCE:
                made = sum(map(len, corpus.values()))
                raise InputError(
                    f"translation corpus: sizes ask for {sum(sizes.values())} sentences; the grammar gives about {made}"
                )
            sentence, source = next(sentences)
            references = translation(sentence, sample) if split == "train" else translations(sentence, rng)
            fruitless += 1
            if not references or source in sources or any(owner.get(text, split) != split for text in references):
                continue
            fruitless = 0
            sources.add(source)
            owner.update(dict.fromkeys(references, split))
            corpus[split].append(Example(source, references[:REFERENCES]))
    return corpus
