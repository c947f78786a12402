"""A tokenizer that the tests of models share."""

import itertools
from typing import Any

import pytest

from tasks.models.settings import TokenizerSettings
from tasks.models.tokenizers import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    text = [f"{one} is not {other}" for one, other in itertools.permutations(["one", "two", "three", "four", "five", "six"], 2)]
    return train_tokenizer([*text, *(f"nor is {number}" for number in range(0, 9000, 37))], TokenizerSettings(vocabulary=64))
