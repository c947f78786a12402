"""Benchmark of alignment recipes: speed of greedy BiLD at kept quality, for equal steps and for equal time."""
