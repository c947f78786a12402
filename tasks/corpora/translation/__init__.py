"""The embedded German to English corpus: a grammar that draws an abstract sentence and renders it in both languages.

`words/` holds the vocabulary and `lexicon` reads it; `morphology` and `english_forms` inflect words; `phrases`, `clauses`,
`relatives` and `grammar` draw the abstract sentence (`structure`); `german` and `english` render it; `generate` draws the
splits; `phenomena` names the constructions in a sentence.
"""

from __future__ import annotations

from tasks.corpora.translation.generate import generate
from tasks.corpora.translation.lexicon import lexeme_count

__all__ = ["generate", "lexeme_count"]
