"""Toy models of every architecture: a small and a large one that agree on many tokens, not on all."""

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import AUTO, REFERENCE, Runtime
from tasks.decoding.method import Pair
from tasks.decoding.runtimes.choose import open_decoders
from tests.toys import END, START, VOCABULARY, Predict, toy_t5

WIDTH, INNER, HEADS = 32, 40, 2
_POSITIONS = 64
_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": START, "eos_token_id": END, "bos_token_id": None}
_SIZES = {"ffn_dim": INNER, "attention_heads": HEADS}
_FOLDED = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _SIZES.items()}
"""BART and FSMT start their output with the end token; no token is forced."""
_FREE = {"decoder_start_token_id": END, "forced_bos_token_id": None, "forced_eos_token_id": None}


def _sizes(layers: int, vocabulary: int) -> dict[str, Any]:
    """The settings of Llama and of what is configured alike."""
    tokens = _TOKENS | {"vocab_size": vocabulary}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": 8}
    return tokens | heads | {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": layers}


def gpt2(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = _TOKENS | {"vocab_size": vocabulary}
    shape = {"n_embd": WIDTH, "n_inner": INNER, "n_head": HEADS, "n_layer": layers, "n_positions": _POSITIONS}
    return GPT2LMHeadModel(GPT2Config(**tokens | shape | {"tie_word_embeddings": False} | options))


def llama(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(layers, vocabulary) | options))


def qwen2(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_sizes(layers, vocabulary) | options))


def qwen3(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_sizes(layers, vocabulary) | options))


def gemma2(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    """Every other layer attends to four tokens only; the logits are capped."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    kind = {"sliding_window": 4, "tie_word_embeddings": False}
    return Gemma2ForCausalLM(Gemma2Config(**_sizes(layers, vocabulary) | kind | options))


def gemma3(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    """The last layer attends to all tokens; the others attend to four, by angles of their own."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention"] * (layers - 1) + ["full_attention"]
    kind = {"layer_types": kinds, "sliding_window": 4, "tie_word_embeddings": False}
    return Gemma3ForCausalLM(Gemma3TextConfig(**_sizes(layers, vocabulary) | kind | options))


def bloom(layers: int) -> Any:
    """It takes no position ids and derives them from the mask."""
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(**_TOKENS, hidden_size=WIDTH, n_layer=layers, n_head=HEADS, tie_word_embeddings=False)
    return BloomForCausalLM(config)


