"""Greedy decoding from cached predictions: the same tokens and counts, with a model run only for unknown predictions."""
