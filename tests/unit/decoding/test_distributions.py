"""The sampling transform, the two views of a position, and the keyed draws, against values worked out by hand."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from tasks.decoding.distributions import Key, PredictionBlock, Purpose, TokenSource, transform
from tasks.decoding.method import SamplingSettings

HALVES = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
POWERS = torch.tensor([1.0, 4.0, 2.0]).log()
INFINITE = -math.inf


@pytest.mark.parametrize(
    ("logits", "sampling", "expected"),
    [
        (HALVES, SamplingSettings(temperature=1.0), [0.5, 0.3, 0.15, 0.05]),
        (POWERS, SamplingSettings(temperature=0.5), [1 / 21, 16 / 21, 4 / 21]),
        (POWERS, SamplingSettings(temperature=1.0, top_k=2), [0, 2 / 3, 1 / 3]),
        (POWERS, SamplingSettings(temperature=0.5, top_k=2), [0, 0.8, 0.2]),
        (POWERS, SamplingSettings(temperature=1.0, top_k=1), [0, 1, 0]),
        (POWERS, SamplingSettings(temperature=1.0, top_k=99), [1 / 7, 4 / 7, 2 / 7]),
        (HALVES, SamplingSettings(temperature=1.0, top_p=0.7), [0.625, 0.375, 0, 0]),
        (HALVES, SamplingSettings(temperature=1.0, top_p=0.9), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (HALVES, SamplingSettings(temperature=1.0, top_p=0.01), [1, 0, 0, 0]),
        # Of the two that top-k leaves, 0.625 and 0.375, the first alone reaches 0.6; of all four it does not.
        (HALVES, SamplingSettings(temperature=1.0, top_k=2, top_p=0.6), [1, 0, 0, 0]),
        (HALVES, SamplingSettings(temperature=1.0, top_p=0.6), [0.625, 0.375, 0, 0]),
        # Tokens as likely as the last of the k are kept.
        (torch.zeros(4), SamplingSettings(temperature=1.0, top_k=2), [0.25] * 4),
        (torch.tensor([0.0, INFINITE, 0.0]), SamplingSettings(temperature=1.0), [0.5, 0, 0.5]),
        (torch.tensor([0.0, INFINITE, INFINITE]), SamplingSettings(temperature=0.5, top_k=2, top_p=0.9), [1, 0, 0]),
        (POWERS, SamplingSettings(temperature=0.0), [0, 1, 0]),
        (torch.tensor([1.0, 3.0, 3.0]), SamplingSettings(), [0, 1, 0]),
        # Divided by so cold a temperature, the logits themselves would overflow.
        (torch.tensor([100.0, 90.0, -100.0]), SamplingSettings(temperature=1e-38), [1, 0, 0]),
    ],
)
def test_the_sampling_transform(logits: Tensor, sampling: SamplingSettings, expected: list[float]) -> None:
    dist = transform(logits[None, None], sampling)
    torch.testing.assert_close(dist[0, 0], torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_views_are_float32_and_sum_to_one(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 3, 500, generator=torch.Generator().manual_seed(0)).mul(5).to(dtype)
    for sampling in (SamplingSettings(), SamplingSettings(temperature=0.8, top_k=50, top_p=0.9)):
        block = PredictionBlock(logits, sampling)
        for view in (block.scores, block.dist):
            assert view.dtype == torch.float32
            assert view.shape == logits.shape
            torch.testing.assert_close(view.sum(-1), torch.ones(2, 3), atol=1e-5, rtol=0)
        assert bool((block.dist[..., None].gather(2, logits.argmax(-1)[..., None, None]) > 0).all())


def test_the_head_of_a_block_keeps_its_sampling() -> None:
    sampling = SamplingSettings(temperature=0.5)
    block = PredictionBlock(torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0)), sampling)
    assert torch.equal(block.head(3).dist, block.dist[:, :3])
    assert block.head(0).dist.shape == (2, 0, 6)


def test_a_uniform_depends_on_its_key_alone() -> None:
    keys = [Key(*key) for key in itertools.product((0, 11), (1, 11), (Purpose.ACCEPT, Purpose.DRAFT), (0, 1))]
    sources = [*map(TokenSource, (0, 1, -1, 2**63 + 5, 2**64 - 3)), TokenSource(1).deferred()]
    uniforms = [source.uniform(key) for source in sources for key in keys]
    assert len(set(uniforms)) == len(sources) * len(keys)
    assert uniforms == [source.uniform(key) for source in sources for key in keys]
    # The same on every machine and in every process: a sweep that is resumed draws what it would have drawn.
    assert TokenSource(0).uniform(Key(3, 7, Purpose.ACCEPT)) == pytest.approx(0.0478007359, abs=1e-9)


@pytest.mark.parametrize(("uniform", "token"), [(1e-16, 1), (0.24, 1), (0.26, 3), (0.74, 3), (0.76, 4), (1 - 2.0**-54, 4)])
@pytest.mark.parametrize("scale", [1.0, 3.0, 1e-7])
def test_a_draw_inverts_the_distribution(uniform: float, token: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of probability zero, first, last and between, are never drawn; the scale does not matter."""
    dist = scale * torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
    monkeypatch.setattr(TokenSource, "uniform", lambda *_: uniform)
    assert TokenSource(0).draw(dist, [Key(0, 0, Purpose.TARGET)]) == [token]
