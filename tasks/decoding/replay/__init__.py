"""Greedy decoding again from noted readings: the same tokens and counts, without running a model for what is known."""
