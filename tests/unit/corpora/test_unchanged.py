"""The embedded corpora are the same to the byte everywhere: published numbers are about these texts."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIZES = {"train": 200, "validation": 10, "test": 30}
DIGESTS = {
    "translation": "9fa1378f62855a514b35593529364d0c0a076b24a5f204cd1a1ed976223a4842",
    "summarization": "ed368c84b0726d8b581c038b2506e72c3bf0285638a23b2bc3599e98993326ff",
}


def digest(name: str) -> str:
    """SHA-256 over all texts of a small corpus, some eight hundred lines."""
    corpus = import_module(f"tasks.corpora.{name}").generate(SIZES, 0)
    texts = [text for split in SIZES for example in corpus[split] for text in (example.source, *example.references)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@pytest.mark.parametrize("name", DIGESTS)
def test_a_seed_gives_the_texts_that_it_always_gave(name: str) -> None:
    assert digest(name) == DIGESTS[name]


def test_the_order_of_sets_does_not_matter() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True, timeout=900)
    assert done.stdout.split() == list(DIGESTS.values())


if __name__ == "__main__":
    for corpus_name in DIGESTS:
        print(digest(corpus_name))
