"""Speculative beam search gives the texts of beam search; its counts on toys, by hand."""

from __future__ import annotations

import copy

import pytest
import torch

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.generation import total
from tasks.decoding.method import Pair
from tasks.decoding.methods.beam import SpeculativeBeamSettings
from tasks.decoding.runtimes.reference import TransformersDecoder
from tests.toys import PrefixDecoder, Toys, prefix_pair
from tests.unit.decoding.test_beam import SOURCES, TABLE_SOURCES, beam, drafted, tables, texts


@pytest.fixture(scope="module")
def perturbed(toys: Toys) -> Pair:
    """A drafter that is the large model with a little noise."""
    model = copy.deepcopy(toys.large)
    noise = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.lm_head.weight.add_(0.03 * noise)
    return Pair(TransformersDecoder(model, "perturbed"), toys.cached.large)


GRID = [(1, 4, 2), (2, 2, 1), (3, 4, 2), (4, 6, 3)]


@pytest.mark.parametrize("sizes", GRID)
def test_speculative_beam_search_is_beam_search(toys: Toys, perturbed: Pair, sizes: tuple[int, int, int]) -> None:
    plain = beam(toys.cached, SOURCES[:20], sizes[0])
    for pair in (toys.cached, perturbed):
        found = drafted(pair, SOURCES[:20], sizes)
        assert texts(found) == texts(plain)
        counts = total(found)
        assert 0 < counts.accepted < counts.drafted == counts.small_steps
        assert 0 < counts.rollbacks < counts.large_calls < total(plain).large_calls


@pytest.mark.parametrize(
    ("sizes", "agreement"),
    [
        ((1, 1, 2), 0.5), ((1, 1, 2), 1.0), ((2, 3, 2), 0.0), ((2, 3, 2), 0.9), ((3, 3, 5), 0.5), ((3, 3, 5), 1.0),
        ((4, 12, 3), 0.9), ((12, 12, 2), 0.0),
    ],
)  # fmt: skip
def test_speculative_beam_search_on_tables(agreement: float, sizes: tuple[int, int, int]) -> None:
    pair = prefix_pair(*tables(agreement))
    for limit in (1, 2, 9):
        found, plain = drafted(pair, TABLE_SOURCES, sizes, limit), beam(pair, TABLE_SOURCES, sizes[0], limit)
        assert texts(found) == texts(plain)
        assert total(found).large_calls <= total(plain).large_calls
        if agreement == 1 and sizes[0] == sizes[1]:
            assert total(found).rollbacks == 0


@pytest.mark.parametrize("draft_length", [1, 6])
def test_a_drafter_equal_to_the_target_is_always_accepted(toys: Toys, draft_length: int) -> None:
    pair = Pair(TransformersDecoder(toys.large, "twin"), toys.cached.large)
    plain = beam(toys.cached, SOURCES[:20], 3)
    for one, alone in zip(drafted(pair, SOURCES[:20], (3, 3, draft_length)), plain, strict=True):
        assert one.tokens == alone.tokens
        assert one.counts.rollbacks == 0
        assert one.counts.large_calls == -(-alone.counts.large_calls // (draft_length + 1))
        assert set(one.proposers) <= {"s", "l"}


# Prefers 5 where ENDS prefers 4: its two best beams at step 2 are 25 and 35, its four best have 24 and 34 as well.


@pytest.mark.parametrize("sizes", [(2, 2, 3), (3, 6, 4)])
def test_counts_equal_the_runs(sizes: tuple[int, int, int]) -> None:
    pair = prefix_pair(*tables(0.7))
    width, _, draft_length = sizes
    assert isinstance(pair.small, PrefixDecoder)
    assert isinstance(pair.large, PrefixDecoder)
    most = set()
    for source in TABLE_SOURCES:
        [one] = drafted(pair, [source], sizes, 12)
        assert len(pair.large.runs) == one.counts.large_calls == sum(one.counts.verified.values())
        assert len(pair.small.runs) == one.counts.small_steps == one.counts.drafted
        most.add(max(map(max, pair.large.runs)))
        [alone] = beam(pair, [source], width, 12)
        assert len(pair.large.runs) == alone.counts.large_calls
        assert max(map(max, pair.large.runs)) == 1
    # One branch of the draft and the token before it: accepted tokens are never run again.
    assert max(most) == draft_length + 1


class WithoutEncoder(TransformersDecoder):
    """A decoder whose encoder must not run."""

    def encode(self, sources: Rows) -> EncoderOutput:
        raise AssertionError


def test_a_shared_encoder_runs_once(toys: Toys) -> None:
    pair = Pair(WithoutEncoder(toys.large, "small"), toys.cached.large, shares_encoder=True)
    found = drafted(pair, SOURCES, (2, 2, 3))
    assert texts(found) == texts(beam(toys.cached, SOURCES, 2))
    assert total(found).rollbacks == 0


def test_fewer_draft_beams_than_beams_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_beams is 3; it must be at least beams, 4"):
        SpeculativeBeamSettings(beams=4, draft_beams=3)
