"""The embedded German to English corpus: a grammar that makes a sentence once and says it in both languages.

`lexicon_*` are the words; `morphology` and `english_forms` inflect them; `phrases`, `clauses`, `relatives` and `grammar` make
up what is said (`structure`); `german` and `english` say it; `generate` draws the splits; `phenomena` tells what a sentence
shows.
"""

from __future__ import annotations

from tasks.corpora.translation.generate import generate
from tasks.corpora.translation.lexicon import lexeme_count

__all__ = ["generate", "lexeme_count"]
