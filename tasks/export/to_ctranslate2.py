"""Exports a pair for CTranslate2, which has no speculative decoding: each model by itself, with the real vocabulary."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from tasks.decoding.pair_folder import DRAFTER, LARGE
from tasks.errors import InputError
from tasks.export.readme import encoding, example, readme
from tasks.export.source import ExportSource, left_behind
from tasks.export.to_transformers import TOKENIZER, copy_tokenizer

_NO_DRAFTS = "drafting, which CTranslate2 does not have: each model decodes alone"


def write(source: ExportSource, out: Path) -> list[str]:
    """Write the folder `out`, which exists and is empty, and return what was left behind.

    Raises:
        InputError: CTranslate2 is not installed, or does not convert these models.
    """
    if importlib.util.find_spec("ctranslate2") is None:
        raise InputError("this needs CTranslate2, which is not installed: pip install ctranslate2")
    for folder, name in ((source.large, LARGE), (source.drafter, DRAFTER)):
        _convert(folder, out / name)
    copy_tokenizer(source, out)
    lost = [_NO_DRAFTS, *left_behind(source)]
    (out / "README.md").write_text(readme(source, "CTranslate2", _how(), _code(source), lost), encoding="utf-8")
    return lost


def _convert(folder: Path, out: Path) -> None:
    """Convert one model by CTranslate2's own converter, in float32.

    Raises:
        InputError: the converter does not know the architecture, or the model has a shape that CTranslate2 cannot run.
    """
    from ctranslate2.converters import TransformersConverter

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads, width, size = (config.get(name) for name in ("num_attention_heads", "hidden_size", "head_dim"))
    if config.get("model_type") == "llama" and size is not None and heads * size != width:
        raise InputError(
            f"{folder} has {heads} heads of {size} in a width of {width}; CTranslate2 runs Llama models only where heads times "
            "their size is the width"
        )
    try:
        TransformersConverter(str(folder)).convert(str(out))
    except ValueError as error:
        raise InputError(f"CTranslate2 does not convert {folder}: {str(error).splitlines()[0]}") from None
    _name_start_token(out / "config.json")


def _name_start_token(file: Path) -> None:
    """Name a start token where the tokenizer has none: CTranslate2 opens no model without; no prompt of this pair uses it."""
    config = json.loads(file.read_text(encoding="utf-8"))
    if "bos_token" in config and config["bos_token"] is None:
        config["bos_token"] = config["eos_token"]
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _how() -> str:
    return (
        f"`{LARGE}/` and `{DRAFTER}/` are models in float32 with their vocabulary, `{TOKENIZER}/` is the tokenizer of\n"
        "`transformers`. CTranslate2 decodes with one model at a time: the large one below, or the drafter in its place.\n"
        "Give `compute_type` to run in another number format, such as `int8`."
    )


def _code(source: ExportSource) -> str:
    limit = source.manifest.text.max_target_tokens
    if source.encoder_decoder:
        kind, call = (
            "Translator",
            (
                f"[result] = model.translate_batch([tokens], beam_size=1, max_decoding_length={limit}, max_input_length=0)\n"
                "new = result.hypotheses[0]\n"
            ),
        )
    else:
        kind, call = (
            "Generator",
            (
                f"[result] = model.generate_batch(\n    [tokens], max_length={limit}, sampling_topk=1, "
                "include_prompt_in_result=False, end_token=tokenizer.eos_token\n)\n"
                "new = result.sequences[0]\n"
            ),
        )
    return (
        "import ctranslate2\nfrom transformers import AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{TOKENIZER}")\n'
        f'model = ctranslate2.{kind}("{LARGE}")\n\n'
        f"{example(source)}{encoding(source)}"
        f"tokens = tokenizer.convert_ids_to_tokens(ids)\n{call}"
        "print(tokenizer.decode(tokenizer.convert_tokens_to_ids(new), skip_special_tokens=True))\n"
    )
