import dataclasses
import io
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import safetensors.torch
import torch

from tasks.errors import InputError
from tasks.files import SUMS
from tasks.models.checkpoints import initial_model, load_model, save_model
from tasks.models.extras import add_heads
from tasks.models.prompting import encode
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_from, load_tokenizer
from tests.training import same_weights

TINY = ModelSettings(d_model=16, d_ff=24, d_kv=8, heads=2, encoder_layers=1, decoder_layers=2)


def start(settings: ModelSettings = TINY, vocabulary: int = 80) -> Any:
    return initial_model(settings, vocabulary, 0, 1)


@pytest.fixture
def own(tmp_path: Path, tokenizer: Any) -> Path:
    """A saved model."""
    save_model(start(), tokenizer, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def folder(own: Path) -> Path:
    """The same from elsewhere, without checksums."""
    (own / SUMS).unlink()
    return own


def tiny(**changes: Any) -> ModelSettings:
    return dataclasses.replace(TINY, **changes)


def test_a_start_depends_on_its_settings_and_not_on_the_global_randomness() -> None:
    torch.manual_seed(5)
    first, numbers = start(), torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), numbers)
    assert same_weights(start(), first)
    assert not same_weights(start(tiny(seed=1)), first)


TOKENS = {"vocab_size": 80, "pad_token_id": 0, "eos_token_id": 1}
T5_SHAPE = {"num_layers": 1, "num_decoder_layers": 2, "num_heads": 2, "d_model": 16, "d_ff": 24, "d_kv": 8}
LLAMA_HEADS = {"num_attention_heads": 2, "head_dim": 8, "attention_dropout": 0.25}


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        *(
            ({"feed_forward": kind}, T5_SHAPE | {"feed_forward_proj": kind, "dropout_rate": 0.25, "decoder_start_token_id": 0})
            for kind in ("relu", "gated-gelu")
        ),
        ({"architecture": "llama"}, LLAMA_HEADS | {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}),
        ({"architecture": "gpt2"}, {"n_embd": 16, "n_inner": 24, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.25}),
    ],
)
def test_the_shape_is_what_was_asked_for(changes: dict[str, Any], shape: dict[str, Any]) -> None:
    config = start(tiny(dropout=0.25, **changes)).config
    expected = TOKENS | shape | {"is_encoder_decoder": "architecture" not in changes}
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gpt2", "heads": 3}, "d_model is 16, heads is 3; gpt2 needs d_model to be a multiple of heads"),
        ({"architecture": "llama", "heads": 3}, "d_model is 16, heads is 3; llama needs d_model to be a multiple of heads"),
        ({"architecture": "llama", "d_kv": 5}, "d_kv is 5; llama needs an even number"),
    ],
)
def test_shapes_that_an_architecture_does_not_have(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tiny(**changes)


@pytest.mark.parametrize("architecture", ["t5", "llama", "gpt2"])
def test_a_saved_model_loads_as_it_was(architecture: str, tokenizer: Any, tmp_path: Path) -> None:
    model, folder = start(tiny(architecture=architecture)), tmp_path / "saved"
    save_model(model, tokenizer, folder)
    loaded, words = load_model(folder), load_tokenizer(folder)
    assert same_weights(loaded, model)
    assert loaded.config.model_type == architecture
    assert not loaded.training
    assert words.get_vocab() == tokenizer.get_vocab()
    text = ["one is two", "nor is 37"]
    assert encode(words, text, 20) == encode(tokenizer, text, 20)
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors", ""}
    assert load_model(folder, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("tied", [True, False])
def test_saving_keeps_what_a_model_predicts(tied: bool, tokenizer: Any, tmp_path: Path) -> None:
    """T5 v1.1 and mT5 have a head of their own and do not scale it; both must survive."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 16, "d_ff": 24, "d_kv": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 80}
    model = T5ForConditionalGeneration(T5Config(**shape, tie_word_embeddings=tied, decoder_start_token_id=0)).eval()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(80, 16))
    save_model(model, tokenizer, tmp_path / "saved")
    tokens = {"input_ids": torch.tensor([[5, 6, 1]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    with torch.no_grad():
        torch.testing.assert_close(load_model(tmp_path / "saved")(**tokens).logits, model(**tokens).logits)


def test_saving_again_replaces_all_of_it(folder: Path, tokenizer: Any) -> None:
    (folder / "old.txt").write_text("left over", encoding="utf-8")
    other = start(tiny(seed=3))
    save_model(other, tokenizer, folder)
    assert same_weights(load_model(folder), other)
    assert not any(folder.glob("*.txt"))
    assert [path.name for path in folder.parent.iterdir()] == ["saved"]


def test_weights_have_the_permissions_of_their_folder(folder: Path, tokenizer: Any) -> None:
    model = start()
    add_heads(model, 2, seed=0)
    save_model(model, tokenizer, folder, texts={"README.md": "# A card"})
    assert len({stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}) == 1
    assert len(list(folder.glob("*.safetensors"))) == 2
    assert (folder / "README.md").read_text(encoding="utf-8") == "# A card"


@pytest.mark.parametrize("layers", [(1, 3), (3, 1)])
def test_transformers_generates_whatever_the_depths(layers: tuple[int, int]) -> None:
    encoder, decoder = layers
    model = start(tiny(encoder_layers=encoder, decoder_layers=decoder)).eval()
    source = torch.tensor([[5, 6, 1]])
    cached, whole = (model.generate(input_ids=source, max_new_tokens=6, use_cache=cache) for cache in (True, False))
    assert torch.equal(cached, whole)
    assert (model.config.num_layers, model.config.num_decoder_layers) == layers


def test_training_starts_from_a_checkpoint_where_one_is_named(folder: Path) -> None:
    settings = ModelSettings(pretrained=str(folder), seed=9)
    assert same_weights(start(settings, vocabulary=64), start())


@pytest.mark.parametrize("architecture", ["t5", "llama", "gpt2"])
def test_a_model_that_no_memory_holds_is_refused_before_it_is_made(architecture: str) -> None:
    huge = tiny(architecture=architecture, d_model=65_536, d_ff=262_144, d_kv=4096, heads=16, decoder_layers=64)
    with pytest.raises(InputError, match=r"a model with d_model 65536 and decoder_layers 64 take \d+ GB, and this machine"):
        start(huge)


def test_a_checkpoint_with_too_few_tokens(folder: Path) -> None:
    with pytest.raises(InputError, match=r"the tokenizer has 81 tokens but the model .* has 80; set tokenizer\.pretrained"):
        start(ModelSettings(pretrained=str(folder)), vocabulary=81)


def _cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def _spoil_a_weight(value: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        weights["shared.weight"][3, 2] = value
        safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return change


def _configure(file: str = "config.json", **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps(config | changes), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_cut_weights, id="weights cut short"),
        pytest.param(lambda folder: (folder / "model.safetensors").unlink(), id="no weights"),
        pytest.param(lambda folder: (folder / "config.json").unlink(), id="no configuration"),
        pytest.param(lambda folder: (folder / "config.json").write_text("{", encoding="utf-8"), id="not JSON"),
        pytest.param(_configure(model_type="gpt2"), id="decoder-only"),
        pytest.param(_configure(model_type="none"), id="unknown architecture"),
        pytest.param(_configure(d_ff=48), id="weights of another shape"),
        pytest.param(_configure(num_decoder_layers=4), id="weights of two layers missing"),
        pytest.param(_configure(num_layers=0, num_decoder_layers=0), id="no layers"),
        pytest.param(_configure(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}), id="no quantizer"),
        pytest.param(_configure(attn_implementation="owner/kernels"), id="code of the hub"),
        pytest.param(_spoil_a_weight(float("nan")), id="a weight that is not a number"),
        pytest.param(_spoil_a_weight(float("-inf")), id="an infinite weight"),
    ],
)
def test_a_broken_checkpoint_is_one_line(folder: Path, spoil: Callable[[Path], None]) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=str(folder)):
        load_model(folder)


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
@pytest.mark.parametrize("model_type", ["planted", "t5"])
def test_code_in_a_folder_is_never_run_nor_asked_about(
    model_type: str, load: Callable[[Path], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input holds a user's text, which `transformers` took for its answer."""
    mark, text = folder / "mark", io.StringIO("yes\n")
    (folder / "planted.py").write_text(f"open({str(mark)!r}, 'w')", encoding="utf-8")
    code = {"AutoConfig": "planted.Config", "AutoModelForSeq2SeqLM": "planted.Model", "AutoTokenizer": ["planted.Words", None]}
    _configure(auto_map=code, model_type=model_type)(folder)
    _configure(auto_map=code, file="tokenizer_config.json", tokenizer_class="Planted")(folder)
    monkeypatch.setattr(sys, "stdin", text)
    if model_type == "t5":
        load(folder)  # known without the code
    else:
        with pytest.raises(InputError, match=f"at {folder}: it needs Python code of its own"):
            load(folder)
    assert text.tell() == 0 and not mark.exists()


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_one_flipped_bit_is_named(load: Callable[[Path], object], name: str, own: Path) -> None:
    content = bytearray((own / name).read_bytes())
    content[-9] ^= 1
    (own / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"^(model|tokenizer) at {own}: {name} is not as it was written; make it again \(dvc"):
        load(own)


def test_a_thread_that_cannot_start_is_no_missing_model(own: Path) -> None:
    failing = MagicMock(side_effect=RuntimeError("can't start new thread"))
    with pytest.raises(MemoryError, match="can't start new thread"):
        load_from(failing, own, "model")


def test_pickled_weights_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model.bin is a pickle, which can run code; convert it to safetensors"):
        load_model(folder)


@pytest.mark.parametrize(("load", "what"), [(load_tokenizer, "tokenizer"), (load_model, "model")])
def test_a_folder_that_is_missing(load: Callable[[Path], object], what: str) -> None:
    with pytest.raises(InputError, match=f"no {what} at models/none/here: there is no such folder; run the stage"):
        load(Path("models/none/here"))
