"""What decoding is compared on and with: random pairs of models, `generate` of transformers, and CTranslate2.

Random models have the shapes of well-known ones, and a pair agrees on most tokens, as a trained drafter and its large model do.
Their texts never end before the limit, so that all contenders do equal work. CTranslate2 decodes the same weights in C++, in
processes of its own: each has one of the settings that CTranslate2 reads from the environment, and CTranslate2's own thread
pool with its default waiting policy. Only the translation itself is timed, inside that process.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from tasks.decoding.decoder import Rows

START, END = 0, 1

# --- random pairs ---------------------------------------------------------------------------------------------------------

_SHARES = (1.0, 0.85)
"""Head weight of each of a token's two successors. The layers' output decides between them, mostly alike in both models."""
_LOUDNESS = 0.75
"""Approximate norm of all layers' contributions to the residual stream, relative to the embedding."""
_WRITING = ("Attention.o.weight", ".wo.weight", ".o_proj.weight", ".down_proj.weight")
"""Parameters whose output is added to the residual stream."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of a random model."""

    family: str
    """t5 (encoder and decoder of equal depth) or llama."""
    width: int
    layers: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int = 32128
    head_width: int | None = None
    """None: the heads share the width."""
    gated: bool = False
    """Whether a T5's feed-forward is that of T5 v1.1 and mT5; a Llama's always has a gate."""


def random_model(shape: Shape, device: torch.device, seed: int) -> PreTrainedModel:
    """Return a float32 model in evaluation mode, in which one of two tokens follows each token."""
    import torch

    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]), torch.no_grad(), device:
        torch.manual_seed(seed)
        model = {"t5": _t5, "llama": _llama}[shape.family](shape).eval()
        for name, weight in model.named_parameters():
            if name.endswith(_WRITING):
                weight.normal_(std=_LOUDNESS / math.sqrt(3 * shape.layers * weight.shape[1]))
        words = torch.randn(shape.vocabulary, shape.width)
        model.get_input_embeddings().weight.copy_(words)
        # The head gets its own weight even where the architecture ties it to the embedding.
        model.get_output_embeddings().weight = torch.nn.Parameter(_head(words))
    return model


def _head(words: Tensor) -> Tensor:
    """Return head weights that favour each token's two successors; start and end tokens are nobody's successor."""
    import torch

    head = torch.zeros_like(words)
    generator = torch.Generator().manual_seed(1)
    for share in _SHARES:
        order = 2 + torch.randperm(len(words) - 2, generator=generator, device="cpu").to(words.device)
        head[order.roll(1)] += share * words[order] / math.sqrt(words.shape[1])
    return head


def _t5(shape: Shape) -> PreTrainedModel:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=shape.vocabulary,
            d_model=shape.width,
            d_ff=shape.inner,
            d_kv=shape.head_width or shape.width // shape.heads,
            feed_forward_proj="gated-gelu" if shape.gated else "relu",
            num_heads=shape.heads,
            num_layers=shape.layers,
            num_decoder_layers=shape.layers,
            pad_token_id=START,
            eos_token_id=END,
            decoder_start_token_id=START,
            tie_word_embeddings=False,
        )
    )


def _llama(shape: Shape) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            pad_token_id=START,
            bos_token_id=None,
            eos_token_id=END,
        )
    )


