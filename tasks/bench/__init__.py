"""Benchmarks of decoding, sweeping, training and alignment against what is publicly available; see `__main__`."""
