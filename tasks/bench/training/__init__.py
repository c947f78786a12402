"""Benchmarks of training and labelling against `transformers`; see `command`."""
