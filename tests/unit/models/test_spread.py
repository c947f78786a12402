"""A model whose layers are in several places: which room they have, and that its tokens are those of a model in one place."""

from pathlib import Path

import pytest
import torch

from tasks.decoding.decoder import REFERENCE, Rows, Runtime
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.choose import open_decoder, open_decoders
from tasks.errors import InputError
from tasks.models import checkpoints
from tasks.models.checkpoints import load_model
from tasks.models.spread import places_of, room_for_layers
from tests.architectures import models
from tests.toys import toy_sources

pytest.importorskip("accelerate")
CPU = torch.device("cpu")


def test_layers_are_spread_where_one_card_is_too_small() -> None:
    """A fifth of each card is left to caches and to the small model."""
    assert room_for_layers(60, [80], 200) is None
    assert room_for_layers(70, [80], 200) == {0: 64, "cpu": 160}
    assert room_for_layers(70, [80, 40], 200) == {0: 64, 1: 32, "cpu": 160}


def texts(pair: Pair) -> Rows:
    """Of rows that end after each other, and are rewound by different numbers of tokens."""
    return [one.tokens for one in decode("speculative", SpeculativeSettings(draft_length=3), pair, toy_sources(6), Request(12))]


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_a_spread_model_writes_the_same_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = models(name)
    large.save_pretrained(tmp_path)
    whole = load_model(tmp_path, CPU, spread=True)
    assert not places_of(whole)
    assert "spread" not in capsys.readouterr().err
    room = sum(one.nbytes for one in large.parameters()) * 3 // 4
    monkeypatch.setattr(checkpoints, "room_here", lambda *_: {"cpu": room})
    spread = load_model(tmp_path, CPU, spread=True)
    assert places_of(spread) == "the cpu and the disk"
    assert any(one.is_meta for one in spread.parameters())
    said = capsys.readouterr().err
    assert "does not fit one GPU: its layers are spread over the cpu and the disk, in the reference runtime" in said
    assert "compare no times with those of a model on one GPU" in said
    found = open_decoders(small, spread)
    assert found.large.capabilities.runtime == REFERENCE
    assert found.described.endswith("spread over the cpu and the disk")
    assert texts(found) == texts(open_decoders(small, whole, runtime=REFERENCE))
    with pytest.raises(InputError, match="spread over the cpu and the disk, where the reference runtime alone"):
        open_decoder(spread, "large", runtime=Runtime("fused"))
