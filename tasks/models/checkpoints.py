"""Initialises, loads and saves models as `transformers` folders with safetensors, each with the record of its training."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from tasks.errors import InputError
from tasks.files import atomic_folder
from tasks.machine import require_memory
from tasks.models.extras import load_extras, own_weights, save_extras
from tasks.models.layers import model_from_layers
from tasks.models.pruned_head import load_draft_tokens, save_draft_tokens
from tasks.models.settings import RECORD, ModelSettings, TrainingRecord
from tasks.models.spread import places_of, room_here, say_what_it_costs
from tasks.models.tokenizers import load_from

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

LoadingInfo = Mapping[str, Collection[str]]
"""Names of weights by what happened to them, such as `missing_keys`."""
Dtype = torch.dtype | Literal["auto"]
"""Number format of loaded weights; auto: the checkpoint's own."""
_MOST_LAYERS = 1000
"""Of a model: a damaged configuration may ask for millions, which transformers would make one by one."""


def initial_model(
    settings: ModelSettings,
    vocabulary: int,
    pad: int,
    end: int,
    large: Path | None = None,
    dtype: Dtype = torch.float32,
    device: torch.device | None = None,
) -> PreTrainedModel:
    """Return the model that training starts from: `settings.pretrained`, layers of the large model, or random weights.

    Equal arguments give equal weights, so that an aligned and an unaligned drafter differ in their training text only.

    Args:
        settings: The settings of the model.
        vocabulary: Tokens of its tokenizer.
        pad: Id of the padding token, for a random start.
        end: Id of the end token, for a random start.
        large: The folder of the large model, for `from_large`.
        dtype: Number format of a `pretrained` start; others are float32.
        device: Where a `pretrained` start goes that is not trained, spread where it does not fit; None leaves it on the host.

    Raises:
        InputError: the checkpoint does not exist, its vocabulary is smaller than the tokenizer's, or it lacks a layer; or this
            machine lacks the memory for a random start.
    """
    if settings.from_large is not None:
        if large is None:
            raise InputError("from_large copies layers of the large model; set it for models.small alone")
        start = model_from_layers(load_model(large), settings.from_large)
        return _set_decoder_depth(_check_vocabulary(start, vocabulary, str(large)))
    if settings.pretrained is not None:
        start = load_model(settings.pretrained, device, dtype, spread=device is not None)
        return _set_decoder_depth(_check_vocabulary(start, vocabulary, settings.pretrained))
    tokens = {"vocab_size": vocabulary, "pad_token_id": pad, "eos_token_id": end}
    with torch.device("meta"):  # shapes without memory
        needed = 4 * sum(one.numel() for one in _random_model(settings, tokens).parameters())
    what = f"the weights of a model with d_model {settings.d_model} and decoder_layers {settings.decoder_layers}"
    require_memory(needed, what, "make it smaller")
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would also seed the GPUs, and `fork_rng` does not restore those here.
        torch.default_generator.manual_seed(settings.seed)
        return _set_decoder_depth(_random_model(settings, tokens))


_CONFIGURED = {
    "t5": {
        "d_model": "d_model",
        "d_ff": "d_ff",
        "d_kv": "d_kv",
        "num_heads": "heads",
        "num_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "dropout_rate": "dropout",
        "feed_forward_proj": "feed_forward",
    },
    "llama": {
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "head_dim": "d_kv",
        "num_attention_heads": "heads",
        "num_hidden_layers": "decoder_layers",
        "attention_dropout": "dropout",
    },
    "gpt2": {
        "n_embd": "d_model",
        "n_inner": "d_ff",
        "n_head": "heads",
        "n_layer": "decoder_layers",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), "dropout"),
    },
}
"""By architecture the settings, by their names in the configuration of `transformers`."""


def random_config(settings: ModelSettings, tokens: dict[str, int]) -> PreTrainedConfig:
    """Return the configuration of a model that starts from random weights; `tokens` has its vocabulary and special ids."""
    from transformers import AutoConfig

    kind = settings.architecture
    own: dict[str, Any] = {name: getattr(settings, known) for name, known in _CONFIGURED[kind].items()} | tokens
    if kind == "t5":
        return AutoConfig.for_model(kind, **own, decoder_start_token_id=tokens["pad_token_id"])
    return AutoConfig.for_model(kind, **own, bos_token_id=None, tie_word_embeddings=True)


def _random_model(settings: ModelSettings, tokens: dict[str, int]) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = random_config(settings, tokens)
    return (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)


def _set_decoder_depth(model: PreTrainedModel) -> PreTrainedModel:
    """Add `decoder_layers` to the configuration of a T5 whose decoder and encoder differ in depth.

    Without that name `generate` sizes its caches by the encoder's layers and fails at the next decoder layer.
    """
    depth = getattr(model.config, "num_decoder_layers", None)
    if depth is not None and depth != model.config.num_layers:
        model.config.decoder_layers = depth
    return model


def _check_vocabulary(model: PreTrainedModel, vocabulary: int, name: str) -> PreTrainedModel:
    if embedded_tokens(model) < vocabulary:
        fix = "set tokenizer.pretrained to the model's own tokenizer"
        raise InputError(f"the tokenizer has {vocabulary} tokens but the model {name} has {embedded_tokens(model)}; {fix}")
    return model


