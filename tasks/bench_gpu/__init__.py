"""Benchmark of decoding on a CUDA GPU; see `__main__`."""
