"""How one metric scores examples: BLEU, ROUGE, answers, and programs that pass their tests."""
