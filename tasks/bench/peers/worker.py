"""One contender in a process of its own: this project, `transformers` or CTranslate2.

The first line of standard input names the contender and the checkpoint; it is answered with the seconds that opening took
once the libraries were imported. Each following line asks for texts with one setting.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tasks.bench.ctranslate import OUR_THREAD_VARIABLES
from tasks.bench.timing import Found

Decode = Callable[[Found, list[list[int]], int], list[list[int]]]
"""Setting, prompts and most new tokens to the new tokens of each prompt, decoded one after the other."""

_CACHE_UNIT = 256


def open_here(folder: Path, number_format: str, ends: list[int], small: Path | None) -> Decode:
    """This project's native runtime: vanilla, and greedy drafting with a small model or by copying from the prompt."""
    import torch

    from tasks.decoding.decoder import Runtime
    from tasks.decoding.registry import Pair, Request, decode
    from tasks.decoding.runtimes.choose import open_decoder, open_pair
    from tasks.decoding.settings import METHOD_SETTINGS
    from tasks.models.checkpoints import load_model

    del ends  # the model's own
    dtype = torch.bfloat16 if number_format == "bfloat16" else torch.float32
    runtime, large = Runtime("native", number_format == "int8"), load_model(folder, dtype=dtype)
    if small is None:
        decoder = open_decoder(large, "large", runtime=runtime)
        pair = Pair(decoder, decoder)
    else:
        pair = open_pair(load_model(small, dtype=dtype), large, runtime=runtime)

    def texts(setting: Found, prompts: list[list[int]], limit: int) -> list[list[int]]:
        torch.set_num_threads(setting["threads"])
        method = setting.get("method", "vanilla_large")
        settings = METHOD_SETTINGS[method](**setting.get("settings", {}))
        return [decode(method, settings, pair, [prompt], Request(limit))[0].tokens for prompt in prompts]

    return texts


def open_transformers(folder: Path, number_format: str, ends: list[int], small: Path | None) -> Decode:
    """`generate` with a growing cache, a static one, or a static one and a compiled step; assisted by a model or a look-up."""
    import torch
    from transformers import AutoModelForCausalLM, CompileConfig, StaticCache

    compiled = CompileConfig(fullgraph=False, dynamic=False, mode="default")
    compiled._compile_all_devices = True  # by default `generate` compiles on GPUs alone
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, number_format)).eval()
    assistant: Any = None
    if small is not None:
        from tasks.models.checkpoints import load_model

        assistant = load_model(small, dtype=getattr(torch, number_format))
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
    static: dict[int, Any] = {}
    compiling: dict[str, Found] = {
        "static cache": {"disable_compile": True},
        "static cache, compiled": {"compile_config": compiled},
    }

    def cache_options(name: str, positions: int) -> Found:
        if name not in compiling:
            return {}
        # Of few sizes, since the compiled step is compiled again for each.
        size = -(-positions // _CACHE_UNIT) * _CACHE_UNIT
        if size not in static:
            static[size] = StaticCache(config=model.config, max_cache_len=size)
        static[size].reset()
        return {"past_key_values": static[size], **compiling[name]}

    def drafting_options(setting: Found) -> Found:
        if "assisted" not in setting:
            return {"prompt_lookup_num_tokens": setting["look_up"]} if "look_up" in setting else {}
        length: int | None = setting["assisted"]  # none: the rules of `generate`
        assistant.generation_config.num_assistant_tokens = 20 if length is None else length
        assistant.generation_config.assistant_confidence_threshold = 0.4 if length is None else 0.0
        return {"assistant_model": assistant}

    @torch.inference_mode()
    def texts(setting: Found, prompts: list[list[int]], limit: int) -> list[list[int]]:
        torch.set_num_threads(setting["threads"])
        found = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            options = {"max_new_tokens": limit, "do_sample": False, "eos_token_id": ends}
            options |= cache_options(setting["cache"], len(prompt) + limit) | drafting_options(setting)
            made: Any = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
            found.append(made[0, len(prompt) :].tolist())
        return found

    return texts


def open_ctranslate2(folder: Path, number_format: str, ends: list[int], small: Path | None) -> Decode:
    """CTranslate2's generator; `folder` is the converted model, whose tokens are named by their numbers."""
    import ctranslate2

    del small  # it drafts with no model
    generators: dict[int, Any] = {}

    def texts(setting: Found, prompts: list[list[int]], limit: int) -> list[list[int]]:
        threads = setting["threads"]
        if threads not in generators:
            generators[threads] = ctranslate2.Generator(
                str(folder), device="cpu", compute_type=number_format, inter_threads=1, intra_threads=threads
            )
        found = []
        for prompt in prompts:
            start = [[str(token) for token in prompt]]
            [made] = generators[threads].generate_batch(
                start, max_length=limit, sampling_topk=1, include_prompt_in_result=False, end_token=ends, return_end_token=True
            )
            found.append([int(token) for token in made.sequences[0]])
        return found

    texts({"threads": 1}, [[0]], 1)
    return texts


OPEN = {"here": open_here, "transformers": open_transformers, "ctranslate2": open_ctranslate2}


def _import(kind: str) -> None:
    """Import what opening needs, so that importing is not counted as opening."""
    if kind == "ctranslate2":
        import ctranslate2  # noqa: F401

        return
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401

    if kind == "here":
        from tasks.decoding.registry import decode  # noqa: F401
        from tasks.decoding.runtimes import choose, compiled  # noqa: F401

        compiled.library()


def serve(asked: IO[str], answers: IO[str]) -> None:
    """Answer the first line with `seconds`, and each further line with `seconds` and `texts`."""
    first = json.loads(asked.readline())
    _import(first["kind"])
    begun = time.perf_counter()
    small = None if first["small"] is None else Path(first["small"])
    decode = OPEN[first["kind"]](Path(first["folder"]), first["format"], first["ends"], small)
    print(json.dumps({"seconds": time.perf_counter() - begun}), file=answers, flush=True)
    for line in asked:
        one = json.loads(line)
        begun = time.perf_counter()
        texts = decode(one["setting"], one["prompts"], one["limit"])
        print(json.dumps({"seconds": time.perf_counter() - begun, "texts": texts}), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:] != ["here"]:
        for name in OUR_THREAD_VARIABLES:
            os.environ.pop(name, None)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    serve(sys.stdin, replies)