def random_sources(vocabulary: int, count: int, longest: int) -> Rows:
    """Return sources of random tokens with the end token last, each at least half as long as `longest`."""
    rng = random.Random(0)  # noqa: S311 (text, not a secret)
    lengths = [rng.randint(longest // 2, longest) for _ in range(count)]
    return [[rng.randrange(2, vocabulary) for _ in range(length - 1)] + [END] for length in lengths]


def window(sources: Rows, round_index: int, count: int) -> Rows:
    """Return the `count` sources of a round; rounds cycle through all of them."""
    return [sources[(round_index * count + offset) % len(sources)] for offset in range(count)]


# --- transformers ---------------------------------------------------------------------------------------------------------


def generate(model: PreTrainedModel, sources: Rows, limit: int, *, static: bool = False, **options: Any) -> Tensor:
    """Run `transformers.generate` on the sources as one batch, greedily unless `options` say otherwise.

    Args:
        model: A model of `transformers`.
        sources: Token ids of each source.
        limit: Most new tokens.
        static: Preallocate the cache instead of growing it; on a GPU `generate` then compiles the model as well.
        options: Further arguments of `generate`.

    Returns:
        The output of `generate`, (rows, tokens), with start tokens and padding; `new_tokens` removes them.
    """
    import torch

    encoded = model.config.is_encoder_decoder
    widest = max(map(len, sources))
    if static:
        options["cache_implementation"] = "static"

    def padded(rows: Rows, filler: int) -> Tensor:
        # Prompts are padded on the left, encoder sources on the right.
        gaps = [[filler] * (widest - len(row)) for row in rows]
        filled = [row + gap if encoded else gap + row for row, gap in zip(rows, gaps, strict=True)]
        return torch.tensor(filled, device=model.device)

    with torch.inference_mode():
        output: Tensor = model.generate(
            input_ids=padded(sources, model.config.pad_token_id or 0),
            attention_mask=padded([[1] * len(source) for source in sources], 0),
            max_new_tokens=limit,
            **{"do_sample": False, **options},
        )
    return output


def assisted(
    model: PreTrainedModel, small: PreTrainedModel, source: list[int], limit: int, draft_length: int | None, **drawn: Any
) -> Tensor:
    """Run `generate` with a small model that drafts `draft_length` tokens at a time; None keeps its own drafting rules.

    `drawn` are options of `generate` that sample; without any, it is greedy.
    """
    from tasks.verify import assisting_masks, draft_constantly

    draft_constantly(small.generation_config, draft_length or 20)
    if draft_length is None:
        small.generation_config.assistant_confidence_threshold = 0.4
    options: dict[str, Any] = {"assistant_model": small, **assisting_masks(model), **drawn}
    return generate(model, [source], limit, **options)


def new_tokens(model: PreTrainedModel, output: Tensor, sources: Rows) -> Rows:
    """Return the new tokens of each row of the output of `generate`, up to and including the first end token."""
    skipped = 1 if model.config.is_encoder_decoder else max(map(len, sources))
    ends = model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    rows: Rows = [row[skipped:] for row in output.tolist()]
    return [row[: next((place for place, token in enumerate(row) if token in ends), len(row)) + 1] for row in rows]


# --- CTranslate2 ----------------------------------------------------------------------------------------------------------

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "its own choice of kernels": {},
    "packed matrices": {"CT2_USE_EXPERIMENTAL_PACKED_GEMM": "1"},
    "MKL": {"CT2_USE_MKL": "1"},
}
OUR_THREAD_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
"""Variables that `tasks/__init__.py` sets for this project's threads; a baseline runs without them."""


def ctranslate2_version() -> str | None:
    """Return the installed version; None where it is not installed."""
    try:
        return importlib.metadata.version("ctranslate2")
    except importlib.metadata.PackageNotFoundError:
        return None


def convert(model: PreTrainedModel, folder: Path) -> None:
    """Convert a T5 of `transformers` to float32 files. Tokens are named by their numbers, so no tokenizer is needed."""
    from ctranslate2.converters.transformers import T5Loader

    spec = T5Loader().get_model_spec(model)
    names = [str(token) for token in range(model.config.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    start, end = str(model.config.decoder_start_token_id), str(model.generation_config.eos_token_id)
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token = end
    # CTranslate2 requires an unknown token; no text here contains one.
    spec.config.unk_token = next(name for name in names if name not in (start, end))
    spec.validate()
    spec.optimize(quantization="float32")
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def compute_types() -> frozenset[str]:
    """Return the number formats that CTranslate2 decodes in on this processor; none where it is not installed."""
    if ctranslate2_version() is None:
        return frozenset()
    import ctranslate2

    return frozenset(ctranslate2.get_supported_compute_types("cpu"))


class Converted(NamedTuple):
    """A converted model that does one translation at a time."""

    folder: Path
    threads: int
    number_format: str = "float32"
    """One of `compute_types`."""


@functools.cache
def _opened(model: Converted) -> Any:
    import ctranslate2

    options = {"compute_type": model.number_format, "inter_threads": 1, "intra_threads": model.threads}
    return ctranslate2.Translator(str(model.folder), device="cpu", **options)


def translate(
    model: Converted, sources: Rows, limit: int, *, batched: bool = False, sampled: bool = False
) -> tuple[float, Rows]:
    """Translate the sources in this process, where the model stays open, one after the other or as one batch.

    Returns:
        Seconds, and the new tokens of each source without the end token.
    """
    translator = _opened(model)
    named = [[str(token) for token in source] for source in sources]
    drawn = {"sampling_topk": 0, "sampling_temperature": 1.0} if sampled else {}  # of all tokens
    begun = time.perf_counter()
    results = []
    for batch in [named] if batched else [[one] for one in named]:
        results += translator.translate_batch(batch, beam_size=1, max_decoding_length=limit, max_input_length=0, **drawn)
    seconds = time.perf_counter() - begun
    return seconds, [[int(token) for token in result.hypotheses[0]] for result in results]


def _use_environment(variables: Mapping[str, str]) -> None:
    """Give this process its environment, before CTranslate2 is imported and reads it."""
    for name in OUR_THREAD_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)


@contextmanager
def all_environments() -> Iterator[dict[str, Executor]]:
    """Start a process for each of `ENVIRONMENTS`; none where CTranslate2 is not installed."""
    from tasks import supervisor

    with ExitStack() as stack:
        wanted = ENVIRONMENTS.items() if ctranslate2_version() else ()
        yield {name: stack.enter_context(supervisor.workers(1, _use_environment, variables)) for name, variables in wanted}
