"""The embedded German to English corpus: a grammar that draws an abstract sentence and renders it in both languages.

`words/` holds the vocabulary, which `lexicon` reads; `grammar` draws an abstract sentence; `german` and `english` render it.
Here the splits are drawn: distinct sentences with one reference for training and several for validation and test.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from tasks.corpora.example import SPLITS, Corpus, Example
from tasks.corpora.translation import english, german
from tasks.corpora.translation.english import Choose
from tasks.corpora.translation.grammar import Grammar, Sentence
from tasks.errors import InputError

REFERENCES = 4
"""Most references of a validation or test sentence."""
_SHORT = 6
"""Words up to this length are articles, pronouns and the like, which may be repeated."""
_LENGTHS = range(5, 10)
_PATIENCE = 2000
"""After so many draws in a row without a new sentence, the grammar is nearly exhausted."""


def generate(sizes: dict[str, int], seed: int, variation: float = 0.8) -> Corpus:
    """Return a German to English corpus of `sizes[split]` examples; equal arguments give equal corpora.

    `variation` is the share of choices of a training reference that are drawn evenly among all correct wordings; the others
    take the commonest. It leaves the sources, and the references of the other splits, as they are. No German sentence occurs
    in two splits, and no English one does, nor one of the further wordings that were drawn for this check.

    Raises:
        InputError: a size is missing or negative, or larger than the number of sentences that the grammar can generate.
    """
    for split in SPLITS:
        if sizes.get(split, -1) < 0:
            raise InputError(f"translation corpus: sizes.{split} is {sizes.get(split)}; give a number of sentences, 0 or more")
    sentences = draw_sentences(random.Random(f"translation sentences {seed}"))  # noqa: S311 (sentences, not secrets)
    rng = random.Random(f"translation references {seed}")  # noqa: S311 (sentences, not secrets)
    corpus: Corpus = {split: [] for split in SPLITS}
    sources: set[str] = set()
    owner: dict[str, str] = {}
    fruitless = 0
    for split in ("test", "validation", "train"):
        choose, draws = (chooser(rng, variation), 1) if split == "train" else (chooser(rng, 1.0), 2 * REFERENCES)
        while len(corpus[split]) < sizes[split]:
            if fruitless == _PATIENCE:
                made = sum(map(len, corpus.values()))
                given = f"the grammar gives about {made}"
                raise InputError(f"translation corpus: sizes ask for {sum(sizes.values())} sentences; {given}")
            sentence, source = next(sentences)
            drawn = [join_words(english.render(sentence, choose)) for _ in range(draws)]
            references = [text for text in dict.fromkeys(drawn) if not _repeats_word(text)]
            fruitless += 1
            if not references or source in sources or any(owner.get(text, split) != split for text in references):
                continue
            fruitless = 0
            sources.add(source)
            owner.update(dict.fromkeys(references, split))
            corpus[split].append(Example(source, tuple(references[:REFERENCES])))
    return corpus


def chooser(rng: random.Random, variation: float) -> Choose:
    """Return a function that chooses among correct wordings, which vary as those of different people do.

    A choice is drawn evenly among all wordings with probability `variation`, and is otherwise the commonest one. With 0.8, the
    commoner of two wordings is used 60 % of the time. Greedy outputs of a model trained on such text vary less.
    """

    def choose(options: Sequence[str]) -> str:
        if len(options) == 1 or rng.random() >= variation:
            return options[0]
        return rng.choice(options)

    return choose


def draw_sentences(rng: random.Random) -> Iterator[tuple[Sentence, str]]:
    """Yield sentences of suitable length that repeat no word, each with its German text."""
    grammar = Grammar(rng)
    while True:
        sentence = grammar.sentence()
        words = german.render(sentence)
        if sum(word.count(" ") + 1 for word in words if word != ",") in _LENGTHS:
            source = join_words(words)
            if not _repeats(sentence, source):
                yield sentence, source


def join_words(words: list[str]) -> str:
    """Join words into a sentence with single, closed-up commas, a capital letter and a full stop."""
    kept: list[str] = []
    for word in words:
        if word != "," or (kept and kept[-1] != ","):
            kept.append(word)
    text = " ".join(kept).replace(" ,", ",").rstrip(",")
    return text[0].upper() + text[1:] + "."


def _repeats(sentence: Sentence, source: str) -> bool:
    """Whether a verb or another content word occurs twice, or any word occurs twice in a row."""
    verbs = [clause.verb.base for clause in sentence.clauses()]
    words = source.replace(",", "").rstrip(".").split()
    content = [word for word in words if len(word) > _SHORT or word[0].isupper()]
    return len(set(verbs)) < len(verbs) or len(set(content)) < len(content) or _repeats_word(source)


def _repeats_word(text: str) -> bool:
    """Whether a word occurs twice in a row."""
    words = text.replace(",", "").rstrip(".").lower().split()
    return any(word == following for word, following in itertools.pairwise(words))
