"""The pair of toy models, built once."""

from collections.abc import Iterator

import pytest
import torch

from tasks.decoding.method import Pair
from tasks.decoding.runtimes.reference import TransformersDecoder
from tests.architectures import whole_rows
from tests.toys import Toys, toy_t5


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Toy models run slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def toys() -> Toys:
    """The drafter's encoder is deeper than its decoder; the large model's decoder is deeper than its encoder."""
    small, large = toy_t5(1, 2, 1), toy_t5(2, 1, 3, "gated-gelu")
    pair = Pair(TransformersDecoder(small, "small"), TransformersDecoder(large, "large"))
    return Toys(small, large, pair, (whole_rows(small), whole_rows(large)))
