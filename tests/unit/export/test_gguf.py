"""GGUF files of tiny pairs, read again: every weight, every key and every token is the model's own, and the rest is refused."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import torch
from transformers import T5Tokenizer

from tasks.errors import InputError
from tasks.export.llama_cpp import write_gguf_model
from tasks.files import SUMS
from tasks.models.checkpoints import load_model, save_model
from tasks.models.tokenizers import load_tokenizer
from tests.architectures import FAMILIES, VARIANTS, realistic
from tests.gguf_files import END, TEMPLATE, llama, write_gguf
from tests.pair_folders import letter_tokenizer
from tests.toys import VOCABULARY

_LLAMA_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LLAMA_REST = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GPT2 = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def written(model: Any, folder: Path, tokenizer: Any = None) -> gguf.GGUFReader:
    """The file of a model, read by the package `gguf`."""
    save_model(model, tokenizer or letter_tokenizer(), folder / "model")
    write_gguf_model(folder / "model", folder / "model.gguf", "toy")
    return gguf.GGUFReader(folder / "model.gguf")


def keys(file: gguf.GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in file.fields.items() if not name.startswith("GGUF.")}


def tensors(file: gguf.GGUFReader) -> dict[str, torch.Tensor]:
    assert {tensor.tensor_type for tensor in file.tensors} == {gguf.GGMLQuantizationType.F32}
    return {tensor.name: torch.from_numpy(numpy.array(tensor.data)) for tensor in file.tensors}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


@pytest.mark.parametrize("name", ["llama", "llama biased"])
def test_llama(name: str, tmp_path: Path) -> None:
    """llama.cpp rotates neighbours: row 2 i of a head is row i of transformers, row 2 i + 1 is row i + half a head."""
    model = realistic((FAMILIES | VARIANTS)[name], 3)
    config, expected = model.config, {}
    for key, weight in model.state_dict().items():
        stem, _, kind = key.rpartition(".")
        if stem in _LLAMA_REST:
            target = _LLAMA_REST[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            target = f"blk.{layer}.{_LLAMA_LAYER[part]}"
        if target.endswith(("attn_q", "attn_k")):
            half = config.head_dim // 2
            heads = weight.reshape(-1, config.head_dim, *weight.shape[1:])
            weight = torch.stack([heads[:, :half], heads[:, half:]], 2).reshape(weight.shape)
        expected[f"{target}.{kind}"] = weight
    file = written(model, tmp_path)
    assert_equal(tensors(file), expected)
    found = {key: value for key, value in keys(file).items() if not key.startswith("tokenizer.")}
    assert found == {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "toy",
        "general.file_type": gguf.LlamaFileType.ALL_F32,
        "llama.vocab_size": VOCABULARY,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.block_count": 3,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "llama.rope.dimension_count": config.head_dim,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(config.rms_norm_eps),
    }


def test_scaled_rotary_positions_are_divisors_of_the_frequencies(tmp_path: Path) -> None:
    """Those of kind `linear` are divided by one factor, those of `llama3` by several."""
    for name in ("llama linear", "llama llama3"):
        (tmp_path / name).mkdir()
        model = realistic(VARIANTS[name], 1)
        divisors = tensors(written(model, tmp_path / name))["rope_freqs.weight"]
        theta, width = model.config.rope_parameters["rope_theta"], model.config.head_dim
        plain = theta ** (-torch.arange(0, width, 2) / width)
        torch.testing.assert_close(plain / divisors, model.model.rotary_emb.inv_freq)
        assert bool(divisors.max() - divisors.min() < 1e-4) == (name == "llama linear")
        assert divisors.max() == pytest.approx(model.config.rope_parameters["factor"])


def test_gpt2(tmp_path: Path) -> None:
    model = realistic(FAMILIES["gpt2"], 3)
    rest = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}
    names = _GPT2 | {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
    expected = {"output.weight": model.lm_head.weight.detach()}
    for key, weight in model.transformer.state_dict(prefix="transformer.").items():
        stem, _, kind = key.rpartition(".")
        if stem in rest:
            expected[f"{rest[stem]}.{kind}"] = weight
            continue
        _, _, layer, part = stem.split(".", 3)
        expected[f"blk.{layer}.{names[part]}.{kind}"] = weight.T if weight.dim() == 2 else weight
    file = written(model, tmp_path)
    assert_equal(tensors(file), expected)
    found = keys(file)
    assert (found["general.architecture"], found["gpt2.block_count"], found["gpt2.context_length"]) == ("gpt2", 3, 64)
    assert found["gpt2.feed_forward_length"] == model.transformer.h[0].mlp.c_fc.weight.shape[1]
    assert (found["gpt2.embedding_length"], found["gpt2.attention.head_count"]) == (model.config.n_embd, model.config.n_head)
    assert found["gpt2.attention.layer_norm_epsilon"] == pytest.approx(model.config.layer_norm_epsilon)


def test_a_tied_output_matrix_is_left_out(tmp_path: Path) -> None:
    model = llama()
    assert model.config.tie_word_embeddings
    save_model(model, load_tokenizer(write_gguf(tmp_path / "start.gguf")), tmp_path / "model")
    write_gguf_model(tmp_path / "model", tmp_path / "model.gguf", "toy")
    assert "output.weight" not in tensors(gguf.GGUFReader(tmp_path / "model.gguf"))


def test_transformers_reads_the_model_and_its_tokenizer_again(tmp_path: Path) -> None:
    """A model that came from GGUF, with BPE over bytes and a chat template, is the same model afterwards."""
    first, second = write_gguf(tmp_path / "first.gguf"), tmp_path / "second.gguf"
    save_model(load_model(first), load_tokenizer(first), tmp_path / "model")
    write_gguf_model(tmp_path / "model", second, "toy")
    before, after = load_model(first).state_dict(), load_model(second).state_dict()
    assert_equal(after, before)
    found = keys(gguf.GGUFReader(second))
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert (found["tokenizer.ggml.eos_token_id"], found["tokenizer.chat_template"]) == (END, TEMPLATE)
    text = "the 12 th<|im_end|>"
    assert load_tokenizer(second)(text)["input_ids"] == load_tokenizer(first)(text)["input_ids"]


def test_unigram_tokens_with_scores_and_kinds(tmp_path: Path) -> None:
    tokenizer = T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), ("a", -2.5)], extra_ids=0)
    tokenizer.add_tokens(["<b>"])
    found = keys(written(realistic(FAMILIES["llama"], 1), tmp_path, tokenizer))
    kinds = gguf.TokenType
    unused = [f"[PAD{index}]" for index in range(6, VOCABULARY)]
    assert found["tokenizer.ggml.tokens"] == ["<pad>", "</s>", "<unk>", "▁", "a", "<b>", *unused]
    assert found["tokenizer.ggml.token_type"] == [
        *[kinds.CONTROL, kinds.CONTROL, kinds.UNKNOWN, kinds.NORMAL, kinds.NORMAL, kinds.USER_DEFINED],
        *[kinds.UNUSED] * len(unused),
    ]
    assert found["tokenizer.ggml.scores"] == [0.0, 0.0, 0.0, -1.0, -2.5, -1000.0, *[-10000.0] * len(unused)]
    names = ("model", "pre", "eos_token_id", "padding_token_id", "unknown_token_id", "add_bos_token", "add_eos_token")
    assert [found[f"tokenizer.ggml.{name}"] for name in names] == ["t5", "default", 1, 0, 2, False, True]
    assert found["tokenizer.ggml.add_space_prefix"] is found["tokenizer.ggml.remove_extra_whitespaces"] is True


def test_digits_before_bytes_have_a_name(tmp_path: Path) -> None:
    def split_digits(found: dict[str, Any]) -> None:
        steps = [{"type": "Digits", "individual_digits": True}, found["pre_tokenizer"]]
        found["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    file = byte_pairs(tmp_path, split_digits)
    assert keys(file)["tokenizer.ggml.pre"] == "smollm"


def byte_pairs(folder: Path, change: Any) -> gguf.GGUFReader:
    """The file of a Llama whose `tokenizer.json` was changed."""
    start = write_gguf(folder / "start.gguf")
    save_model(load_model(start), load_tokenizer(start), folder / "model")
    path = folder / "model" / "tokenizer.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    (folder / "model" / SUMS).unlink()
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")
    write_gguf_model(folder / "model", folder / "model.gguf", "toy")
    return gguf.GGUFReader(folder / "model.gguf")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda found: found["pre_tokenizer"].update(use_regex=False), "splits text by ByteLevel, with settings"),
        (lambda found: found["model"].update(ignore_merges=True), "splits text by ByteLevel, with settings"),
        (lambda found: found.update(normalizer={"type": "NFC"}), "normalises text by NFC, for which GGUF has no key"),
        (lambda found: found["model"].update(byte_fallback=True), "neither a unigram model nor BPE over bytes"),
    ],
)
def test_a_tokenizer_that_llama_cpp_does_not_have_is_one_line(change: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=line):
        byte_pairs(tmp_path, change)


@pytest.mark.parametrize(
    ("build", "change", "line"),
    [
        (lambda: realistic(FAMILIES["bloom"], 1), {}, "is of type bloom; GGUF is written for llama, gpt2 alone"),
        (lambda: realistic(FAMILIES["llama"], 1), {"hidden_act": "gelu"}, "hidden_act 'gelu', with which"),
        (
            lambda: realistic(FAMILIES["llama"], 1),
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters.rope_type 'dynamic'",
        ),
    ],
)
def test_a_model_that_llama_cpp_does_not_run_is_one_line(build: Any, change: dict[str, Any], line: str, tmp_path: Path) -> None:
    build().save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(InputError, match=line):
        write_gguf_model(tmp_path / "model", tmp_path / "model.gguf", "toy")
