"""Benchmarks: `python -m tasks.bench NAME` runs `NAME.py`; `harness` holds what they share, `contenders` what is compared."""
