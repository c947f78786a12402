"""Exports a pair for llama.cpp: two GGUF files in float32, each with shape, weights and tokenizer."""

from __future__ import annotations

from pathlib import Path

from tasks.decoding.pair_folder import DRAFTER, LARGE
from tasks.export.gguf_model import architecture_of, require_gguf, write_gguf_model
from tasks.export.readme import encoding, example, readme
from tasks.export.source import ExportSource, left_behind
from tasks.export.to_transformers import TOKENIZER, copy_tokenizer

_NO_DRAFTS = "drafting, which llama.cpp does not have for an encoder-decoder: each model decodes alone"


def write(source: ExportSource, out: Path) -> list[str]:
    """Write the folder `out`, which exists and is empty, and return what was left behind.

    Raises:
        InputError: the package `gguf` is not installed, or llama.cpp does not run these models.
    """
    require_gguf()
    models = ((source.large, LARGE), (source.drafter, DRAFTER))
    for folder, _ in models:
        architecture_of(folder)
    for folder, name in models:
        write_gguf_model(folder, out / f"{name}.gguf", f"{source.manifest.task} {name}".strip())
    copy_tokenizer(source, out)
    lost = left_behind(source)
    if source.encoder_decoder:
        lost.insert(0, _NO_DRAFTS)
    how, code = (_how_alone(), _code_alone(source)) if source.encoder_decoder else (_how(source), _code(source))
    (out / "README.md").write_text(readme(source, "llama.cpp", how, code, lost), encoding="utf-8")
    return lost


_FILES = (
    f"`{LARGE}.gguf` and `{DRAFTER}.gguf` hold models in float32 with their tokenizers, `{TOKENIZER}/` is the tokenizer of\n"
    "`transformers`. By itself llama.cpp keeps the past in float16; in float32, as below, the output is the large model's own."
)


def _how(source: ExportSource) -> str:
    return (
        f"{_FILES}\nThe call runs llama.cpp's server in its own process (`pip install xllamacpp`) and drafts "
        f"{source.draft_length} tokens at a time.\n"
        "Give prompts as token ids: those are what the models were trained on."
    )


def _code(source: ExportSource) -> str:
    limit = source.manifest.text.max_target_tokens
    return (
        "import xllamacpp\nfrom transformers import AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{TOKENIZER}")\n'
        "settings = xllamacpp.CommonParams()\n"
        f'settings.model.path = "{LARGE}.gguf"\n'
        "settings.n_parallel = 1\n"
        "settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32\n"
        "settings.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]\n"
        "draft = settings.speculative.draft\n"
        f'draft.mparams.path = "{DRAFTER}.gguf"\n'
        f"draft.n_max, draft.n_min, draft.p_min = {source.draft_length}, 0, 0.0\n"
        "draft.cache_type_k = draft.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32\n"
        "server = xllamacpp.Server(settings)\n\n"
        f"{example(source)}{encoding(source)}"
        f'answer = server.handle_completions({{"prompt": ids, "temperature": 0, "max_tokens": {limit}}})\n'
        'print(answer["choices"][0]["text"])\n'
    )


def _how_alone() -> str:
    return (
        f"{_FILES}\nThe server of llama.cpp runs no encoder-decoder. The call uses the functions of `llama.h` in\n"
        "`llama-cpp-python`, whose installation compiles llama.cpp. Name the other file to decode with the drafter."
    )


def _code_alone(source: ExportSource) -> str:
    limit = source.manifest.text.max_target_tokens
    return (
        "import llama_cpp\nfrom transformers import AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{TOKENIZER}")\n'
        "llama_cpp.llama_backend_init()\n"
        f'model = llama_cpp.llama_model_load_from_file(b"{LARGE}.gguf", llama_cpp.llama_model_default_params())\n'
        "settings = llama_cpp.llama_context_default_params()\n"
        "settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32\n"
        "context = llama_cpp.llama_init_from_model(model, settings)\n"
        "greedy = llama_cpp.llama_sampler_init_greedy()\n\n\n"
        "def read(tokens, step):\n"
        "    array = (llama_cpp.llama_token * len(tokens))(*tokens)\n"
        "    if step(context, llama_cpp.llama_batch_get_one(array, len(tokens))):\n"
        '        raise RuntimeError("llama.cpp cannot read these tokens")\n\n\n'
        f"{example(source)}{encoding(source)}"
        "read(ids, llama_cpp.llama_encode)\n"
        "new, last = [], llama_cpp.llama_model_decoder_start_token(model)\n"
        f"while len(new) < {limit} and last != tokenizer.eos_token_id:\n"
        "    read([last], llama_cpp.llama_decode)\n"
        "    last = llama_cpp.llama_sampler_sample(greedy, context, -1)\n"
        "    new.append(last)\n"
        "print(tokenizer.decode(new, skip_special_tokens=True))\n"
    )
