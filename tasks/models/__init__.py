"""Build, load and save models and tokenizers; check that two models make a pair."""
