"""Slow tests of what optional packages do, which are skipped where one of them is missing, and what decoding does without."""

import importlib.util

import pytest

NOT_FOR_DECODING = "accelerate altair datasets deepspeed dvc gguf prefect rouge_score sacrebleu vl_convert"
"""Packages of this project that a registered model does not ask for."""


def slow_with(*packages: str) -> list[pytest.MarkDecorator]:
    """The marks of a module of slow tests that need these packages."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=f"not installed (see the extras): {', '.join(missing)}")]
