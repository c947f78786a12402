"""Checkpoints that models start from are checked before anything is trained, without their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.models.checkpoints import initial_model
from tasks.models.settings import LayersSettings, ModelSettings
from tasks.prepare import check_starts
from tests.gguf_files import write_gguf

T5 = ModelSettings(architecture="t5", d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=1, decoder_layers=3)


@pytest.fixture(params=["gguf", "folder", "t5"])
def large(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint whose decoder has two layers, or three in a T5; the folders hold a configuration alone."""
    if request.param == "gguf":
        return write_gguf(tmp_path / "tiny.gguf")
    shape = T5 if request.param == "t5" else ModelSettings(architecture="llama", d_model=16, d_ff=32, d_kv=8, heads=2)
    initial_model(shape, 40, 0, 1).config.save_pretrained(tmp_path / "large")
    return tmp_path / "large"


def from_large(*layers: int, **settings: Any) -> ModelSettings:
    return ModelSettings(from_large=LayersSettings(layers=layers, **settings))


def test_layers_that_are_there_are_taken(large: Path) -> None:
    check_starts(ModelSettings(pretrained=str(large)), from_large(0, 1))


def test_layers_that_are_not_there_are_refused(large: Path) -> None:
    with pytest.raises(InputError, match=r"^models\.small\.from_large: layers names 9, but the large model has \d+ decoder"):
        check_starts(ModelSettings(pretrained=str(large)), from_large(0, 9))


def test_a_shared_encoder_needs_one(tmp_path: Path) -> None:
    large = ModelSettings(pretrained=str(write_gguf(tmp_path / "tiny.gguf")))
    with pytest.raises(InputError, match=r"^models\.small\.from_large names share_encoder, but .* has no encoder"):
        check_starts(large, from_large(0, share_encoder=True))


@pytest.mark.parametrize("name", ["large", "small"])
def test_a_checkpoint_that_cannot_be_opened_is_refused_by_its_setting(name: str, tmp_path: Path) -> None:
    models = {"large": ModelSettings(), "small": ModelSettings()}
    models[name] = ModelSettings(pretrained=str(write_gguf(tmp_path / "odd.gguf", architecture="abacus")))
    with pytest.raises(InputError, match=rf"^models\.{name}\.pretrained: no model at .*odd\.gguf: .*abacus"):
        check_starts(**models)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^models\.small\.pretrained: no model at "):
        check_starts(ModelSettings(), ModelSettings(pretrained=str(tmp_path)))


def test_names_of_the_hub_and_folders_to_come_are_left_to_their_stages(tmp_path: Path) -> None:
    check_starts(ModelSettings(pretrained="google-t5/t5-small"), from_large(0, 99))
    check_starts(ModelSettings(pretrained=str(tmp_path / "models/general/large")), ModelSettings())
