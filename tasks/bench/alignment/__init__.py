"""Benchmark of alignment recipes at equal training time."""