def bart(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    depth = {"encoder_layers": 1, "decoder_layers": layers, "max_position_embeddings": _POSITIONS, "d_model": WIDTH}
    tokens = _TOKENS | {"vocab_size": vocabulary, "bos_token_id": END, "tie_word_embeddings": False}
    return BartForConditionalGeneration(BartConfig(**tokens | _FOLDED | _FREE | depth | options))


def marian(layers: int, vocabulary: int = VOCABULARY, **options: Any) -> Any:
    from transformers import MarianConfig, MarianMTModel

    depth = {"encoder_layers": 1, "decoder_layers": layers, "max_position_embeddings": _POSITIONS, "d_model": WIDTH}
    kind = {"vocab_size": vocabulary, "activation_function": "swish", "scale_embedding": True, "tie_word_embeddings": False}
    return MarianMTModel(MarianConfig(**_TOKENS | _FOLDED | _FREE | depth | kind | {"decoder_start_token_id": START} | options))


def fsmt(layers: int) -> Any:
    from transformers import FSMTConfig, FSMTForConditionalGeneration

    tokens = {name: value for name, value in _TOKENS.items() if name != "vocab_size"}
    depth = {"encoder_layers": 1, "decoder_layers": layers, "max_position_embeddings": _POSITIONS}
    vocabularies = {"src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY}
    return FSMTForConditionalGeneration(FSMTConfig(**tokens, **vocabularies, **_FOLDED, **_FREE, **depth, d_model=WIDTH))


def mt5(layers: int, family: str = "mt5") -> Any:
    from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

    tokens = _TOKENS | {"decoder_start_token_id": START}
    shape = {"d_model": WIDTH, "d_ff": INNER, "d_kv": 8, "num_heads": HEADS, "num_layers": 1, "num_decoder_layers": layers}
    if family == "t5":
        return T5ForConditionalGeneration(T5Config(**tokens, **shape, tie_word_embeddings=False))
    return MT5ForConditionalGeneration(MT5Config(**tokens, **shape, tie_word_embeddings=False))


@dataclass(frozen=True)
class Family:
    """How toys of one architecture are initialised."""

    build: Callable[[int], Any]
    """Builds a model with this number of decoder layers."""
    weight_std: float
    """Standard deviation of the layers' weights: the larger, the less the small and the large model agree."""
    embedding_scale: float
    """Scale of the embeddings: the larger, the smaller the effect of the layers."""
    bias_std: float = 0.0
    """Standard deviation of biases and of the weights of norms."""


FAMILIES = {
    "mt5": Family(mt5, 0.1, 2.0),
    "bart": Family(bart, 0.13, 2.0),
    "fsmt": Family(fsmt, 0.13, 1.0),
    "gpt2": Family(gpt2, 0.1, 2.0),
    "llama": Family(llama, 0.1, 1.0),
    "gemma2": Family(gemma2, 0.4, 2.0),
    "bloom": Family(bloom, 0.14, 1.0),
}
CAUSAL = ("gpt2", "llama", "gemma2", "bloom")
NAMES = ("t5", *FAMILIES)

_LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
VARIANTS = {
    "t5 random norms": Family(functools.partial(mt5, family="t5"), 0.1, 2.0, 0.1),
    "gpt2 random norms": Family(gpt2, 0.1, 2.0, 0.1),
    "llama biased": Family(functools.partial(llama, attention_bias=True, mlp_bias=True, **_GROUPED), 0.1, 1.0, 0.1),
    "llama linear": Family(functools.partial(llama, rope_parameters=_LINEAR, **_GROUPED), 0.1, 1.0),
    "llama llama3": Family(functools.partial(llama, rope_parameters=_LLAMA3, **_GROUPED), 0.1, 1.0),
    "marian": Family(marian, 0.13, 2.0 * WIDTH**-0.5, 0.1),
    "gemma3": Family(gemma3, 0.4, 2.0, 0.1),
    "qwen2": Family(functools.partial(qwen2, **_GROUPED), 0.1, 1.0, 0.1),
    "qwen3": Family(functools.partial(qwen3, **_GROUPED), 0.1, 1.0, 0.1),
}
"""Variants of those architectures that fast runtimes support, and what resembles them."""
FAST = ("t5", "mt5", "bart", "gpt2", "llama", "gemma2", *VARIANTS)
"""Models that fast runtimes support."""


def slow_but(quick: Collection[str], names: Iterable[str]) -> list[Any]:
    """The names as parameters of a test, all but the quick ones marked as slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def over_runtimes(*names: str) -> pytest.MarkDecorator:
    """Parametrise `name` and `runtime`: each architecture in its default runtime, and in the reference if that is another."""
    cases = [(name, AUTO) for name in names] + [(name, REFERENCE) for name in names if name in FAST]
    ids = [name if runtime == AUTO else f"{name} by {runtime.name}" for name, runtime in cases]
    return pytest.mark.parametrize(("name", "runtime"), cases, ids=ids)


def realistic(family: Family, layers: int, seed: int = 0) -> Any:
    """A random model that behaves like a trained one, as `toys.toy_t5` does: each token has two likely successors."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(layers + seed)
        model = family.build(layers).eval()
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and VOCABULARY not in weight.shape and "positions" not in name:
                torch.nn.init.normal_(weight, std=family.weight_std)
            elif weight.dim() == 1 and family.bias_std:
                weight += family.bias_std * torch.randn(weight.shape)
        torch.manual_seed(1)
        embeddings = torch.nn.init.orthogonal_(torch.empty(VOCABULARY, WIDTH))
        head = torch.zeros(VOCABULARY, WIDTH)
        for share in (1.5, 1.2):
            order = 1 + torch.randperm(VOCABULARY - 1)
            head[order.roll(1)] += share * embeddings[order]
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.weight.shape == embeddings.shape:
                module.weight.copy_(family.embedding_scale * embeddings)
            elif isinstance(module, torch.nn.Linear) and module.weight.shape == head.shape:
                # A separate weight, even if the architecture ties it to the embedding.
                module.weight = torch.nn.Parameter(head.clone())
    return model


@functools.cache
def models(name: str) -> tuple[Any, Any]:
    """The small model of an architecture, with an acceptance head, and the large one, in evaluation mode."""
    if name == "t5":
        return toy_t5(1, 2, 1), toy_t5(2, 1, 3, "gated-gelu")
    family = (FAMILIES | VARIANTS)[name]
    return realistic(family, 1), realistic(family, 3)


@functools.cache
def pair_of(name: str, runtime: Runtime = AUTO) -> Pair:
    """The two models as decoders with a cache."""
    return open_decoders(*models(name), runtime=runtime)


def whole_rows(model: Any) -> Predict:
    """Predict the next token by a run over the whole prefix, without a cache.

    The first token of the prefix stands for the start token of an encoder-decoder and for the source of a decoder-only model.
    """

    @functools.cache
    def predict(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        with torch.inference_mode():
            if model.config.is_encoder_decoder:
                text = (model.config.decoder_start_token_id, *prefix[1:])
                run = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([text]), use_cache=False)
            else:
                run = model(input_ids=torch.tensor([source + prefix[1:]]), use_cache=False)
        logits: torch.Tensor = run.logits[0, -1]
        return logits

    return predict


@functools.cache
def predictions(name: str) -> tuple[Predict, Predict]:
    """Whole runs of the small and the large model; every test that asks for the same prefix shares one run."""
    small, large = models(name)
    return whole_rows(small), whole_rows(large)


def generated(model: Any, source: list[int], limit: int, **options: Any) -> list[int]:
    """Greedy `transformers.generate` on one source: the new tokens."""
    from transformers import DynamicCache, EncoderDecoderCache

    if model.config.is_encoder_decoder and "assistant_model" not in options:
        options["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
    ids = torch.tensor([source])
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": limit, "do_sample": False}
    row: list[int] = model.generate(input_ids=ids, **given, **{"num_beams": 1} | options)[0].tolist()
    return row[1:] if model.config.is_encoder_decoder else row[len(source) :]
