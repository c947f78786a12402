"""llama.cpp as a contender: writes a Llama checkpoint as GGUF, and decodes greedily in a process of its own.

The file runs by its path in an interpreter that has `llama-cpp-python`, `gguf` and `numpy`, and imports nothing of the project.
It answers the requests that `worker.serve` describes, and calls llama.cpp's own functions: the wrapper's texts and samplers
would take time that llama.cpp does not need.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

QUANTIZATIONS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
_LAYER = {
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
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_POSITIONS = 1024


def read_weights(folder: Path) -> dict[str, Any]:
    """Map the safetensors files of a folder: float32 arrays by name, widened where they are bfloat16 or float16."""
    import numpy

    kinds = {"F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.uint16}
    found = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        data = numpy.memmap(path, dtype=numpy.uint8, mode="r", offset=8 + size)
        for name, one in header.items():
            if name == "__metadata__":
                continue
            start, end = one["data_offsets"]
            values = data[start:end].view(kinds[one["dtype"]]).reshape(one["shape"])
            widened = (values.astype(numpy.uint32) << 16).view(numpy.float32) if one["dtype"] == "BF16" else values
            found[name] = widened.astype(numpy.float32)
    return found


def named(name: str) -> str | None:
    """Return a weight's name in GGUF; none for one that it does not hold."""
    stem = name.removesuffix(".weight")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.weight"
    number, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{_LAYER[part]}.weight" if part in _LAYER else None


def rotated(weight: Any, heads: int) -> Any:
    """Reorder the rows of a query or key projection: rotary pairs are neighbours in GGUF, and were half a head apart."""
    rows = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, rows, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def convert(folder: Path, path: Path, number_format: str) -> None:
    """Write a Llama of `transformers` as GGUF, without its tokenizer."""
    import gguf
    from gguf.quants import quantize

    config = json.loads((folder / "config.json").read_text())
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    kind = getattr(gguf.GGMLQuantizationType, QUANTIZATIONS[number_format])
    for name, weight in read_weights(folder).items():
        target = named(name)
        if target is None or (target == "output.weight" and config.get("tie_word_embeddings")):
            continue
        for part, count in (("q_proj", heads), ("k_proj", groups)):
            weight = rotated(weight, count) if part in name else weight
        one = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else kind
        writer.add_tensor(target, quantize(weight, one), raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Model:
    """A GGUF file, and a context of llama.cpp for each setting."""

    def __init__(self, path: Path, exact: bool) -> None:
        """Open the file; `exact` keeps keys and values in float32 instead of llama.cpp's float16."""
        import llama_cpp

        self._library: Any = llama_cpp
        self._exact = exact
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._silence, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot open {path.name}")
        self._contexts: dict[str, Any] = {}
        self._greedy = llama_cpp.llama_sampler_init_greedy()

    def _context(self, setting: dict[str, Any]) -> Any:
        key = json.dumps(setting)
        if key not in self._contexts:
            library, parameters = self._library, self._library.llama_context_default_params()
            parameters.n_ctx = _POSITIONS
            parameters.n_threads = parameters.n_threads_batch = setting["threads"]
            parameters.flash_attn_type = (
                library.LLAMA_FLASH_ATTN_TYPE_ENABLED if setting["flash"] else library.LLAMA_FLASH_ATTN_TYPE_DISABLED
            )
            if self._exact:
                parameters.type_k = parameters.type_v = library.GGML_TYPE_F32
            self._contexts[key] = library.llama_init_from_model(self._model, parameters)
            if not self._contexts[key]:
                raise RuntimeError(f"llama.cpp makes no context for {key}")
        return self._contexts[key]

    def decode(self, setting: dict[str, Any], prompts: list[list[int]], limit: int, ends: set[int]) -> list[list[int]]:
        """New tokens of each prompt, greedily, up to and including the first end token."""
        library, context = self._library, self._context(setting)
        texts = []
        for prompt in prompts:
            library.llama_memory_clear(library.llama_get_memory(context), True)
            text: list[int] = []
            pending = prompt
            while len(text) < limit and not ends.intersection(text[-1:]):
                array = (library.llama_token * len(pending))(*pending)
                if library.llama_decode(context, library.llama_batch_get_one(array, len(pending))):
                    raise RuntimeError("llama.cpp failed to decode")
                pending = [library.llama_sampler_sample(self._greedy, context, -1)]
                text += pending
            texts.append(text)
        return texts


def main() -> None:
    """Open the model that the first line names, then answer the requests of the following lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    asked = json.loads(sys.stdin.readline())
    path = Path(asked["converted"])
    if not path.exists():
        convert(Path(asked["folder"]), path, asked["format"])
    begun = time.perf_counter()
    model = Model(path, asked["format"] == "float32")
    opened: dict[str, Any] = {"seconds": time.perf_counter() - begun, "version": model._library.__version__}
    print(json.dumps(opened), file=answers, flush=True)
    for line in sys.stdin:
        one = json.loads(line)
        begun = time.perf_counter()
        texts = model.decode(one["setting"], one["prompts"], one["limit"], set(asked["ends"]))
        print(json.dumps({"seconds": time.perf_counter() - begun, "texts": texts}), file=answers, flush=True)


if __name__ == "__main__":
    main()
