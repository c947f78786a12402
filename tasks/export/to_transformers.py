"""Exports a pair for assisted generation of `transformers`: two folders, the drafter's with the draft length in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tasks.decoding.pair_folder import DRAFTER, LARGE
from tasks.export.readme import encoding, example, readme
from tasks.export.source import ExportSource, left_behind
from tasks.models.extras import FILES as EXTRAS
from tasks.models.pruned_head import FILE as DRAFT_TOKENS
from tasks.verify.transformers_engine import draft_constantly

ONLY_HERE = shutil.ignore_patterns(*EXTRAS, DRAFT_TOKENS)
"""Files of a model's folder that only this project reads."""
TOKENIZER = "tokenizer"
_OF_THE_MODEL = shutil.ignore_patterns(
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "README.md"
)


def write(source: ExportSource, out: Path) -> list[str]:
    """Write the folder `out`, which exists and is empty, and return what was left behind."""
    from transformers import GenerationConfig

    shutil.copytree(source.large, out / LARGE, ignore=ONLY_HERE)
    shutil.copytree(source.drafter, out / DRAFTER, ignore=ONLY_HERE)
    settings = GenerationConfig.from_pretrained(source.drafter)
    draft_constantly(settings, source.draft_length)
    settings.save_pretrained(out / DRAFTER)
    lost = left_behind(source)
    (out / "README.md").write_text(readme(source, "transformers", _how(source), _code(source), lost), encoding="utf-8")
    return lost


def copy_tokenizer(source: ExportSource, out: Path) -> None:
    """Copy the tokenizer of a pair to the folder `tokenizer` in `out`, for an engine that reads models in a form of its own."""
    shutil.copytree(source.large, out / TOKENIZER, ignore=lambda at, names: ONLY_HERE(at, names) | _OF_THE_MODEL(at, names))


def _how(source: ExportSource) -> str:
    return (
        f"`{LARGE}/` and `{DRAFTER}/` are opened by `from_pretrained`. The drafter's `generation_config.json` makes assisted\n"
        f"generation draft {source.draft_length} tokens at a time; the output is the large model's own."
    )


def _code(source: ExportSource) -> str:
    kind, mask, skipped = "AutoModelForCausalLM", "", "len(ids)"
    limit = source.manifest.text.max_target_tokens
    if source.encoder_decoder:
        kind, skipped = "AutoModelForSeq2SeqLM", "1"
        mask = (
            "    # Without this mask transformers 5.23 lets the drafter read its text twice, and accepts less of it.\n"
            "    decoder_attention_mask=torch.ones(1, 1, dtype=torch.long),\n"
        )
    return (
        f"import torch\nfrom transformers import {kind}, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{LARGE}")\n'
        f'large = {kind}.from_pretrained("{LARGE}")\n'
        f'drafter = {kind}.from_pretrained("{DRAFTER}")\n\n'
        f"{example(source)}{encoding(source)}"
        "inputs = torch.tensor([ids])\n"
        "output = large.generate(\n    input_ids=inputs,\n    attention_mask=torch.ones_like(inputs),\n"
        f"{mask}    assistant_model=drafter,\n    max_new_tokens={limit},\n    do_sample=False,\n)\n"
        f"print(tokenizer.decode(output[0, {skipped}:], skip_special_tokens=True))\n"
    )