def load_model(
    source: str | Path, device: torch.device | None = None, dtype: Dtype = torch.float32, *, spread: bool = False
) -> PreTrainedModel:
    """Load a model from a local folder, a GGUF file or the hub, in evaluation mode, with its heads and its draft vocabulary.

    The configuration decides between encoder-decoder and decoder-only. Quantised weights of a GGUF file become `dtype`,
    or float32 where that is auto.

    Args:
        source: The folder, file or name.
        device: Where the model goes.
        dtype: Number format of its weights.
        spread: Whether a model that does not fit one GPU goes to all of them and the host; see `tasks.models.spread`.

    Raises:
        InputError: there is no loadable model, its weights are not all numbers, or some are missing, which transformers would
            initialise at random.
    """
    spread_from = device if spread else None
    model, info = load_from(_load_by_kind, source, "model", dtype=dtype, spread_from=spread_from)
    if info["missing_keys"]:
        said = f"the model at {source} lacks {len(info['missing_keys'])} weights, for example {min(info['missing_keys'])}"
        raise InputError(f"{said}; name one whose weights fit its configuration")
    load_extras(model, Path(source))
    load_draft_tokens(model, Path(source))
    # A sum is one pass without a copy: it is finite only where all its terms are. Layers that no card holds are not read here.
    weights = ((name, one.detach()) for name, one in model.named_parameters() if not one.is_meta)
    broken = [name for name, one in weights if not one.sum(dtype=torch.float32).isfinite()]
    if broken:
        said = f"the model at {source} has weights that are NaN or infinite, for example in {broken[0]}"
        raise InputError(f"{said}; train it again with a lower learning rate, or copy it anew")
    if places_of(model):
        say_what_it_costs(model, source)
        return model.eval()
    return model.to(device).eval()


def _load_by_kind(*, dtype: Dtype, spread_from: torch.device | None, **names: object) -> tuple[PreTrainedModel, LoadingInfo]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, GgufConfig, PretrainedConfig

    config = AutoConfig.from_pretrained(**names)
    names_of_depths = ("num_hidden_layers", "num_layers", "encoder_layers", "num_decoder_layers", "decoder_layers")
    depths = {name: getattr(config, name, None) for name in names_of_depths}
    if huge := [name for name, depth in depths.items() if isinstance(depth, int) and depth > _MOST_LAYERS]:
        raise ValueError(f"its configuration has {depths[huge[0]]} layers ({huge[0]}), more than {_MOST_LAYERS}")
    if empty := [name for name, depth in depths.items() if isinstance(depth, int) and depth < 1]:
        raise ValueError(f"its configuration has no layers ({empty[0]})")
    buckets, distance = (getattr(config, f"relative_attention_{name}", None) for name in ("num_buckets", "max_distance"))
    # T5 takes the logarithm of their ratio, and compiled code divides by it.
    if isinstance(buckets, int) and isinstance(distance, int) and not 4 <= buckets < 2 * distance:
        raise ValueError(f"its configuration has {buckets} buckets for distances up to {distance} (relative_attention)")
    if "/" in (asked := str(PretrainedConfig.get_config_dict(**names)[0].get("attn_implementation"))):
        raise ValueError(f"its configuration asks for code of the hub ({asked}), which is never run")
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    # Without this a GGUF model keeps its quantised blocks where a kernel can read them, and can be neither trained nor saved.
    plain = {"quantization_config": GgufConfig(dequantize=True)} if "gguf_file" in names else {}
    if plain and dtype == "auto":
        dtype = torch.float32
    placed: dict[str, Any] = {}
    if spread_from is not None and not plain:
        kept = (config.dtype or torch.float32) if dtype == "auto" else dtype
        room = room_here(config, kept, spread_from)
        placed = {} if room is None else {"device_map": "auto", "max_memory": room}
    logging.getLogger("transformers.modeling_utils").addFilter(_no_advice_on_heads)
    _show_bars(not names["local_files_only"] and sys.stderr.isatty())
    loaded: tuple[PreTrainedModel, LoadingInfo] = kind.from_pretrained(
        **names, dtype=dtype, use_safetensors=True, output_loading_info=True, **plain, **placed
    )
    return loaded


def _no_advice_on_heads(record: logging.LogRecord) -> bool:
    """Silence one warning: T5's configuration cannot say that a head is its own, which `transformers` then advises to set."""
    return "so we will NOT tie them" not in record.getMessage()


def _show_bars(wanted: bool) -> None:
    """Show the progress bars of `transformers` for a download on a terminal alone: for weights on disk they are of a second."""
    from transformers.utils import logging as notes

    (notes.enable_progress_bar if wanted else notes.disable_progress_bar)()


def embedded_tokens(model: PreTrainedModel) -> int:
    """Return the number of rows of the input embedding, including padding."""
    return int(model.get_input_embeddings().weight.shape[0])


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    record: TrainingRecord | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write weights (safetensors), configuration, tokenizer, draft heads, exit classifier and draft vocabulary.

    The folder appears whole or not at all; an older folder is removed when the new one is in its place.

    Args:
        model: A `transformers` model.
        tokenizer: Its tokenizer.
        folder: The folder to write.
        record: Of its training; None: none is written.
        texts: More files, by their names: the model card is `README.md`.
    """
    with atomic_folder(folder) as partial:
        _show_bars(False)
        model.save_pretrained(partial, state_dict=own_weights(model))
        save_extras(model, partial)
        save_draft_tokens(model, partial)
        tokenizer.save_pretrained(partial)
        for name, text in (texts or {}).items():
            (partial / name).write_text(text, encoding="utf-8")
        if record is not None:
            (partial / RECORD).write_text(json.dumps(dataclasses.asdict(record), indent=2) + "\n", encoding="utf-8")
        # safetensors makes the weights readable for their owner alone.
        for file in partial.glob("*.safetensors"):
            file.chmod((partial / "config.json").stat().st_mode)
